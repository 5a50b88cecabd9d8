"""The benchmark's data: JPEG photos cut from the pictures that scikit-image and scikit-learn ship.

Deterministic for a given `VERSION` and codec build. Run it once in an environment that has scikit-image,
scikit-learn, Pillow and NumPy:

    python bench/data.py build/bench-data
"""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

VERSION = 1
SEED = 20_240_611
PHOTOS = 800
SMALL = 2_048
SHORT_SIDE = (400, 1_100)
QUALITY = (85, 92)
BUCKETS = [(h, w) for w in range(160, 417, 32) for h in [round(256 * 256 / w / 32) * 32]]


def sources() -> list[Image]:
    """The shipped photographs, RGB; none is downloaded."""
    import skimage.data
    from PIL import Image
    from sklearn.datasets import load_sample_images

    names = ["astronaut", "coffee", "chelsea", "rocket", "retina", "hubble_deep_field"]
    arrays = [getattr(skimage.data, name)() for name in names]
    arrays += list(skimage.data.stereo_motorcycle()[:2])
    arrays += load_sample_images().images
    return [Image.fromarray(array).convert("RGB") for array in arrays]


def photo(image: Image, h: int, w: int, zoom: tuple[float, float], rng: np.random.Generator) -> Image:
    """A random crop of `image` with the aspect h:w, scaled to h x w, with a little sensor noise.

    `zoom` is the range of the crop's share of the largest crop possible, by edge.

    The noise gives an enlarged crop the bits per pixel that a photo straight from a camera has.
    """
    import numpy as np
    from PIL import Image

    scale = min(image.height / h, image.width / w) * rng.uniform(*zoom)
    crop_h, crop_w = max(1.0, h * scale), max(1.0, w * scale)
    top, left = rng.uniform(0, image.height - crop_h), rng.uniform(0, image.width - crop_w)
    box = (left, top, left + crop_w, top + crop_h)
    pixels = np.asarray(image.resize((w, h), Image.Resampling.BICUBIC, box=box), dtype=np.float32)
    noise = rng.standard_normal((h, w, 1), dtype=np.float32) * np.float32(rng.uniform(0.2, 1.6))
    return Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))


def encode(image: Image, rng: np.random.Generator) -> bytes:
    """JPEG bytes; three files in four are 4:2:0, the fourth is 4:4:4."""
    out = io.BytesIO()
    quality = int(rng.integers(QUALITY[0], QUALITY[1] + 1))
    image.save(out, "JPEG", quality=quality, subsampling="4:4:4" if rng.random() < 0.25 else "4:2:0")
    return out.getvalue()


def nearest_bucket(h: int, w: int) -> tuple[int, int]:
    """The bucket whose aspect is closest to that of an h x w image."""
    return min(BUCKETS, key=lambda bucket: max(bucket[0] * w / bucket[1] / h, bucket[1] * h / bucket[0] / w))


def made_once(target: Path, wanted: dict[str, Any], fill: Callable[[], None]) -> Path:
    """`target`, filled by `fill` unless what it holds was made for the same `wanted`; one process at a time."""
    target.parent.mkdir(parents=True, exist_ok=True)
    stamp = target / "stamp.json"
    with open(target.with_name(f"{target.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (stamp.exists() and json.loads(stamp.read_text()) == wanted):
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            fill()
            stamp.write_text(json.dumps(wanted))
    return target


def make(target: Path) -> Path:
    """Write the data under `target` unless this version is already there; returns `target`."""
    wanted = {"version": VERSION, "seed": SEED, "photos": PHOTOS, "small": SMALL}
    return made_once(target, wanted, lambda: _fill(target))


def _fill(target: Path) -> None:
    import numpy as np

    (target / "photos").mkdir()
    (target / "small").mkdir()
    images = sources()
    rng = np.random.default_rng(SEED)
    records = []
    for index in range(PHOTOS):
        short = int(rng.integers(SHORT_SIDE[0], SHORT_SIDE[1] + 1))
        long = int(short * rng.uniform(1.0, 1.8))
        h, w = (short, long) if rng.random() < 0.6 else (long, short)
        name = f"photos/{index:05d}.jpg"
        (target / name).write_bytes(encode(photo(images[index % len(images)], h, w, (0.6, 1.0), rng), rng))
        bucket_h, bucket_w = nearest_bucket(h, w)
        records.append(
            {"path": name, "size": [h, w], "h": bucket_h, "w": bucket_w, "bucket": f"{bucket_h}x{bucket_w}"}
        )
    (target / "photos.json").write_text(json.dumps(records))
    for index in range(SMALL):
        data = encode(photo(images[index % len(images)], 256, 256, (0.2, 0.6), rng), rng)
        (target / "small" / f"{index:05d}.jpg").write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    make(parser.parse_args().target)


if __name__ == "__main__":
    main()
