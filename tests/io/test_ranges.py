"""Sources read in parts: every kind gives the same bytes, files that change are noticed, nothing stays open for ever."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from dataio.engine.errors import RecordError
from dataio.io import ranges
from dataio.io.errors import ReadError
from dataio.io.ranges import (
    OPEN_FILES,
    SMALL_FILE,
    WHOLE_BELOW,
    FileRanges,
    MemoryRanges,
    StoreRanges,
    close_files,
    open_ranges,
)
from dataio.io.resolve import read_source

DATA = np.random.default_rng(0).integers(0, 256, 5000, np.uint8).tobytes()
LARGE = DATA + bytes(SMALL_FILE)


class Whole:
    """A reader that can only give everything."""

    def read_all(self):
        return DATA


@pytest.fixture(autouse=True)
def _nothing_open():
    close_files()
    yield
    close_files()


@pytest.fixture(autouse=True)
def _empty_store():
    store = fsspec.filesystem("memory")
    yield
    store.store.clear()


def in_memory_store(data, name="ranges.bin"):
    fsspec.filesystem("memory").pipe_file(f"/{name}", data)
    return f"memory://{name}"


KINDS = ["bytes", "bytearray", "memoryview", "array", "str", "path", "uri", "reader", "mapping", "bytes-mapping",
         "window", "range", "window-of-memory", "large-file", "store", "large-store", "pipe"]  # fmt: skip


def source_of(kind, folder: Path, data: bytes = DATA):
    path = folder / "a file"
    path.write_bytes(data)
    (folder / "longer").write_bytes(b"xx" + data + b"yyy")
    inside = {"offset": 2, "size": len(data)}
    return {
        "bytes": lambda: data,
        "bytearray": lambda: bytearray(data),
        "memoryview": lambda: memoryview(data),
        "array": lambda: np.frombuffer(data, np.uint8)[: len(data) // 8 * 8].view("f8").reshape(-1, 5),
        "str": lambda: str(path),
        "path": lambda: path,
        "uri": lambda: f"file://{path}",
        "reader": Whole,
        "mapping": lambda: {"path": path},
        "bytes-mapping": lambda: {"bytes": data, "path": None},
        "window": lambda: {"url": str(folder / "longer"), **inside},
        "range": lambda: {"uri": f"file://{folder}/longer", "range": (2, len(data))},
        "window-of-memory": lambda: {"uri": in_memory_store(b"xx" + data + b"yyy"), **inside},
        "large-file": lambda: write(folder / "large", data + bytes(SMALL_FILE)),
        "store": lambda: in_memory_store(data),
        "large-store": lambda: in_memory_store(data + bytes(WHOLE_BELOW)),
        "pipe": lambda: pipe_of(folder, data),
    }[kind]()


def write(path, data):
    path.write_bytes(data)
    return path


def pipe_of(folder, data):
    path = folder / "pipe"
    os.mkfifo(path)
    threading.Thread(target=path.write_bytes, args=(data,)).start()
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_bytes(kind, tmp_path):
    reader = open_ranges(source_of(kind, tmp_path))
    assert reader.size == len(DATA) + {"large-store": WHOLE_BELOW, "large-file": SMALL_FILE}.get(kind, 0)
    for offset, length in [(0, 0), (0, 8), (17, 1000), (4999, 1), (0, 5000), (5000, 0)]:
        out = bytearray(length)
        reader.read_into(offset, memoryview(out))
        assert bytes(reader.read(offset, length)) == out == DATA[offset : offset + length]
    reader.close()
    reader.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, -1), (0, 10**15), (10**15, 1)])
def test_reads_outside_are_read_errors(kind, offset, length, tmp_path):
    reader = open_ranges(source_of(kind, tmp_path))
    with pytest.raises(ReadError, match="outside the"):
        reader.read(offset, length)


@pytest.mark.parametrize("kind", KINDS)
def test_reading_one_past_the_end_writes_nothing(kind, tmp_path):
    reader = open_ranges(source_of(kind, tmp_path))
    out = bytearray(2)
    with pytest.raises(ReadError):
        reader.read_into(reader.size - 1, memoryview(out))
    assert out == bytes(2)


@pytest.mark.parametrize("kind", ["bytes", "str", "window", "store"])
def test_no_bytes(kind, tmp_path):
    reader = open_ranges(source_of(kind, tmp_path, b""))
    assert (reader.size, bytes(reader.read(0, 0))) == (0, b"")


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=100), st.data())
def test_windows_of_windows(data, draw):
    start = draw.draw(st.integers(0, len(data)))
    size = draw.draw(st.integers(0, len(data) - start))
    first = draw.draw(st.integers(0, size))
    length = draw.draw(st.integers(0, size - first))
    window = ranges.Window(ranges.Window(MemoryRanges(data, "name"), start, size), first, length)
    assert bytes(window.read(0, length)) == data[start + first :][:length]
    assert window.identity == (("name", start, size), first, length)


@pytest.mark.parametrize("source", [DATA, bytearray(DATA), np.frombuffer(DATA, np.uint8)], ids=["bytes", "bytearray", "array"])
def test_memory_is_viewed_not_copied(source):
    assert np.shares_memory(np.frombuffer(open_ranges(source).read(0, 100), np.uint8), np.frombuffer(source, np.uint8))


BAD = [
    pytest.param(3, RecordError, "cannot read bytes from a int", id="int"),
    pytest.param(None, RecordError, "NoneType", id="none"),
    pytest.param({"picture": b""}, RecordError, "it has: picture", id="mapping"),
    pytest.param({"path": "p", "offset": 3}, ValueError, "both offset and size", id="half-range"),
    pytest.param({"reader": Whole(), "offset": 0, "size": 1}, ValueError, "do not go with a reader", id="reader-range"),
    pytest.param("/no/such/file", FileNotFoundError, "/no/such/file", id="missing"),
    pytest.param("memory://no-such-object", FileNotFoundError, "no-such-object", id="missing-object"),
    pytest.param("/", IsADirectoryError, "directory", id="directory"),
    pytest.param({"path": __file__, "offset": 10**9, "size": 1}, ReadError, "outside", id="window"),
    pytest.param({"path": __file__, "offset": -1, "size": 1}, ReadError, "outside", id="negative-window"),
    pytest.param({"bytes": "text"}, RecordError, "cannot read bytes from a str", id="text"),
    pytest.param(memoryview(bytes(6))[::2], RecordError, "contiguous", id="strided"),
]


@pytest.mark.parametrize(("value", "error", "match"), BAD)
def test_bad_sources(value, error, match):
    with pytest.raises(error, match=match):
        open_ranges(value)


@pytest.mark.parametrize("value", [case.values[0] for case in BAD[:7]], ids=[case.id for case in BAD[:7]])
def test_read_source_refuses_them_in_the_same_way(value):
    with pytest.raises(Exception) as found:  # noqa: PT011
        read_source(value)
    with pytest.raises(type(found.value)):
        open_ranges(value)


def test_a_replaced_file_is_seen_and_the_old_reader_keeps_the_old_content(tmp_path):
    path, new = tmp_path / "file", tmp_path / "new"
    path.write_bytes(b"old" + LARGE)
    old = open_ranges(path)
    new.write_bytes(b"new" + LARGE)
    os.utime(new, ns=(old.identity[3], old.identity[3]))  # same size and time
    os.replace(new, path)
    reader = open_ranges(path)
    assert (bytes(old.read(0, 3)), bytes(reader.read(0, 3))) == (b"old", b"new")
    assert reader.identity != old.identity


def test_a_rewrite_in_place_changes_the_identity(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    before = open_ranges(path).identity
    path.write_bytes(b"12345")
    assert open_ranges(path).identity != before


def test_equal_files_under_two_names_of_one_file(tmp_path):
    (tmp_path / "a").write_bytes(LARGE)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert open_ranges(tmp_path / "a").identity == open_ranges(tmp_path / "b").identity


def test_a_file_cut_short_while_it_is_read_is_a_read_error(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(LARGE)
    reader = open_ranges(path)
    os.truncate(path, 100)
    with pytest.raises(ReadError, match="ended at byte 100"):
        reader.read(50, 1000)
    with pytest.raises(ReadError, match="ended at byte 100"):
        reader.read_into(50, memoryview(bytearray(1000)))


def test_reads_that_come_in_pieces(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(LARGE)
    reader = open_ranges(path)
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 7), at))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][:7]], at))
    assert reader.read(10, 100) == DATA[10:110]


def open_descriptors(folder):
    links = (os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd"))
    return [target for link in links if os.path.lexists(link) and (target := os.readlink(link)).startswith(str(folder))]


def test_records_in_one_file_open_it_once(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(LARGE)
    opened, real = [], os.open
    monkeypatch.setattr(os, "open", lambda *args, **kwargs: opened.append(args[0]) or real(*args, **kwargs))
    for record in range(10):
        reader = open_ranges({"path": path, "offset": record, "size": 1})
        reader.read(0, 1)
        reader.close()
    assert opened == [str(path)]


def test_few_files_stay_open_and_closing_ends_that(tmp_path):
    for number in range(3 * OPEN_FILES):
        (tmp_path / str(number)).write_bytes(LARGE)
        open_ranges(tmp_path / str(number)).close()
    assert len(open_descriptors(tmp_path)) == OPEN_FILES
    reader = open_ranges(tmp_path / "0")
    close_files()
    assert len(open_descriptors(tmp_path)) == 1
    assert reader.read(0, 5) == DATA[:5]
    reader.close()
    assert open_descriptors(tmp_path) == []


def test_a_closed_reader_says_so(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(LARGE)
    reader = open_ranges(path)
    reader.close()
    with pytest.raises(ReadError, match="is closed"):
        reader.read(0, 1)


def test_threads_share_descriptors_that_come_and_go(tmp_path):
    paths = [tmp_path / str(number) for number in range(OPEN_FILES + 8)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 2 * SMALL_FILE)
    wrong = []

    def work(seed):
        for number in np.random.default_rng(seed).integers(0, len(paths), 300):
            reader = open_ranges(paths[number])
            if set(reader.read(10, 50)) != {number}:
                wrong.append(number)
            reader.close()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    assert len(open_descriptors(tmp_path)) <= OPEN_FILES


class Tagged(MemoryFileSystem):
    """A store that tells versions, and counts requests."""

    protocol = "taggedmemory"
    requests: list[tuple[int | None, int | None]] = []
    short = False

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("taggedmemory://"))

    def info(self, path, **kwargs):
        return {**super().info(path, **kwargs), "ETag": f"v{len(self.store[self._strip_protocol(path)].getvalue())}"}

    def cat_file(self, path, start=None, end=None, **kwargs):
        self.requests.append((start, end))
        data = super().cat_file(path, start, end, **kwargs)
        return data[:-1] if self.short else data


@pytest.fixture
def tagged(monkeypatch):
    fsspec.register_implementation("taggedmemory", Tagged, clobber=True)
    monkeypatch.setattr(Tagged, "requests", [])
    return Tagged


def test_large_objects_are_read_by_ranges(tagged):
    in_memory_store(DATA + bytes(WHOLE_BELOW), "large")
    reader = open_ranges("taggedmemory://large")
    assert isinstance(reader, StoreRanges)
    assert reader.identity == ("taggedmemory://large", len(DATA) + WHOLE_BELOW, f"v{len(DATA) + WHOLE_BELOW}")
    assert reader.read(3, 4) == DATA[3:7]
    assert tagged.requests == [(3, 7)]


def test_small_objects_come_in_one_request(tagged):
    in_memory_store(DATA, "small")
    reader = open_ranges("taggedmemory://small")
    assert bytes(reader.read(3, 4)) + bytes(reader.read(0, 1)) == DATA[3:7] + DATA[:1]
    assert tagged.requests == [(None, None)]
    assert reader.identity == ("taggedmemory://small", len(DATA), f"v{len(DATA)}")


def test_a_store_that_gives_less_is_a_read_error(tagged, monkeypatch):
    in_memory_store(DATA + bytes(WHOLE_BELOW), "large")
    monkeypatch.setattr(tagged, "short", True)
    with pytest.raises(ReadError, match="gave 3 bytes where 4 at 0"):
        open_ranges("taggedmemory://large").read(0, 4)


def test_nothing_is_remembered_of_a_store_without_versions():
    assert open_ranges(in_memory_store(DATA)).identity is None


def test_a_forked_child_reads_through_the_same_descriptor(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(LARGE)
    script = (
        "import os, pathlib, sys\n"
        "from dataio.io.ranges import open_ranges\n"
        "reader = open_ranges(sys.argv[1])\n"
        "child = os.fork()\n"
        "right = bytes(reader.read(10, 20)) == pathlib.Path(sys.argv[1]).read_bytes()[10:30]\n"
        "if child == 0: os._exit(0 if right else 3)\n"
        "print(os.waitpid(child, 0)[1], right)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script, path], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0 True\n", "")


def test_an_open_file_does_not_travel(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(LARGE)
    reader = open_ranges(path)
    assert isinstance(reader, FileRanges)
    with pytest.raises(TypeError, match="send its path"):
        pickle.dump(reader, io.BytesIO())
