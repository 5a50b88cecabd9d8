"""LocalStore beyond the contract: what only a file system has."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataio.io.errors import ReadError, UriError
from dataio.io.stores import local
from dataio.io.stores.fsspec import FsspecStore
from dataio.io.stores.local import LocalStore

from .contract import content

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, /dev/full or mounts of Linux")
root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to become somebody else")
store = LocalStore()


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def listed(prefix: Path | str, **options: bool) -> list[str]:
    return [info.key for info in store.list(f"{prefix}/", **options)]


READS: list[Callable[[str], object]] = [
    store.get,
    lambda key: store.get(key, 2, 3),
    lambda key: list(store.open(key)),
    lambda key: store.get_into(key, 0, memoryview(bytearray(3))),
    lambda key: store.get_ranges(key, [(0, 1)]),
]
WRITES: list[Callable[[str], object]] = [
    lambda key: store.put(key, b"1"),
    lambda key: store.upload(key),
    lambda key: store.copy(__file__, store, key),
]


# ---------------------------------------------------------------- what cannot be read


@pytest.mark.parametrize("read", READS)
def test_a_folder_is_not_read(tmp_path: Path, read: Callable[[str], object]) -> None:
    with pytest.raises(IsADirectoryError) as failed:
        read(str(tmp_path))
    assert failed.value.filename == str(tmp_path)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("use", [*READS, *WRITES])
def test_a_named_pipe_without_a_writer_does_not_block(tmp_path: Path, use: Callable[[str], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="named pipe"):
        use(str(tmp_path / "pipe"))
    assert names(tmp_path) == ["pipe"]


@linux
@pytest.mark.timeout(10)
@pytest.mark.parametrize("read", READS)
def test_an_endless_device_is_not_read(read: Callable[[str], object]) -> None:
    with pytest.raises(OSError, match="device"):
        read("/dev/zero")


@pytest.mark.parametrize("use", [*READS, *WRITES, store.exists, store.head])
@pytest.mark.parametrize(("name", "number"), [("self", errno.ELOOP), ("n" * 256, errno.ENAMETOOLONG)])
def test_what_the_system_refuses(tmp_path: Path, use: Callable[[str], object], name: str, number: int) -> None:
    os.symlink("self", tmp_path / "self")
    with pytest.raises(OSError, match=name) as failed:
        use(str(tmp_path / name))
    assert failed.value.errno == number
    assert names(tmp_path) == ["self"]


@pytest.mark.parametrize("use", [*READS, *WRITES, store.exists, store.head, store.delete])
def test_a_null_character_is_refused(tmp_path: Path, use: Callable[[str], object]) -> None:
    with pytest.raises(ValueError, match="null"):
        use(f"{tmp_path}/a\0b")
    assert names(tmp_path) == []


@linux
def test_files_that_the_kernel_makes_up_are_read_to_their_end() -> None:
    told = Path("/proc/self/status").read_bytes()[:20]
    assert bytes(store.get("/proc/self/status"))[:20] == told
    assert b"".join(map(bytes, store.open("/proc/self/status")))[:20] == told
    assert bytes(store.get("/proc/self/status", 3, 5)) == told[3:8]


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(content(3 * local.CHUNK))
    with store.open(str(path)) as body:
        next(iter(body))
        os.truncate(path, 10)
        with pytest.raises(ReadError, match="ended"):
            list(body)


def test_a_file_that_grows_while_it_is_read_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(content(100))
    with store.open(str(path)) as body:
        path.write_bytes(content(100) + b"more")
        assert b"".join(map(bytes, body)) == content(100)


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(tmp_path: Path) -> None:
    key = str(tmp_path / "data.bin")
    store.put(key, content(3 * local.CHUNK))
    with store.open(key) as body:
        chunks = [next(iter(body))]
        store.put(key, b"new")
        chunks += body
    assert b"".join(map(bytes, chunks)) == content(3 * local.CHUNK)


def test_reading_leaves_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(content(3 * local.CHUNK))
    key, before = str(tmp_path / "data.bin"), len(os.listdir("/proc/self/fd"))
    for read in READS:
        read(key)
        for bad in (str(tmp_path), key + "x"):
            with pytest.raises(OSError, match=r".*"):
                read(bad)
    store.open(key).close()
    del (body := store.open(key))._chunks
    del body
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_answers_head(tmp_path: Path) -> None:
    assert store.head(str(tmp_path)).is_prefix
    assert store.exists(str(tmp_path))


def test_a_path_through_a_file_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    assert not store.exists(f"{tmp_path}/file/below")
    store.delete(f"{tmp_path}/file/below")
    with pytest.raises(NotADirectoryError):
        store.get(f"{tmp_path}/file/below")


def test_what_only_servers_have_is_refused(tmp_path: Path) -> None:
    key = str(tmp_path / "data.bin")
    with pytest.raises(NotImplementedError, match="headers"):
        store.get(key, headers={"a": "b"})
    with pytest.raises(NotImplementedError, match="ETag"):
        store.get(key, if_match="1")
    with pytest.raises(UriError, match="signed"):
        store.sign(key, expires=10, method="GET")


# ---------------------------------------------------------------- writing


def test_a_new_file_has_the_permissions_of_the_mask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        store.put(str(tmp_path / "new"), b"1")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "new").st_mode) == 0o640


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_bytes(b"old")
    path.chmod(0o751)
    store.put(str(path), b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o751)


@root
def test_a_file_that_is_replaced_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"old")
    os.chown(path, 12, 34)
    store.put(str(path), b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == (12, 34)


def test_a_copy_has_the_permissions_of_its_source(tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_bytes(b"#!")
    path.chmod(0o750)
    store.copy(str(path), store, str(tmp_path / "copies" / "script"))
    assert stat.S_IMODE((tmp_path / "copies" / "script").stat().st_mode) == 0o750


def test_a_link_keeps_its_target(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("folder/target")
    store.put(str(tmp_path / "link"), b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "target").read_bytes() == b"new"
    assert names(tmp_path / "folder") == ["target"]


@pytest.mark.parametrize("length", [1, 200, 240, 255])
@pytest.mark.parametrize("letter", ["n", "ü"])
def test_names_as_long_as_they_may_be(tmp_path: Path, length: int, letter: str) -> None:
    name = letter * (length // len(letter.encode()))
    store.put(f"{tmp_path}/{name or 'x'}", b"1")
    assert names(tmp_path) == [name or "x"]


def test_readers_see_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    key, done = str(tmp_path / "data"), threading.Event()
    wholes = [bytes([at]) * 200_000 for at in range(2)]
    store.put(key, wholes[0])

    def write() -> None:
        for at in range(60):
            store.put(key, wholes[at % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert bytes(store.get(key)) in wholes
    writer.join()


def test_a_write_in_place(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"long content")
    number = path.stat().st_ino
    store.put(str(path), b"new", atomic=False)
    assert (path.read_bytes(), path.stat().st_ino) == (b"new", number)


def test_folders_are_made_when_asked_for(tmp_path: Path) -> None:
    key = str(tmp_path / "a" / "b" / "data")
    with pytest.raises(FileNotFoundError) as failed:
        store.put(key, b"1")
    assert failed.value.filename == key
    assert names(tmp_path) == []
    store.put(key, b"1", mkdir_parents=True)
    assert Path(key).read_bytes() == b"1"


@linux
def test_a_device_is_written_as_it_is() -> None:
    store.put("/dev/null", b"1")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(OSError, match="/dev/full") as failed:
        store.put("/dev/full", b"1")
    assert failed.value.errno == errno.ENOSPC


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no mount here")
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.decode(errors='replace').strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _upload_parts(key: str, source: str) -> None:
    upload = store.upload(key)
    try:
        for _ in range(40):
            upload.write(content(1 << 16))
    finally:
        upload.abort()


@pytest.mark.parametrize(
    "write",
    [
        lambda key, source: store.put(key, content(2 << 20)),
        lambda key, source: store.copy(source, store, key),
        _upload_parts,
    ],
    ids=["put", "copy", "upload"],
)
def test_a_full_disk_keeps_the_old_file_and_no_other(
    small_disk: Path, tmp_path: Path, write: Callable[[str, str], None]
) -> None:
    key = str(small_disk / "data")
    store.put(key, b"old")
    (tmp_path / "large").write_bytes(content(2 << 20))
    with pytest.raises(OSError, match="No space left") as failed:
        write(key, str(tmp_path / "large"))
    assert (failed.value.errno, failed.value.filename) == (errno.ENOSPC, key)
    assert Path(key).read_bytes() == b"old"
    assert names(small_disk) == ["data"]


def test_an_upload_that_is_forgotten_leaves_nothing(tmp_path: Path) -> None:
    upload = store.upload(str(tmp_path / "data"))
    upload.write(b"1")
    assert len(names(tmp_path)) == 1
    del upload
    assert names(tmp_path) == []


AS_NOBODY = """
import os, sys
from dataio.io.stores.local import LocalStore
os.setgroups([]); os.setgid(65534); os.setuid(65534)
store, folder = LocalStore(), sys.argv[1]
for name, use in {
    "get": lambda: store.get(f"{folder}/secret"),
    "exists": lambda: store.exists(f"{folder}/closed/data"),
    "head": lambda: store.head(f"{folder}/closed/data"),
    "list": lambda: list(store.list(f"{folder}/")),
    "put": lambda: store.put(f"{folder}/new", b"1"),
    "delete": lambda: store.delete(f"{folder}/secret"),
    "copy": lambda: store.copy(f"{folder}/secret", store, f"{folder}/copy"),
}.items():
    try:
        print(name, use())
    except Exception as error:
        print(name, type(error).__name__, folder in str(error))
"""


@root
def test_what_is_forbidden_is_not_missing(tmp_path_factory: pytest.TempPathFactory) -> None:
    with tempfile.TemporaryDirectory() as made:  # pytest's own folders are closed to others
        folder = Path(made)
        folder.chmod(0o755)
        (folder / "secret").write_bytes(b"1")
        (folder / "secret").chmod(0o600)
        (folder / "closed").mkdir(mode=0o700)
        (folder / "closed" / "data").write_bytes(b"1")
        done = subprocess.run([sys.executable, "-c", AS_NOBODY, made], capture_output=True, text=True, timeout=60)
        verbs = ("get", "exists", "head", "list", "put", "delete", "copy")
        assert done.stdout.splitlines() == [f"{verb} PermissionError True" for verb in verbs], done.stderr
        assert names(folder) == ["closed", "secret"]


def test_deleting_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        store.delete(str(tmp_path))


def test_a_link_is_deleted_and_its_target_kept(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    store.delete(str(tmp_path / "link"))
    assert names(tmp_path) == ["folder"]


def test_a_copy_to_another_name_of_the_same_file_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"1")
    os.link(tmp_path / "data", tmp_path / "other")
    (tmp_path / "link").symlink_to("data")
    for name in ("data", "other", "link"):
        store.copy(str(tmp_path / "data"), store, str(tmp_path / name))
        assert (tmp_path / "data").read_bytes() == b"1"


def test_copies_across_file_systems(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(content(300_000))
    store.copy(str(tmp_path / "data"), store, str(small_disk / "data"))
    assert (small_disk / "data").read_bytes() == content(300_000)


def test_a_copy_to_another_store_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="memory://"):
        store.copy(__file__, FsspecStore(None, "memory"), "a")


# ---------------------------------------------------------------- listing


def test_hidden_files_and_odd_names_are_listed_in_order(tmp_path: Path) -> None:
    for name in ("b/x", "b-/x", "b.txt", ".hidden/x", "a\nb", "\udcff", "ü"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    found = [os.path.relpath(path, tmp_path) for path in listed(tmp_path)]
    assert found == sorted(found) == [".hidden/x", "a\nb", "b-/x", "b.txt", "b/x", "ü", "\udcff"]


def test_loops_of_links_end(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x").write_bytes(b"1")
    (tmp_path / "a" / "b" / "up").symlink_to("..")
    (tmp_path / "a" / "here").symlink_to(".")
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "nowhere").symlink_to("none")
    (tmp_path / "again").symlink_to("a")
    assert listed(tmp_path) == [f"{tmp_path}/{name}" for name in ("a/b/x", "again/b/x")]


def test_pipes_are_not_listed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert listed(tmp_path) == []


def test_empty_folders_are_told_by_one_level(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert listed(tmp_path) == []
    assert listed(tmp_path, delimited=True) == [f"{tmp_path}/empty/"]


@pytest.mark.parametrize("prefix", ["", "./", "data"])
def test_relative_prefixes_keep_their_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    (tmp_path / "data").write_bytes(b"1")
    monkeypatch.chdir(tmp_path)
    assert [info.key for info in store.list(prefix)] == [prefix.removesuffix("data") + "data"]


def test_deep_trees_are_listed(tmp_path: Path) -> None:
    at = tmp_path
    for _ in range(1200):  # deeper than Python calls go
        at = at / "d"
        try:
            at.mkdir()
        except OSError:
            break
    at.parent.joinpath("x").write_bytes(b"1")
    try:
        assert len(listed(tmp_path)) == 1
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)  # deeper than shutil goes either
