"""`webdataset`: samples of tar shards, local and in stores, and what hostile tars come to."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import tarfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataio
from dataio.engine.errors import CheckpointError, SourceError
from dataio.io.store import forget_stores, register_store
from dataio.io.tar_stream import BLOCK, FileTape, StreamTape, TarError, TarWalk
from dataio.sources import samples as samples_module
from dataio.sources import shards as shards_module
from dataio.sources.patterns import expanded
from dataio.sources.samples import DuplicateEntryError

from .conftest import npy
from .shelf import Shelf

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")

Entries = list[tuple[str, bytes]]
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "zstd": partial(pa.compress, codec="zstd", asbytes=True),
    "xz": lzma.compress,
    "gzip members": lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]) + bytes(100),
}
ENTRIES: Entries = [
    ("a/0.npy", npy(np.zeros(3, np.float32))),
    ("b/0.json", b"{}"),
    ("a/1.npy", npy(np.ones(3, np.float32))),
    ("a/1.seg.PNG", b"png"),
    ("a/1.cls", b""),
]


def tar(entries: Entries, form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def numbered(first: int, count: int) -> Entries:
    return [
        entry
        for i in range(first, first + count)
        for entry in ((f"d/{i:04d}.npy", npy(np.full(3, i, np.float32))), (f"d/{i:04d}.json", json.dumps({"i": i}).encode()))
    ]


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    made = Shelf()
    register_store("shelf", lambda uri: made)
    yield made
    made.gate.set()
    forget_stores("shelf")


Put = Callable[[str, bytes], str]


@pytest.fixture(params=["local", "store"])
def put(request: pytest.FixtureRequest, tmp_path: Path, shelf: Shelf) -> Put:
    """`put(name, data)` makes a shard, local or in a store, and gives its path or URI."""

    def make(name: str, data: bytes) -> str:
        if request.param == "store":
            shelf.objects[name] = data
            return f"shelf://{name}"
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return make


def read(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample with its contents."""
    return {name: value if name.startswith("__") else bytes(value.read_all()) for name, value in sample.items()}


def samples(shard: str, **options: Any) -> list[dict[str, Any]]:
    return [read(sample) for sample in dataio.webdataset(shard, **options)]


# -------------------------------------------------------------------------------------------------------- samples


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("form", FORMATS)
def test_samples_are_runs_of_one_stem(put: Put, form: str, packed: str) -> None:
    shard = put("x.tar", PACKED[packed](tar(ENTRIES, FORMATS[form])))
    assert samples(shard) == [
        {"__key__": "0", "__shard__": shard, "npy": ENTRIES[0][1], "json": b"{}"},
        {"__key__": "1", "__shard__": shard, "npy": ENTRIES[2][1], "seg.PNG": b"png", "cls": b""},
    ]


def test_a_stem_that_returns_is_another_sample(put: Put) -> None:
    shard = put("x.tar", tar([("0.a", b"1"), ("1.a", b"2"), ("0.b", b"3")]))
    assert [(s["__key__"], sorted(s)[2:]) for s in samples(shard)] == [("0", ["a"]), ("1", ["a"]), ("0", ["b"])]


def test_names_that_are_no_samples_are_skipped(put: Put) -> None:
    entries = [("a/0.x", b"1"), ("a/._0.x", b"2"), ("_0.x", b"3"), ("README", b"4"), ("dir.d/README", b"5"), ("0.y", b"6")]
    (sample,) = samples(put("x.tar", tar(entries)))
    assert (sample["x"], sample["y"]) == (b"1", b"6")


def test_names_are_only_names(put: Put, tmp_path: Path) -> None:
    names = ["../../x.a", "/etc/passwd.b", "ü d+e%20.c", "-rf.d", "é" * 120 + ".e", "a\nb.f"]
    found = samples(put("x.tar", tar([(name, name.encode()) for name in names])))
    assert [s["__key__"] for s in found] == ["x", "passwd", "ü d+e%20", "-rf", "é" * 120, "a\nb"]
    assert [next(v for k, v in s.items() if k[0] != "_") for s in found] == [name.encode() for name in names]


def test_links_folders_and_devices_are_no_entries(put: Put) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(special("0.dir", tarfile.DIRTYPE))
        archive.addfile(special("0.link", tarfile.SYMTYPE, "/etc/passwd"))
        archive.addfile(special("0.hard", tarfile.LNKTYPE, "0.link"))
        archive.addfile(special("0.fifo", tarfile.FIFOTYPE))
        archive.addfile(special("0.null", tarfile.CHRTYPE))
        info = tarfile.TarInfo("0.file")
        archive.addfile(info, io.BytesIO())
    (sample,) = samples(put("x.tar", out.getvalue()))
    assert list(sample) == ["__key__", "__shard__", "file"]


def test_an_empty_shard_has_no_samples(put: Put) -> None:
    assert samples(put("x.tar", tar([]))) == []


def test_readers_read_again_and_travel(put: Put) -> None:
    shard = put("x.tar", tar(ENTRIES))
    for sample in dataio.webdataset(shard):
        again = pickle.loads(pickle.dumps(sample))
        assert read(again) == read(sample) == read(sample)
        assert repr(again["json" if "json" in again else "cls"]).startswith(f"Reader(source=tar, uri={shard}#tar:")


def test_a_source_is_read_again_and_knows_its_shards(put: Put) -> None:
    source = dataio.webdataset([put(f"{k}.tar", tar(numbered(10 * k, 10))) for k in range(3)])
    assert [s["__key__"] for s in source] == [s["__key__"] for s in source] == [f"{i:04d}" for i in range(30)]
    assert source.describe() == {"records": None, "record_maps": 0, "shuffle": None, "sequential": True, "shards": 3}
    with pytest.raises(TypeError, match="no length"):
        len(source)


# -------------------------------------------------------------------------------------------------------- patterns

RANGES = {
    "a{0..2}.tar": ["a0.tar", "a1.tar", "a2.tar"],
    "a{08..10}": ["a08", "a09", "a10"],
    "{0..010}": [f"{i:03d}" for i in range(11)],
    "s3://b/x-{000000..000001}.tar?v": ["s3://b/x-000000.tar?v", "s3://b/x-000001.tar?v"],
    "a{7..7}": ["a7"],
    "{train,val}-{0..1}.tar": ["train-0.tar", "train-1.tar", "val-0.tar", "val-1.tar"],
    "plain[1]*.tar": ["plain[1]*.tar"],
}


@pytest.mark.parametrize("pattern", RANGES)
def test_ranges(pattern: str) -> None:
    assert expanded(pattern) == RANGES[pattern]
    assert expanded([pattern, Path("x")]) == [*RANGES[pattern], "x"]


@pytest.mark.parametrize(
    "pattern",
    ["a{2..1}", "a{1..}", "a{-1..2}", "a{a..b}", "a{1,}", "a{1,1}", "a{,}", "a{1}", "a{}", "a{{1,2}}", "a{1,2..3}", "a{1..2", "a1..2}", "a{0..1}{0..1", "a{0..999}{0..1000}", "{0..1000000}", "a{٣..٤}", "", "{0..99999999999999999999}"],
)  # fmt: skip
def test_what_is_no_range_is_refused_when_the_source_is_made(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"range|name|shards|empty"):
        dataio.webdataset(pattern)


def test_what_is_no_path_is_refused() -> None:
    for paths in (3, None, b"x", [3], [b"x"]):
        with pytest.raises(TypeError):
            dataio.webdataset(paths)
    with pytest.raises(ValueError, match="at least one"):
        dataio.webdataset([])
    with pytest.raises(ValueError, match="max_output_bytes"):
        dataio.webdataset("x.tar", max_output_bytes=0)


# ------------------------------------------------------------------------------------------------------- in loaders

N = 47


@pytest.fixture
def three(put: Put) -> list[str]:
    """Three shards of `N` samples in all, the second one compressed."""
    parts = [tar(numbered(0, 20)), gzip.compress(tar(numbered(20, 10))), tar(numbered(30, N - 30))]
    return [put(f"{k}.tar", part) for k, part in enumerate(parts)]


def loader_of(source: Any, size: int = 4, **options: Any) -> dataio.DataLoader:
    stages = dataio.map(lambda r: {"x": r["npy"], "key": r["__key__"]}), dataio.slot("x").decode_npy(), dataio.batch(size)
    return dataio.pipeline(*stages).bind(source).run("numpy", **{"seed": 3, **options})


def steps(loader: dataio.DataLoader, count: int | None = None) -> list[tuple[tuple[str, ...], tuple[float, ...]]]:
    found = []
    for batch in loader:
        found.append((tuple(batch.keys), tuple(batch["x"][:, 0].tolist())))
        if count is not None and len(found) == count:
            break
    return found


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_samples_in_a_loader(three: list[str], workers: str) -> None:
    with loader_of(dataio.webdataset(three), workers=workers) as loader:
        rows = [pair for keys, values in steps(loader) for pair in zip(keys, values)]
    assert rows == [(f"{i:04d}", float(i)) for i in range(N)]


ORDERS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda source: source,
    "window": lambda source: source.shuffle(buffer=7),
    "shards": lambda source: source.shuffle(seed=2, buffer=5, block=1),
    "mapped": lambda source: source.map_records(lambda r: r),
    "filtered": lambda source: source.filter_records(lambda r: r["__key__"][-1] != "3"),
    "twice": lambda source: source.shuffle(buffer=7).repeat(2),
}


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 9), max_size=3))
def test_a_pass_is_resumed_anywhere(three: list[str], order: str, cuts: list[int]) -> None:
    with loader_of(ORDERS[order](dataio.webdataset(three))) as loader:
        whole = steps(loader)
        assert loader.state_dict()["epoch"] == 1
    found, state = [], None
    for cut in [*cuts, None]:
        with loader_of(ORDERS[order](dataio.webdataset(three))) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            if cut != 0 and not (state is not None and state["epoch"]):
                found += steps(loader, cut)
            state = loader.state_dict()
    assert found == whole


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_the_samples(three: list[str], ranks: int) -> None:
    found: list[str] = []
    for rank in range(ranks):
        with loader_of(dataio.webdataset(three), shard={"id": rank, "of": ranks, "pad": False}) as loader:
            found += [key for keys, _ in steps(loader) for key in keys]
    assert sorted(found) == [f"{i:04d}" for i in range(N)]


def test_shuffled_shards_come_in_another_order_in_each_epoch(three: list[str]) -> None:
    with loader_of(dataio.webdataset(three).shuffle(buffer=1, block=1)) as loader:
        orders = [list(dict.fromkeys(int(key) // 10 for keys, _ in steps(loader) for key in keys)) for _ in range(8)]
    assert len(set(map(tuple, orders))) > 1
    whole = {(0, 1), (2,), (3, 4)}
    assert all({t for t in whole if set(t) <= set(o)} == whole for o in orders)


def test_shuffling_needs_a_window(three: list[str]) -> None:
    for options in ({}, {"block": 3}):
        with pytest.raises(TypeError, match="sequential"):
            dataio.webdataset(three).shuffle(**options)


def test_other_shards_do_not_fit_a_checkpoint(three: list[str]) -> None:
    with loader_of(dataio.webdataset(three)) as loader:
        steps(loader, 7)
        state = loader.state_dict()
    with loader_of(dataio.webdataset([*three[1:], three[0]])) as loader:
        loader.load_state_dict(state)
        with pytest.raises(CheckpointError, match="the same shards"):
            steps(loader)


def test_a_failed_sample_is_written_down_and_run_again(put: Put, tmp_path: Path) -> None:
    shard = put("x.tar", tar([*numbered(0, 3), ("9.npy", b"no array"), ("9.json", b"{}")]))
    path = tmp_path / "bad.jsonl"
    with loader_of(dataio.webdataset(shard), on_failure="skip", quarantine=str(path)) as loader:
        steps(loader)
    (record,) = dataio.manifest(path)
    assert (record["__key__"], record["__shard__"]) == ("9", shard)
    assert bytes(dataio.io.resolve.read_source(record["npy"])) == b"no array"


# ------------------------------------------------------------------------------------------------------ the stream


def test_local_contents_are_read_by_the_workers(tmp_path: Path) -> None:
    """Only headers are read here."""
    path = tmp_path / "x.tar"
    path.write_bytes(tar([(f"{i}.bin", bytes(1 << 20)) for i in range(4)]))
    assert [reader.nbytes for sample in dataio.webdataset(path) if (reader := sample["bin"])] == [0] * 4


def test_a_shard_in_a_store_is_one_request(shelf: Shelf) -> None:
    shelf.objects = {f"{k}.tar": tar(numbered(10 * k, 10)) for k in range(3)}
    assert len(list(dataio.webdataset("shelf://{0..2}.tar"))) == 30
    assert shelf.requests == 3


def test_the_next_shard_is_fetched_ahead(shelf: Shelf) -> None:
    shelf.objects = {f"{k}.tar": tar(numbered(10 * k, 10)) for k in range(4)}
    with_samples = iter(dataio.webdataset("shelf://{0..3}.tar"))
    next(with_samples)
    deadline = time.monotonic() + 60
    while shelf.requests < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert shelf.requests == 2, "and the one behind it is not"
    with_samples.close()  # type: ignore[attr-defined]


def test_memory_ahead_is_bounded(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "FEED_BYTES", 1 << 18)
    shelf.objects = {"0.tar": tar([(f"{i}.bin", bytes(1 << 17)) for i in range(100)])}
    with_samples = iter(dataio.webdataset("shelf://0.tar"))
    next(with_samples)
    time.sleep(0.05)
    assert shelf.nbytes < 1 << 20
    assert sum(1 for _ in with_samples) == 99


def test_leaving_ends_the_threads(shelf: Shelf) -> None:
    shelf.objects = {f"{k}.tar": tar([(f"{i}.npy", npy(np.zeros(1 << 18))) for i in range(30)]) for k in range(3)}
    with loader_of(dataio.webdataset("shelf://{0..2}.tar"), size=1) as loader:
        steps(loader, 2)
    source = iter(dataio.webdataset("shelf://{0..2}.tar"))
    next(source)
    del source
    deadline = time.monotonic() + 60
    while any(t.name == "dataio-shard" for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(t.name == "dataio-shard" for t in threading.enumerate())


def test_large_entries_in_a_store_are_fetched_when_they_are_read(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_module, "CARRIED_BYTES", 1000)
    shelf.objects = {"0.tar": tar([("0.bin", b"x" * 900), ("0.more", b"y" * 900), ("1.bin", b"z" * 1001)])}
    first, second = dataio.webdataset("shelf://0.tar")
    assert [first[s].remote for s in ("bin", "more")] + [second["bin"].remote] == [False, True, True]
    assert (read(first)["more"], read(second)["bin"]) == (b"y" * 900, b"z" * 1001)


# ------------------------------------------------------------------------------------------------------ bad shards


def test_a_missing_shard_names_itself(put: Put) -> None:
    there = put("0.tar", tar(numbered(0, 2)))
    absent = there.replace("0.tar", "1.tar")
    source = iter(dataio.webdataset([there, absent]))
    assert [next(source)["__key__"], next(source)["__key__"]] == ["0000", "0001"]
    with pytest.raises(FileNotFoundError, match=r"1\.tar") as caught:
        next(source)
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    with loader_of(dataio.webdataset([there, absent]), size=1) as loader:
        batches = iter(loader)
        assert len(list(zip(range(2), batches))) == 2
        with pytest.raises(FileNotFoundError, match=r"1\.tar") as caught:
            next(batches)
        assert isinstance(caught.value, SourceError)


def header(name: str, size: int, kind: bytes = b"0") -> bytes:
    """A header that claims any size, checksum right."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT)[:BLOCK])
    block[124:136] = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


GOOD = tar([("0.npy", b"abc")])
HOSTILE: dict[str, bytes] = {
    "a size of 2**40": header("0.npy", 2**40),
    "a size of 2**80": header("0.npy", 2**80),
    "a size of 2**40 behind an entry": GOOD[:1024] + header("1.npy", 2**40) + bytes(1024),
    "a negative size": header("0.npy", 0)[:124] + b"\xff" * 12 + header("0.npy", 0)[136:],
    "a long name of 2**40": header("0.npy", 2**40, b"L"),
    "attributes of 2**30": header("0.npy", 2**30, b"x") + bytes(4096),
    "damaged attributes": header("0.npy", 20, b"x") + b"99999999 path=a\n".ljust(512, b"\1") + GOOD,
    "a size in attributes": header("0.npy", 20, b"x") + b"20 size=-5000000000\n".ljust(512, b"\0") + GOOD,
    "a damaged header": GOOD[:10] + b"\xff" + GOOD[11:],
    "cut off in a header": GOOD[:100],
    "cut off in a content": GOOD[:513],
    "cut off before the end marker": GOOD[:1024],
    "empty": b"",
    "no tar": b"<html>" * 400,
    "a zip file": b"PK\3\4" + bytes(2000),
    "gzip that is cut off": gzip.compress(tar([("0.npy", bytes(range(256)) * 40)]))[:-30],
    "gzip and garbage": gzip.compress(GOOD) + b"garbage",
    "gzip that is damaged": gzip.compress(GOOD)[:20] + b"\xff\xff\xff" + gzip.compress(GOOD)[23:],
    "a gzip of no tar": gzip.compress(b"<html>" * 400),
    "xz that is damaged": lzma.compress(GOOD)[:40] + bytes(40),
    "bzip2 that is cut off": bz2.compress(GOOD)[:-10],
    "zstd that is damaged": b"\x28\xb5\x2f\xfd" + bytes(100),
    "sparse": header("0.npy", 0, b"S") + bytes(1024),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_bad_tars_are_errors_that_name_them(put: Put, kind: str) -> None:
    shard = put("x.tar", HOSTILE[kind])
    tracemalloc.start()
    try:
        with pytest.raises(TarError, match=r"x\.tar"):
            samples(shard)
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()


def test_samples_before_the_damage_are_delivered(put: Put) -> None:
    shard = put("x.tar", tar(numbered(0, 9))[:-11000])
    source = iter(dataio.webdataset(shard))
    assert [next(source)["__key__"] for _ in range(3)] == ["0000", "0001", "0002"]
    with pytest.raises(TarError):
        list(source)


@pytest.mark.parametrize("packed", PACKED)
def test_an_entry_that_is_too_large_is_an_error_of_its_record(put: Put, packed: str) -> None:
    entries = [("0.npy", npy(np.zeros(3, np.float32))), ("1.npy", npy(np.zeros(9999, np.float32))), ("2.npy", ENTRIES[2][1])]
    shard = put("x.tar", PACKED[packed](tar(entries)))
    with loader_of(dataio.webdataset(shard, max_output_bytes=5000), on_failure=0) as loader:
        (batch,) = loader
        assert (batch.keys, [(e["key"], e["stage"], e["type"]) for e in batch.errors]) == (
            ["0", "2"], [("1", "read", "ResponseTooLargeError")],
        )  # fmt: skip
    with pytest.raises(RuntimeError, match="max_output_bytes"):
        samples(shard, max_output_bytes=5000)


def test_a_compressed_bomb_takes_no_memory(put: Put) -> None:
    """100 MB of zeros in one entry, out of 100 KB."""
    info = tarfile.TarInfo("0.bin")
    info.size = 100_000_000
    out = io.BytesIO()
    with gzip.open(out, "wb", compresslevel=6) as packed:
        packed.write(info.tobuf())
        for _ in range(100):
            packed.write(bytes(1_000_000))
        packed.write(bytes(-info.size % 512 + 1024))
    shard = put("x.tar", out.getvalue())
    tracemalloc.start()
    try:
        (sample,) = dataio.webdataset(shard, max_output_bytes=1 << 20)
        with pytest.raises(RuntimeError, match="max_output_bytes"):
            sample["bin"].read_all()
        assert tracemalloc.get_traced_memory()[1] < shards_module.FEED_BYTES + (16 << 20)
    finally:
        tracemalloc.stop()


def test_a_sample_of_many_entries_in_a_compressed_shard_is_read_all_the_same(put: Put) -> None:
    shard = put("x.tar", gzip.compress(tar([(f"0.{i}", bytes([i]) * 600) for i in range(9)])))
    (sample,) = samples(shard, max_output_bytes=1000)
    assert [sample[str(i)] for i in range(9)] == [bytes([i]) * 600 for i in range(9)]


def test_a_suffix_twice_in_a_sample(put: Put) -> None:
    with pytest.raises(ValueError, match="'x' twice"):
        samples(put("x.tar", tar([("a/0.x", b""), ("b/0.x", b"")])))


def test_an_entry_twice_in_a_shard(put: Put) -> None:
    with pytest.raises(RuntimeError, match=r"'0\.x' twice") as caught:
        samples(put("x.tar", tar([("0.x", b"1"), ("1.x", b""), ("0.x", b"2")])))
    assert isinstance(caught.value, DuplicateEntryError)


# ------------------------------------------------------------------------------------------------------- the walk

NAMES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0/"), min_size=1, max_size=130)


@settings(max_examples=60, deadline=None)
@given(
    entries=st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.binary(max_size=1500)), max_size=6),
    form=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    chunk=st.integers(1, 2000),
)
def test_the_walk_finds_what_tarfile_wrote(tmp_path_factory: Any, entries: Entries, form: int, chunk: int) -> None:
    data = tar(entries, form)
    path = tmp_path_factory.mktemp("walk") / "x.tar"
    path.write_bytes(data)
    for tape in (FileTape(str(path)), StreamTape(data[i : i + chunk] for i in range(0, len(data), chunk))):
        walk, found = TarWalk(tape, "x"), []
        while (entry := walk.next()) is not None:
            content = walk.read(entry)
            assert data[entry.offset : entry.offset + entry.size] == content
            found.append((entry.name, content))
        tape.close()
        with tarfile.open(path) as archive:
            known = [(member.name, archive.extractfile(member).read()) for member in archive if member.isreg()]  # type: ignore[union-attr]
        assert [(name.rstrip("/"), content) for name, content in found] == known
