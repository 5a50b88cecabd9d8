"""Make the golden values of the warps and the augmentation policies: tests/golden/warp.npz and tests/golden/policy.npz.

Run it in an environment of its own:

    pip install torch==2.9.1 torchvision==0.24.1 numpy pillow
    python scripts/golden/policy.py

It only needs to run again when a case is added. Everything comes from torchvision; the input images are stored as well.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import AutoAugment, AutoAugmentPolicy
from torchvision.transforms import functional as F
from torchvision.transforms.autoaugment import _apply_op
from torchvision.transforms.functional import InterpolationMode

TARGET = Path(__file__).resolve().parents[2] / "tests" / "golden"
BILINEAR = InterpolationMode.BILINEAR

AFFINE_CASES = [  # angle, tx, ty, scale, shear
    (0.0, 0, 0, 1.0, 0.0),
    (30.0, 0, 0, 1.0, 0.0),
    (-17.5, 4, -3, 1.3, 0.0),
    (0.0, 0, 0, 0.6, 20.0),
    (75.0, -5, 2, 0.8, -12.0),
]
SHARES = (0.1, 0.5, 1.0)  # of the highest strength
FACTORS = {"Brightness": 0.9, "Contrast": 0.9, "Color": 0.9, "Sharpness": 0.9}


def picture(height: int, width: int) -> np.ndarray:
    """Random blocks with noise, not over the whole range, so that autocontrast has something to do."""
    rng = np.random.default_rng(7)
    blocks = rng.integers(30, 200, (height // 4, width // 4, 3)).repeat(4, axis=0).repeat(4, axis=1)
    return np.clip(blocks + rng.integers(-8, 9, blocks.shape), 0, 255).astype(np.uint8)


def as_tensor(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(image).permute(2, 0, 1)


def as_array(image: torch.Tensor) -> np.ndarray:
    return image.permute(1, 2, 0).contiguous().numpy()


def affine(image: np.ndarray, angle: float, tx: int, ty: int, scale: float, shear: float) -> np.ndarray:
    """About the centre; torchvision's x shear has the opposite sign."""
    found = F.affine(as_tensor(image), angle, [tx, ty], scale, [-shear, 0.0], interpolation=BILINEAR)
    return as_array(found)


def warps(image: np.ndarray) -> dict[str, np.ndarray]:
    values = {"image": image, "cases": np.array(AFFINE_CASES)}
    for i, case in enumerate(AFFINE_CASES):
        values[f"affine_{i}"] = affine(image, *case)
    return values


def geometry(image: np.ndarray) -> dict[str, np.ndarray]:
    """`_apply_op` on tensors at whole pixels; shears about the centre, where `_apply_op` has the corner."""
    height, width = image.shape[:2]
    tensor, values = as_tensor(image), {}
    for share in SHARES:
        for sign in (1, -1):
            # `_apply_op` turns counter-clockwise: the op of the same strength here is the one of the other sign.
            turned = _apply_op(tensor, "Rotate", -sign * 30.0 * share, BILINEAR, None)
            values[f"rotate:{sign * 30.0 * share}"] = as_array(turned)
            degrees = math.degrees(math.atan(sign * 0.3 * share))
            for name, shear in (("shear_x", [-degrees, 0.0]), ("shear_y", [0.0, -degrees])):
                sheared = F.affine(tensor, 0.0, [0, 0], 1.0, shear, interpolation=BILINEAR)
                values[f"{name}:{sign * 0.3 * share}"] = as_array(sheared)
    for pixels in (1, -3, 7):
        for name, op, edge in (("translate_x", "TranslateX", width), ("translate_y", "TranslateY", height)):
            values[f"{name}:{pixels / edge}"] = as_array(_apply_op(tensor, op, float(pixels), BILINEAR, None))
    return values


def colours(image: np.ndarray) -> dict[str, np.ndarray]:
    """`_apply_op` on Pillow images."""
    opened, values = Image.fromarray(image), {}

    def apply(name: str, op: str, strength: float) -> None:
        values[f"{name}:{strength}"] = np.asarray(_apply_op(opened, op, strength, BILINEAR, None))

    for op, highest in FACTORS.items():
        for share in SHARES:
            for sign in (1, -1):
                apply(op.lower(), op, sign * highest * share)
    for bits in (4, 6, 8):
        apply("posterize", "Posterize", bits)
    for threshold in (0.0, 113.3, 200.0):
        apply("solarize", "Solarize", threshold)
    for op in ("AutoContrast", "Equalize", "Invert", "Identity"):
        apply(op.lower(), op, 0.0)
    return values


def table() -> dict[str, np.ndarray]:
    """The sub-policies, [25, 2] each, and the strengths of their ops at the ten levels."""
    transform = AutoAugment(AutoAugmentPolicy.IMAGENET)
    pairs = transform.policies
    values = {
        "table_names": np.array([[op for op, _, _ in pair] for pair in pairs]),
        "table_probs": np.array([[prob for _, prob, _ in pair] for pair in pairs]),
        "table_levels": np.array([[-1 if level is None else level for _, _, level in pair] for pair in pairs]),
    }
    for op, (magnitudes, signed) in transform._augmentation_space(10, (100, 100)).items():
        if magnitudes.ndim and op in values["table_names"]:
            values[f"levels:{op}"] = magnitudes.numpy().astype(np.float64)
            values[f"signed:{op}"] = np.array(signed)
    return values


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    image = picture(20, 28)
    np.savez_compressed(TARGET / "warp.npz", **warps(image))
    np.savez_compressed(TARGET / "policy.npz", image=image, **geometry(image), **colours(image), **table())


if __name__ == "__main__":
    main()
