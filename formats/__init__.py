"""Media and file formats: each module declares the ops of one subject.

Importing an op module is light: image and tensor libraries are imported by the first call that needs them.
"""

from __future__ import annotations

import importlib
import sys

from ..engine.registry import register_process_setup

OP_MODULES = (
    "raw",
    "text",
    "array",
    "image.decode",
    "image.resize",
    "image.geometry",
    "image.normalize",
    "image.color",
    "image.filter",
    "image.warp",
    "image.erase",
    "image.policy",
    "image.fusions",
    "audio.decode",
    "audio.spectral",
    "weights.safetensors",
    "weights.safetensors_column",
    "weights.torch_zip",
    "boxes.geometry",
    "boxes.anchors",
    "boxes.suppression",
    "tensor",
    "measure",
    "batch",
    "control",
)
"""Modules of this package that declare ops, in the order in which they are imported."""


def load_ops() -> None:
    """Import every module that declares ops; the registry calls this on its first look-up."""
    for module in OP_MODULES:
        importlib.import_module(f"{__name__}.{module}")


@register_process_setup
def one_thread_per_library() -> None:
    """In a worker process the workers are the parallelism: OpenCV and torch keep to one thread each.

    OpenCV is imported for it: it takes no limit ahead. torch is there already if some op needs it.
    """
    import cv2

    cv2.setNumThreads(1)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
