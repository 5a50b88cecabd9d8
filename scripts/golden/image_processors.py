"""Make the golden values of the image processors: tests/golden/image_processors.npz.

Run it in an environment of its own, without torchvision, so that the Pillow backends run:

    pip install transformers==5.24.0 pillow numpy
    python scripts/golden/image_processors.py

It only needs to run again when a case is added. Everything comes from transformers; the images are stored as well. Each case is stored
as its configuration (JSON), the pixels before rescaling and normalising (of the largest every ninth row and column), and the result.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from PIL import Image

TARGET = Path(__file__).resolve().parents[2] / "tests" / "golden" / "image_processors.npz"
SHAPES = [(61, 80), (90, 50), (24, 37)]
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
SQUARE = {"height": 32, "width": 32}

CASES: dict[str, dict[str, Any]] = {
    "clip": {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}, "crop_size": {"height": 28, "width": 30}},
    "clip_int": {"image_processor_type": "CLIPFeatureExtractor", "size": 32, "crop_size": 32},
    "clip_large_crop": {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 20}, "crop_size": {"height": 40, "width": 40}},
    "clip_no_crop_factor": {"image_processor_type": "CLIPImageProcessor", "do_center_crop": False, "size": SQUARE, "rescale_factor": 0.0078125},
    "siglip": {"image_processor_type": "SiglipImageProcessor", "size": SQUARE, **HALF},
    "siglip_fast_lanczos": {"image_processor_type": "SiglipImageProcessorFast", "size": {"height": 24, "width": 40}, "resample": 1},
    "vit": {"image_processor_type": "ViTImageProcessor", "size": SQUARE, **HALF},
    "vit_nearest": {"image_processor_type": "ViTImageProcessor", "size": SQUARE, "resample": 0},
    "convnext_crop": {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 32}, "crop_pct": 0.875, **IMAGENET},
    "convnext_warp": {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 384}},
    "deit": {"image_processor_type": "DeiTImageProcessor", "size": {"height": 36, "width": 36}, "crop_size": SQUARE},
    "beit": {"image_processor_type": "BeitImageProcessor", "size": SQUARE, "do_center_crop": True, "crop_size": {"height": 28, "width": 28}},
    "vit_rescale_only": {"image_processor_type": "ViTImageProcessor", "size": SQUARE, "do_normalize": False},
    "vit_normalize_only": {"image_processor_type": "ViTImageProcessor", "size": SQUARE, "do_rescale": False, "image_mean": [120.0] * 3, "image_std": [60.0] * 3},
}
SIGLIP2 = {"image_processor_type": "Siglip2ImageProcessor", "max_num_patches": 24, "patch_size": 8}


def picture(height: int, width: int, seed: int) -> np.ndarray:
    """Smooth shapes with a little noise."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    return np.clip(np.asarray(coarse).astype(int) + rng.integers(-9, 10, (height, width, 3)), 0, 255).astype(np.uint8)


def processor(config: dict[str, Any], **changed: Any) -> Any:
    name = config["image_processor_type"].replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast") + "Pil"
    return getattr(transformers, name).from_dict({**config, **changed})


def main() -> None:
    found: dict[str, np.ndarray] = {}
    images = [picture(*shape, seed) for seed, shape in enumerate(SHAPES)]
    found.update({f"image/{number}": image for number, image in enumerate(images)})
    for name, config in CASES.items():
        found[f"{name}/config"] = np.array(json.dumps(config))
        chosen = images[:1] if name == "convnext_warp" else images
        for number, image in enumerate(chosen):
            (pixels,) = processor(config, do_rescale=False, do_normalize=False)(image, return_tensors="np", input_data_format="channels_last")["pixel_values"]
            assert pixels.dtype == np.uint8, pixels.dtype
            found[f"{name}/{number}/pixels"] = pixels[:, ::9, ::9] if name == "convnext_warp" else pixels
            if name != "convnext_warp":
                (result,) = processor(config)(image, return_tensors="np", input_data_format="channels_last")["pixel_values"]
                found[f"{name}/{number}/result"] = result.astype(np.float16)
    found["siglip2/config"] = np.array(json.dumps(SIGLIP2))
    together = processor(SIGLIP2)(images, return_tensors="np", input_data_format="channels_last")
    found.update({f"siglip2/{name}": np.asarray(value) for name, value in together.items()})
    np.savez_compressed(TARGET, **found)
    print(f"{len(found)} arrays, {TARGET.stat().st_size:,} bytes, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
