"""The first example of the README on real photos, with the numbers that a user would look at.

The photos are those that ship inside scikit-image and scikit-learn: nothing is downloaded. A seeded generator cuts windows
of different sizes out of them and stores these as JPEG files, so that the demo reads a few hundred files like a data set's.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .contact_sheet import denormalise, write_contact_sheet
from .engine.errors import missing_dependency

if TYPE_CHECKING:
    from PIL.Image import Image

PHOTOS = {  # package: its folder of images, and the colour photos among them
    "skimage": (
        "data",
        (
            "astronaut.png",
            "chelsea.png",
            "coffee.png",
            "hubble_deep_field.jpg",
            "ihc.png",
            "motorcycle_left.png",
            "retina.jpg",
            "rocket.jpg",
        ),
    ),
    "sklearn": ("datasets/images", ("china.jpg", "flower.jpg")),
}
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH = 64


def bundled_photos() -> list[Path]:
    """The photos inside the installed packages, in a fixed order."""
    found: list[Path] = []
    for package, (folder, names) in PHOTOS.items():
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            continue
        paths = (Path(spec.submodule_search_locations[0]) / folder / name for name in names)
        found += [path for path in paths if path.is_file()]
    if not found:
        raise missing_dependency("scikit-image", "demo", "the demo")
    return found


def make_photos(folder: Path, count: int, seed: int = 0) -> list[Path]:
    """Write `count` JPEG files with short edges of 200 to 600 pixels; the same files for the same arguments.

    A folder that an earlier call with the same arguments finished is used as it is.
    """
    originals = bundled_photos()
    recipe = json.dumps({"count": count, "seed": seed, "from": [path.name for path in originals]})
    paths = [folder / f"{i:05d}.jpg" for i in range(count)]
    finished = folder / "recipe.json"
    if finished.is_file() and finished.read_text(encoding="utf-8") == recipe:
        return paths
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    images = [_open(path) for path in originals]
    rng = np.random.default_rng(seed)
    for i, path in enumerate(paths):
        _cut(images[i % len(images)], rng).save(path, quality=int(rng.integers(80, 96)))
    finished.write_text(recipe, encoding="utf-8")
    return paths


def _open(path: Path) -> Image:
    from PIL import Image

    with Image.open(path) as image:
        return image.convert("RGB")


def _cut(image: Image, rng: np.random.Generator) -> Image:
    """A random window of at least half of each edge, scaled to a random short edge, mirrored half of the time."""
    from PIL import Image

    width, height = (int(edge * rng.uniform(0.5, 1.0)) for edge in image.size)
    left, top = int(rng.integers(image.width - width + 1)), int(rng.integers(image.height - height + 1))
    scale = int(rng.integers(200, 601)) / min(width, height)
    size = (round(width * scale), round(height * scale))
    out = image.resize(size, Image.Resampling.BILINEAR, (left, top, left + width, top + height))
    return out.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else out


def demo(output: Path, *, photos: int = 384, epochs: int = 3) -> None:
    """Run the example; prints shapes, speed and where time goes, and writes a contact sheet of the first batch."""
    import dataio

    paths = make_photos(output / "photos", photos)
    size = sum(path.stat().st_size for path in paths)
    print(f"{len(paths)} photos, {size / 1e6:.1f} MB of JPEG, in {output / 'photos'}")
    records = [{"image": str(path)} for path in paths]

    pipe = dataio.pipeline(
        dataio.slot("image")
            .decode_image(mode="rgb")
            .resize_short(256)
            .center_crop(h=224, w=224)
            .normalize("imagenet"),
        dataio.batch(BATCH, prefetch=4),
    )

    sheet = output / "contact-sheet.png"
    with pipe.bind(records).run("torch", concurrency=64) as loader:
        for epoch in range(epochs):
            first: Any = None
            seen, started = 0, time.perf_counter()
            for number, batch in enumerate(loader):
                images = batch["image"]
                seen += len(batch)
                first = images if first is None else first
                if epoch == 0:
                    print(f"batch {number}: {tuple(images.shape)} {images.dtype}, {len(batch.errors)} errors")
            seconds = time.perf_counter() - started
            note = " (starting workers and loading libraries included)" if epoch == 0 else ""
            print(f"epoch {epoch}: {seen} images in {seconds:.2f} s, {seen / seconds:,.0f} images/s{note}")
            if epoch == 0 and first is not None:
                write_contact_sheet(sheet, list(denormalise(first.numpy(), IMAGENET_MEAN, IMAGENET_STD)))
        print(loader.report())
    print(f"the first batch as pictures: {sheet}")
