"""Every op against dataio-rs 0.4.7, whose results `scripts/golden/peer.py` keeps in `tests/golden/peer.npz`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataio
from dataio.engine.registry import specs

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def unpacked() -> tuple[dict[str, bytes], dict[str, Any]]:
    """Inputs by name; and the index, whose cases have an `expected` array each."""
    with np.load(GOLDEN / "peer.npz") as file:
        index, values = json.loads(file["index"].tobytes()), file["values"].tobytes()
    offset, inputs = 0, {}
    for name, size in index["inputs"].items():
        inputs[name] = values[offset : offset + size]
        offset += size
    for case in index["cases"].values():
        expected = np.ndarray(case["shape"], case["dtype"], values, offset)
        case["expected"] = expected
        offset += expected.nbytes
    assert offset == len(values)
    return inputs, index


INPUTS, INDEX = unpacked()
CASES: dict[str, dict[str, Any]] = INDEX["cases"]


def made(value: Any, namespace: Any) -> Any:
    """What JSON says of a call, as the op itself."""
    if isinstance(value, dict) and set(value) == {"op", "positional", "named"}:
        return getattr(namespace, value["op"])(*made(value["positional"], namespace), **made(value["named"], namespace))
    if isinstance(value, list):
        return [made(v, namespace) for v in value]
    return {k: made(v, namespace) for k, v in value.items()} if isinstance(value, dict) else value


def result(case: dict[str, Any]) -> np.ndarray:
    chain = dataio.slot("x").decode(made(case["decoder"], dataio.decoders))
    for call in case["calls"]:
        chain = chain.apply(made(call, dataio.transforms))
    with dataio.pipeline(chain, dataio.batch(1)).bind([{"x": INPUTS[case["input"]]}]).run("numpy") as loader:
        (batch,) = loader
    return np.asarray(batch["x"][0])


RESIZED = (16, 0.5)
WARPED = (1, 0.06)
TOLERANCES: dict[str, tuple[float, float]] = {
    "resize-nearest": (0, 0),
    "resize-bilinear": (1, 0.3),
    "resize": RESIZED,  # two passes: what overshoots is clipped between them, and theirs takes the axes in the other order
    "resize_short": RESIZED,
    "resize_long": RESIZED,
    "fit_to_bucket": RESIZED,
    "random_resized_crop": RESIZED,
    "affine-nearest": (0, 0),
    "affine": WARPED,  # float32 against float64 at values that end in .5
    "random_affine": WARPED,
    "gaussian_blur": (1, 0.3),  # theirs truncates, ours rounds
    "sharpen": (1, 1),  # theirs: weights of the blur sum to a little less than 1: 250 becomes 249 on an even area
    "canny": (255, 12),  # few pixels near the border and where the smoothing, cut off at another radius, meets a threshold
    "normalize": (5e-7, 5e-7),
    "normalize_chw_from_hwc_u8": (5e-7, 5e-7),
    "bbox_pad": (2e-7, 2e-7),
    "box_encoder": (2e-6, 2e-6),
    "soft_nms": (1e-7, 1e-7),
    "spectrogram": (1e-6, 1e-6),
    "mel_filterbank": (2e-6, 2e-6),
    "mfcc": (1e-6, 1e-6),
    "audio": (1e-7, 1e-7),
}
"""The largest and the mean difference by op, or by op and first word of the note; all others are equal. Of uint8 in levels, of
floats as a part of the largest value."""

ON_PURPOSE = {
    "equalize-rgb19x24": "Pillow's and torchvision's rule, as AutoAugment was trained with; theirs is floor(255 * cdf / n)",
    "equalize-flat": "the same: a constant image stays as it is",
    "fit_to_bucket-tall-rgb19x24": "19 * (15 / 19) is 15; theirs rounds it up to 16 rows, of which 15 stay",
    "json-json": "the document's bytes stay as they are; theirs drops line feeds at the end",
    "json-bom-json": "the same",
    "audio-stretched-wav16": "positions are i * source / target; theirs stretches the sound to the rounded length",
}
"""Cases that differ, and what we do instead."""


def differences(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """float64[...]: in levels for integers, as parts of the largest value for floats; two NaN are equal."""
    same = (found == expected) | (np.isnan(found) & np.isnan(expected)) if expected.dtype.kind == "f" else found == expected
    with np.errstate(invalid="ignore"):
        distance = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    scale = np.abs(expected).max(initial=1e-30) if expected.dtype.kind == "f" else 1
    return np.where(same, 0, distance / scale)


def agrees(name: str, found: np.ndarray) -> bool:
    case = CASES[name]
    expected, kind = case["expected"], case["op"] + "-" + case["note"].split("-")[-1 if case["op"] == "affine" else 0]
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return False
    largest, mean = TOLERANCES.get(kind, TOLERANCES.get(case["op"], (0, 0)))
    distance = differences(found, expected)
    return bool(not distance.size or (distance.max() <= largest and distance.mean() <= mean))


@pytest.mark.parametrize("name", [name for name in CASES if name not in ON_PURPOSE])
def test_the_result_is_that_of_dataio_rs(name: str) -> None:
    found = result(CASES[name])
    assert agrees(name, found), (found, CASES[name]["expected"])


@pytest.mark.parametrize("name", ON_PURPOSE)
def test_a_difference_on_purpose_is_still_there(name: str) -> None:
    assert not agrees(name, result(CASES[name])), f"not true any more: {ON_PURPOSE[name]}"


# ---------------------------------------------------------------- arguments

# Out of range is a ValueError, also where the number does not fit a machine's integer, or is far too large.
TOO_LARGE = {("TypeError", "ValueError"), ("OK", "ValueError")}
# Lists stand for tuples. A sequence of another length is a ValueError, as is one without anything in it.
A_LIST = {("TypeError", "ValueError"), ("TypeError", "OK")}
EXCUSED: dict[str, set[tuple[str, str]]] = {
    "large": TOO_LARGE,
    "huge": TOO_LARGE | {("TypeError", "OK")},
    "empty": {("TypeError", "ValueError"), ("OK", "ValueError")},
    **dict.fromkeys(("single", "negatives", "eight", "truths", "twice", "nans", "texts"), A_LIST),
}
"""(theirs, ours) that are fine for a strange value, whatever the argument."""

EXCUSED_ARGUMENTS: dict[tuple[str, str, str], str] = {
    ("mel_filterbank", "f_max", "negative"): "a frequency is no less than 0",
    ("mel_filterbank", "f_max", "negative fraction"): "the same",
    ("mfcc", "f_max", "negative"): "the same",
    ("mfcc", "f_max", "negative fraction"): "the same",
    ("grayscale", "num_output_channels", "negative"): "1 or 3: any other number is a ValueError",
    ("permute", "axes", "negatives"): "the kind is right, the value is not",
    ("image", "allow_alpha", "none"): "None leaves it open",
}
"""(op, argument, strange value) to the reason for another outcome than theirs."""


def outcome(call: dict[str, Any], namespace: Any) -> str:
    try:
        made(call, namespace)
    except (TypeError, ValueError) as error:
        return "TypeError" if isinstance(error, TypeError) else "ValueError"
    return "OK"


def with_argument(call: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    if name in call["named"]:
        return {**call, "named": {**call["named"], name: value}}
    return {**call, "positional": [value if str(i) == name else old for i, old in enumerate(call["positional"])]}


@pytest.mark.parametrize("op", INDEX["refusals"])
def test_arguments_are_taken_or_refused_as_by_dataio_rs(op: str) -> None:
    of = INDEX["refusals"][op]
    namespace = getattr(dataio, of["namespace"])
    assert outcome(of["call"], namespace) == "OK"
    for argument, outcomes in of["outcomes"].items():
        for what, theirs in outcomes.items():
            ours = outcome(with_argument(of["call"], argument, INDEX["strange"][what]), namespace)
            if (op, argument, what) in EXCUSED_ARGUMENTS:
                assert ours != theirs, "no excuse needed any more"
            else:
                assert ours == theirs or (theirs, ours) in EXCUSED.get(what, ()), (argument, what, theirs, ours)


def test_every_excuse_is_of_an_argument() -> None:
    for op, argument, what in EXCUSED_ARGUMENTS:
        assert what in INDEX["refusals"][op]["outcomes"][argument]


# ---------------------------------------------------------------- every op is compared with something else

PARITY = {
    "test_audio_decode.py": "audio",
    "test_batch_ops.py": "batch_normalize batch_shuffle cutmix mixup pad_to_longest",
    "test_boxes.py": "bbox_crop bbox_hflip bbox_pad bbox_vflip box_encoder nms random_bbox_crop soft_nms",
    "test_color.py": "color_jitter equalize grayscale invert posterize solarize",
    "test_erase.py": "grid_mask random_erasing",
    "test_filter.py": "canny gaussian_blur median_blur sharpen",
    "test_image.py": "image",
    "test_normalize.py": "normalize_chw_from_hwc_u8 pack_chw_f32 symmetric_chw unit_chw",
    "../test_conditionals.py": "choice select some_of sometimes",
    "test_policy.py": "auto_augment rand_augment trivial_augment_wide",
    "test_raw_text_npy.py": "array bytes npy passthrough",
    "test_measure.py": "mean shape sharpness std",
    "test_spectral.py": "mel_filterbank mfcc spectrogram",
    "test_tensor.py": "gaussian_noise pad_axis patchify",
    "test_text_json.py": "json text",
    "test_transforms.py": "cast center_crop crop fit_to_bucket flatten hflip normalize pad permute random_crop "
    "random_resized_crop reshape resize resize_long resize_short squeeze unsqueeze vflip",
    "test_warp.py": "affine random_affine random_perspective",
    "test_weights.py": "pt safetensors",
}
"""Where each op is held to an independent reference: another library, NumPy, or the formula written down once more."""
OWN = {"custom": "is whatever its function is"}


def test_every_op_is_held_to_a_reference() -> None:
    listed = [op for ops in PARITY.values() for op in ops.split()]
    assert len(listed) == len(set(listed))
    built_in = {spec.name for spec in specs() if spec.function.__module__.startswith("dataio.formats.")}
    assert built_in - set(listed) - set(OWN) == set()
    assert (set(listed) | set(OWN)) - built_in == set()


@pytest.mark.parametrize("file", PARITY)
def test_the_file_is_about_the_op(file: str) -> None:
    text = (Path(__file__).parent / file).read_text()
    assert [op for op in PARITY[file].split() if not re.search(rf"\b{op}\b", text)] == []
