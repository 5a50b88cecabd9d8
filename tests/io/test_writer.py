"""`writer(uri)`: what is written appears whole or not at all, with bounded memory, and nothing is left behind."""

from __future__ import annotations

import gc
import gzip
import io
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataio
from dataio.io.errors import UnsupportedError
from dataio.io.store import Body, Store, Upload, register_store
from dataio.io.stores import leftovers
from dataio.io.uri import Uri
from dataio.io.writer import GATHERED

from .contract import Place, content, unique
from .places import S3, Azure, Folder, Memory

MIB = 1 << 20
KINDS = ["file", "s3", "az", "memory"]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "file":
        return Folder(tmp_path)
    if request.param == "memory":
        return Memory(unique())
    if request.param == "az":
        return Azure(request.getfixturevalue("azure_server"), request.getfixturevalue("az_bucket"))
    return S3(request.getfixturevalue("s3_server"), request.getfixturevalue("s3_bucket"))


def nothing_is_left(place: Place, names: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    gc.collect()
    assert place.names() == set(names)
    assert place.unfinished() == []


# --------------------------------------------------------------------------- writing


@pytest.mark.parametrize("size", [0, 1, 100_000, 6 * MIB])
def test_all_at_once(place: Place, size: int) -> None:
    etag = dataio.writer(place.uri("out.bin")).write_all(content(size))
    assert place.read("out.bin") == content(size)
    assert etag == place.open("out.bin")[0].head(place.open("out.bin")[1]).etag
    nothing_is_left(place, {"out.bin"})


@pytest.mark.parametrize("sizes", [[1], [0], [100, 0, 3], [GATHERED, GATHERED + 1, 1], [6 * MIB, 6 * MIB, 1]], ids=str)
def test_in_chunks_of_any_kind(place: Place, sizes: list[int]) -> None:
    parts = [content(size, seed=at) for at, size in enumerate(sizes)]
    kinds = [bytes, bytearray, memoryview]
    with dataio.writer(place.uri("out.bin")) as made:
        assert made.write_chunks(kind(part) for kind, part in zip(kinds * len(parts), parts, strict=False)) is made
        made.write_chunks([b"end"])
    assert place.read("out.bin") == b"".join(parts) + b"end"
    nothing_is_left(place, {"out.bin"})


def test_nothing_appears_before_close(place: Place) -> None:
    made = dataio.writer(place.uri("out.bin"))
    made.write_chunks([content(6 * MIB)])
    assert place.names() == set()
    made.close()
    made.close()
    assert place.read("out.bin") == content(6 * MIB)
    assert made.closed


def test_without_a_chunk_nothing_is_made(place: Place) -> None:
    with dataio.writer(place.uri("out.bin")) as made:
        made.write_chunks([])
    dataio.writer(place.uri("out.bin")).close()
    nothing_is_left(place)


def test_an_object_is_replaced(place: Place) -> None:
    place.write("out.bin", b"old and longer")
    with dataio.writer(place.uri("out.bin")) as made:
        made.write(b"new")
        assert place.read("out.bin") == b"old and longer"
    assert place.read("out.bin") == b"new"


def test_a_buffer_may_be_used_again(place: Place) -> None:
    buffer = bytearray(MIB)
    with dataio.writer(place.uri("out.bin")) as made:
        for at in range(8):
            buffer[:] = bytes([at]) * MIB
            assert made.write(memoryview(buffer)) == MIB
    assert place.read("out.bin") == b"".join(bytes([at]) * MIB for at in range(8))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=2000), max_size=20), st.sampled_from(["", "gzip", "zstd"]), st.integers(1, 5000))
def test_any_chunks_become_their_concatenation(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, chunks: list[bytes], encoding: str, gathered: int
) -> None:
    monkeypatch.setattr("dataio.io.writer.GATHERED", gathered)
    path = tmp_path_factory.mktemp("any") / "out"
    made = dataio.writer(str(path))
    if encoding:
        made = getattr(made, f"{encoding}_encode")()
    with made:
        made.write_chunks(chunks)
    assert path.exists() == bool(chunks)
    if chunks:
        found = dataio.reader(str(path))
        found = {"": found, "gzip": found.gunzip(), "zstd": found.zstd_decode()}[encoding]
        assert found.read_all() == b"".join(chunks)
    assert os.listdir(path.parent) == (["out"] if chunks else [])


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_encodings_stream(place: Place, encoding: str) -> None:
    made = getattr(dataio.writer(place.uri("out")), f"{encoding}_encode")()
    assert made.capabilities()["encodings"] == [encoding]
    with made:
        made.write_chunks(content(MIB, seed=at) for at in range(4))
    packed = place.read("out")
    expected = b"".join(content(MIB, seed=at) for at in range(4))
    if encoding == "gzip":
        assert gzip.decompress(packed) == expected
    else:
        assert pa.CompressedInputStream(io.BytesIO(packed), "zstd").read() == expected


def test_gzip_of_equal_bytes_is_equal(tmp_path: Path) -> None:
    for name in ("a", "b"):
        dataio.writer(f"{tmp_path}/{name}").gzip_encode().write_all(content(1000))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_content_type_is_kept(s3_server: Any, s3_bucket: str) -> None:
    place = S3(s3_server, s3_bucket)
    dataio.writer(place.uri("a"), content_type="text/plain").write_all(b"text")
    with dataio.writer(place.uri("b"), content_type="image/png") as made:
        made.write_chunks([content(6 * MIB)])
    assert [place.client.head_object(Bucket=place.bucket, Key=name)["ContentType"] for name in "ab"] == ["text/plain", "image/png"]


# --------------------------------------------------------------------------- errors


class TornError(Exception):
    """Of the program that writes."""


def torn() -> Iterator[bytes]:
    yield content(6 * MIB)
    yield content(6 * MIB)
    raise TornError


def torn_within(made: Any, data: bytes) -> None:
    """A `with` block that an exception ends."""
    with made:
        made.write(data)
        raise TornError


def drop(held: list[Any]) -> None:
    """Forget what is in the list."""
    held.clear()
    gc.collect()


@pytest.mark.parametrize("before", [None, b"before"])
def test_after_an_exception_nothing_appears(place: Place, before: bytes | None) -> None:
    if before is not None:
        place.write("out.bin", before)
    left = set() if before is None else {"out.bin"}
    with pytest.raises(TornError):
        torn_within(dataio.writer(place.uri("out.bin")), content(6 * MIB))
    nothing_is_left(place, left)
    made = dataio.writer(place.uri("out.bin"))
    with pytest.raises(TornError):
        made.write_chunks(torn())
    made.close()  # as a `finally` would
    nothing_is_left(place, left)
    with pytest.raises(RuntimeError, match="closed"):
        made.write(b"more")
    assert before is None or place.read("out.bin") == before


@pytest.mark.parametrize("chunk", ["text", 5, None, [b"a"], np.zeros(3, np.uint8)], ids=["str", "int", "None", "list", "array"])
def test_chunks_of_another_type_are_refused_and_all_is_dropped(place: Place, chunk: Any) -> None:
    with pytest.raises(TypeError, match="bytes, bytearray or memoryview"), dataio.writer(place.uri("out.bin")) as made:
        made.write_chunks([b"first", chunk])
    nothing_is_left(place)


@pytest.mark.parametrize("data", [bytearray(b"x"), "x", 5, None])
def test_write_all_takes_bytes(tmp_path: Path, data: Any) -> None:
    with pytest.raises(TypeError, match="takes bytes"):
        dataio.writer(f"{tmp_path}/out").write_all(data)
    assert os.listdir(tmp_path) == []


def test_write_all_comes_alone(place: Place) -> None:
    made = dataio.writer(place.uri("out.bin"))
    made.write_chunks([b"a"])
    with pytest.raises(RuntimeError, match="write_all comes alone"):
        made.write_all(b"b")
    made.close()
    assert place.read("out.bin") == b"a"
    for again in (lambda: made.write_all(b"c"), lambda: made.write_chunks([b"c"]), lambda: made.write(b"c"), made.open, made.gzip_encode):
        with pytest.raises(RuntimeError, match="already closed"):
            again()


def test_one_encoding_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="chosen once"):
        dataio.writer(f"{tmp_path}/a").gzip_encode().zstd_encode()
    with dataio.writer(f"{tmp_path}/a") as made:
        made.write(b"x")
        with pytest.raises(RuntimeError, match="chosen once"):
            made.gzip_encode()


@pytest.mark.parametrize(
    ("uri", "options", "error", "match"),
    [
        ("http://127.0.0.1/x", {}, ValueError, "only read"),
        ("hf://org/repo/x", {}, ValueError, "only read"),
        ("s4://b/k", {}, ValueError, "s3"),
        ("s3://b", {}, ValueError, "no key"),
        (Path("/tmp/x"), {}, TypeError, "str"),
        ("s3://b/k", {"atomic": False}, NotImplementedError, "atomic=False"),
        ("s3://b/k", {"mkdir_parents": True}, NotImplementedError, "mkdir_parents=True"),
        ("/tmp/x", {"content_type": 5}, TypeError, "content_type"),
    ],
)
def test_what_cannot_be_written_is_told_at_once(s3_bucket: str, uri: Any, options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        dataio.writer(uri, **options)


def test_a_folder_that_is_missing_is_an_error_unless_it_may_be_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="deep"):
        dataio.writer(f"{tmp_path}/deep/er/out").write_all(b"x")
    assert os.listdir(tmp_path) == []
    dataio.writer(f"{tmp_path}/deep/er/out", mkdir_parents=True).write_all(b"x")
    assert (tmp_path / "deep" / "er" / "out").read_bytes() == b"x"


def test_a_folder_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        dataio.writer(str(tmp_path)).write_all(b"x")


def test_a_full_disk_is_told_and_the_old_file_stays(tmp_path: Path) -> None:
    """The limit on the size of files stands for the disk's end."""
    code = """
import os, resource, signal, sys, dataio
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    with dataio.writer(sys.argv[1]) as made:
        made.write_chunks([bytes(1 << 19)] * 10)
except OSError as error:
    print(error.errno, error.filename == sys.argv[1], os.listdir(os.path.dirname(sys.argv[1])))
"""
    (tmp_path / "out").write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "out"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "27 True ['out']\n"
    assert (tmp_path / "out").read_bytes() == b"old"


def test_a_bucket_that_is_missing_is_told(s3_server: Any, s3_bucket: str) -> None:
    place = S3(s3_server, s3_bucket)
    assert place.missing is not None
    with pytest.raises(FileNotFoundError), dataio.writer(place.missing) as made:
        made.write_chunks([content(6 * MIB)] * 3)


# --------------------------------------------------------------------------- dropped, forked, killed


@pytest.mark.parametrize("size", [1, 12 * MIB])
def test_a_writer_that_is_dropped_warns_and_leaves_nothing(place: Place, size: int) -> None:
    held = [dataio.writer(place.uri("out.bin"))]
    held[0].write(content(size))
    with pytest.warns(ResourceWarning, match=r"out\.bin.*dropped without close"):
        drop(held)
    nothing_is_left(place)


def test_a_writer_that_is_open_at_exit_leaves_nothing(tmp_path: Path) -> None:
    code = "import sys, dataio\nmade = dataio.writer(sys.argv[1])\nmade.write(bytes(10**6))\n"
    done = subprocess.run([sys.executable, "-W", "always", "-c", code, tmp_path / "out"], capture_output=True, text=True, timeout=60, check=True)
    assert "dropped without close" in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_forked_child_leaves_the_file_to_its_parent(tmp_path: Path) -> None:
    code = """
import gc, os, sys, dataio
made = dataio.writer(sys.argv[1])
made.write(bytes(10**6))
if os.fork() == 0:
    del made
    gc.collect()
    sys.exit()
os.wait()
made.close()
"""
    subprocess.run([sys.executable, "-c", code, tmp_path / "out"], capture_output=True, timeout=60, check=True)
    assert (tmp_path / "out").read_bytes() == bytes(10**6)


KILLED = """
import sys, dataio
made = dataio.writer(sys.argv[1])
made.write_chunks([bytes(1 << 20)] * 3)
print("written", flush=True)
sys.stdin.read()
"""


def killed_while_writing(path: Path) -> str:
    """The name of the temporary file that a killed process leaves."""
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"written\n"
    child.send_signal(signal.SIGKILL)
    child.wait(30)
    child.stdin.close()
    child.stdout.close()
    (left,) = [name for name in os.listdir(path.parent) if f".tmp.{child.pid}." in name]
    return left


def age(path: Path, seconds: float = leftovers.AGE + 5) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_killed_while_writing_the_old_file_is_whole_and_the_next_write_cleans_up(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"old")
    left = killed_while_writing(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"old"
    age(tmp_path / left)
    dataio.writer(f"{tmp_path}/out").write_all(b"new")
    assert os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out").read_bytes() == b"new"


@pytest.mark.parametrize("kind", ["young", "of a process that runs", "locked", "of another form", "a link"])
def test_only_leftovers_are_removed(tmp_path: Path, kind: str) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(30)
    process = os.getppid() if kind == "of a process that runs" else dead.pid
    name = tmp_path / f"out.tmp.{process}.{'0123456' if kind == 'of another form' else '01234567'}"
    if kind == "a link":
        (tmp_path / "target").write_bytes(b"x")
        age(tmp_path / "target")
        name.symlink_to("target")
    else:
        name.write_bytes(b"x")
    if kind != "young":
        age(name)
    with open(name, "rb") as file:
        if kind == "locked":  # as a writer on another machine has it
            leftovers.hold(file.fileno())
        dataio.writer(f"{tmp_path}/out").write_all(b"new")
    assert name.exists()


# --------------------------------------------------------------------------- in place, as a file, what it says


def test_in_place_the_file_grows_and_an_error_leaves_a_part(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with dataio.writer(str(path), atomic=False) as made:
        made.write(content(MIB))
        assert path.read_bytes() == content(MIB)
    with pytest.raises(TornError):
        torn_within(dataio.writer(str(path), atomic=False), content(2 * MIB))
    assert path.read_bytes() == content(2 * MIB)
    dataio.writer(str(path), atomic=False).write_all(b"whole")
    assert os.listdir(tmp_path) == ["out"]
    assert path.read_bytes() == b"whole"


def test_zipfile_pyarrow_numpy_and_torch_write_to_it(place: Place) -> None:
    torch = pytest.importorskip("torch")
    table = pa.table({"a": list(range(1000))})
    writes: dict[str, Callable[[Any], object]] = {
        "parquet": lambda file: pq.write_table(table, file),
        "npy": lambda file: np.save(file, np.arange(1000)),
        "pt": lambda file: torch.save({"a": torch.arange(5)}, file),
    }
    for name, write in writes.items():
        with dataio.writer(place.uri(name)).open() as file:
            write(file)
    with dataio.writer(place.uri("zip")) as made, zipfile.ZipFile(made.open(), "w") as archive:
        archive.writestr("a.txt", "text")
    assert pq.read_table(io.BytesIO(place.read("parquet"))).equals(table)
    assert np.load(io.BytesIO(place.read("npy"))).tolist() == list(range(1000))
    assert torch.load(io.BytesIO(place.read("pt")))["a"].tolist() == list(range(5))
    assert zipfile.ZipFile(io.BytesIO(place.read("zip"))).read("a.txt") == b"text"
    nothing_is_left(place, {"parquet", "npy", "pt", "zip"})


def test_a_file_that_is_left_by_an_exception_does_not_appear(place: Place) -> None:
    with pytest.raises(TornError):
        torn_within(dataio.writer(place.uri("out")).open(), content(6 * MIB))
    nothing_is_left(place)


def test_a_file_that_is_forgotten_does_not_appear(place: Place) -> None:
    held = [dataio.writer(place.uri("out")).open()]
    held[0].write(b"part")
    with pytest.warns(ResourceWarning, match="dropped without close"):
        drop(held)
    nothing_is_left(place)


def test_a_file_is_a_file(tmp_path: Path) -> None:
    with dataio.writer(f"{tmp_path}/out").open() as file:
        assert (file.writable(), file.readable(), file.seekable()) == (True, False, False)
        assert (file.write(b"abc"), file.tell()) == (3, 3)
        assert file.write(np.arange(3, dtype=np.int32)) == 12  # type: ignore[arg-type]
        with pytest.raises(io.UnsupportedOperation):
            file.read()
    with pytest.raises(ValueError, match="closed file"):
        file.write(b"x")
    with dataio.writer(f"{tmp_path}/empty").open():
        pass
    assert (tmp_path / "empty").read_bytes() == b""


class Hoard(Store):
    """A store of a user's own, which takes whole objects only."""

    scheme, name = "hoard", ""
    kept: dict[str, bytes] = {}

    def get(self, key: str, *args: Any, **options: Any) -> bytes:
        return self.kept[key]

    def open(self, key: str, *args: Any, **options: Any) -> Body:
        raise NotImplementedError

    def head(self, key: str, **options: Any) -> Any:
        raise NotImplementedError

    def upload(self, key: str, *, content_type: str | None = None) -> Upload:
        kept = self.kept

        class Whole(Upload):
            parts = bytearray()

            def write(self, data: Any) -> None:
                self.parts += data

            def complete(self) -> None:
                kept[key] = bytes(self.parts)

            def abort(self) -> None: ...

        return Whole()


def test_a_store_that_holds_all_in_memory_warns_or_is_refused() -> None:
    def hoard(uri: Uri) -> Store:
        return Hoard()

    register_store("hoard", hoard)
    with pytest.raises(UnsupportedError, match="require_streaming=True"):
        dataio.writer("hoard://x", require_streaming=True)
    made = dataio.writer("hoard://x")
    assert made.capabilities()["streaming"] is False
    with pytest.warns(RuntimeWarning, match="held in memory"):
        made.write_chunks([b"a", b"b"])
    made.close()
    assert Hoard.kept["x"] == b"ab"


def test_what_a_writer_says_of_itself(s3_bucket: str, tmp_path: Path) -> None:
    local = dataio.writer(f"{tmp_path}/x")
    assert local.capabilities() == {"target": "file", "atomic": True, "multi_part": False, "encodings": [], "streaming": True}
    assert dataio.writer(f"{tmp_path}/x", atomic=False).capabilities()["atomic"] is False
    remote = dataio.writer(f"{s3_bucket}/x", require_streaming=True).gzip_encode()
    assert remote.capabilities() == {
        "target": "object",
        "atomic": False,
        "multi_part": True,
        "multi_part_threshold": 64 * MIB,
        "encodings": ["gzip"],
        "streaming": True,
    }
    assert repr(local) == f"Writer(uri={tmp_path}/x)"
    local.abort()
    assert repr(local) == f"Writer(uri={tmp_path}/x, closed)"


def test_memory_of_a_streamed_object_is_bounded(s3_server: Any, s3_bucket: str) -> None:
    """160 MiB in parts of 5 MiB, a few of them at a time."""
    code = """
import resource, sys, dataio
url, uri, key, secret = sys.argv[1:]
dataio.configure_endpoint("s3", url)
dataio.configure_credentials("s3", method="explicit", access_key_id=key, secret_access_key=secret)
with dataio.writer(uri + "/warm") as made:
    made.write_chunks([bytes(6 << 20)] * 2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with dataio.writer(uri + "/large") as made:
    made.write_chunks(bytes(1 << 20) for _ in range(160))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    from ..servers.s3 import ACCESS_KEY_ID, SECRET_ACCESS_KEY

    place = S3(s3_server, s3_bucket)
    arguments = [s3_server.url, s3_bucket, ACCESS_KEY_ID, SECRET_ACCESS_KEY]
    environment = {**os.environ, "DATAIO_MULTIPART_PART_MIB": "5"}
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert place.client.head_object(Bucket=place.bucket, Key="large")["ContentLength"] == 160 * MIB
    assert int(done.stdout) < 60
