"""Make the golden values of the colour and filter ops: tests/golden/color.npz.

Run it in an environment of its own:

    pip install torch==2.9.1 torchvision==0.24.1 numpy
    python scripts/golden/color.py

It only needs to run again when a case is added. Everything comes from torchvision's functions of uint8 tensors; the image is
stored as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torchvision.transforms import functional as F

TARGET = Path(__file__).resolve().parents[2] / "tests" / "golden" / "color.npz"
HEIGHT, WIDTH = 40, 48

FACTORS = (0.0, 0.35, 1.0, 1.8)
SHIFTS = (-0.5, -0.2, 0.0, 0.05, 0.3)
BLURS = [(5, 1.0), (9, 0.4), (7, 3.0), (23, 2.0)]  # side, sigma

Change = Callable[[torch.Tensor], torch.Tensor]


def picture() -> np.ndarray:
    """uint8[40, 48, 3]: waves of all hues, noise, a gray strip and strips of a single colour."""
    rng = np.random.default_rng(3)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    waves = [np.sin(x / 5 + c) * np.cos(y / (4 + c)) for c in range(3)]
    image = np.clip(127 + 110 * np.stack(waves, axis=2) + rng.normal(0, 12, (HEIGHT, WIDTH, 3)), 0, 255)
    image[:4] = np.linspace(0, 255, WIDTH)[:, None]
    image[4:6], image[6:8], image[8:10] = 0, 255, (250, 3, 120)
    return image.astype(np.uint8)


def changes() -> dict[str, Change]:
    cases: dict[str, Change] = {
        "invert": F.invert,
        "equalize": F.equalize,
        "autocontrast": F.autocontrast,
        "grayscale": partial(F.rgb_to_grayscale, num_output_channels=3),
    }
    for threshold in (0, 100, 128, 255):
        cases[f"solarize_{threshold}"] = partial(F.solarize, threshold=threshold)
    for bits in (1, 4, 7):
        cases[f"posterize_{bits}"] = partial(F.posterize, bits=bits)
    for name in ("brightness", "contrast", "saturation", "sharpness"):
        for factor in FACTORS:
            cases[f"{name}_{factor}"] = partial(getattr(F, f"adjust_{name}"), **{f"{name}_factor": factor})
    for shift in SHIFTS:
        cases[f"hue_{shift}"] = partial(F.adjust_hue, hue_factor=shift)
    for side, sigma in BLURS:
        cases[f"blur_{side}_{sigma}"] = partial(F.gaussian_blur, kernel_size=[side, side], sigma=[sigma, sigma])
    return cases


def main() -> None:
    image = picture()
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    values = {name: change(tensor).permute(1, 2, 0).numpy() for name, change in changes().items()}
    TARGET.parent.mkdir(exist_ok=True)
    np.savez_compressed(TARGET, image=image, **values)
    print(f"{TARGET.name}: {len(values)} cases, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
