"""`reader(uri)`: windows, parts, Python files, pickles, what it says of itself; on files, S3 and the web."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import dataio
from dataio.io.errors import (
    CredentialsError,
    RangeError,
    ResponseTooLargeError,
    UnsupportedError,
    UriError,
)
from dataio.io.file_objects import KEPT, StreamFile
from dataio.io.ranges import open_ranges
from dataio.io.reader import UnsupportedRangeError
from dataio.io.resolve import read_source

from ..servers.misbehaving import Reply, misbehaving
from .contract import Place, content, unique
from .places import S3, Folder, Memory, Web

DATA = content(100_000)


@pytest.fixture(params=["file", "s3", "http", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each kind of store that `reader` asks in another way."""
    if request.param == "file":
        return Folder(tmp_path)
    if request.param == "memory":
        return Memory(unique())
    if request.param == "s3":
        return S3(request.getfixturevalue("s3_server"), request.getfixturevalue("s3_bucket"))
    folder = unique()
    return Web(request.getfixturevalue("web_root") / folder, f"{request.getfixturevalue('web_server')}/{folder}/")


def written(place: Place, data: bytes = DATA) -> str:
    place.write("data.bin", data)
    return place.uri("data.bin")


# --------------------------------------------------------------------------- reading


def test_all_of_it_is_bytes(place: Place) -> None:
    made = dataio.reader(written(place))
    assert made.read_all() == DATA
    assert type(made.read_all()) is bytes
    assert bytes(read_source(made)) == DATA


def test_nothing_is_read_before_it_is_asked_for(place: Place) -> None:
    made = dataio.reader(place.uri("later.bin")).gunzip()
    with pytest.raises(FileNotFoundError, match=r"later\.bin"):
        made.read_all()


@pytest.mark.parametrize("window", [(0, 100_000), (10, 50), (99_990, 100), (0, 0), (5, 10**12)])
def test_a_window_is_cut_short_at_the_end(place: Place, window: tuple[int, int]) -> None:
    offset, size = window
    made = dataio.reader(written(place), offset=offset, size=size)
    expected = DATA[offset : offset + size]
    assert made.read_all() == expected
    assert made.read_range(3, 20) == expected[3:23]
    assert made.open().read() == expected
    assert b"".join(map(bytes, made.chunks())) == expected


@pytest.mark.parametrize("start", [0, 1, 99_999, 100_000, 100_001, 10**15])
@pytest.mark.parametrize("length", [0, 1, 7, 10**15])
def test_a_part_is_cut_short_at_the_end(place: Place, start: int, length: int) -> None:
    assert dataio.reader(written(place)).read_range(start, length) == DATA[start : start + length]


@pytest.mark.parametrize(("start", "room"), [(0, 100_000), (5, 10), (99_995, 10), (100_000, 5), (200_000, 5)])
def test_a_buffer_is_filled(place: Place, start: int, room: int) -> None:
    out = np.zeros(room, np.uint8)
    expected = DATA[start : start + room]
    assert dataio.reader(written(place)).read_into(out, start) == len(expected)
    assert out[: len(expected)].tobytes() == expected


def test_a_buffer_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="writable"):
        dataio.reader(written(Folder(tmp_path))).read_into(bytes(4))


def test_a_window_behind_the_end_is_empty_on_files_and_an_error_in_stores(tmp_path: Path, s3_server: Any, s3_bucket: str) -> None:
    assert dataio.reader(written(Folder(tmp_path)), offset=10**6, size=5).read_all() == b""
    with pytest.raises(RangeError, match=r"data\.bin"):
        dataio.reader(written(S3(s3_server, s3_bucket)), offset=10**6, size=5).read_all()


def test_several_parts_at_once(place: Place) -> None:
    data = content(300_000)
    made = dataio.reader(written(place, data), offset=10, size=299_000)
    parts = [(298_999, 5), (0, 3), (150_000, 4), (2, 2), (7, 0), (10**6, 5)]
    assert made.read_ranges(parts) == [data[10:299_010][start : start + length] for start, length in parts]


@pytest.mark.parametrize("part", [(-1, 1), (0, -1)])
def test_parts_have_no_negative_numbers(tmp_path: Path, part: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="negative"):
        dataio.reader(written(Folder(tmp_path))).read_ranges([(0, 1), part])


def test_an_empty_object(place: Place) -> None:
    made = dataio.reader(written(place, b""))
    assert made.read_all() == made.read_range(0, 5) == made.open().read() == b""


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.data())
def test_any_part_of_any_window_equals_slicing(tmp_path_factory: pytest.TempPathFactory, data: bytes, draw: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_bytes(data)
    numbers = st.integers(0, 320)
    offset, size, start, length = (draw.draw(numbers) for _ in range(4))
    made = dataio.reader(str(path), offset=offset, size=size)
    window = data[offset : offset + size]
    assert made.read_range(start, length) == window[start : start + length]
    out = bytearray(length)
    assert made.read_into(out, start) == len(window[start : start + length])
    file = made.open(buffer_size=draw.draw(st.integers(1, 50)))
    file.seek(start)
    assert file.read(length) == window[start : start + length]


@pytest.mark.parametrize("limit", [0, 99_999])
def test_more_than_the_limit_is_not_read(place: Place, limit: int) -> None:
    made = dataio.reader(written(place), max_response_bytes=limit)
    for read in (made.read_all, made.open, lambda: made.read_range(0, 100_000), lambda: list(made.chunks())):
        with pytest.raises(RuntimeError, match=r"data\.bin") as failed:
            read()
        assert isinstance(failed.value, ResponseTooLargeError)


def test_as_much_as_the_limit_is_read(place: Place) -> None:
    uri = written(place)
    assert dataio.reader(uri, max_response_bytes=100_000).read_all() == DATA
    assert dataio.reader(uri, max_response_bytes=10).read_range(50, 10) == DATA[50:60]


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"offset": 1}, ValueError, "go together"),
        ({"size": 1}, ValueError, "go together"),
        ({"offset": -1, "size": 1}, ValueError, "negative"),
        ({"offset": 0, "size": -1}, ValueError, "negative"),
        ({"offset": 0.5, "size": 1}, TypeError, "int"),
        ({"offset": True, "size": 1}, TypeError, "int"),
        ({"max_response_bytes": -1}, ValueError, "negative"),
        ({"headers": {"a": "b"}}, NotImplementedError, "http"),
    ],
)
def test_options_that_make_no_sense_are_told_at_once(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        dataio.reader("/tmp/x", **options)


@pytest.mark.parametrize(
    ("uri", "error", "match"),
    [
        (Path("/tmp/x"), TypeError, "str"),
        (b"/tmp/x", TypeError, "str"),
        ("", UriError, "empty"),
        ("s4://bucket/key", ValueError, "s3"),
        ("s3://bucket", UriError, "no key"),
        ("hf://org/repo@/x", UriError, "revision"),
        ("a\0b", UriError, "NUL"),
    ],
)
def test_uris_that_name_nothing_are_told_at_once(uri: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        dataio.reader(uri)


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, ["a"], "a: b"])
def test_headers_are_strings_by_name(headers: Any) -> None:
    with pytest.raises(TypeError, match="mapping of str"):
        dataio.reader("http://127.0.0.1/x", headers=headers)


@pytest.mark.parametrize(("start", "length", "error"), [(-1, 1, ValueError), (0, -1, ValueError), (1.0, 1, TypeError), ("0", 1, TypeError)])
def test_parts_that_make_no_sense(tmp_path: Path, start: Any, length: Any, error: type[Exception]) -> None:
    made = dataio.reader(written(Folder(tmp_path)))
    with pytest.raises(error):
        made.read_range(start, length)


# --------------------------------------------------------------------------- headers and secrets


def test_headers_are_sent_with_every_request() -> None:
    with misbehaving() as server:
        made = dataio.reader(server.script("/data", Reply(body=DATA)), headers={"Authorization": "Bearer sesame-sesame"})
        assert made.read_all() == DATA
        assert made.read_range(5, 10) == DATA[5:15]
        assert made.open().read() == DATA
        assert made.read_into(bytearray(10)) == 10
        assert {seen.headers.get("authorization") for seen in server.seen} == {"Bearer sesame-sesame"}


def test_secret_headers_show_nowhere_and_do_not_travel() -> None:
    made = dataio.reader("http://127.0.0.1:9/x", headers={"X-Api-Key": "sesame-sesame", "User-Agent": "me"})
    packed = pickle.dumps(made)
    assert b"sesame" not in packed
    assert "sesame" not in repr(made) + str(made.metadata())
    with pytest.raises(CredentialsError, match="X-Api-Key"):
        pickle.loads(packed).read_all()
    assert copy.deepcopy(made) == copy.copy(made) == made


def test_harmless_headers_travel() -> None:
    made = dataio.reader("http://127.0.0.1:9/x", headers={"User-Agent": "me"})
    assert pickle.loads(pickle.dumps(made)) == made


def test_signatures_in_a_uri_are_masked() -> None:
    made = dataio.reader("https://user:sesame@127.0.0.1/x?X-Amz-Signature=0123abcdef&a=b").gunzip()
    for text in (repr(made), str(made.metadata())):
        assert "sesame" not in text
        assert "0123abcdef" not in text
        assert "a=b" in text


# --------------------------------------------------------------------------- pickles, threads, forks


def test_a_reader_travels_and_reads_in_another_process(tmp_path: Path) -> None:
    made = dataio.reader(written(Folder(tmp_path)), offset=5, size=10)
    assert len(pickle.dumps(made)) < 1000
    code = "import pickle, sys; sys.stdout.buffer.write(pickle.load(sys.stdin.buffer).read_all())"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(made), capture_output=True, timeout=60, check=True)
    assert done.stdout == DATA[5:15]


def test_threads_share_a_reader(place: Place) -> None:
    made = dataio.reader(written(place))
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda at: made.read_range(at * 1000, 1000), range(100)))
    assert b"".join(parts) == DATA


@pytest.mark.usefixtures("no_leftovers")
def test_files_that_are_dropped_leave_nothing(place: Place) -> None:
    made = dataio.reader(written(place))
    file = made.open()
    file.read(10)
    del file
    chunks = made.chunks()
    next(chunks)
    del chunks


# --------------------------------------------------------------------------- as a Python file


def test_a_file_reads_and_seeks_as_files_of_python_do(place: Place) -> None:
    with dataio.reader(written(place)).open() as file, io.BytesIO(DATA) as expected:
        for offset, whence, count in [(0, 0, 10), (50, 1, 5), (-20, 2, 100), (0, 2, 1), (99_990, 0, 5), (-50, 1, 50), (200_000, 0, 5), (3, 0, -1)]:
            assert file.seek(offset, whence) == expected.seek(offset, whence)
            assert file.read(count) == expected.read(count)
            assert file.tell() == expected.tell()
        with pytest.raises((ValueError, OSError)):
            file.seek(-1)
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
    assert file.closed


def test_lines_of_a_file(place: Place) -> None:
    text = b"".join(b"line %d\n" % at for at in range(5000))
    with dataio.reader(written(place, text)).open(buffer_size=100) as file:
        assert list(file) == text.splitlines(keepends=True)


def test_pillow_pyarrow_pandas_and_zipfile_read_from_it(place: Place) -> None:
    import pandas as pd

    picture, table, archive = io.BytesIO(), io.BytesIO(), io.BytesIO()
    Image.new("RGB", (20, 10), (255, 0, 0)).save(picture, "PNG")
    pq.write_table(pa.table({"a": list(range(1000))}), table)
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("a.txt", b"text")
    place.write("a.png", picture.getvalue())
    place.write("a.parquet", table.getvalue())
    place.write("a.zip", archive.getvalue())
    place.write("a.csv", b"a,b\n1,2\n")
    assert Image.open(dataio.reader(place.uri("a.png")).open()).getpixel((3, 3)) == (255, 0, 0)
    assert pq.read_table(dataio.reader(place.uri("a.parquet")).open())["a"].to_pylist() == list(range(1000))
    assert pd.read_csv(dataio.reader(place.uri("a.csv")).open())["b"].tolist() == [2]
    with zipfile.ZipFile(dataio.reader(place.uri("a.zip")).open()) as opened:
        assert opened.read("a.txt") == b"text"


def test_a_file_of_a_stream_starts_over_only_for_a_long_way_back() -> None:
    began = []
    data = content(4 * KEPT)

    def start() -> Any:
        began.append(1)
        yield from (data[at : at + 1000] for at in range(0, len(data), 1000))

    with StreamFile(start) as file:
        size = file.seek(0, io.SEEK_END)
        assert size == len(data)
        file.seek(-KEPT // 2, io.SEEK_END)
        assert file.read() == data[-KEPT // 2 :]
        assert len(began) == 1
        file.seek(7)
        assert file.read(5) == data[7:12]
        assert len(began) == 2


def test_an_object_replaced_while_its_file_is_open_is_an_error(s3_server: Any, s3_bucket: str) -> None:
    place = S3(s3_server, s3_bucket)
    uri = written(place, content(3 << 20))
    with dataio.reader(uri).open() as file:
        file.read(10)
        place.write("data.bin", content(3 << 20, seed=1))
        file.seek(2 << 20)
        with pytest.raises(OSError, match=r"data\.bin.*replaced"):
            file.read(10)


def test_a_url_that_answers_get_alone_is_read_in_parts() -> None:
    """A presigned URL of S3 refuses HEAD with 403."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr("a.txt", b"text")
    with misbehaving() as server:
        uri = server.script("/a.zip", lambda seen, _: Reply(403) if seen.method == "HEAD" else Reply(body=buffer.getvalue()))
        assert dataio.reader(uri).zip_entry("a.txt").read_all() == b"text"


# --------------------------------------------------------------------------- range decoders, python readers


def test_range_decoders_read_readers_in_parts(place: Place) -> None:
    made = dataio.reader(written(place), offset=10, size=1000)
    ranges = open_ranges(made)
    assert ranges.size == 1000
    assert bytes(ranges.read(5, 10)) == DATA[15:25]
    ranges.close()


def test_readers_over_python_say_what_they_can() -> None:
    (record,) = dataio.from_callable(lambda i: DATA, length=1)
    called = record["reader"]
    assert called.capabilities()["ranges"] == "fallback"
    assert called.read_range(5, 10, fallback=True) == DATA[5:15]
    with pytest.raises(RuntimeError, match="fallback=True"):
        called.read_range(5, 10)
    assert called.open().read() == DATA
    taken = dataio.from_iterator([b"first", b"second"])
    assert taken.capabilities()["ranges"] == "unsupported"
    with pytest.raises(UnsupportedRangeError, match="no parts"):
        taken.read_range(0, 2, fallback=True)
    assert taken.read_all() == b"first"


# --------------------------------------------------------------------------- what it says of itself

NATIVE = {"ranges": "native", "size": "known", "metadata": True, "concurrent_ranges": True, "streaming": True}
FALLBACK = {"ranges": "fallback", "size": "unknown", "metadata": False, "concurrent_ranges": False, "streaming": True}
ENTRY = {**NATIVE, "metadata": False}
SAYS: list[tuple[str, Callable[[Any], Any], str, dict[str, Any]]] = [
    ("plain", lambda r: r, "Reader(source=s3, uri=s3://b/k)", NATIVE),
    ("gunzip", lambda r: r.gunzip(), "Reader(source=s3, uri=s3://b/k|gunzip, ops=1)", FALLBACK),
    ("tar", lambda r: r.tar_entry("a/b"), "Reader(source=s3, uri=s3://b/k#tar:a/b, ops=1)", ENTRY),
    ("tar-at", lambda r: r.tar_entry_at(3), "Reader(source=s3, uri=s3://b/k#tar[3], ops=1)", ENTRY),
    ("zip", lambda r: r.zip_entry("a"), "Reader(source=s3, uri=s3://b/k#zip:a, ops=1)", ENTRY),
    ("tar.gz", lambda r: r.gunzip().tar_entry("a"), "Reader(source=s3, uri=s3://b/k|gunzip#tar:a, ops=2)", FALLBACK),
    ("zip-zst", lambda r: r.zip_entry("a").zstd_decode(), "Reader(source=s3, uri=s3://b/k#zip:a|zstd_decode, ops=2)", FALLBACK),
]


@pytest.mark.parametrize(("over", "shown", "can"), [case[1:] for case in SAYS], ids=[case[0] for case in SAYS])
def test_what_a_reader_says_of_itself(over: Callable[[Any], Any], shown: str, can: dict[str, Any]) -> None:
    made = over(dataio.reader("s3://b/k", offset=3, size=4))
    assert repr(made) == shown
    assert made.capabilities() == can
    described = made.describe()
    assert (described["source"], described["direct_range_reads"]) == ("s3", can["ranges"] == "native")
    assert len(described["ops"]) == shown.count("|") + shown.count("#")
    told = made.metadata()
    assert (told["range_start"], told["range_length"], told["max_response_bytes"]) == (3, 4, None)
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(made) == hash(pickle.loads(pickle.dumps(made)))


def test_local_paths_are_shown_as_file_uris(tmp_path: Path) -> None:
    assert repr(dataio.reader(f"{tmp_path}/a b")) == f"Reader(source=file, uri=file://{tmp_path}/a b)"


def test_headers_with_another_scheme_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="not with s3"):
        dataio.reader("s3://b/k", headers={"a": "b"})


@pytest.mark.parametrize("kind", ["folder", "loop", "long"])
def test_what_is_no_file(tmp_path: Path, kind: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    path = {"folder": tmp_path, "loop": tmp_path / "loop", "long": tmp_path / ("n" * 300)}[kind]
    for read in (lambda r: r.read_all(), lambda r: r.open(), lambda r: r.read_range(0, 1), lambda r: r.tar_entry("x").read_all()):
        with pytest.raises(OSError, match=str(tmp_path)):
            read(dataio.reader(str(path)))


def test_a_pipe_is_no_file_that_is_waited_for(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    failed: list[BaseException] = []

    def read() -> None:
        try:
            dataio.reader(str(tmp_path / "pipe")).read_all()
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(30)
    assert len(failed) == 1
