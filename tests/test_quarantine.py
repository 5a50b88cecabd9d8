"""Failed records that are written down, and run again from there."""

from __future__ import annotations

import datetime
import decimal
import gc
import json
import math
import os
import signal
import socket
import subprocess
import sys
import uuid
import weakref
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dataio
from dataio.engine.source import Pass, RowSource
from dataio.engine.streams import FlatMapStream, IteratorStream, Stream
from dataio.quarantine import Quarantine, UnwritableError, decode, encode

from .conftest import npy

X = dataio.slot("x").decode_npy()
GOOD = npy(np.zeros(2))
BAD = b"no array"


def load(records: Any, *stages: Any, **options: Any) -> dataio.DataLoader:
    options = {"workers": "thread", "on_failure": 0, **options}
    return dataio.pipeline(*stages).bind(records).run("numpy", **options)


def lines(path: Path) -> list[dict[str, Any]]:
    """What the file holds, line by line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(path: Path) -> list[Any]:
    """Positions in the pass of the records in the file."""
    return [line["__dataio_error__"]["record"] for line in lines(path)]


def records(count: int, bad: Any, start: int = 0) -> list[dict[str, Any]]:
    """Records of which those whose number is in `bad` cannot be decoded."""
    return [{"x": BAD if i in bad else GOOD, "number": i} for i in range(start, start + count)]


# ------------------------------------------------------------------------------------------ records as JSON

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters(exclude_categories=())),  # lone surrogates too, as names of files may have them
    st.binary(),
    st.binary().map(bytearray),
    st.decimals(),
    st.uuids(),
    st.datetimes(),
    st.datetimes(timezones=st.just(datetime.UTC)),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.lists(st.text("ab/._"), min_size=1).map(lambda parts: Path("/".join(parts).replace("\0", ""))),
    hnp.arrays(st.one_of(hnp.scalar_dtypes(), hnp.array_dtypes()), hnp.array_shapes(min_dims=0, min_side=0, max_side=3)),
    hnp.scalar_dtypes().flatmap(lambda dtype: hnp.from_dtype(dtype)),
)
KEYS = st.one_of(st.text(), st.sampled_from(["$bytes", "$", "$mapping"]), st.integers(), st.tuples(st.text()), st.binary())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.sets(st.one_of(st.integers(), st.text()), max_size=3),
        st.frozensets(st.binary(), max_size=3),
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Equal in type and content; NaN equals NaN."""
    if isinstance(one, (str, bytes)) and isinstance(one, np.generic):  # these become plain strings and bytes
        return bool(one == other)
    if type(one) is not type(other):
        return False
    if isinstance(one, (np.ndarray, np.generic)):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, dict):
        return list(map(repr, one)) == list(map(repr, other)) and all(map(same, one.values(), other.values()))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


def sets(value: Any) -> Any:
    """Sets in one order, which their repr does not have."""
    if isinstance(value, (set, frozenset)):
        return [type(value).__name__, sorted(map(repr, value))]
    if isinstance(value, dict):
        return {key: sets(inner) for key, inner in value.items()}
    return type(value)(map(sets, value)) if type(value) in (list, tuple) else value


@given(VALUES)
def test_a_record_comes_back_as_it_was(value: Any) -> None:
    text = json.dumps(encode(value), allow_nan=False)
    assert same(sets(decode(json.loads(text))), sets(value))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (memoryview(b"abcd")[::2], b"ac"),
        (OrderedDict(a=1), {"a": 1}),
        (MappingProxyType({"a": b"1"}), {"a": b"1"}),
        (np.str_("text"), "text"),
        (np.bytes_(b"1"), b"1"),
        (PurePath("a/b"), Path("a/b")),
        (type("Text", (str,), {})("t"), "t"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_comes_back_as_another_type(value: Any, expected: Any) -> None:
    back = decode(json.loads(json.dumps(encode(value))))
    assert back == expected
    assert type(back) is type(expected)


def itself() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [1, object()]}, r"record\['a'\]\[1\] is a object"),
        (lambda: 1, "function"),
        (np.array([object()]), "array of object"),
        (np.ma.masked_array([1], [True]), "MaskedArray"),
        (Point(1, 2), "Point"),
        (itself(), "nested too deeply"),
        ({1: {object(): 1}}, "a key of"),
        (next(iter(dataio.from_callable(bytes, length=1))), r"record\['reader'\].*pycall:0.*running program"),
    ],
    ids=["nested", "function", "objects", "masked", "named-tuple", "itself", "key", "reader"],
)
def test_what_cannot_be_written_says_where_it_is(value: Any, says: str) -> None:
    with pytest.raises(UnwritableError, match=says):
        encode(value)


def test_a_reader_whose_bytes_are_here_becomes_those_bytes() -> None:
    [record] = dataio.from_iterable([b"12"])
    assert decode(encode(record)) == {"key": "pyiter:0", "reader": b"12"}


@pytest.mark.parametrize("value", [{"$bytes": "?"}, {"$nothing": 1}, {"$tuple": 1}, {"$date": "x"}, {"$array": "eA=="}])
def test_a_value_that_was_changed_by_hand_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        decode(value)


# --------------------------------------------------------------------------------------------------- replay


def halve(array: np.ndarray) -> np.ndarray:
    if array.size % 2:
        raise ValueError("an odd number of values")
    return array[: array.size // 2]


def project(record: dict[str, Any]) -> dict[str, Any]:
    if record.get("explode"):
        raise KeyError("explode")
    record["x"] = record.pop("file")  # in place: the record that is written down is not this one
    record["meta"]["seen"] = True
    return record


def odd(record: dict[str, Any]) -> bool:
    return bool(1 / record["divisor"])


def mixed(folder: Path) -> list[dict[str, Any]]:
    """Every way to fail, between good records."""
    good = {"file": npy(np.zeros(4)), "meta": {"n": (1, 2)}, "divisor": 1}
    kinds = [
        good,
        {**good, "file": folder / "missing.npy"},  # read
        {**good, "file": bytearray(BAD)},  # decode
        {**good, "file": npy(np.zeros(3))},  # transform
        {**good, "explode": math.nan},  # map
        {**good, "divisor": 0},  # filter
    ]
    return [{**kinds[i % len(kinds)], "meta": {"n": (i, 2)}} for i in range(30)]


@pytest.mark.usefixtures("two_workers", "no_leftovers")
@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_replay_gives_exactly_the_records_that_failed(workers: str, tmp_path: Path) -> None:
    stages = dataio.map(project), dataio.slot("x").decode_npy().custom(halve), dataio.batch(4)
    path = tmp_path / "bad.jsonl"
    with load(dataio.scan(mixed(tmp_path)).filter(odd), *stages, workers=workers, quarantine=path) as loader:
        errors = [error for batch in loader for error in batch.errors]
    assert Counter(error["stage"] for error in errors) == {"read": 5, "decode": 5, "transform": 5, "map": 10}
    expected = [record for i, record in enumerate(mixed(tmp_path)) if i % 6]
    assert [repr(record) for record in dataio.manifest(path)] == [repr(record) for record in expected]
    with load(dataio.scan(dataio.manifest(path)).filter(odd), *stages, workers=workers) as loader:
        again = [(error for error in batch.errors) for batch in loader if not len(batch)]
    replayed = [error for batch in again for error in batch]
    assert [(e["stage"], e["op"], e["type"], e["uri"]) for e in replayed] == [
        (e["stage"], e["op"], e["type"], e["uri"]) for e in errors
    ]


@pytest.mark.parametrize("name", ["x.parquet", "table", "frame"])
def test_rows_of_tables_are_written_with_all_their_columns(name: str, tmp_path: Path) -> None:
    table = pa.table({"x": [GOOD, BAD, None, GOOD], "unread": [datetime.date(2020, 1, day) for day in (1, 2, 3, 4)]})
    source: Any = table
    if name == "x.parquet":
        import pyarrow.parquet as pq

        pq.write_table(table, tmp_path / name)
        source = dataio.manifest(tmp_path / name)
    elif name == "frame":
        import polars as pl

        source = pl.DataFrame(table)
    path = tmp_path / "bad.jsonl"
    with load(source, X, dataio.batch(3), quarantine=path) as loader:
        list(loader)
    assert list(dataio.manifest(path)) == [
        {"x": BAD, "unread": datetime.date(2020, 1, 2)},
        {"x": None, "unread": datetime.date(2020, 1, 3)},
    ]


class Parents(RowSource):
    """Each number becomes three records, of which the last cannot be decoded."""

    def describe(self) -> str:
        return "parents"

    def length(self) -> None:
        return None

    def stream(self, pass_: Pass, state: Any = None) -> Stream:
        below = IteratorStream(lambda: iter(range(3)), 0 if state is None else state["at"])
        return FlatMapStream(below, lambda parent: records(3, {3 * parent + 2}, start=3 * parent), pass_, state)


def test_of_records_made_from_others_only_those_that_failed_are_written(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    with load(Parents(), dataio.map(lambda record: {"x": record["x"]}), X, dataio.batch(2), quarantine=path) as loader:
        list(loader)
    assert list(dataio.manifest(path)) == [{"x": BAD, "number": number} for number in (2, 5, 8)]


def test_bare_paths_are_records_too(tmp_path: Path) -> None:
    missing = [str(tmp_path / "missing.npy"), str(tmp_path / '{"odd\udc80 name.npy')]
    with load(missing, X, dataio.batch(2), quarantine=tmp_path / "bad.jsonl") as loader:
        list(loader)
    assert list(dataio.manifest(tmp_path / "bad.jsonl")) == missing


def test_batches_of_the_source_are_written_record_by_record(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    groups = [records(3, {1}), records(2, {4}, start=3)]

    def mark(record: dict[str, Any]) -> dict[str, Any]:
        record["marked"] = True
        return record

    with load(groups, dataio.map(mark), X, dataio.collate(), quarantine=path) as loader:
        list(loader)
    assert list(dataio.manifest(path)) == [{"x": BAD, "number": 1}, {"x": BAD, "number": 4}]


def test_plain_lines_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    with load(records(2, {1}), X, dataio.batch(2), quarantine=path) as loader:
        list(loader)
    mixed_lines = tmp_path / "mixed.txt"
    mixed_lines.write_text('a.npy\n{"x": {"$bytes": "YQ=="}}\n' + path.read_text().rstrip("\n"))
    assert list(dataio.manifest(mixed_lines)) == ["a.npy", {"x": {"$bytes": "YQ=="}}, {"x": BAD, "number": 1}]


def test_a_record_that_cannot_be_written_is_a_line_that_manifest_names(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    source = dataio.from_callable(lambda i: {"x": [GOOD, BAD][i % 2]}, length=4, slots=["x"])
    with load(source, X, dataio.batch(4), quarantine=path) as loader:
        list(loader)
    assert [line["__dataio_error__"]["key"] for line in lines(path)] == ["pycall:1", "pycall:3"]
    with pytest.raises(ValueError, match=r"line 1 .*pycall:1.*could not be written.*record\['x'\]"):
        dataio.manifest(path)


# ----------------------------------------------------------------------------------------------------- once


def test_a_record_that_fails_in_every_epoch_is_written_once(tmp_path: Path) -> None:
    orders = iter([1, -1, 1])
    source = records(6, {1, 4})

    def shuffled() -> Iterator[Any]:
        return iter(source[:: next(orders)])

    with load(shuffled, X, dataio.batch(4), quarantine=tmp_path / "bad.jsonl") as loader:
        for _ in range(3):
            list(loader)
    assert [record["number"] for record in dataio.manifest(tmp_path / "bad.jsonl")] == [1, 4]


def test_equal_records_are_written_as_often_as_they_are_there(tmp_path: Path) -> None:
    with load([{"x": BAD}] * 3, X, dataio.batch(2), quarantine=tmp_path / "bad.jsonl") as loader:
        list(loader)
        list(loader)
    assert list(dataio.manifest(tmp_path / "bad.jsonl")) == [{"x": BAD}] * 3


def test_what_fills_up_a_batch_is_written_once(tmp_path: Path) -> None:
    shard = {"id": 1, "of": 2, "pad": True}
    path = tmp_path / "bad-{rank}.jsonl"
    with load(records(4, {3}), X, dataio.batch(3), shard=shard, quarantine=path) as loader:
        [batch] = loader
    assert [error["record"] for error in batch.errors] == [3, 3]
    assert [record["number"] for record in dataio.manifest(tmp_path / "bad-1.jsonl")] == [3]


def test_each_rank_writes_its_own_file(tmp_path: Path) -> None:
    for rank in range(2):
        options = {"shard": {"id": rank, "of": 2}, "quarantine": str(tmp_path / "bad-{rank}.jsonl")}
        with load(records(12, {1, 2, 7, 8}), X, dataio.batch(3), **options) as loader:
            list(loader)
    found = [[r["number"] for r in dataio.manifest(tmp_path / f"bad-{rank}.jsonl")] for rank in range(2)]
    assert found == [[2, 8], [1, 7]]


def test_several_ranks_cannot_write_one_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\{rank\}"):
        load(records(4, {1}), X, dataio.batch(1), shard={"id": 0, "of": 2}, quarantine=tmp_path / "bad.jsonl")


@pytest.mark.parametrize("delivered", [0, 1, 3, 4])
def test_a_resumed_run_appends_what_is_not_there_yet(delivered: int, tmp_path: Path) -> None:
    """The state is older than the file: batches are delivered again whose failed records were written."""
    path, source = tmp_path / "bad.jsonl", records(12, {1, 4, 5, 11})
    with load(source, X, dataio.batch(2), quarantine=path) as loader:
        batches = iter(loader)
        state = loader.state_dict()
        for number in range(4):
            if number == delivered:
                state = loader.state_dict()
            next(batches)
    with load(source, X, dataio.batch(2), quarantine=path) as loader:
        loader.load_state_dict(json.loads(json.dumps(state)))
        list(loader)
    assert written(path) == [1, 4, 5, 11]


def test_a_batch_that_raises_is_not_written(tmp_path: Path) -> None:
    options = {"on_failure": "strict", "quarantine": tmp_path / "bad.jsonl"}
    with load(records(4, {3}), X, dataio.batch(2), **options) as loader, pytest.raises(RuntimeError):
        list(loader)
    assert lines(tmp_path / "bad.jsonl") == []


class Record(dict[str, Any]):
    """A record that can be referred to weakly."""


def test_a_batch_that_is_kept_does_not_hold_its_failed_records(tmp_path: Path) -> None:
    made: list[weakref.ref[Record]] = []

    def source() -> Iterator[Record]:
        for record in map(Record, records(4, {1})):
            made.append(weakref.ref(record))
            yield record

    with load(source, X, dataio.batch(2), quarantine=tmp_path / "bad.jsonl") as loader:
        kept = list(loader)
    gc.collect()
    assert [error["record"] for batch in kept for error in batch.errors] == [1]
    assert [reference() for reference in made] == [None] * 4


def test_the_state_does_not_depend_on_a_quarantine(tmp_path: Path) -> None:
    table = pa.table({"x": [GOOD] * 4, "unread": [1] * 4})
    with load(table, X, dataio.batch(2), quarantine=tmp_path / "bad.jsonl") as loader:
        next(iter(loader))
        state = loader.state_dict()
    with load(table, X, dataio.batch(2)) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 1


# ----------------------------------------------------------------------------------------------------- file


def quarantined(path: Path, bad: set[int], count: int = 6) -> None:
    with load(records(count, bad), X, dataio.batch(2), quarantine=path) as loader:
        list(loader)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_last_line_that_was_cut_off_is_left_out(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("cut") / "bad.jsonl"
    quarantined(path, {1, 3})
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    path.write_bytes(whole[: data.draw(st.integers(first, len(whole) - 2))])
    assert [record["number"] for record in dataio.manifest(path)] == [1]
    quarantined(path, {1, 3, 5})
    assert written(path) == [1, 3, 5]


def test_a_file_whose_last_line_break_was_taken_away_goes_on_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    quarantined(path, {1})
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert len(dataio.manifest(path)) == 1
    quarantined(path, {1, 2})
    assert written(path) == [1, 2]


SCRIPT = """
import sys, numpy, io, dataio
def records():
    number = 0
    while True:
        yield {"x": b"bad" + bytes(3000), "number": number}
        number += 1
loader = dataio.pipeline(dataio.slot("x").decode_npy(), dataio.batch(16)).bind(records).run(
    "numpy", on_failure=0, workers="thread", quarantine=sys.argv[1])
for batch in loader:
    print(batch.errors[-1]["record"], flush=True)
"""


def test_kill_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    with subprocess.Popen([sys.executable, "-c", SCRIPT, path], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        last = [int(program.stdout.readline()) for _ in range(5)][-1]
        program.send_signal(signal.SIGKILL)
    numbers = [record["number"] for record in dataio.manifest(path)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > last


FULL = """
import resource, signal, sys, dataio
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
records = [{"x": b"bad" + bytes(3000), "number": i} for i in range(64)]
loader = dataio.pipeline(dataio.slot("x").decode_npy(), dataio.batch(4)).bind(records).run(
    "numpy", on_failure=0, workers="thread", quarantine=sys.argv[1])
try:
    for batch in loader:
        print(batch.errors[-1]["record"], flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
"""


def test_a_full_disk_is_told_and_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    done = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True, check=True, timeout=60)
    *delivered, error = done.stdout.split()
    assert error == "OSError"
    assert [record["number"] for record in dataio.manifest(path)] == list(range(int(delivered[-1]) + 1))
    assert path.read_bytes().endswith(b"\n")


def open_files(path: Path) -> int:
    """Descriptors of this process that are `path`."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}") == str(path)
        except FileNotFoundError:  # the listing's own
            continue
    return found


@pytest.mark.parametrize("end", ["close", "drop"])
def test_the_file_is_closed_with_the_loader(end: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    loader = load(records(2, {1}), X, dataio.batch(1), quarantine=path)
    batches = iter(loader)
    next(batches)
    assert open_files(path) == 1
    if end == "close":
        loader.close()
    del loader, batches
    gc.collect()
    assert open_files(path) == 0


def a_folder(folder: Path) -> Path:
    return folder


def an_absent_folder(folder: Path) -> Path:
    return folder / "absent" / "bad.jsonl"


def other_lines(folder: Path) -> Path:
    (folder / "train.txt").write_text("a.jpg\n")
    return folder / "train.txt"


def other_objects(folder: Path) -> Path:
    (folder / "train.jsonl").write_text('{"image": "a.jpg", "a longer": 12345, "label": 1}\n')
    return folder / "train.jsonl"


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (a_folder, IsADirectoryError),
        (an_absent_folder, FileNotFoundError),
        (other_lines, ValueError),
        (other_objects, ValueError),
        (lambda folder: folder / "bad.csv", ValueError),
        (lambda _: "s3://bucket/bad.jsonl", ValueError),
        (lambda _: 3, TypeError),
        (lambda _: b"bad.jsonl", TypeError),
    ],
    ids=["folder", "absent", "text", "objects", "csv", "uri", "int", "bytes"],
)
def test_a_path_that_will_not_do_is_told_by_run(
    make: Callable[[Path], Any], error: type[Exception], tmp_path: Path
) -> None:
    path = make(tmp_path)
    before = Path(path).read_text() if isinstance(path, Path) and path.is_file() else None
    with pytest.raises(error):
        load(records(1, {}), X, dataio.batch(1), quarantine=path)
    assert before is None or path.read_text() == before


def test_a_run_without_failures_leaves_an_empty_manifest(tmp_path: Path) -> None:
    quarantined(tmp_path / "bad.jsonl", set())
    assert len(dataio.manifest(tmp_path / "bad.jsonl")) == 0


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataio.quarantine.REMEMBERED", 8)
    quarantine = Quarantine(str(tmp_path / "bad.jsonl"))
    assert all(quarantine._note(0, number, number) for number in range(1000))
    assert not any(quarantine._note(1, number, number) for number in range(992, 1000))
    assert max(map(len, (quarantine._written, quarantine._places, quarantine._times))) <= 16
    quarantine.close()


def test_a_socket_cannot_be_written() -> None:
    one, other = socket.socketpair()
    with one, other, pytest.raises(UnwritableError, match="socket"):
        encode({"x": one})


def test_decimals_and_identifiers_stay_exact() -> None:
    value = {"price": decimal.Decimal("0.10"), "id": uuid.UUID(int=1)}
    assert decode(encode(value)) == value
