"""What a training loop may rely on: batches, options, outputs, memory, and how a loader ends."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch

import dataio
from dataio import cond
from dataio.engine.errors import BatchError, ClosedError, SourceError

from .conftest import encoded, npy

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")


def rows(count: int, shape: tuple[int, ...] = (3,), start: int = 0) -> list[dict[str, Any]]:
    """Record i holds an array full of i, and a label."""
    return [{"x": npy(np.full(shape, i, np.float32)), "label": f"l{i}"} for i in range(start, start + count)]


X = dataio.slot("x").decode_npy()
LABEL = dataio.slot("label").passthrough()
BAD = {"x": b"no array", "label": "bad"}


def load(records: Any, *stages: Any, output: Any = "numpy", **options: Any) -> dataio.DataLoader:
    options.setdefault("workers", "thread")
    return dataio.pipeline(*stages).bind(records).run(output, **options)


def values(batch: Any) -> list[float]:
    """The record numbers of a batch of `rows`."""
    return [float(row.flat[0]) for row in batch["x"]]


def epoch(loader: dataio.DataLoader) -> list[list[float]]:
    return [values(batch) for batch in loader]


# -------------------------------------------------------------------- batches


@pytest.mark.parametrize(
    ("count", "size", "drop_last", "lengths"),
    [
        (10, 4, False, [4, 4, 2]),
        (10, 4, True, [4, 4]),
        (8, 4, False, [4, 4]),
        (8, 4, True, [4, 4]),
        (3, 4, False, [3]),
        (3, 4, True, []),
        (0, 4, False, []),
        (5, 1, False, [1] * 5),
    ],
)
def test_batches_are_consecutive_and_len_counts_them(
    count: int, size: int, drop_last: bool, lengths: list[int]
) -> None:
    with load(rows(count), X, dataio.batch(size, drop_last=drop_last)) as loader:
        assert len(loader) == len(lengths)
        got = epoch(loader)
    assert [len(b) for b in got] == lengths
    assert sum(got, []) == list(range(sum(lengths)))  # noqa: RUF017


def test_every_pass_gives_the_records_again() -> None:
    with load(rows(5), X, dataio.batch(2)) as loader:
        assert epoch(loader) == epoch(loader) == [[0, 1], [2, 3], [4]]


def test_a_one_shot_source_is_empty_the_second_time() -> None:
    source = dataio.from_iterable(({"x": npy(np.zeros(1))} for _ in range(3)), slots=["x"])
    with load(source, X, dataio.batch(2)) as loader:
        assert [len(b) for b in loader] == [2, 1]
        assert list(loader) == []


@pytest.mark.parametrize("shape", [dataio.batch(2), dataio.group_by("label")], ids=["callable", "group_by"])
def test_len_of_what_is_not_known_is_a_type_error(shape: Any) -> None:
    records = rows(3) if isinstance(shape, dataio.GroupByStage) else lambda: iter(rows(3))
    with load(records, X, shape) as loader, pytest.raises(TypeError):
        len(loader)


def test_a_batch_knows_its_slots() -> None:
    with load(rows(3), X, LABEL, dataio.batch(3)) as loader:
        [batch] = loader
    assert len(batch) == 3
    assert batch.slot_names == ["x", "label"]
    assert batch[0] is batch["x"] is batch[-2]
    assert batch["label"] == batch[1] == ["l0", "l1", "l2"]
    assert len(list(batch)) == 2
    assert batch.tensors == (batch["x"],)
    assert batch.tensor is batch["x"]
    assert repr(batch) == "Batch(samples=3, slots=2, output='numpy', errors=0)"
    assert batch.context is None
    assert batch.errors == []
    with pytest.raises(KeyError, match="y"):
        batch["y"]
    for index in (2, -3):
        with pytest.raises(IndexError):
            batch[index]


def test_tensor_needs_exactly_one() -> None:
    two = dataio.slots(["x", "y"]).using(dataio.chain().decode_npy())
    with load([{"x": npy(np.zeros(2)), "y": npy(np.ones(2))}], two, dataio.batch(1)) as loader:
        [batch] = loader
        assert len(batch.tensors) == 2
        with pytest.raises(RuntimeError, match="2"):
            _ = batch.tensor


KEYS = [
    ({"x": b"1", "key": "k", "id": 7, "name": "n"}, "k"),
    ({"x": b"1", "id": 7, "name": "n"}, "7"),
    ({"x": b"1", "name": "n", "path": "/a/b.png"}, "n"),
    ({"x": b"1", "key": None}, "None"),
    ({"x": b"1", "path": "/a/b.tar.gz"}, "b.tar"),
    ({"x": b"1", "uri": "http://h/ok"}, "ok"),
    ({"x": b"1", "path": Path("/a/c.png")}, "c"),
    ({"x": b"1"}, "0"),
    ({"x": b"1", "__key__": "web"}, "0"),
    (b"1", "0"),
]


@pytest.mark.parametrize(("record", "key"), KEYS)
def test_keys(record: Any, key: str) -> None:
    with load([record], dataio.slot("x").decode_bytes(), dataio.batch(1)) as loader:
        assert [b.keys for b in loader] == [[key]]


@pytest.mark.parametrize("whole", [True, False], ids=["record-is-path", "slot-is-path"])
def test_the_stem_of_the_first_slot_is_the_key(whole: bool, tmp_path: Path) -> None:
    path = tmp_path / "some.file.bin"
    path.write_bytes(b"1")
    for source in (path, str(path)):
        with load([source if whole else {"x": source}], dataio.slot("x").decode_bytes(), dataio.batch(1)) as loader:
            assert [b.keys for b in loader] == [["some.file"]]


def test_running_keys_count_over_the_epoch_and_indices_within_a_batch() -> None:
    records = [*rows(2), BAD, *rows(3, start=3)]
    with load(records, X, dataio.batch(4)) as loader:
        for _ in range(2):
            assert [(b.keys, b.indices) for b in loader] == [(["0", "1", "3"], [0, 1, 3]), (["4", "5"], [0, 1])]


def test_original_sizes_are_those_before_any_transform() -> None:
    image = dataio.slot("image").decode_image().center_crop(h=4, w=5)
    records = [{"image": encoded(h, w), "n": 1} for h, w in [(10, 20), (12, 9), (30, 31)]]
    records[1]["image"] = b"damaged"
    with load(records, image, dataio.slot("n").passthrough(), dataio.batch(3)) as loader:
        [batch] = loader
    assert batch["image"].shape == (2, 4, 5, 3)
    assert batch.original_hws() == batch.original_hws(0) == [(10, 20), (30, 31)]
    assert batch.original_hws(1) == [None, None]
    with pytest.raises(IndexError):
        batch.original_hws(2)


# -------------------------------------------------------------------- ragged and object slots


def ragged_rows() -> list[dict[str, Any]]:
    return [{"x": npy(np.full(n, n, np.float32)), "label": n} for n in (1, 2, 3)]


def test_ragged_rows_come_as_a_list() -> None:
    with load(ragged_rows(), X, dataio.batch(3), output="torch") as loader:
        [batch] = loader
    assert [type(row) for row in batch["x"]] == [torch.Tensor] * 3
    assert [list(row.shape) for row in batch["x"]] == [[1], [2], [3]]
    assert batch.tensors == (batch["x"],)


@pytest.mark.parametrize("arrays", [(np.zeros(2, np.float32), np.zeros(2, np.int32)), (np.zeros(2), np.zeros((2, 1)))])
def test_another_dtype_or_rank_is_ragged_too(arrays: tuple[np.ndarray, ...]) -> None:
    with load([{"x": npy(a)} for a in arrays], X, dataio.batch(2)) as loader:
        [batch] = loader
    assert [(r.shape, r.dtype) for r in batch["x"]] == [(a.shape, a.dtype) for a in arrays]


def test_ragged_error_raises_when_the_slot_is_touched() -> None:
    with load(ragged_rows(), X, LABEL, dataio.batch(3), ragged="error") as loader:
        [batch] = loader
    assert batch["label"] == [1, 2, 3]
    with pytest.raises(RuntimeError, match="'x' is ragged"):
        batch["x"]
    with pytest.raises(RuntimeError, match="'x' is ragged"):
        _ = batch.tensors


def test_ragged_skip_leaves_the_slot_out_of_tensors() -> None:
    two = dataio.slot("y").decode_npy()
    records = [{**r, "y": npy(np.zeros(2))} for r in ragged_rows()]
    with load(records, X, two, dataio.batch(3), ragged="skip") as loader:
        [batch] = loader
    assert batch.tensors == (batch["y"],)
    with pytest.raises(RuntimeError, match="ragged"):
        batch["x"]


def test_rows_without_axes_make_one_axis() -> None:
    with load([{"x": npy(np.float32(i))} for i in range(3)], X, dataio.batch(3)) as loader:
        [batch] = loader
    np.testing.assert_array_equal(batch["x"], np.arange(3, dtype=np.float32))


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_object_slots_carry_any_value(workers: str) -> None:
    """A lock or a bytes value beside a decoded slot killed the worker process or its dispatcher."""
    things = [threading.Lock(), None, b"bytes", "text", {"a": [1]}, 3]
    records = [{**row, "label": thing} for row, thing in zip(rows(len(things)), things)]
    with load(records, X, LABEL, dataio.batch(3), workers=workers) as loader:
        for _ in range(2):
            got = [thing for batch in loader for thing in batch["label"]]
            assert got == things
            assert got[0] is things[0]


def test_text_as_object_gives_strings() -> None:
    text = dataio.slot("t").decode(dataio.decoders.text(as_object=True))
    with load([{"t": "é".encode()}, {"t": b"\xff"}], text, dataio.batch(2)) as loader:
        [batch] = loader
    assert batch["t"] == ["é"]
    assert batch.tensors == ()
    assert batch.errors[0]["op"] == "text"


# -------------------------------------------------------------------- optional slots

OPTIONAL = dataio.slot("mask", optional=True).decode_npy()


@pytest.mark.parametrize("off", [{}, {"mask": None}], ids=["missing", "none"])
def test_an_optional_slot_is_off_without_its_value(off: dict[str, Any]) -> None:
    on = {"mask": npy(np.zeros(2))}
    records = [{**row, **(on if i < 2 else off)} for i, row in enumerate(rows(4))]
    with load(records, X, OPTIONAL, dataio.batch(2)) as loader:
        assert [b.slot_names for b in loader] == [["x", "mask"], ["x"]]


@pytest.mark.parametrize(
    "slot",
    [OPTIONAL.active_when(cond.col("use").eq(True)), OPTIONAL.skip_when(cond.col("use").ne(True))],
    ids=["active", "skip"],
)
def test_a_condition_switches_a_slot_off_and_its_source_is_not_read(slot: Any) -> None:
    records = [{**row, "use": i >= 2, "mask": npy(np.zeros(2)) if i >= 2 else "/no/such"} for i, row in enumerate(rows(4))]
    with load(records, X, slot, dataio.batch(2), on_failure="strict") as loader:
        assert [b.slot_names for b in loader] == [["x"], ["x", "mask"]]


@pytest.mark.parametrize("policy", ["skip", "strict", 0])
def test_records_of_a_batch_must_agree_on_their_slots(policy: Any) -> None:
    records = [{**rows(1)[0], "mask": mask} for mask in (None, npy(np.zeros(2)))]
    with load(records, X, OPTIONAL, dataio.batch(2), on_failure=policy) as loader, pytest.raises(RuntimeError, match="optional_slot_mismatch"):
        list(loader)


def test_a_condition_on_a_slot_that_is_not_optional_is_an_error() -> None:
    slot = dataio.slot("mask").decode_npy().skip_when(cond.const(True))
    with load([{**rows(1)[0], "mask": None}], X, slot, dataio.batch(1)) as loader, pytest.raises(ValueError, match=r"'mask'.*optional=True"):
        list(loader)


def test_a_record_without_any_active_slot_is_an_error() -> None:
    with load([{"mask": None}], OPTIONAL, dataio.batch(1)) as loader, pytest.raises(ValueError, match="every slot"):
        list(loader)


# -------------------------------------------------------------------- group_by, collate, maps


@pytest.mark.parametrize(
    ("keys", "lengths"),
    [
        ([1, 1, 2, 2, 2, 1], [2, 3, 1]),
        ([1, 1.0, True, None, None], [3, 2]),
        ([[1], [1], [2]], [2, 1]),
        ([], []),
    ],
)
@pytest.mark.parametrize("by", ["g", lambda record: record["g"]], ids=["field", "callable"])
def test_group_by_cuts_at_every_change_of_the_key(by: Any, keys: list[Any], lengths: list[int]) -> None:
    records = [{**row, "g": g} for row, g in zip(rows(len(keys)), keys)]
    with load(records, X, dataio.group_by(by)) as loader:
        got = epoch(loader)
    assert [len(b) for b in got] == lengths
    assert sum(got, []) == list(range(len(keys)))  # noqa: RUF017


def test_group_by_position_on_mapped_records() -> None:
    stages = (dataio.map(lambda r: {"x": r[1], 0: r[0]}), X, dataio.group_by(0))
    with load([("a", r["x"]) for r in rows(2)] + [("b", rows(1)[0]["x"])], *stages) as loader:
        assert epoch(loader) == [[0, 1], [0]]


def test_group_by_a_field_that_a_record_lacks() -> None:
    with load(rows(1), X, dataio.group_by("nope")) as loader, pytest.raises(KeyError, match="nope"):
        list(loader)


def test_collate_keeps_the_batches_of_the_source() -> None:
    source = [rows(2), tuple(rows(1, start=2)), [], iter(rows(0))]
    with load(source, X, dataio.collate()) as loader:
        assert len(loader) == 4
        assert epoch(loader) == [[0, 1], [2]]


def test_collate_maps_the_inner_records() -> None:
    with load([[1, 2], [3]], dataio.map(lambda n: rows(1, start=n)[0]), X, dataio.collate()) as loader:
        assert epoch(loader) == [[1, 2], [3]]


def test_collate_refuses_bare_records() -> None:
    with load(rows(2), X, dataio.collate()) as loader, pytest.raises(TypeError, match="iterables of records"):
        list(loader)


def test_record_maps_run_in_order_wherever_they_stand() -> None:
    stages = (dataio.map(lambda n: n + 1), X, dataio.map(lambda n: rows(1, start=2 * n)[0]), dataio.batch(3))
    with load(range(3), *stages) as loader:
        assert epoch(loader) == [[2, 4, 6]]


def test_batch_maps_run_in_order_and_may_return_anything() -> None:
    stages = (X, dataio.batch(2), dataio.map(lambda b: b["x"].sum()), dataio.map(lambda s: None if s == 3 else s))
    with load(rows(4), *stages) as loader:
        assert list(loader) == [None, 15]
    with load(rows(2), X, dataio.batch(1), dataio.map(lambda b: None)) as loader:
        assert list(loader) == [None, None]


def test_a_batch_map_that_raises_ends_the_pass_with_its_own_error() -> None:
    def fail_at_second(batch: Any) -> list[float]:
        if values(batch) == [2, 3]:
            raise LookupError("second")
        return values(batch)

    with load(rows(6), X, dataio.batch(2), dataio.map(fail_at_second)) as loader:
        for _ in range(2):
            iterator = iter(loader)
            assert next(iterator) == [0, 1]
            with pytest.raises(LookupError, match="second"):
                next(iterator)
            with pytest.raises(StopIteration):
                next(iterator)


def test_context_is_aligned_with_the_survivors() -> None:
    records = [*rows(1), BAD, *rows(1, start=2)]
    with load(records, X, dataio.batch(3), context=lambda r: r["label"]) as loader:
        assert [b.context for b in loader] == [["l0", "l2"]]


# -------------------------------------------------------------------- failures


@pytest.mark.parametrize("policy", ["skip", 1, 2, 3])
def test_survivors_are_counted_against_the_policy(policy: Any) -> None:
    """Two of three records survive."""
    with load([*rows(2), BAD], X, dataio.batch(3), on_failure=policy) as loader:
        if policy == 3:
            with pytest.raises(BatchError, match=r"batch 0 produced 2 survivor\(s\); min_survivors=3"):
                list(loader)
        else:
            assert epoch(loader) == [[0, 1]]


def test_a_short_last_batch_counts_too() -> None:
    with load(rows(3), X, dataio.batch(2), on_failure=2) as loader, pytest.raises(BatchError, match="batch 1"):
        list(loader)


def test_strict_raises_at_the_first_row_error() -> None:
    with load([*rows(2), BAD, BAD], X, dataio.batch(2), on_failure="strict") as loader:
        iterator = iter(loader)
        assert values(next(iterator)) == [0, 1]
        with pytest.raises(BatchError, match=r"batch 1 sample 0 failed .decode.*record 2.*slot 'x'.*npy"):
            next(iterator)


def test_empty_batches_can_be_left_out_but_their_errors_are_told() -> None:
    told: list[dict[str, Any]] = []
    options = {"on_failure": 0, "log_errors": told.append}
    records = [*rows(2), BAD, BAD, *rows(2)]
    with load(records, X, dataio.batch(2), emit_empty_batches=False, **options) as loader:
        assert [len(b) for b in loader] == [2, 2]
    with load(records, X, dataio.batch(2), **options) as loader:
        assert [len(b) for b in loader] == [2, 0, 2]
    assert [e["record"] for e in told] == [2, 3, 2, 3]


def test_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "dataio.rows"), load([*rows(1), BAD], X, dataio.batch(2), log_errors=True) as loader:
        list(loader)
    [record] = caplog.records
    assert (record.name, record.levelname) == ("dataio.rows", "WARNING")
    assert record.getMessage().startswith("row IO failed (idx=1 stage=decode): ")


def test_without_log_errors_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with load([*rows(1), BAD], X, dataio.batch(2)) as loader:
        list(loader)
    assert not caplog.records


def test_the_error_hook_comes_before_its_batch_and_may_raise() -> None:
    def hook(error: dict[str, Any]) -> None:
        raise LookupError(error["record"])

    with load([*rows(2), *rows(1), BAD], X, dataio.batch(2), log_errors=hook) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(LookupError, match="3"):
            next(iterator)


def test_the_hook_is_not_called_for_a_batch_that_raises() -> None:
    told: list[Any] = []
    with load([BAD], X, dataio.batch(1), log_errors=told.append) as loader, pytest.raises(BatchError):
        list(loader)
    assert told == []


def test_metrics_hook() -> None:
    seen: list[Any] = []
    threads: set[str] = set()
    with load([*rows(1), BAD, *rows(1)], X, dataio.batch(2)) as loader:
        loader.set_metrics_hook(lambda m: (seen.append(m), threads.add(threading.current_thread().name)))
        list(loader)
        loader.set_metrics_hook(None)
        list(loader)
        with pytest.raises(TypeError):
            loader.set_metrics_hook(3)  # type: ignore[arg-type]
    assert seen == [
        {"batch_id": 0, "n_samples": 1, "n_errors": 1},
        {"batch_id": 1, "n_samples": 1, "n_errors": 0},
    ]
    assert threads == {threading.current_thread().name}


def test_the_pass_after_a_failure_is_whole() -> None:
    broken = [True]

    def source() -> Iterator[Any]:
        yield from rows(3)
        if broken:
            raise OSError("gone")
        yield from rows(1, start=3)

    with load(source, X, dataio.batch(2)) as loader:
        with pytest.raises(SourceError):
            list(loader)
        broken.clear()
        assert epoch(loader) == [[0, 1], [2, 3]]


# -------------------------------------------------------------------- order, concurrency, prefetch


class Probe:
    """A reader that counts how many of its kind read at the same time, and may wait."""

    running = 0
    most = 0
    lock = threading.Lock()

    def __init__(self, number: int, seconds: float = 0.0, until: threading.Event | None = None) -> None:
        self.number, self.seconds, self.until = number, seconds, until

    def read_all(self) -> bytes:
        with Probe.lock:
            Probe.running += 1
            Probe.most = max(Probe.most, Probe.running)
        time.sleep(self.seconds)
        if self.until is not None:
            assert self.until.wait(10)
        with Probe.lock:
            Probe.running -= 1
        return npy(np.full(1, self.number, np.float32))


def test_submit_keeps_the_order_though_the_first_is_last_done() -> None:
    records = [{"x": Probe(i, 0.2 if i == 0 else 0)} for i in range(4)]
    with load(records, X, dataio.batch(1), order="submit") as loader:
        assert epoch(loader) == [[0], [1], [2], [3]]


def test_completion_delivers_what_is_ready() -> None:
    """The first record is held until the others were delivered: submit order would never end."""
    others = threading.Event()
    records = [{"x": Probe(0, until=others)}, *({"x": Probe(i)} for i in range(1, 4))]
    with load(records, X, dataio.batch(1), order="completion") as loader:
        iterator = iter(loader)
        assert [values(next(iterator)) for _ in range(3)] == [[1], [2], [3]]
        others.set()
        assert epoch(iterator) == [[0]]  # type: ignore[arg-type]


@pytest.mark.parametrize("concurrency", [1, 2, 3, "auto"])
def test_concurrency_bounds_the_records_worked_on(
    concurrency: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATAIO_CPU_WORKERS", "4")
    Probe.most = 0
    records = [{"x": Probe(i, 0.004)} for i in range(24)]
    slot = dataio.slot("x").decode_npy().reshape(shape=(1,))
    with load(records, slot, dataio.batch(8), concurrency=concurrency) as loader:
        assert epoch(loader) == [list(range(i, i + 8)) for i in (0, 8, 16)]
    assert Probe.most <= (4 if concurrency == "auto" else int(concurrency))
    assert Probe.most > 1 or concurrency == 1


@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_the_source_is_never_further_ahead_than_prefetch(prefetch: int) -> None:
    pulled = 0

    def source() -> Iterator[Any]:
        nonlocal pulled
        for row in rows(40):
            pulled += 1
            yield row

    with load(source, X, dataio.batch(2, prefetch=prefetch)) as loader:
        time.sleep(0.02)
        assert pulled == 0  # nothing before iter
        iterator = iter(loader)
        for delivered in range(20):
            time.sleep(0.01)
            assert pulled <= 2 * (delivered + prefetch + 1)
            next(iterator)


# -------------------------------------------------------------------- outputs

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("output", ["torch", "numpy", "dlpack", "arrow"])
def test_every_output_gives_the_values(output: str, dtype: str) -> None:
    arrays = [np.array([[i, 1], [0, i + 2]]).astype(dtype) for i in range(3)]
    with load([{"x": npy(a)} for a in arrays], X, dataio.batch(3), output=output) as loader:
        [batch] = loader
        tensor = batch["x"]
    expected = np.stack(arrays)
    match output:
        case "torch":
            assert isinstance(tensor, torch.Tensor)
            got = tensor.numpy()
        case "numpy":
            got = tensor
        case "dlpack":
            assert (tensor.shape, tensor.ndim, tensor.dtype, tensor.device) == ([3, 2, 2], 3, dtype, (1, 0))
            got = np.from_dlpack(tensor)
        case _:
            got = np.array(tensor.to_pylist() if dtype == "bool" else tensor.to_numpy_ndarray()).reshape(expected.shape)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, expected)


def test_a_callable_gets_each_tensor_once() -> None:
    seen: list[Any] = []

    def adapter(tensor: Any) -> str:
        seen.append(tensor.shape)
        return "adapted"

    with load(rows(2), X, LABEL, dataio.batch(2), output=adapter) as loader:
        [batch] = loader
        assert seen == []
        assert batch["x"] == batch["x"] == "adapted"
    assert seen == [[2, 3]]


def test_a_callable_gets_each_row_of_a_ragged_slot() -> None:
    with load(ragged_rows(), X, dataio.batch(3), output=lambda t: t.shape) as loader:
        assert [b["x"] for b in loader] == [[[1], [2], [3]]]


def test_registered_adapters() -> None:
    dataio.register_output_adapter("test-shape", lambda t: t.shape)
    dataio.register_output_adapter("test-shape", lambda t: tuple(t.shape))
    with load(rows(2), X, dataio.batch(2), output="test-shape") as loader:
        assert [b["x"] for b in loader] == [(2, 3)]


@pytest.mark.parametrize(
    ("name", "function", "error"),
    [
        ("torch", repr, ValueError),
        ("numpy", repr, ValueError),
        ("", repr, TypeError),
        (3, repr, TypeError),
        ("fine", 3, TypeError),
    ],
)
def test_adapters_that_cannot_be_registered(name: Any, function: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        dataio.register_output_adapter(name, function)


def test_jax_that_is_absent_is_told_on_access() -> None:
    if importlib.util.find_spec("jax"):
        pytest.skip("jax is here")
    with load(rows(2), X, dataio.batch(2), output="jax") as loader:
        [batch] = loader
        with pytest.raises(ModuleNotFoundError, match="pip install"):
            batch["x"]


def test_device_moves_torch_tensors_and_refuses_the_rest() -> None:
    with load(rows(2), X, LABEL, dataio.batch(2), output="torch", device="cpu") as loader:
        [batch] = loader
        assert batch["x"].device.type == "cpu"
        assert batch["label"] == ["l0", "l1"]
    for output, error in (("numpy", ValueError), ("dlpack", ValueError), (repr, TypeError)):
        with load(rows(2), X, dataio.batch(2), output=output, device="cpu") as loader:
            [batch] = loader
            with pytest.raises(error):
                batch["x"]


# -------------------------------------------------------------------- memory

IMAGE = dataio.slot("image").decode_image().center_crop(h=8, w=8).normalize("imagenet")
SHAPES = {
    "in-place": (IMAGE, [{"image": encoded(seed=i)} for i in range(12)], "image"),
    "stacked": (dataio.slot("x").decode_npy().reshape(shape=(3, 1)), rows(12), "x"),
    "column": (X, rows(12), "x"),
    "ragged": (X, [{"x": npy(np.full(i + 1, i, np.float32))} for i in range(12)], "x"),
}


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_torch_numpy_and_arrow_look_at_the_same_memory(workers: str) -> None:
    slot, records, name = SHAPES["in-place"]
    with load(records, slot, dataio.batch(4), output="dlpack", workers=workers) as loader:
        for batch in loader:
            tensor = batch[name]
            view, again, other = np.from_dlpack(tensor), np.from_dlpack(tensor), torch.from_dlpack(tensor)
            assert address(view) == address(again) == other.data_ptr()
            assert np.shares_memory(view, other.numpy())
            other[0] = 7.0
            assert (view[0] == 7.0).all()


def test_the_outputs_do_not_copy() -> None:
    slot, records, name = SHAPES["in-place"]
    for output in ("torch", "numpy", "arrow"):
        with load(records, slot, dataio.batch(4), output=output) as loader:
            for batch in loader:
                inner = address(batch._finished.slots[name].dense)
                tensor = batch[name]
                if isinstance(tensor, torch.Tensor):
                    assert tensor.data_ptr() == inner
                elif isinstance(tensor, np.ndarray):
                    assert address(tensor) == inner
                else:
                    assert isinstance(tensor, pa.FixedShapeTensorArray)
                    assert tensor.storage.values.buffers()[1].address == inner


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("kind", SHAPES)
def test_a_retained_batch_never_changes(kind: str, workers: str) -> None:
    slot, records, name = SHAPES[kind]
    kept: list[tuple[Any, Any]] = []
    with load(records, slot, dataio.batch(3, prefetch=2), workers=workers) as loader:
        for _ in range(4):
            for batch in loader:
                # Untouched batches too: their tensors are made at the end.
                now = [np.array(row) for row in batch[name]] if len(kept) % 2 else None
                kept.append((batch, now))
        first = [[np.array(row) for row in batch[name]] for batch, _ in kept[:4]]
    for number, (batch, copies) in enumerate(kept):
        for row, copied, original in zip(batch[name], copies or first[number % 4], first[number % 4]):
            np.testing.assert_array_equal(row, copied)
            np.testing.assert_array_equal(row, original)
    spans = sorted(
        (address(a), a.nbytes) for batch, _ in kept for a in (batch[name] if kind == "ragged" else [batch[name]])
    )
    assert all(start + size <= following for (start, size), (following, _) in pairwise(spans))


@pytest.mark.parametrize("kind", ["in-place", "stacked"])
@pytest.mark.parametrize(("workers", "output"), [("thread", "torch"), ("thread", "numpy"), ("process", "torch")])
def test_buffers_come_back_when_their_tensors_die(workers: str, output: str, kind: str) -> None:
    slot, records, _ = SHAPES[kind]
    with load(records, slot, dataio.batch(1, prefetch=2), output=output, workers=workers) as loader:
        for _ in range(3):
            for batch in loader:
                _ = batch.tensor
                del batch
        stats = loader.stats()["buffers"]
    assert stats["hits"] + stats["misses"] == 36
    assert stats["misses"] <= 6


def test_a_row_keeps_the_whole_buffer_from_being_used_again() -> None:
    slot, records, name = SHAPES["in-place"]
    with load(records, slot, dataio.batch(1, prefetch=1), output="torch") as loader:
        views = [batch[name][0, 0] for _ in range(3) for batch in loader]
        copies = [view.clone() for view in views]
    for view, copied, same in zip(views, copies, copies[:12] * 3):
        assert torch.equal(view, copied)
        assert torch.equal(view, same)


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("kind", SHAPES)
def test_tensors_are_writable_contiguous_and_outlive_the_loader(kind: str, workers: str) -> None:
    slot, records, name = SHAPES[kind]
    with load(records, slot, dataio.batch(6), workers=workers) as loader:
        early, late = loader
        before = [row.copy() for row in early[name]]
    del loader
    gc.collect()
    for batch in (early, late):
        for array in batch[name] if kind == "ragged" else [batch[name]]:
            assert array.flags.writeable
            assert array.flags.c_contiguous
    for row, copied in zip(early[name], before):
        np.testing.assert_array_equal(row, copied)
        row[...] = 5
    late[name][0][...] = 6
    assert all((row == 5).all() for row in early[name])


# -------------------------------------------------------------------- lifecycle


def test_one_iteration_at_a_time() -> None:
    with load(rows(9), X, dataio.batch(2)) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(RuntimeError, match="iterated already"):
            iter(loader)
        assert len(list(iterator)) == 4
        assert len(list(loader)) == 5


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_dropped_iterator_frees_the_loader(workers: str) -> None:
    with load(rows(30), X, dataio.batch(2), workers=workers) as loader:
        for _ in range(3):
            for batch in loader:
                assert values(batch) == [0, 1]
                break
        iterator = iter(loader)
        next(iterator)
        del iterator
        assert len(list(loader)) == 15


def test_two_loaders_of_one_pipeline_are_independent() -> None:
    bound = dataio.pipeline(X, dataio.batch(2)).bind(rows(6))
    with bound.run("numpy", workers="thread") as first, bound.run("numpy", workers="thread") as second:
        assert [(values(a), values(b)) for a, b in zip(first, second)] == [([i, i + 1],) * 2 for i in (0, 2, 4)]
        first.close()
        assert epoch(second) == [[0, 1], [2, 3], [4, 5]]


def test_a_closed_loader_says_so() -> None:
    loader = load(rows(3), X, dataio.batch(2))
    list(loader)
    loader.close()
    loader.close()
    assert len(loader) == 2
    for action in (lambda: iter(loader), loader.__enter__, loader.stats):
        with pytest.raises(ClosedError, match="DataLoader is closed"):
            action()


def test_a_running_iterator_ends_when_its_loader_closes() -> None:
    loader = load(rows(9), X, dataio.batch(2))
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert list(iterator) == []


def test_closing_wakes_a_consumer_on_another_thread() -> None:
    """It waited for a batch that nobody made any more."""
    held = threading.Event()
    loader = load([{"x": Probe(0)}, {"x": Probe(1, until=held)}], X, dataio.batch(1))
    got: list[Any] = []
    consumer = threading.Thread(target=lambda: got.extend(loader))
    consumer.start()
    while not got:
        time.sleep(0.005)
    closer = threading.Thread(target=loader.close)
    closer.start()
    consumer.join(5)
    held.set()
    closer.join(5)
    assert not consumer.is_alive()
    assert not closer.is_alive()
    assert len(got) == 1


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_an_exception_in_the_training_loop_leaves_nothing(workers: str) -> None:
    loader = load(rows(30), X, dataio.batch(2), workers=workers)

    def train() -> None:
        with loader:
            for _ in loader:
                raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        train()
    assert loader._resources.closed


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("progress", ["untouched", "half", "done"])
def test_an_unclosed_loader_is_collected(progress: str, workers: str) -> None:
    """`no_leftovers` looks for its threads and processes."""
    loader = load(rows(30), X, dataio.batch(2), workers=workers)
    if progress == "half":
        iterator = iter(loader)
        next(iterator)
        del iterator
    elif progress == "done":
        list(loader)
    del loader


def test_iter_closes_at_the_end_and_on_break() -> None:
    bound = dataio.pipeline(X, dataio.batch(2)).bind(rows(6)).options(workers="thread")
    assert [values(b) for b in bound.iter("numpy")] == [[0, 1], [2, 3], [4, 5]]
    for _ in bound.iter("numpy"):
        break


INTERRUPTED = """
import sys, time, threading, numpy as np, psutil, dataio

class Slow:
    def read_all(self):
        time.sleep(0.01)
        return b"abcd"

def source():
    while True:
        yield {"x": Slow() if WHERE != "consumer" else b"abcd"}
        if WHERE == "source":
            time.sleep(1000)

WHERE, workers = sys.argv[1:]
loader = dataio.pipeline(dataio.slot("x").decode_bytes(), dataio.batch(2)).bind(source).run("numpy", workers=workers)
if WHERE == "unclosed":
    iterator = iter(loader)
    next(iterator)
    print(*(c.pid for c in psutil.Process().children(recursive=True)), flush=True)
    while True:
        next(iterator)
with loader:
    iterator = iter(loader)
    if WHERE != "source":
        next(iterator)
    print(*(c.pid for c in psutil.Process().children(recursive=True)), flush=True)
    if WHERE == "consumer":
        time.sleep(1000)
    for batch in iterator:
        pass
"""


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.slow
@pytest.mark.parametrize("where", ["consumer", "workers", "source", "unclosed"])
def test_ctrl_c_ends_the_program(where: str, workers: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(INTERRUPTED)
    root = Path(dataio.__file__).resolve().parent.parent
    environment = {**os.environ, "DATAIO_DRAIN_TIMEOUT_MS": "300", "PYTHONPATH": str(root) if not (root / "io").is_dir() else ""}
    process = subprocess.Popen(
        [sys.executable, script, where, workers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    children = [int(pid) for pid in process.stdout.readline().split()]
    assert bool(children) == (workers == "process")
    time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    started = time.monotonic()
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - started < 5
    assert process.returncode in (-signal.SIGINT, 130, 1)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1
    assert not [pid for pid in children if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]


# -------------------------------------------------------------------- options

WRONG = [
    ("concurrency", 0, ValueError),
    ("concurrency", -1, ValueError),
    ("concurrency", "many", ValueError),
    ("concurrency", True, TypeError),
    ("concurrency", 2.0, TypeError),
    ("concurrency", None, TypeError),
    ("pin_memory", "yes", ValueError),
    ("pin_memory", 1.5, ValueError),
    ("ragged", "pad", ValueError),
    ("on_failure", "ignore", ValueError),
    ("on_failure", -1, ValueError),
    ("on_failure", True, TypeError),
    ("on_failure", 1.0, TypeError),
    ("order", "random", ValueError),
    ("seed", -1, ValueError),
    ("seed", 1 << 64, ValueError),
    ("seed", True, TypeError),
    ("log_errors", "yes", TypeError),
    ("log_errors", 1, TypeError),
    ("device", 0, TypeError),
    ("context", "label", TypeError),
    ("workers", "ray", ValueError),
]


@pytest.mark.parametrize(("option", "value", "error"), WRONG)
def test_options_are_checked_by_run(option: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=option):
        load(rows(1), X, dataio.batch(1), **{option: value})


@pytest.mark.parametrize("output", ["tensorflow", 3, None])
def test_an_unknown_output_names_the_known_ones(output: Any) -> None:
    with pytest.raises(ValueError, match="output"):
        load(rows(1), X, dataio.batch(1), output=output)


def test_pinning_needs_cuda() -> None:
    if torch.cuda.is_available():
        pytest.skip("CUDA is here")
    with pytest.raises(RuntimeError, match="CUDA"):
        load(rows(1), X, dataio.batch(1), pin_memory=True)


@pytest.mark.parametrize("source", ["/a/path", b"bytes", Path("/a"), (i for i in range(3)), 3, None])
def test_unusable_sources_are_refused_by_run(source: Any) -> None:
    bound = dataio.pipeline(X, dataio.batch(1)).bind(source)
    with pytest.raises(TypeError):
        bound.run("numpy")


def test_a_pipeline_without_shape_stage_does_not_run() -> None:
    with pytest.raises(ValueError, match="batch / collate / group_by"):
        load(rows(1), X)


def test_unset_parameters_are_told_at_the_first_step() -> None:
    slot = dataio.slot("image").decode_image().center_crop(h=dataio.param("size"), w=4)
    with load([{"image": encoded()}], slot, dataio.batch(1)) as loader, pytest.raises(ValueError, match="'size'"):
        next(iter(loader))
    bound = dataio.pipeline(slot, dataio.batch(1)).configure(size=5).bind([{"image": encoded()}])
    with bound.run("numpy", workers="thread") as loader:
        assert [b["image"].shape for b in loader] == [(1, 5, 4, 3)]


def test_a_missing_field_of_an_argument_names_the_field() -> None:
    slot = dataio.slot("image").decode_image().center_crop(h=dataio.col("size"), w=4)
    records = [{"image": encoded(), "size": 3}, {"image": encoded()}]
    with load(records, slot, dataio.batch(2)) as loader:
        [batch] = loader
    assert "'size'" in batch.errors[0]["message"]


SETTERS: list[tuple[str, Any, Callable[[dataio.DataLoader], Any]]] = [
    ("concurrency", 3, lambda loader: loader._options.concurrency),
    ("on_failure", 2, lambda loader: loader._options.min_survivors),
    ("order", "completion", lambda loader: loader._options.order),
    ("seed", 5, lambda loader: loader._options.seed),
    ("emit_empty_batches", False, lambda loader: loader._emit_empty),
]


@pytest.mark.parametrize(("name", "value", "read"), SETTERS, ids=[s[0] for s in SETTERS])
def test_options_may_be_set_beforehand_and_run_wins(name: str, value: Any, read: Callable[[Any], Any]) -> None:
    bound = dataio.pipeline(X, dataio.batch(1)).bind(rows(1))
    for early in (getattr(bound, name)(value), bound.options(**{name: value})):
        assert early is not bound
        assert read(early.run("numpy")) == value
    other = {"concurrency": 4, "on_failure": 1, "order": "submit", "seed": 6, "emit_empty_batches": True}[name]
    if name != "emit_empty_batches":  # its default cannot be told from being given
        assert read(bound.options(**{name: value}).run("numpy", **{name: other})) == other


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="colour"):
        dataio.pipeline(X, dataio.batch(1)).bind(rows(1)).options(colour=1)


# -------------------------------------------------------------------- looking


def test_stats_add_up() -> None:
    with load([*rows(3), BAD], X, dataio.batch(2)) as loader:
        list(loader)
        list(loader)
        stats = loader.stats()
    assert stats["samples_submitted"] == stats["samples_completed"] == 8
    assert (stats["samples_failed"], stats["samples_delivered"], stats["batches_delivered"]) == (2, 6, 4)
    assert stats["ops"]["npy"]["stage"] == "decode"
    assert stats["workers"] == 2
    assert "records in" in str(loader.report())


def test_stats_count_the_bytes_read() -> None:
    with load(rows(4), X, dataio.batch(2)) as loader:
        list(loader)
        assert loader.stats()["bytes_read"] == sum(len(r["x"]) for r in rows(4))
