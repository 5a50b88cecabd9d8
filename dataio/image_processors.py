"""`image_processor`, `from_processor`: Hugging Face preprocessor configurations in a pipeline, or called as they are."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from .engine.errors import OpError, missing_dependency
from .formats.inputs import read_bytes
from .io.uri import local_path
from .processor_chains import BUILDERS, checked_name, found_for, without_backend
from .siglip2 import siglip2_preprocess
from .stages import SlotStage

Preprocess: TypeAlias = Callable[..., Mapping[str, Any]]

CONFIG = "preprocessor_config.json"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
NATIVE: dict[str, Preprocess] = {"Siglip2ImageProcessor": siglip2_preprocess}


class ImageProcessor:
    """An image processor of `transformers`: call it, or take its chain into a pipeline.

    Args:
        processor: an instance of one of its classes, or of one that has their settings and call.

    Raises:
        TypeError: `processor` is none.
    """

    def __init__(self, processor: Any) -> None:
        if processor is None or isinstance(processor, (str, bytes, os.PathLike, Mapping, type)):
            raise TypeError(f"ImageProcessor wraps an image processor of transformers, got {processor!r}; image_processor() makes one")
        self._processor = processor
        self._chain: SlotStage | None = None

    @classmethod
    def from_config(cls, spec: Any) -> ImageProcessor:
        """From a path, URI, folder or hub id; see `image_processor`."""
        return cls(_loaded(spec))

    @classmethod
    def from_dict(cls, cfg: Mapping[str, Any]) -> ImageProcessor:
        """From a configuration; see `image_processor`."""
        if not isinstance(cfg, Mapping):
            raise TypeError(f"from_dict takes a configuration as a dict, got {type(cfg).__name__}")
        return cls(_made(cfg, "the configuration"))

    @property
    def processor(self) -> Any:
        """What is wrapped."""
        return self._processor

    def as_chain(self) -> SlotStage:
        """The chain that computes the same from decoded images; built once. See `default_chain_builder`.

        Raises:
            NotImplementedError: no builder is registered for the class, or its settings have no chain.
        """
        if self._chain is None:
            builder = found_for(self._processor, BUILDERS)
            if builder is None:
                raise NotImplementedError(_unknown(self._processor, "chain builder", "register_chain_builder", BUILDERS))
            self._chain = builder(self._processor)
        return self._chain

    def __call__(self, images: Any, *, device: Any = None, return_tensors: Any = "pt", native: bool = False, **kwargs: Any) -> Any:
        """Preprocess images.

        Args:
            images: what the processor takes: images of Pillow, arrays or tensors, one or a list.
            device: where the tensors go, such as "cuda:0". Processors that compute on a device get it, else results are moved.
            return_tensors: "pt" or "np"; as the processor takes it.
            native: run the function that is registered for the class (`register_native_preprocess`) instead of the processor.
            kwargs: further options of the processor's call.

        Returns:
            What the processor gives: a mapping with `pixel_values` and others.

        Raises:
            NotImplementedError: `native` and there is no such function.
            what the processor raises.
        """
        if native:
            function = found_for(self._processor, NATIVE)
            if function is None:
                raise NotImplementedError(_unknown(self._processor, "native preprocess", "register_native_preprocess", NATIVE))
            return function(self._processor, images, return_tensors=return_tensors, device=device, **kwargs)
        if device is None:
            return self._processor(images, return_tensors=return_tensors, **kwargs)
        if _takes_device(self._processor):
            return self._processor(images, return_tensors=return_tensors, device=device, **kwargs)
        found = self._processor(images, return_tensors=return_tensors, **kwargs)
        if hasattr(found, "to"):
            return found.to(device)
        return {name: value.to(device) if hasattr(value, "to") else value for name, value in found.items()}

    def __repr__(self) -> str:
        return f"ImageProcessor({type(self._processor).__name__})"


def image_processor(config: Any) -> ImageProcessor:
    """The image processor that a configuration describes, made by `transformers` (`pip install 'dataio-py[processors]'`).

    Args:
        config: a dict with `image_processor_type` (or `feature_extractor_type`, as older files have it); a path or URI of such a JSON
            file, or of a folder with `preprocessor_config.json`; or an id of the Hugging Face hub, which `transformers` fetches or has
            in its cache.

    Raises:
        TypeError: `config` of another type.
        ValueError: no class is named, or one that `transformers` lacks; no JSON object; a str that is neither path nor id.
        FileNotFoundError: there is no such file.
        OSError: it cannot be read, or the hub has no such id.
        MissingDependencyError: (an ImportError) without `transformers`.
    """
    return ImageProcessor(_made(config, "the configuration") if isinstance(config, Mapping) else _loaded(config))


def from_processor(processor: Any) -> SlotStage | Callable[..., Any]:
    """What preprocesses like an image processor, without it.

    Args:
        processor: an instance of a class of `transformers`, an `ImageProcessor`, or what `image_processor` takes.

    Returns:
        A chain for a slot, where a builder is known for the class: `dataio.slot("image").decode_image().apply(chain)`. Else a function
        `(images, *, return_tensors="pt", device=None)`, where a native preprocess is known.

    Raises:
        NotImplementedError: neither is known, or the settings have no chain.
        others as `image_processor`.
    """
    if isinstance(processor, (str, os.PathLike, Mapping)):
        processor = image_processor(processor)
    wrapped = processor if isinstance(processor, ImageProcessor) else ImageProcessor(processor)
    hf = wrapped.processor
    if found_for(hf, BUILDERS) is not None:
        return wrapped.as_chain()
    if found_for(hf, NATIVE) is None:
        raise NotImplementedError(_unknown(hf, "chain builder or native preprocess", "register_chain_builder", [*BUILDERS, *NATIVE]))

    def preprocess(images: Any, *, return_tensors: Any = "pt", device: Any = None) -> Any:
        return wrapped(images, return_tensors=return_tensors, device=device, native=True)

    return preprocess


def register_native_preprocess(hf_class_name: str, fn: Preprocess) -> None:
    """Say how images are preprocessed natively for the processors of a class whose results have no fixed shape.

    Args:
        hf_class_name: as for `register_chain_builder`.
        fn: called as `fn(processor, images, return_tensors=..., device=...)`, gives a mapping.

    Raises:
        TypeError: an empty name or one that is no str, `fn` that cannot be called.
    """
    NATIVE[checked_name(hf_class_name, fn)] = fn


def _loaded(spec: Any) -> Any:
    """The processor of a file, folder or hub id."""
    if not isinstance(spec, (str, os.PathLike)):
        raise TypeError(f"an image processor is made from a dict, a path, a URI or a hub id, got {type(spec).__name__}")
    text = os.fsdecode(spec)
    path = local_path(text)
    if path is None:  # a URI
        return _made(_read(text if text.endswith(".json") else f"{text.rstrip('/')}/{CONFIG}"), text)
    name = os.fsdecode(path)
    if os.path.isdir(name):
        name = os.path.join(name, CONFIG)
    elif not os.path.exists(name) and isinstance(spec, str) and not name.endswith(".json") and _HUB_ID.fullmatch(text):
        return _transformers().AutoImageProcessor.from_pretrained(text)
    return _made(_read(name), name)


def _read(path: str) -> Mapping[str, Any]:
    try:
        found = json.loads(bytes(read_bytes(path)))
    except ValueError as error:
        raise OpError(f"{path} is no JSON file: {error}") from error
    if not isinstance(found, dict):
        raise OpError(f"{path} holds no JSON object, but a {type(found).__name__}")
    return found


def _made(config: Mapping[str, Any], name: str) -> Any:
    if "image_processor_type" not in config and isinstance(config.get("image_processor"), Mapping):
        config = config["image_processor"]  # of a processor of several modalities
    kind = config.get("image_processor_type") or config.get("feature_extractor_type")
    if not isinstance(kind, str) or not kind:
        raise OpError(f"{name} names no class: it has no image_processor_type")
    transformers = _transformers()
    kind = without_backend(kind.replace("FeatureExtractor", "ImageProcessor"))
    if not kind.endswith("ImageProcessor"):
        raise OpError(f"{name} names {kind!r}, which is no image processor")
    if importlib.util.find_spec("torchvision") is None and hasattr(transformers, f"{kind}Pil"):
        kind += "Pil"  # what transformers falls back to, with a warning
    made = getattr(transformers, kind, None)
    if made is None:
        raise OpError(f"{name} names {kind!r}, which transformers {transformers.__version__} does not have")
    return made.from_dict(dict(config))


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise missing_dependency("transformers", "processors", "image_processor") from error
    return transformers


def _takes_device(processor: Any) -> bool:
    """Whether its call computes on a device: backends of torchvision do, and calls that say so."""
    if getattr(processor, "backend", None) == "torchvision" or type(processor).__name__.endswith("Fast"):
        return True
    try:
        return "device" in inspect.signature(type(processor).__call__).parameters
    except (TypeError, ValueError):
        return False


def _unknown(hf: Any, what: str, register: str, known: Any) -> str:
    return f"no {what} is known for {type(hf).__name__}; they are for {', '.join(sorted(set(known)))}; add one by dataio.{register}"
