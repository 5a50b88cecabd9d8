"""Values that an op cannot take, through whole pipelines: such a record is in `batch.errors`, the others are delivered."""

from __future__ import annotations

import io
import json
import pickle
import re
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataio
from dataio import decoders, transforms

from .helpers import encode, noise
from .op_examples import checkpoint, npy, safetensors, wav

IMAGE = noise(12, 10)
TABLE = np.array([[0.1, 0.2, 0.5, 0.6], [0.3, 0.3, 0.9, 0.8]], np.float32)
LABELLED = np.concatenate([TABLE, [[1], [3]]], axis=1, dtype=np.float32)
SOUND = np.random.default_rng(0).uniform(-1, 1, (1, 600)).astype(np.float32)
PLANES = np.ones((3, 8, 8), np.float32)
CORNERS = [0.1, 0.1, 0.4, 0.4, 0.3, 0.3, 0.9, 0.9]
NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A pipeline, a record that is fine and one that is not; `says` is in the message of the error."""

    op: str
    good: bytes
    bad: Callable[[], bytes] | bytes
    says: str
    decoder: Any
    calls: tuple[Any, ...] = ()
    stage: str = "transform"
    type: str = "OpError"


def table(*rows: tuple[float, ...]) -> bytes:
    return npy(np.array(rows, np.float32))


def changed(array: np.ndarray, row: int, column: int, value: float) -> bytes:
    copy = array.copy()
    copy[row, column] = value
    return npy(copy)


def header(dtype: str, shape: str, body: bytes = b"", version: int = 1) -> bytes:
    """An .npy file with a header of these texts."""
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + body


def lying_safetensors(shape: list[int], offsets: list[int], body: bytes = bytes(16)) -> bytes:
    head = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
    return struct.pack("<Q", len(head)) + head + body


def wav_claiming(frames: int, body: bytes, rate: int = 8000, width: int = 2) -> bytes:
    size = frames * width
    fields = struct.pack("<HHIIHH", 1, 1, rate, rate * width, width, 8 * width)
    return b"RIFF" + struct.pack("<I", min(size + 36, 2**32 - 1)) + b"WAVEfmt " + struct.pack("<I", 16) + fields \
        + b"data" + struct.pack("<I", min(size, 2**32 - 1)) + body  # fmt: skip


def npz() -> bytes:
    out = io.BytesIO()
    np.savez(out, a=PLANES)
    return out.getvalue()


class Attack:
    """Unpickled, it makes the file `path`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def evil_checkpoint(path: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"x": Attack(path)}))
        archive.writestr("archive/version", "3")
    return out.getvalue()


def decoding(op: str, good: bytes, bad: Callable[[], bytes] | bytes, says: str, **named: Any) -> Bad:
    more = {key: named.pop(key) for key in ("type", "stage") if key in named}
    return Bad(op=op, good=good, bad=bad, says=says, decoder=getattr(decoders, op)(**named), **{"stage": "decode", **more})


def on_npy(op: str, good: np.ndarray, bad: Callable[[], bytes] | bytes, says: str, *positional: Any, **named: Any) -> Bad:
    """A transform right behind the decoder of .npy files."""
    call = getattr(transforms, op)(*positional, **named)
    return Bad(op=op, good=npy(good), bad=bad, says=says, decoder=decoders.npy(), calls=(call,))


OBJECT = b'{"a": "b"}'
DECODING = {
    "json nested 100,000 deep": decoding("json", OBJECT, b"[" * 100_000 + b"]" * 100_000, "deep|nest|recursion"),
    "json object nested 100,000 deep": decoding("json", OBJECT, b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "deep|nest|recursion", as_object=True),
    "json field nested 100,000 deep": decoding("json", OBJECT, b'{"a":' + b"[" * 100_000, "deep|nest|recursion|not", field="a"),
    "json in no UTF-8": decoding("json", OBJECT, b'{"a": "\xff\xfe"}', "utf-8"),
    "json with a byte order mark to keep": decoding("json", OBJECT, b"\xef\xbb\xbf{}", "not|expect|JSON", strip_bom=False),
    "two json documents": decoding("json", OBJECT, b"{} {}", "not|extra|one"),
    "json of nothing": decoding("json", OBJECT, b"", "not|empty|expect"),
    "json without the field": decoding("json", OBJECT, b'{"b": "a"}', "'a'", field="a"),
    "json whose field is no string": decoding("json", OBJECT, b'{"a": 7}', "string|str", field="a"),
    "json that is no object": decoding("json", OBJECT, b'["a"]', "document is list", field="a"),
    "json object without the field": decoding("json", OBJECT, b"{}", "'a'", field="a", as_object=True),
    "text in no UTF-8": decoding("text", b"abc", b"ab\xffc", "utf-8"),
    "text cut within a character": decoding("text", b"abc", "né".encode()[:-1], "utf-8"),
    "text object in no UTF-8": decoding("text", b"abc", b"\xc3\x28", "utf-8", as_object=True),
    "npy of objects": decoding("npy", npy(PLANES), lambda: npy(np.array([{}, None], object)), "object"),
    "npy of objects that are numbers": decoding("npy", npy(PLANES), header("'|O'", "(1,)", pickle.dumps(7)), "object"),
    "npy that claims 10**12 elements": decoding("npy", npy(PLANES), header("'<f4'", f"({10**12},)", bytes(64)), "truncated"),
    "npy that claims 10**40 elements": decoding("npy", npy(PLANES), header("'<f4'", f"({10**20}, {10**20})", bytes(64)), "truncated|header"),
    "npy of no elements, sizes beyond memory": decoding("npy", npy(PLANES), header("'<f4'", f"(0, {10**20})"), "header"),
    "npy of a negative size": decoding("npy", npy(PLANES), header("'<f4'", "(-4,)", bytes(64)), "header"),
    "npy of too many axes": decoding("npy", npy(PLANES), header("'<f4'", "(" + "1, " * 100 + ")", bytes(4)), "header"),
    "npy of complex numbers": decoding("npy", npy(PLANES), lambda: npy(np.ones(3, np.complex64)), "complex64"),
    "npy of texts": decoding("npy", npy(PLANES), lambda: npy(np.array(["a", "bc"])), "<U2|str"),
    "npy of dates": decoding("npy", npy(PLANES), lambda: npy(np.zeros(2, "datetime64[s]")), "datetime64"),
    "npy of records": decoding("npy", npy(PLANES), lambda: npy(np.zeros(2, [("a", "i4")])), "'a'"),
    "npy that is cut": decoding("npy", npy(PLANES), lambda: npy(PLANES)[:-1], "truncated"),
    "npy whose header is code": decoding("npy", npy(PLANES), header("__import__('os').getcwd()", "(1,)"), "header"),
    "npz": decoding("npy", npy(PLANES), npz, "not an .npy"),
    "safetensors of nothing": decoding("safetensors", safetensors(), b"", "0 bytes", tensor_key="x"),
    "safetensors whose header is longer than the file": decoding("safetensors", safetensors(), struct.pack("<Q", 2**40) + b"{}", "header", tensor_key="x", type="LimitError"),
    "safetensors whose header has 2**64 - 1 bytes": decoding("safetensors", safetensors(), b"\xff" * 8 + b"{}", "header", tensor_key="x", type="LimitError"),
    "safetensors whose data end elsewhere": decoding("safetensors", safetensors(), lying_safetensors([4], [0, 400]), "400 bytes", tensor_key="x"),
    "safetensors whose shape is larger than the data": decoding("safetensors", safetensors(), lying_safetensors([10**12], [0, 16]), "16 bytes", tensor_key="x"),
    "safetensors whose shape overflows": decoding("safetensors", safetensors(), lying_safetensors([2**33, 2**33], [0, 16]), "limits", tensor_key="x"),
    "safetensors whose data start behind their end": decoding("safetensors", safetensors(), lying_safetensors([0], [16, 8]), "-8 bytes", tensor_key="x"),
    "safetensors without the tensor": decoding("safetensors", safetensors(), lying_safetensors([4], [0, 16]), "'y'", tensor_key="y"),
    "checkpoint that is cut": decoding("pt", checkpoint(), lambda: checkpoint()[:-30], "truncated", tensor_key="x"),
    "checkpoint of an object that is no tensor": decoding("pt", checkpoint(), lambda: evil_checkpoint("/dev/null"), "found an object", tensor_key="x"),
    "checkpoint of the old format": decoding("pt", checkpoint(), pickle.dumps({"x": 1}, 2), "not a torch checkpoint", tensor_key="x"),
    "sound of no format": decoding("audio", wav(), bytes(200), "format|sound|audio"),
    "sound of nothing": decoding("audio", wav(), b"", "empty|no data|format|0 bytes"),
    "sound that ends in its header": decoding("audio", wav(), wav()[:30], "'data' chunk"),
    "sound of no channels": decoding("audio", wav(), wav().replace(struct.pack("<HH", 1, 2), struct.pack("<HH", 1, 0), 1), "Channel count"),
    "sound of 0 Hz": decoding("audio", wav(), wav().replace(struct.pack("<I", 8000), bytes(4), 1), "header says 0", sample_rate=4000),
}  # fmt: skip


def layouts_of(op: str, **named: Any) -> dict[str, Bad]:
    """What an op on uint8[h, w, c] refuses."""
    return {
        f"{op} of {what}": on_npy(op, IMAGE, npy(bad), says, **named)
        for what, bad, says in (
            ("floats", IMAGE.astype(np.float32), "float32"),
            ("planes", IMAGE.transpose(2, 0, 1).copy(), "CHW|takes"),
            ("a matrix", IMAGE[..., 0].copy(), "takes|wants"),
            ("two channels", np.zeros((12, 10, 2), np.uint8), "takes|ambiguous"),
            ("four axes", IMAGE[None], "takes|wants"),
        )
    }


TRANSFORMING = {
    **layouts_of("resize", h=4, w=5),
    **layouts_of("gaussian_blur", kernel_size=3),
    **layouts_of("color_jitter", brightness=0.5),
    **layouts_of("unit_chw"),
    **{
        f"{op} of {'x'.join(map(str, shape))} pixels": on_npy(op, IMAGE, npy(np.zeros((*shape, 3), np.uint8)), "pixel|empty", **named)
        for shape in ((0, 5), (5, 0), (0, 0))
        for op, named in (
            ("resize", {"h": 4, "w": 5}),
            ("resize_short", {"size": 4}),
            ("resize_long", {"size": 4}),
            ("fit_to_bucket", {"h": 4, "w": 5}),
            ("random_resized_crop", {"h": 4, "w": 5}),
            ("affine", {"angle_deg": 20.0}),
            ("random_affine", {"degrees": 20.0}),
            ("random_perspective", {"prob": 1.0}),
        )
    },
    "crop beyond the bottom": on_npy("crop", IMAGE, npy(noise(9, 10)), "leaves|outside", y=5, x=0, h=5, w=5),
    "crop beyond the right": on_npy("crop", IMAGE, npy(noise(12, 9)), "leaves|outside", y=0, x=5, h=5, w=5),
    "random_crop of a smaller image": on_npy("random_crop", IMAGE, npy(noise(7, 30)), "8x4.*7x30", h=8, w=4),
    "flip of no image": on_npy("hflip", IMAGE, npy(np.zeros((5, 5, 5), np.uint8)), "ambiguous|takes", prob=1.0),
    "flip of a matrix": on_npy("vflip", IMAGE, npy(np.zeros((5, 5), np.uint8)), "takes|wants", prob=1.0),
    "pad of no image": on_npy("pad", IMAGE, npy(np.zeros((5, 5, 5), np.uint8)), "ambiguous|takes", top=1),
    "affine of gray": on_npy("affine", IMAGE, npy(noise(5, 5, 1)), "channel|takes", angle_deg=5.0),
    "normalize of other channels": on_npy("normalize", PLANES, npy(np.ones((4, 8, 8), np.float32)), "4|channel", mean=[0.5] * 3, std=[0.5] * 3),
    "normalize of bytes": on_npy("normalize", PLANES, npy(np.ones((3, 8, 8), np.uint8)), "uint8", mean=[0.5] * 3, std=[0.5] * 3),
    "noise on bytes": on_npy("gaussian_noise", PLANES, npy(IMAGE), "float32", std=0.1),
    "cast of halves": on_npy("cast", PLANES, npy(PLANES.astype(np.float16)), "float16", dtype="uint8"),
    "permute of other axes": on_npy("permute", PLANES, npy(PLANES[0]), "axes", axes=[2, 0, 1]),
    "reshape of another count": on_npy("reshape", PLANES, npy(PLANES[:, :7]), "168", shape=[-1, 64]),
    "reshape of nothing": on_npy("reshape", PLANES, npy(PLANES[:0]), "0 elements", shape=[3, 64]),
    "flatten beyond the axes": on_npy("flatten", PLANES, npy(PLANES[0, 0]), "axes", start_axis=1),
    "squeeze of a longer axis": on_npy("squeeze", PLANES[:1], npy(PLANES), "size 1", axis=0),
    "squeeze beyond the axes": on_npy("squeeze", PLANES[..., :1], npy(PLANES[0]), "size 1", axis=2),
    "unsqueeze beyond the axes": on_npy("unsqueeze", PLANES, npy(PLANES[0]), "range", axis=3),
    "pad_axis beyond the axes": on_npy("pad_axis", PLANES, npy(PLANES[0]), "axis", axis=2, target=8),
    "patches that do not fit": on_npy("patchify", PLANES, npy(PLANES[:, :, :6]), "multiple", patch_size=4),
    "patches of a matrix": on_npy("patchify", PLANES, npy(PLANES[0]), "axes|takes", patch_size=4),
    **{
        f"{op} of {what}": on_npy(op, good, bad, says, *positional, **named)
        for op, good, positional, named in (
            ("bbox_hflip", TABLE, (), {"prob": 1.0}),
            ("bbox_vflip", TABLE, (), {"prob": 0.0}),
            ("bbox_pad", TABLE, (), {"src_h": 9, "src_w": 9, "top": 1}),
            ("bbox_crop", LABELLED, (), {"window": (0.1, 0.1, 0.8, 0.8)}),
            ("random_bbox_crop", LABELLED, (), {}),
            ("box_encoder", LABELLED, (CORNERS,), {}),
            ("nms", LABELLED, (), {}),
            ("soft_nms", LABELLED, (), {}),
        )
        for what, bad, says in (
            ("a NaN", changed(good, 1, 2, NAN), "finite.*row 1"),
            ("an infinity", changed(good, 0, 1, INF), "finite.*row 0"),
            ("float64", npy(good.astype(np.float64)), "float64"),
            ("three columns", npy(good[:, :3].copy()), "float32\\[n, [45]\\]"),
            ("another width", npy(LABELLED if good is TABLE else TABLE), "float32\\[n, [45]\\]"),
            ("one box without its table", npy(good[0]), "float32"),
        )
    },
    **{
        f"box_encoder of the label {label}": on_npy("box_encoder", LABELLED, changed(LABELLED, 1, 4, label), "label|finite", CORNERS)
        for label in (0.0, -1.0, 1.5, NAN, INF)
    },
    "box_encoder of a box without area": on_npy("box_encoder", LABELLED, table((0.5, 0.1, 0.5, 0.9, 1)), "x0 < x1", CORNERS),
    "spectrogram of integers": on_npy("spectrogram", SOUND, npy((SOUND * 9).astype(np.int16)), "int16", n_fft=64, hop_length=32),
    "spectrogram of no samples": on_npy("spectrogram", SOUND, npy(SOUND[:, :0]), "sample|empty", n_fft=64, hop_length=32),
    "spectrogram of three axes": on_npy("spectrogram", SOUND, npy(SOUND[None]), "takes|axes", n_fft=64, hop_length=32),
    "mfcc of no channels": on_npy("mfcc", SOUND, npy(SOUND[:0]), "channel|sample|empty|no ", sample_rate=8000, n_fft=64, hop_length=32),
}  # fmt: skip
CASES = DECODING | TRANSFORMING


def delivered(case: Bad, records: list[dict[str, bytes]]) -> Any:
    chain = dataio.slot("x").decode(case.decoder).apply(*case.calls)
    with dataio.pipeline(chain, dataio.batch(len(records))).bind(records).run("numpy", seed=4, on_failure="skip") as loader:
        (batch,) = loader
    return batch


@pytest.mark.parametrize("name", CASES)
def test_a_bad_value_costs_its_record_alone(name: str) -> None:
    case = CASES[name]
    good, bad = {"x": case.good}, {"x": case.bad if isinstance(case.bad, bytes) else case.bad()}
    batch = delivered(case, [good, good, bad, good])
    (error,) = batch.errors
    assert (error["index"], error["slot"], error["stage"], error["op"]) == (2, "x", case.stage, case.op)
    assert error["type"] == case.type
    assert re.search(case.says, error["message"], re.IGNORECASE), error["message"]
    assert batch.indices == [0, 1, 3]
    assert len(batch["x"]) == 3


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    records = [{"x": checkpoint()}, {"x": evil_checkpoint(str(mark))}]
    with dataio.pipeline(dataio.slot("x").decode(decoders.pt(tensor_key="x")), dataio.batch(2)).bind(records).run("numpy", on_failure="skip") as loader:
        (batch,) = loader
    assert len(batch.errors) == 1
    assert not mark.exists()
    pickle.loads(pickle.dumps(Attack(str(mark)))).close()
    assert mark.exists()  # it would have


UNUSUAL: dict[str, tuple[Bad, tuple[int, ...]]] = {
    "sound of no samples": (decoding("audio", wav(), wav(0), ""), (2, 0)),
    "sound that claims 2**31 samples": (decoding("audio", wav(), wav_claiming(2**31, bytes(100)), ""), (1, 50)),
    "sound of a stream": (decoding("audio", wav(), wav_claiming(2**32, bytes(100)), ""), (1, 50)),
    "no boxes to turn": (on_npy("bbox_hflip", TABLE, npy(TABLE[:0]), "", prob=1.0), (0, 4)),
    "no boxes to encode": (on_npy("box_encoder", LABELLED, npy(LABELLED[:0]), "", CORNERS), (2, 5)),
    "no boxes to cut": (on_npy("random_bbox_crop", LABELLED, npy(LABELLED[:0]), ""), (0, 5)),
    "no boxes to choose from": (on_npy("nms", LABELLED, npy(LABELLED[:0]), ""), (0, 5)),
    "fewer samples than a frame": (on_npy("spectrogram", SOUND, npy(SOUND[:, :9]), "", n_fft=64, hop_length=32), (33, 1)),
    "padding of nothing": (on_npy("pad_axis", PLANES, npy(PLANES[:, :0]), "", axis=1, target=8), (3, 8, 8)),
    "patches of nothing": (on_npy("patchify", PLANES, npy(PLANES[:, :0]), "", patch_size=4), (0, 48)),
    "colours of no pixels": (on_npy("color_jitter", IMAGE, npy(IMAGE[:0]), "", saturation=0.5, hue=0.5), (0, 10, 3)),
    "blur of no pixels": (on_npy("gaussian_blur", IMAGE, npy(IMAGE[:, :0]), ""), (12, 0, 3)),
    "cut out of no pixels": (on_npy("center_crop", IMAGE, npy(IMAGE[:0]), "", h=3, w=4), (3, 4, 3)),
    "one pixel": (on_npy("random_perspective", IMAGE, npy(IMAGE[:1, :1].copy()), "", prob=1.0), (1, 1, 3)),
    "numbers that are not finite": (on_npy("normalize", PLANES, npy(PLANES * np.float32(NAN)), "", mean=[0.0] * 3, std=[1.0] * 3), (3, 8, 8)),
    "empty file as bytes": (decoding("bytes", b"abc", b"", ""), (0,)),
    "empty file as text": (decoding("text", b"abc", b"", ""), (0,)),
    "broken text, mended": (decoding("text", b"abc", b"a\xff", "", encoding="utf-8-lossy"), (4,)),
    "npy with more behind its end": (decoding("npy", npy(PLANES), npy(PLANES) + b"more", ""), (3, 8, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_value_is_none_the_less_delivered(name: str) -> None:
    case, shape = UNUSUAL[name]
    assert isinstance(case.bad, bytes)
    batch = delivered(case, [{"x": case.good}, {"x": case.bad}, {"x": case.good}])
    assert batch.errors == []
    assert batch["x"][1].shape == shape


# ---------------------------------------------------------------- what the plan can prove is told before anything is read

DECODED = dataio.slot("x").decode_image(layout="hwc", normalize="none")
PROVEN: dict[str, tuple[Any, str]] = {
    "bytes for an op on floats": (DECODED.apply(transforms.gaussian_noise(std=0.1)), "gaussian_noise.*float32.*uint8"),
    "planes for an op on pixels": (dataio.slot("x").decode_image(layout="chw").apply(transforms.resize(h=4, w=4)), "resize.*HWC"),
    "gray for an op on colours": (DECODED.apply(transforms.grayscale(num_output_channels=1), transforms.color_jitter(hue=0.1)), "color_jitter.*3 channels"),
    "an image for an op on boxes": (DECODED.apply(transforms.bbox_hflip()), "bbox_hflip.*float32"),
    "a spectrum that was none": (dataio.slot("x").decode_npy().apply(transforms.cast(dtype="float32"), transforms.squeeze(), transforms.resize(h=4, w=4)), "resize.*uint8.*float32"),
    "axes that are not there": (DECODED.apply(transforms.permute(axes=[0, 1])), "permute"),
    "means of other channels": (dataio.slot("x").decode_image(layout="chw", normalize="unit").apply(transforms.normalize(mean=[0.5], std=[0.5])), "normalize"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROVEN)
def test_what_the_plan_can_prove_is_a_value_error_at_the_first_iteration(name: str) -> None:
    stage, says = PROVEN[name]

    def untouched() -> Any:
        raise AssertionError("a record was asked for")
        yield

    with (
        dataio.pipeline(stage, dataio.batch(2)).bind(untouched).run("numpy") as loader,
        pytest.raises(ValueError, match=says),
    ):
        next(iter(loader))


def test_the_tag_of_a_decoder_decides_where_the_shape_does_not() -> None:
    """3x3 pixels in three planes: rows and columns are the last two axes, whatever the shape could also mean."""
    pixels = noise(3, 3)
    chain = dataio.slot("x").decode_image(layout="chw", normalize="none").hflip(prob=1.0)
    with dataio.pipeline(chain, dataio.batch(1)).bind([{"x": encode(pixels, "PNG")}]).run("numpy") as loader:
        (batch,) = loader
    np.testing.assert_array_equal(batch["x"][0], pixels[:, ::-1].transpose(2, 0, 1))


@pytest.mark.parametrize(("shape", "axis"), [((3, 3, 3), 1), ((5, 7, 3), 1), ((3, 5, 7), 2), ((1, 5, 4), 1), ((4, 5, 6), 2)])
def test_without_a_tag_the_last_axis_is_looked_at_first(shape: tuple[int, ...], axis: int) -> None:
    value = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    chain = dataio.slot("x").decode_npy().hflip(prob=1.0)
    with dataio.pipeline(chain, dataio.batch(1)).bind([{"x": npy(value)}]).run("numpy") as loader:
        (batch,) = loader
    np.testing.assert_array_equal(batch["x"][0], np.flip(value, axis))


def test_attempts_that_would_fill_the_memory_are_refused() -> None:
    with pytest.raises(ValueError, match=r"max_attempts=.* must be <= 1000000"):
        transforms.random_bbox_crop(max_attempts=10**9)
