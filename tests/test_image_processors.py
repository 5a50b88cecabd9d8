"""Image processors: chains against transformers' own output, configurations, registries, calls."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dataio
from dataio import image_processors, processor_chains
from dataio.engine.errors import MissingDependencyError

GOLDEN = dict(np.load(Path(__file__).parent / "golden" / "image_processors.npz"))
CASES = sorted({name.partition("/")[0] for name in GOLDEN} - {"image", "siglip2"})
IMAGES = [GOLDEN[f"image/{number}"] for number in range(3)]
HALF = [0.5, 0.5, 0.5]


def config(case: str) -> dict[str, Any]:
    return dict(json.loads(str(GOLDEN[f"{case}/config"])))


def run(chain: Any, image: np.ndarray) -> np.ndarray:
    value = image
    for transform in chain.transforms:
        value = dataio.ops.apply_transform(transform, value)
    return value


@pytest.fixture(autouse=True)
def _registries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_chains, "BUILDERS", dict(processor_chains.BUILDERS))
    monkeypatch.setattr(image_processors, "BUILDERS", processor_chains.BUILDERS)
    monkeypatch.setattr(image_processors, "NATIVE", dict(image_processors.NATIVE))


# ------------------------------------------------------------------------- against transformers


@pytest.mark.parametrize("case", CASES)
def test_pixels_are_within_one_level_of_transformers(case: str) -> None:
    pytest.importorskip("transformers")
    chain = dataio.from_processor({**config(case), "do_rescale": False, "do_normalize": False})
    step = 9 if case == "convnext_warp" else 1
    for number, image in enumerate(IMAGES[: 1 if case == "convnext_warp" else 3]):
        found, wanted = run(chain, image)[:, ::step, ::step], GOLDEN[f"{case}/{number}/pixels"]
        assert (found.dtype, found.shape) == (np.uint8, wanted.shape)
        assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1


@pytest.mark.parametrize("case", [case for case in CASES if case != "convnext_warp"])
def test_results_are_those_of_transformers(case: str) -> None:
    pytest.importorskip("transformers")
    processor = dataio.image_processor(config(case))
    hf = processor.processor
    level = (hf.rescale_factor if hf.do_rescale else 1.0) / (min(hf.image_std) if hf.do_normalize else 1.0)
    for number, image in enumerate(IMAGES):
        found, wanted = run(processor.as_chain(), image), GOLDEN[f"{case}/{number}/result"].astype(np.float32)
        assert (found.dtype, found.shape) == (np.float32, wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=1.01 * level)  # stored as float16


def test_siglip2_gives_the_patches_of_transformers() -> None:
    pytest.importorskip("transformers")
    preprocess = dataio.from_processor(config("siglip2"))
    found = preprocess(IMAGES, return_tensors="np")
    assert set(found) == {"pixel_values", "pixel_attention_mask", "spatial_shapes"}
    np.testing.assert_array_equal(found["spatial_shapes"], GOLDEN["siglip2/spatial_shapes"])
    np.testing.assert_array_equal(found["pixel_attention_mask"], GOLDEN["siglip2/pixel_attention_mask"])
    np.testing.assert_allclose(found["pixel_values"], GOLDEN["siglip2/pixel_values"], atol=1.01 * 2 / 255)


def test_a_chain_trains_in_a_pipeline() -> None:
    pytest.importorskip("transformers")
    from .conftest import encoded

    chain = dataio.from_processor(config("clip"))
    pipe = dataio.pipeline(dataio.slot("image").decode_image().apply(chain), dataio.batch(3))
    with pipe.bind([{"image": encoded(40 + n, 60)} for n in range(3)]).run("numpy") as loader:
        (batch,) = loader
    assert (batch["image"].shape, batch["image"].dtype) == ((3, 3, 28, 30), np.float32)


# ------------------------------------------------------------------------- configurations


@pytest.mark.parametrize("place", ["file", "folder", "path", "s3", "s3_folder", "nested"])
def test_a_configuration_is_read_from_anywhere(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("transformers")
    said: dict[str, Any] = {"image_processor": config("vit")} if place == "nested" else config("vit")
    root = request.getfixturevalue("s3_bucket") if place.startswith("s3") else str(tmp_path)
    dataio.write(f"{root}/preprocessor_config.json", json.dumps(said).encode())
    source: Any = root if "folder" in place else f"{root}/preprocessor_config.json"
    made = dataio.ImageProcessor.from_config(Path(source) if place == "path" else source)
    assert made.processor.size["height"] == 32
    assert made.as_chain() is made.as_chain()


@pytest.mark.parametrize("path", ["none/preprocessor_config.json", "./none", "/none/at/all", Path("none")])
def test_a_path_that_is_not_there_is_missing(path: Any) -> None:
    with pytest.raises(FileNotFoundError):
        dataio.image_processor(path)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({}, "image_processor_type"), ({"image_processor_type": 3}, "image_processor_type"), ({"image_processor_type": "NoSuchImageProcessor"}, "NoSuch"),
        ({"image_processor_type": "BertModel"}, "no image processor"),
    ],
)
def test_a_configuration_without_a_known_class_is_refused(said: dict[str, Any], message: str) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match=message):
        dataio.image_processor(said)


@pytest.mark.parametrize("text", ["{", "[1]", "\xff"])
def test_a_file_that_is_no_json_object_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"a\.json"):
        dataio.image_processor(tmp_path / "a.json")


@pytest.mark.parametrize("value", [3, None, [1]])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        dataio.image_processor(value)


def test_without_transformers_the_install_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"dataio-py\[processors\]"):
        dataio.image_processor({"image_processor_type": "ViTImageProcessor"})


# ------------------------------------------------------------------------- default_chain_builder


def settings(**given: Any) -> Any:
    return SimpleNamespace(**{"size": 8, "do_rescale": False, "do_normalize": False, **given})


@pytest.mark.parametrize(
    ("given", "ops"),
    [
        ({}, "resize(h=8, w=8, interp=bilinear)"),
        ({"default_to_square": False, "resample": 3}, "resize_short(size=8)"),
        ({"size": {"height": 8, "width": 9}, "resample": 1}, "resize(h=8, w=9, interp=lanczos)"),
        ({"size": SimpleNamespace(shortest_edge=8, longest_edge=None), "resample": 0}, "resize_short(size=8, interp=nearest)"),
        ({"do_resize": False, "do_center_crop": True, "crop_size": 5}, "center_crop(h=5, w=5)"),
    ],
)
def test_settings_become_ops(given: dict[str, Any], ops: str) -> None:
    made = [str(transform) for transform in dataio.default_chain_builder(settings(**given)).transforms]
    assert made == [ops, "permute(axes=(2, 0, 1))"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": {"shortest_edge": 8, "longest_edge": 9}}, "size="), ({"size": {"max_height": 8, "max_width": 9}}, "size="), ({"size": None}, "size="),
        ({"resample": 4}, "resample=4"), ({"do_center_crop": True}, "crop_size=None"), ({"do_center_crop": True, "crop_size": {"height": 3}}, "crop_size="),
        ({"do_pad": True}, "do_pad"), ({"do_rescale": True, "rescale_factor": [1, 2, 3]}, "rescale_factor"), ({"do_normalize": True, "image_mean": [0.5] * 4}, "image_mean"),
    ],
)
def test_settings_without_ops_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        dataio.default_chain_builder(settings(**given))


# ------------------------------------------------------------------------- registries and calls


class Processor:
    """Stands for a class of a user's own."""

    def __call__(self, images: Any, *, return_tensors: str, **options: Any) -> dict[str, Any]:
        import torch

        return {"pixel_values": torch.zeros(1), "tensors": return_tensors, **options}


class DerivedFast(Processor):
    pass


def test_a_builder_counts_for_derived_classes_and_can_be_replaced() -> None:
    dataio.register_chain_builder("ProcessorFast", lambda hf: dataio.chain().resize(h=1, w=1))
    dataio.register_chain_builder("Processor", lambda hf: dataio.chain().resize(h=2, w=2))
    assert [str(t) for t in dataio.from_processor(DerivedFast()).transforms] == [str(dataio.transforms.resize(h=2, w=2))]


def test_a_native_preprocess_is_what_a_class_without_chain_gets() -> None:
    def native(hf: Any, images: Any, *, return_tensors: str, device: Any) -> dict[str, Any]:
        return {"got": (type(hf).__name__, images, return_tensors, device)}

    dataio.register_native_preprocess("Processor", native)
    assert dataio.from_processor(DerivedFast())("images", return_tensors="np") == {"got": ("DerivedFast", "images", "np", None)}
    assert dataio.ImageProcessor(Processor())("images", native=True) == {"got": ("Processor", "images", "pt", None)}


def test_classes_that_nobody_knows_are_told() -> None:
    for use in (dataio.from_processor, lambda hf: dataio.ImageProcessor(hf).as_chain(), lambda hf: dataio.ImageProcessor(hf)([], native=True)):
        with pytest.raises(NotImplementedError, match=r"Processor.*register_"):
            use(Processor())


@pytest.mark.parametrize("register", [dataio.register_chain_builder, dataio.register_native_preprocess])
@pytest.mark.parametrize(("name", "function"), [("", len), (None, len), ("A", None)])
def test_registrations_are_checked(register: Any, name: Any, function: Any) -> None:
    with pytest.raises(TypeError):
        register(name, function)


def test_a_call_delegates_and_moves_what_comes_back() -> None:
    found = dataio.ImageProcessor(Processor())([], device="meta", extra=1)
    assert found["pixel_values"].device.type == "meta"
    assert (found["tensors"], found["extra"]) == ("pt", 1)


def test_a_processor_that_takes_a_device_gets_it() -> None:
    assert dataio.ImageProcessor(DerivedFast())([], device="meta")["device"] == "meta"


def test_a_real_processor_is_called() -> None:
    pytest.importorskip("transformers")
    found = dataio.image_processor(config("clip"))(Image.fromarray(IMAGES[0]), return_tensors="np")
    assert found["pixel_values"].shape == (1, 3, 28, 30)


@pytest.mark.parametrize("image", [Image.fromarray(IMAGES[0]), IMAGES[0], np.moveaxis(IMAGES[0], -1, 0), [IMAGES[0]]], ids=["pillow", "hwc", "chw", "list"])
def test_siglip2_takes_images_of_every_kind(image: Any) -> None:
    hf = SimpleNamespace(patch_size=8, max_num_patches=24, image_mean=HALF, image_std=HALF)
    found = image_processors.siglip2_preprocess(hf, image, return_tensors="np")
    np.testing.assert_array_equal(found["spatial_shapes"][0], GOLDEN["siglip2/spatial_shapes"][0])
    np.testing.assert_allclose(found["pixel_values"][0], GOLDEN["siglip2/pixel_values"][0], atol=1.01 * 2 / 255)


@pytest.mark.parametrize(
    "images", [[], np.zeros((4, 4, 3), np.float32), np.zeros((4, 4, 5), np.uint8), np.zeros((0, 4, 3), np.uint8)], ids=["none", "float", "channels", "empty"]
)
def test_siglip2_refuses_other_images(images: Any) -> None:
    with pytest.raises(ValueError, match="image"):
        image_processors.siglip2_preprocess(SimpleNamespace(), images, return_tensors="np")
