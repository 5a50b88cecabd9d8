"""`copy` and `sync` of trees between stores: equal afterwards, nothing outside, bounded memory, nothing left after an error."""

from __future__ import annotations

import itertools
import os
import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataio
from dataio.io.errors import ObjectNotFoundError, UriError
from dataio.io.parallel import for_each

from ..servers.s3 import S3Server

TREE = {"a": b"1", "b/c": b"22", "b/d/e[1]": b"333", "b/.hidden": b"", "ü/f g%20#?": b"5" * 100_000}


def write_tree(root: str, tree: dict[str, bytes]) -> None:
    for name, data in tree.items():
        dataio.write(f"{root}/{name}", data, mkdir_parents="://" not in root)


def read_tree(root: str) -> dict[str, bytes]:
    return {uri.removeprefix(f"{root}/"): dataio.read(uri) for uri in dataio.ls(f"{root}/")}


@pytest.fixture(name="root", params=["memory", "s3", "r2", "gs", "az"])
def _root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder in some store."""
    if request.param == "memory":
        return f"memory://{tmp_path.name}/remote"
    bucket: str = request.getfixturevalue(f"{request.param}_bucket")
    return f"{bucket}/remote"


# -------------------------------------------------------------------- copy


def test_a_tree_goes_there_and_back(tmp_path: Path, root: str) -> None:
    write_tree(str(tmp_path / "here"), TREE)
    dataio.copy(tmp_path / "here", root, recursive=True)
    assert read_tree(root) == TREE
    dataio.copy(root, tmp_path / "back", recursive=True)
    assert read_tree(str(tmp_path / "back")) == TREE


def test_a_tree_goes_from_file_to_s3_to_gcs_to_azure_and_back(tmp_path: Path, s3_bucket: str, gs_bucket: str, az_bucket: str) -> None:
    write_tree(str(tmp_path / "here"), TREE)
    places = [str(tmp_path / "here"), f"{s3_bucket}/x", f"{gs_bucket}/y/z", az_bucket, str(tmp_path / "back")]
    for source, target in itertools.pairwise(places):
        dataio.copy(source, target, recursive=True)
    assert read_tree(str(tmp_path / "back")) == TREE


def test_a_single_file(tmp_path: Path, root: str) -> None:
    dataio.write(tmp_path / "x", b"hello")
    dataio.copy(tmp_path / "x", f"{root}/y")
    dataio.copy(f"{root}/y", f"{root}/into/")
    dataio.copy(f"{root}/into/y", tmp_path / "new" / "folder" / "z")
    assert (tmp_path / "new" / "folder" / "z").read_bytes() == b"hello"
    dataio.copy(f"{root}/y", tmp_path / "new", recursive=True)
    assert (tmp_path / "new" / "y").read_bytes() == b"hello"


def test_a_folder_is_copied_only_when_asked(tmp_path: Path, s3_bucket: str) -> None:
    write_tree(str(tmp_path / "here"), {"a": b""})
    for source in (tmp_path / "here", s3_bucket, f"{s3_bucket}/x/"):
        with pytest.raises(IsADirectoryError):
            dataio.copy(source, tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("recursive", [False, True])
def test_a_missing_source_is_an_error(tmp_path: Path, root: str, recursive: bool) -> None:
    for source in (tmp_path / "no", f"{root}/no"):
        with pytest.raises(ObjectNotFoundError if "://" in str(source) else FileNotFoundError):
            dataio.copy(source, tmp_path / "there", recursive=recursive)
    assert not (tmp_path / "there").exists()


def test_a_copy_onto_itself_changes_nothing(tmp_path: Path, s3_bucket: str) -> None:
    for name in (str(tmp_path / "x"), f"{s3_bucket}/x"):
        dataio.write(name, b"hello")
        dataio.copy(name, name)
        assert dataio.read(name) == b"hello"


def test_a_tree_is_not_copied_into_itself(tmp_path: Path, s3_bucket: str) -> None:
    for root in (str(tmp_path), s3_bucket):
        write_tree(f"{root}/a", {"x": b""})
        for target in (f"{root}/a", f"{root}/a/b", root):
            with pytest.raises(ValueError, match="inside the other"):
                dataio.copy(f"{root}/a", target, recursive=True)


@pytest.mark.parametrize("key", ["../x", "a/../../x", "/etc/x", "a//b", "a/./b", "b/../c"])
def test_no_key_leaves_the_folder(tmp_path: Path, s3_bucket: str, key: str) -> None:
    dataio.write(f"{s3_bucket}/t/{key}", b"hostile")
    for verb in (lambda: dataio.copy(f"{s3_bucket}/t", tmp_path / "in" / "there", recursive=True), lambda: dataio.sync(f"{s3_bucket}/t", tmp_path / "in" / "there")):
        with pytest.raises(UriError, match="cannot be a file below"):
            verb()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_key_that_is_a_file_and_a_folder_is_an_error(tmp_path: Path, s3_bucket: str) -> None:
    write_tree(s3_bucket, {"a": b"", "a/b": b""})
    with pytest.raises(OSError, match="a"):
        dataio.copy(s3_bucket, tmp_path / "there", recursive=True)


def test_what_is_there_stays_whole_when_a_copy_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_bucket: str, s3_server: S3Server) -> None:
    from dataio.io.stores.local import LocalStore

    dataio.write(tmp_path / "x", bytes(20 << 20))
    dataio.write(f"{s3_bucket}/x", b"old")
    whole = LocalStore.open

    def breaks(self: LocalStore, *args: object, **options: object) -> object:
        body = whole(self, *args, **options)  # type: ignore[arg-type]
        chunks = iter(body)

        def some() -> object:
            yield next(chunks)
            raise OSError("the disk is gone")

        body._chunks = some()  # type: ignore[assignment]
        return body

    monkeypatch.setattr(LocalStore, "open", breaks)
    with pytest.raises(OSError, match="the disk is gone"):
        dataio.copy(tmp_path / "x", f"{s3_bucket}/x")
    assert dataio.read(f"{s3_bucket}/x") == b"old"
    assert "Uploads" not in s3_server.client().list_multipart_uploads(Bucket=s3_bucket.removeprefix("s3://"))


@pytest.mark.slow
def test_memory_of_a_streamed_copy_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_bucket: str) -> None:
    monkeypatch.setenv("DATAIO_MULTIPART_PART_MIB", "5")
    monkeypatch.setenv("DATAIO_MULTIPART_CONCURRENCY", "2")
    with open(tmp_path / "big", "wb") as file:
        file.truncate(200 << 20)
    tracemalloc.start()
    try:
        dataio.copy(tmp_path / "big", f"{s3_bucket}/big")
        dataio.copy(f"{s3_bucket}/big", tmp_path / "back")
        assert tracemalloc.get_traced_memory()[1] < 60 << 20
    finally:
        tracemalloc.stop()
    assert (tmp_path / "back").stat().st_size == 200 << 20


# -------------------------------------------------------------------- sync


def test_sync_copies_what_is_missing_and_what_differs(tmp_path: Path, root: str) -> None:
    here = str(tmp_path / "here")
    write_tree(here, TREE)
    assert dataio.sync(here, root) == {"copied": len(TREE), "deleted": 0}
    assert dataio.sync(here, root) == {"copied": 0, "deleted": 0}
    write_tree(here, {"a": b"longer", "new": b"x"})
    assert dataio.sync(here, root) == {"copied": 2, "deleted": 0}
    assert read_tree(root) == TREE | {"a": b"longer", "new": b"x"}


def test_sync_deletes_only_when_asked(tmp_path: Path, root: str) -> None:
    here = str(tmp_path / "here")
    write_tree(here, {"a": b"1"})
    write_tree(root, {"a": b"1", "b": b"2", "c/d": b"3"})
    assert dataio.sync(here, root) == {"copied": 0, "deleted": 0}
    assert dataio.sync(here, root, delete=True) == {"copied": 0, "deleted": 2}
    assert read_tree(root) == {"a": b"1"}


def test_a_dry_run_changes_nothing(tmp_path: Path, root: str) -> None:
    here = str(tmp_path / "here")
    write_tree(here, {"a": b"1", "b": b"2"})
    write_tree(root, {"b": b"2", "c": b"3"})
    told = dataio.sync(here, root, delete=True, dry_run=True)
    assert told == {"copied": 1, "deleted": 1, "copy": [f"{root}/a"], "delete": [f"{root}/c"]}
    assert read_tree(root) == {"b": b"2", "c": b"3"}


@pytest.mark.parametrize("delete", [False, True])
def test_a_missing_source_wipes_nothing(tmp_path: Path, root: str, delete: bool) -> None:
    write_tree(root, {"a": b"1"})
    for source in (tmp_path / "no", "memory://no/such/folder"):
        with pytest.raises(FileNotFoundError):
            dataio.sync(source, root, delete=delete)
    assert read_tree(root) == {"a": b"1"}


def test_an_empty_folder_empties_its_mirror(tmp_path: Path, root: str) -> None:
    write_tree(root, {"a": b"1"})
    (tmp_path / "empty").mkdir()
    assert dataio.sync(tmp_path / "empty", root, delete=True) == {"copied": 0, "deleted": 1}
    assert dataio.ls(f"{root}/") == []


def test_objects_of_one_size_are_told_apart_by_their_etags(s3_bucket: str) -> None:
    write_tree(f"{s3_bucket}/x", {"a": b"1", "b": b"2"})
    write_tree(f"{s3_bucket}/y", {"a": b"1", "b": b"!"})
    assert dataio.sync(f"{s3_bucket}/x", f"{s3_bucket}/y") == {"copied": 1, "deleted": 0}
    assert dataio.read(f"{s3_bucket}/y/b") == b"2"


@pytest.mark.parametrize(("strategy", "copied"), [("size", 0), ("mtime", 1), ("checksum", 1)])
def test_strategies_on_files_of_one_size(tmp_path: Path, strategy: str, copied: int) -> None:
    write_tree(str(tmp_path / "y"), {"a": b"old"})
    os.utime(tmp_path / "y" / "a", (1_000_000, 1_000_000))
    write_tree(str(tmp_path / "x"), {"a": b"new"})
    assert dataio.sync(tmp_path / "x", tmp_path / "y", strategy=strategy)["copied"] == copied
    assert dataio.sync(tmp_path / "x", tmp_path / "y", strategy=strategy)["copied"] == 0


def test_an_unknown_strategy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="size, mtime, checksum"):
        dataio.sync(tmp_path, tmp_path / "x", strategy="hash")


names = st.lists(st.sampled_from(["a", "b", "c d", "ü", ".e"]), min_size=1, max_size=3).map("/".join)
trees = st.dictionaries(names, st.binary(max_size=3), max_size=6).filter(
    lambda tree: not any(other.startswith(f"{name}/") for name in tree for other in tree)
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(here=trees.filter(bool), there=trees)
def test_a_mirror_is_equal(tmp_path_factory: pytest.TempPathFactory, here: dict[str, bytes], there: dict[str, bytes]) -> None:
    folder = tmp_path_factory.mktemp("mirror")
    source, target = str(folder / "here"), f"memory://{folder.name}"
    write_tree(source, here)
    write_tree(target, there)
    dataio.sync(source, target, delete=True, strategy="checksum")
    assert read_tree(target) == here
    assert dataio.sync(source, target, delete=True, strategy="checksum") == {"copied": 0, "deleted": 0}


# -------------------------------------------------------------------- in parallel


def test_many_run_at_once_and_are_counted() -> None:
    together = threading.Barrier(4, timeout=10)
    told: list[tuple[int, int]] = []
    assert for_each(lambda _: together.wait(), range(8), workers=4, progress=lambda done, of: told.append((done, of)), total=8) == 8
    assert told == [(n, 8) for n in range(1, 9)]


def test_the_first_error_is_raised_and_nothing_more_begins() -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        if item >= 3:
            raise OSError(f"item {item}")

    with pytest.raises(OSError, match="item 3"):
        for_each(work, range(1000), workers=1)
    assert len(begun) < 10


def test_no_thread_stays() -> None:
    with pytest.raises(OSError, match="no"):
        for_each(lambda _: (_ for _ in ()).throw(OSError("no")), range(100))
    assert not [t.name for t in threading.enumerate() if t.name.startswith("dataio-transfer")]


@pytest.mark.parametrize("workers", [0, -1, True, 1.5])
def test_workers_are_a_positive_number(workers: object) -> None:
    with pytest.raises(ValueError, match="workers"):
        for_each(print, [], workers=workers)  # type: ignore[arg-type]
