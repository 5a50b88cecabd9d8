"""A Hugging Face preprocessor configuration as a chain of a pipeline; one that has no fixed shape as a function.

    python examples/image_processor.py

`default_chain_builder` needs no transformers; `image_processor` and `from_processor("openai/clip-vit-base-patch32")`, of a folder or a URI, do.
"""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from PIL import Image

import dataio


def picture(i: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(i).integers(0, 256, (60 + i, 80, 3), np.uint8)).save(out, "JPEG")
    return out.getvalue()


def main() -> None:
    clip = SimpleNamespace(  # what preprocessor_config.json of a CLIP model says
        size={"shortest_edge": 48}, resample=3, do_center_crop=True, crop_size={"height": 48, "width": 48},
        image_mean=[0.481, 0.458, 0.408], image_std=[0.269, 0.261, 0.276],
    )
    chain = dataio.default_chain_builder(clip)
    print("ops:", [transform.name for transform in chain.transforms])

    pipe = dataio.pipeline(dataio.slot("image").decode_image().apply(chain), dataio.batch(8))
    with pipe.bind([{"image": picture(i)} for i in range(16)]).run("numpy") as loader:
        for batch in loader:
            print("pixel_values:", batch["image"].shape, batch["image"].dtype)

    class Thumbnails:
        """An image processor of one's own."""

        size = 16

    dataio.register_chain_builder("Thumbnails", lambda own: dataio.chain().resize(h=own.size, w=own.size))
    small = dataio.from_processor(Thumbnails())
    print("own:", dataio.ops.apply_transform(small.transforms[0], np.zeros((60, 80, 3), np.uint8)).shape)

    with_transformers()


def with_transformers() -> None:
    """The processor itself, on finished images: from a folder as a model has it, a URI or an id of the hub."""
    with tempfile.TemporaryDirectory() as folder:
        config = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
        Path(folder, "preprocessor_config.json").write_text(json.dumps(config))
        processor = dataio.image_processor(folder)
    print("its own:", tuple(processor([Image.open(io.BytesIO(picture(0)))])["pixel_values"].shape))
    print("as a chain:", [transform.name for transform in processor.as_chain().transforms][:2])


if __name__ == "__main__":
    main()
