"""`Query.preview`, `Pipeline.preview`: what the first records look like."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import dataio
from dataio.engine.errors import PlanError
from dataio.look.cells import look_at
from dataio.look.pictures import fitted, heat_map, levels, sound, spectrum, waveform
from dataio.look.preview import Preview
from dataio.look.rows import GLANCE, LOOKED_THROUGH, table_rows
from dataio.look.text import human, number, one_line

from .conftest import encoded

pytestmark = pytest.mark.usefixtures("no_leftovers")


def wave(samples: np.ndarray, rate: int = 8000) -> bytes:
    """A mono WAV of int16."""
    data = samples.astype("<i2").tobytes()
    return b"RIFF" + struct.pack("<I4s4sIHHIIHH4sI", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", len(data)) + data


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def column(preview: Preview, name: str, table: int = 0) -> Any:
    return next(c for c in preview.tables[table].columns if c.name == name)


# ------------------------------------------------------------------- one value

CELLS = [  # value, hint, kind, type, whether there is a picture
    pytest.param(None, "", "null", "", False, id="null"),
    pytest.param(True, "", "number", "bool", False, id="bool"),
    pytest.param(7, "", "number", "int", False, id="int"),
    pytest.param(10**400, "", "number", "int", False, id="int-beyond-floats"),
    pytest.param(float("nan"), "", "number", "float", False, id="nan"),
    pytest.param("text", "", "text", "str", False, id="text"),
    pytest.param(b"", "", "bytes", "bytes", False, id="no-bytes"),
    pytest.param("żółw".encode(), "", "text", "bytes", False, id="utf-8"),
    pytest.param(b"\xff\x00" * 9, "", "bytes", "bytes", False, id="bytes"),
    pytest.param(encoded(30, 40), "", "image", "jpeg 40 x 30", True, id="jpeg"),
    pytest.param(memoryview(encoded(30, 40, format="PNG")), "", "image", "png 40 x 30", True, id="png-in-a-view"),
    pytest.param(encoded(30, 40)[:200], "", "failed", "", True, id="damaged-jpeg"),
    pytest.param(wave(np.arange(4000)), "", "sound", "0.50 s, 8 kHz, mono", True, id="wav"),
    pytest.param(b"fLaC and no more", "", "failed", "", True, id="damaged-flac"),
    pytest.param(npy(np.zeros((16, 16, 3), np.uint8)), "", "image", "uint8[16, 16, 3]", True, id="npy"),
    pytest.param(npy(np.zeros(4))[:-8], "", "failed", "", True, id="damaged-npy"),
    pytest.param({"bytes": encoded(9, 9), "path": None}, "", "image", "jpeg 9 x 9", True, id="struct-of-an-image"),
    pytest.param({"data": np.arange(4), "shape": [2, 2]}, "", "array", "int64[2, 2]", False, id="tensor-of-any-shape"),
    pytest.param({"data": np.arange(4), "shape": [9, 9]}, "", "object", "struct", False, id="a-shape-that-lies"),
    pytest.param({"a": 1, "b": [2]}, "", "object", "struct", False, id="struct"),
    pytest.param([1, 2.5, 3], "", "array", "list[3]", False, id="list-of-numbers"),
    pytest.param(["a", 1], "", "object", "list[2]", False, id="list"),
    pytest.param(np.zeros((3, 32, 32), np.float32), "", "image", "float32[3, 32, 32]", True, id="chw"),
    pytest.param(np.zeros((5, 32, 32, 3), np.uint8), "", "image", "uint8[5, 32, 32, 3]", True, id="clip"),
    pytest.param(np.zeros((20, 20), np.bool_), "", "image", "bool[20, 20]", True, id="mask"),
    pytest.param(np.zeros((20, 30), np.float32), "", "heat map", "float32[20, 30]", True, id="matrix"),
    pytest.param(np.zeros((2, 3), np.float32), "", "array", "float32[2, 3]", False, id="small-matrix"),
    pytest.param(np.zeros((7, 16, 16), np.float32), "", "array", "float32[7, 16, 16]", False, id="no-channels"),
    pytest.param(np.zeros((0, 3), np.float32), "", "array", "float32[0, 3]", False, id="no-elements"),
    pytest.param(np.float64(2.5), "", "number", "float64", False, id="scalar"),
    pytest.param(np.array(2.5, np.float32), "", "number", "float32", False, id="no-axes"),
    pytest.param(np.zeros(500), "", "signal", "float64[500]", True, id="long-vector"),
    pytest.param(np.zeros((1, 500), np.float32), "sound", "sound", "float32[1, 500]", True, id="decoded-sound"),
    pytest.param(np.zeros((80, 30), np.float32), "sound", "heat map", "float32[80, 30]", True, id="spectrogram"),
    pytest.param(np.array(["a", None], object), "", "array", "object[2]", False, id="objects"),
    pytest.param(np.array([1 + 2j]), "", "array", "complex128[1]", False, id="complex"),
    pytest.param(Image.new("RGBA", (12, 10)), "", "image", "uint8[10, 12, 4]", True, id="pillow"),
]


@pytest.mark.parametrize(("value", "hint", "kind", "type_", "pictured"), CELLS)
def test_look_at(value: Any, hint: Any, kind: str, type_: str, pictured: bool) -> None:
    cell = look_at(value, 64, hint)
    assert (cell.kind, cell.type) == (kind, type_)
    assert (cell.pixels is not None) is pictured
    if cell.pixels is not None:
        assert cell.pixels.dtype == np.uint8
        assert cell.pixels.shape[2] == 3
        assert max(cell.pixels.shape) <= 128


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    assert look_at(torch.zeros(3, 16, 16), 64).kind == "image"
    assert look_at(torch.ones(4, dtype=torch.bfloat16), 64).range.mean == 1


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_an_object_whose_repr_fails_is_shown() -> None:
    assert look_at(Rude()).text == "<Rude: repr failed: RuntimeError>"


def test_ranges_leave_out_what_is_not_finite() -> None:
    found = look_at(np.array([1.0, np.nan, np.inf, 3.0])).range
    assert (found.count, found.strange, found.low, found.high, found.mean) == (4, 2, 1, 3, 2)
    assert str(found) == "1 to 3, mean 2, 2 not finite"
    assert str(look_at(np.array([np.nan])).range) == "1 not finite"


def test_too_large_values_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataio.look.cells.LARGEST", 1000)
    assert "too large" in look_at(encoded(64, 64)).text
    assert look_at(wave(np.zeros(499))).kind == "failed"  # by what it would decode to


# ------------------------------------------------------------------- pictures


def test_levels() -> None:
    np.testing.assert_array_equal(levels(np.array([0.0, 0.5, 1.0])), [0, 128, 255])
    np.testing.assert_array_equal(levels(np.array([-1.0, 0.0, 1.0])), [0, 128, 255])
    np.testing.assert_array_equal(levels(np.array([False, True])), [0, 255])
    np.testing.assert_array_equal(levels(np.array([10, 20], np.uint16)), [0, 255])
    np.testing.assert_array_equal(levels(np.array([np.nan, 1.0])), [0, 255])
    np.testing.assert_array_equal(levels(np.full(3, 7.0)), [0, 0, 0])
    assert levels(np.array([-np.inf, np.inf, 0.0])).tolist()[1] == 255


def test_images_shrink_and_never_grow() -> None:
    assert fitted(np.zeros((300, 100, 3), np.uint8), 64).shape == (64, 21, 3)
    assert fitted(np.zeros((3, 5000), np.uint8), 64).shape == (1, 64, 3)
    assert fitted(np.zeros((10, 20), np.uint8), 64).shape == (10, 20, 3)
    assert (fitted(np.zeros((8, 8, 4), np.uint8), 64) == 255).all()  # see-through, on white


def test_a_heat_map_has_its_first_row_at_the_bottom() -> None:
    picture = heat_map(np.repeat(np.arange(10.0)[:, None], 10, 1), 10, 10)
    assert picture[0].sum() > picture[-1].sum()
    assert heat_map(np.full((9, 9), np.nan), 64, 64).shape == (63, 63, 3)


@pytest.mark.parametrize("samples", [0, 1, 5, 100, 5000])
def test_sounds_of_any_length(samples: int) -> None:
    values = np.sin(np.arange(samples, dtype=np.float32) / 5)
    assert sound(values[np.newaxis], 128, 64).shape == (64, 128, 3)
    assert waveform(values * 100, 128, 32).shape == (32, 128, 3)


def test_a_spectrogram_shows_the_pitch() -> None:
    rate = 8000
    t = np.arange(rate) / rate
    rows = [int(spectrum(np.sin(2 * np.pi * hertz * t).astype(np.float32), 64, 64)[:, 32].sum(axis=1).argmax()) for hertz in (500, 1500, 3000)]
    for row, hertz in zip(rows, (500, 1500, 3000)):
        assert abs(row - 64 * (1 - hertz / 4000)) <= 2


# ------------------------------------------------------------------- text


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (12345, "12,345"), (2.0, "2"), (9999.5, "9,999.5"), (0.00012345, "0.0001234"), (1e300, "1e+300"), (-0.5, "-0.5")])
def test_number(value: float, text: str) -> None:
    assert number(value) == text


def test_one_line_shows_what_cannot_be_printed() -> None:
    assert one_line("a\n b\x00\u202e\ud800") == "a b\\x00\\u202e\\ud800"
    assert human(1536) == "1.50 KiB"


# ------------------------------------------------------------------- queries

PICTURES = [encoded(20, 30, seed=i) for i in range(4)]


def frame() -> pl.DataFrame:
    return pl.DataFrame({"key": list("abcd"), "image": [*PICTURES[:3], None], "label": [3, 1, None, 2], "text": ["x", "y", None, "z"]})


def test_preview_of_a_query() -> None:
    found = dataio.scan(frame()).preview(3, size=16)
    assert found.records == 3
    assert found.tables[0].labels == ("0 · a", "1 · b", "2 · c")
    assert found.notes[0] == "the first 3 of 4 rows"
    image, label = column(found, "image").facts, column(found, "label").facts
    assert (image.values, image.nulls, image.type) == (3, 0, "jpeg 30 x 20")
    assert (label.values, label.nulls, label.low, label.high, label.mean) == (2, 1, 1, 3, 2)
    assert max(column(found, "image").cells[0].pixels.shape) == 16
    assert found.failures == ()


def test_preview_after_the_steps_of_the_query() -> None:
    found = dataio.scan(frame()).filter("label", ">", 1).select("label", "key").preview()
    assert [c.name for c in found.tables[0].columns] == ["label", "key"]
    assert [c.text for c in column(found, "label").cells] == ["3", "2"]


def test_preview_of_rows_that_cannot_be_decoded() -> None:
    found = dataio.scan([{"id": "good", "image": PICTURES[0]}, {"id": "bad", "image": PICTURES[1][:300]}, {"id": "other"}]).preview()
    assert column(found, "image").facts.failed == 1
    (failure,) = found.failures
    assert (failure["record"], failure["key"], failure["column"], failure["type"]) == (1, "bad", "image", "OpError")
    assert "record 1 (bad), column image: OpError: " in repr(found)


def test_preview_of_records_that_are_no_mappings() -> None:
    assert [c.text for c in column(dataio.scan([1, "b", (2, 3)]).preview(2), "record").cells] == ["1", "b"]


def test_preview_of_no_rows(tmp_path: Path) -> None:
    found = dataio.scan(frame().clear()).preview()
    assert found.records == 0
    found.save(tmp_path / "x.png")
    assert found._repr_png_()[1:4] == b"PNG"
    assert "0 rows" in found._repr_html_()


def test_preview_reads_the_files_that_a_column_names(tmp_path: Path) -> None:
    for i, data in enumerate(PICTURES):
        (tmp_path / f"{i}.jpg").write_bytes(data)
    (tmp_path / "2.jpg").unlink()
    found = dataio.scan([{"picture": str(tmp_path / f"{i}.jpg")} for i in range(4)]).preview()
    assert [c.kind for c in column(found, "picture").cells] == ["image", "image", "failed", "image"]
    assert found.tables[0].labels[0] == "0"
    assert "no such file" in found.failures[0]["message"]
    names_alone = dataio.scan([{"picture": "a.jpg"}, {"picture": "b.jpg"}]).preview()
    assert [c.kind for c in column(names_alone, "picture").cells] == ["text", "text"]


def test_preview_of_scan_files(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(PICTURES[0])
    (tmp_path / "b.wav").write_bytes(wave(np.arange(800)))
    (tmp_path / "c.txt").write_text("notes")
    found = dataio.scan_files(tmp_path).preview()
    assert sorted(c.kind for c in column(found, "path").cells) == ["image", "sound", "text"]


def test_tensors_of_columns_stay_arrays() -> None:
    tensor = pa.fixed_shape_tensor(pa.float32(), [3, 9, 9])
    storage = pa.array([np.arange(243, dtype=np.float32).tolist(), None], pa.list_(pa.float32(), 243))
    table = pa.table(
        {
            "tensor": pa.ExtensionArray.from_storage(tensor, storage),
            "ragged": pa.array([{"data": [1.5, 2.5], "shape": [2, 1]}, None], pa.struct([("data", pa.list_(pa.float32())), ("shape", pa.list_(pa.int32()))])),
            "list": pa.array([[1, 2], None], pa.list_(pa.int16())),
            "nested": pa.array([[[1, 2]], None], pa.list_(pa.list_(pa.int16()))),
            "fixed": pa.array([[[1, 2], [3, 4]], None], pa.list_(pa.list_(pa.int16(), 2), 2)),
        }
    )
    rows = table_rows(table)
    assert (rows[0]["tensor"].shape, rows[0]["tensor"].dtype) == ((3, 9, 9), np.float32)
    assert look_at(rows[0]["ragged"]).type == "float32[2, 1]"
    assert look_at(rows[0]["list"]).type == "int16[2]"
    assert rows[0]["nested"] == [[1, 2]]
    np.testing.assert_array_equal(rows[0]["fixed"], [[1, 2], [3, 4]])
    assert set(rows[1].values()) == {None}
    assert table_rows(table.slice(1))[0] == rows[1]


def test_decoded_columns_of_a_query() -> None:
    query = dataio.scan(frame().head(3)).with_slots(dataio.slot("image").decode_image(mode="rgb").resize(h=16, w=24))
    assert [c.type for c in column(query.preview(), "image").cells] == ["uint8[16, 24, 3]"] * 3
    assert query._repr_html_().count("<img ") == 3
    found = query.describe()["image"]
    assert (found.of, found.count) == ("elements", 3)
    assert 0 <= found.low < found.mean < found.high <= 255


@pytest.mark.parametrize(("arguments", "error"), [({"n": 0}, ValueError), ({"n": 1001}, ValueError), ({"n": 2.0}, TypeError), ({"size": 4}, ValueError), ({"size": 5000}, ValueError)])
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        dataio.scan(frame()).preview(**arguments)
    with pytest.raises(error):
        dataio.pipeline(dataio.slot("a").passthrough()).preview([{"a": 1}], **arguments)


def test_as_dict_is_plain() -> None:
    import json

    told = dataio.scan(frame()).preview(4).as_dict()
    assert json.loads(json.dumps(told)) == told
    assert told["tables"][0]["columns"][2] == {
        "name": "label", "values": 3, "nulls": 1, "failed": 0, "types": {"int": 3}, "min": 1.0, "max": 3.0, "mean": 2.0,
    }  # fmt: skip


# ------------------------------------------------------------------- a glance in a notebook


def counted(made: list[int]) -> Iterator[dict[str, Any]]:
    for i in range(10_000):
        made.append(i)
        yield {"n": i}


def test_a_query_in_a_notebook_reads_few_rows() -> None:
    made: list[int] = []
    shown = dataio.scan(lambda: counted(made))._repr_html_()
    assert "<td>4</td>" in shown
    assert len(made) <= 2 * GLANCE


def test_conditions_look_through_so_many_rows() -> None:
    seen: list[int] = []

    def never(row: Any) -> bool:
        seen.append(row["n"])
        return False

    shown = dataio.scan([{"n": i} for i in range(5000)]).filter(never)._repr_html_()
    assert len(seen) <= LOOKED_THROUGH
    assert f"in the first {LOOKED_THROUGH} of the source" in shown


def test_what_takes_all_rows_is_not_run_in_a_notebook(tmp_path: Path) -> None:
    query = dataio.scan(frame()).sort("label")
    assert "nothing was read" in query._repr_html_()
    pq.write_table(pa.table({"a": range(10)}), tmp_path / "a.parquet")
    conditional = dataio.scan_parquet(tmp_path / "a.parquet").filter(dataio.parquet.col("a") > 7)
    assert "nothing was read" in conditional._repr_html_()
    assert "<td>4</td>" in dataio.scan_parquet(tmp_path / "a.parquet")._repr_html_()


def test_an_error_in_a_notebook_is_shown() -> None:
    def bad(row: Any) -> bool:
        raise KeyError("<b>oops</b>")

    shown = dataio.scan([{"n": 1}]).filter(bad)._repr_html_()
    assert "oops" in shown
    assert "<b>" not in shown


# ------------------------------------------------------------------- pipelines


def photos() -> list[dict[str, Any]]:
    return [{"image": data, "label": i, "key": f"k{i}"} for i, data in enumerate(PICTURES)]


def chain() -> Any:
    return dataio.slot("image").decode_image(mode="rgb").resize(h=16, w=16).hflip(prob=0.5).normalize("imagenet")


def test_preview_of_a_pipeline_shows_each_stage() -> None:
    found = dataio.pipeline(chain(), dataio.slot("label").passthrough(), dataio.batch(2)).preview(photos(), 3)
    image, label = found.tables
    assert (image.name, label.name) == ("image", "label")
    assert image.labels == ("0 · k0", "1 · k1", "2 · k2")
    names = [c.name.partition("(")[0] for c in image.columns]
    assert names[0] == "source"
    assert names[1:4] == ["image", "resize", "hflip"]
    types = [c.facts.type for c in image.columns]
    assert types[1:4] == ["uint8[20, 30, 3]", "uint8[16, 16, 3]", "uint8[16, 16, 3]"]
    assert types[-1] == "float32[3, 16, 16]"
    assert image.columns[-1].facts.low < 0
    assert [c.text for c in label.columns[1].cells if c is not None] == ["0", "1", "2"]


def test_the_last_stage_is_what_a_run_gives() -> None:
    pipe = dataio.pipeline(chain(), dataio.batch(4))
    found = pipe.preview(photos(), 4, seed=5)
    (batch,) = pipe.bind(photos()).run("numpy", seed=5)
    for row, cell in zip(batch["image"], found.tables[0].columns[-1].cells):
        assert cell is not None
        np.testing.assert_allclose((cell.range.low, cell.range.high, cell.range.mean), (row.min(), row.max(), row.mean()), rtol=1e-3, atol=1e-3)
        np.testing.assert_array_equal(cell.pixels, look_at(row, hint="image").pixels)


def test_failures_after_every_stage() -> None:
    def picky(record: dict[str, Any]) -> dict[str, Any]:
        if record["label"] == 9:
            raise ValueError("label 9")
        return record

    records = [*photos(), {"image": PICTURES[0][:200], "label": 4}, {"image": None, "label": 5}, {"image": PICTURES[0], "label": 9}, {"label": 7}]
    pipe = dataio.pipeline(dataio.map(picky), dataio.slot("image").decode_image(mode="rgb").center_crop(h=20, w=30), dataio.slot("label").passthrough(), dataio.batch(4))
    found = pipe.preview(records, 8)
    told = {failure["record"]: (failure["stage"], failure["op"], failure["slot"]) for failure in found.failures}
    assert told[4][0::2] == ("decode", "image")
    assert told[5] == ("read", "read", "image")
    assert told[6][0] == "map"
    assert told[7][2] == "image"
    image = found.tables[0]
    assert [c.facts.failed for c in image.columns] == [3, 1, 0]
    assert image.columns[1].cells[4].kind == "failed"  # type: ignore[union-attr]
    assert image.columns[2].cells[4] is None
    assert column(found, "passthrough()", 1).cells[4].text == "4"  # another slot goes on
    assert "record 4, slot image" in repr(found)


def test_a_source_that_raises_keeps_what_came_before() -> None:
    def records() -> Iterator[dict[str, Any]]:
        yield from photos()[:2]
        raise OSError("disk gone")

    found = dataio.pipeline(chain(), dataio.batch(2)).preview(records, 8)
    assert found.records == 2
    assert (found.failures[0]["stage"], found.failures[0]["type"], found.failures[0]["message"]) == ("source", "OSError", "disk gone")


def test_preview_without_a_shape_stage_and_of_no_records() -> None:
    found = dataio.pipeline(chain()).preview([])
    assert (found.records, found.notes) == (0, ("there are no records",))
    assert dataio.pipeline(chain()).preview(photos(), 2).records == 2


def test_preview_of_batches_of_the_source() -> None:
    found = dataio.pipeline(chain(), dataio.collate()).preview([photos()[:3], photos()[3:]], 4)
    assert found.records == 4


def test_batch_transforms_come_last() -> None:
    pipe = dataio.pipeline(chain(), dataio.batch(2), dataio.map(dataio.batch_transforms.mixup(slot="image", alpha=0.4)))
    found = pipe.preview(photos(), 4)
    assert found.tables[0].columns[-1].name.startswith("batch: mixup(")
    assert [c.type for c in found.tables[0].columns[-1].cells if c is not None] == ["float32[3, 16, 16]"] * 4


def test_slots_that_are_off() -> None:
    pipe = dataio.pipeline(dataio.slot("image", optional=True).decode_image(mode="rgb"), dataio.slot("label").passthrough(), dataio.batch(1))
    found = pipe.preview([{"label": 1}, {"label": 2, "image": PICTURES[0]}])
    assert [c.kind for c in found.tables[0].columns[0].cells if c is not None] == ["off", "bytes"]


def test_preview_of_sounds_through_a_pipeline() -> None:
    pipe = dataio.pipeline(dataio.slot("sound").decode_audio(mono=True).spectrogram(n_fft=256, hop_length=128), dataio.batch(2))
    found = pipe.preview([{"sound": wave(np.arange(4000) % 500 * 50)}])
    assert [c.cells[0].kind for c in found.tables[0].columns] == ["bytes", "sound", "heat map"]  # type: ignore[union-attr]


def test_a_query_goes_through_a_pipeline() -> None:
    query = dataio.scan(frame()).filter("label", ">", 1)
    found = dataio.pipeline(dataio.slot("image").decode_image(mode="rgb"), dataio.batch(2)).preview(query)
    assert found.tables[0].labels == ("0 · a", "1 · d")
    assert [f["record"] for f in found.failures] == [1]  # the image is null


def test_unset_parameters_and_ops_that_do_not_fit() -> None:
    pipe = dataio.pipeline(dataio.slot("image").decode_image(mode="rgb").resize(h=dataio.param("side"), w=8), dataio.batch(1))
    with pytest.raises(PlanError, match="side"):
        pipe.preview(photos())
    assert pipe.configure(side=8).preview(photos(), 1).failures == ()
    with pytest.raises((TypeError, ValueError)):
        pipe.configure(side=8).preview(5)


# ------------------------------------------------------------------- files


@pytest.mark.parametrize("name", ["x.png", "x.webp", "x.html", "x.htm"])
def test_save(tmp_path: Path, name: str) -> None:
    found = dataio.scan(frame()).preview()
    found.save(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    if name.startswith("x.h"):
        assert data.startswith(b"<!DOCTYPE html>")
        assert data.count(b"<img ") == 3
    else:
        with Image.open(io.BytesIO(data)) as picture:
            assert picture.size[0] > 100


def test_save_to_a_store_and_wrong_formats(tmp_path: Path) -> None:
    found = dataio.scan(frame()).preview()
    found.save("memory://looks/x.html")
    assert dataio.read("memory://looks/x.html").startswith(b"<!DOCTYPE")
    found.save(tmp_path / "x", format="html")
    assert (tmp_path / "x").read_bytes().startswith(b"<!DOCTYPE")
    with pytest.raises(KeyError, match="zzz"):
        found.save(tmp_path / "x.zzz")
    assert not (tmp_path / "x.zzz").exists()
    with pytest.raises(TypeError):
        found.save(tmp_path / "x", format=5)  # type: ignore[arg-type]


def test_wide_and_long_things_stay_bounded() -> None:
    rows = [{f"column {i}": "x" * 5000 for i in range(300)} for _ in range(3)]
    found = dataio.scan(rows).preview()
    with Image.open(io.BytesIO(found._repr_png_())) as picture:
        assert picture.width < 3000
    assert len(found._repr_html_()) < 2_000_000
