"""`copy` and `sync`: trees between stores, and what happens where they fail or are interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataio
from dataio.io.parallel import for_each
from dataio.io.store import register_store
from dataio.io.stores.local import LocalStore
from dataio.io.transfer import WHOLE_BELOW

from ..servers.azure import AzureServer
from ..servers.s3 import ACCESS_KEY_ID, SECRET_ACCESS_KEY, S3Server
from .contract import MIB, Place, content, unique
from .places import S3, Azure, Folder, Memory

TREE = {"a": b"1", "b/c": b"22", "b/d e+f%20#": b"333", "b/x/y[1]": b"", "ü": content(1000)}


def tree_of(place: Place) -> dict[str, bytes]:
    return {name: place.read(name) for name in place.names()}


def fill(place: Place, tree: dict[str, bytes]) -> None:
    for name, data in tree.items():
        place.write(name, data)


def folder(path: Path) -> Folder:
    path.mkdir()
    return Folder(path)


@pytest.fixture
def memory() -> Iterator[Memory]:
    place = Memory(unique())
    yield place
    for name in place.names():
        place.remove(name)


@pytest.fixture
def s3(s3_server: S3Server, s3_bucket: str) -> S3:
    return S3(s3_server, s3_bucket)


@pytest.fixture
def azure(azure_server: AzureServer, az_bucket: str) -> Azure:
    return Azure(azure_server, az_bucket)


@pytest.fixture(params=["local", "memory", "s3", "azure"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return folder(tmp_path / "target")
    place: Place = request.getfixturevalue(request.param)
    return place


# -------------------------------------------------------------------- copy


@pytest.mark.parametrize("size", [0, 1, WHOLE_BELOW, WHOLE_BELOW + 1, 3 * WHOLE_BELOW])
def test_an_object_goes_from_store_to_store(target: Place, s3: S3, tmp_path: Path, size: int) -> None:
    (tmp_path / "a").write_bytes(content(size))
    dataio.copy(tmp_path / "a", target.uri("b"))
    dataio.copy(target.uri("b"), s3.uri("back/c"))
    dataio.copy(s3.uri("back/c"), tmp_path / "new/folder/d")
    assert (tmp_path / "new/folder/d").read_bytes() == content(size)
    assert (target.unfinished(), s3.unfinished()) == ([], [])


@pytest.mark.usefixtures("no_leftovers")
def test_a_tree_goes_around(s3: S3, azure: Azure, memory: Memory, tmp_path: Path) -> None:
    source, end = folder(tmp_path / "a"), folder(tmp_path / "b")
    fill(source, TREE)
    places: list[Place] = [source, memory, s3, azure, end]
    for before, after in pairwise(places):
        dataio.copy(before.base, after.base, recursive=True, workers=3)
        assert tree_of(after) == TREE


@pytest.mark.parametrize("slashes", [("", ""), ("/", ""), ("", "/"), ("/", "/")])
def test_src_rel_becomes_dst_rel(s3: S3, tmp_path: Path, slashes: tuple[str, str]) -> None:
    fill(folder(tmp_path / "src"), {"a": b"1", "b/c": b"2"})
    dataio.copy(f"{tmp_path}/src{slashes[0]}", f"{s3.base}dst{slashes[1]}", recursive=True)
    dataio.copy(f"{s3.base}dst{slashes[0]}", f"{tmp_path}/back{slashes[1]}", recursive=True)
    assert s3.names() == {"dst/a", "dst/b/c"}
    assert tree_of(Folder(tmp_path / "back")) == {"a": b"1", "b/c": b"2"}


def test_a_prefix_is_taken_as_a_folder(s3: S3, tmp_path: Path) -> None:
    fill(s3, {"run1/a": b"1", "run10/a": b"2"})
    dataio.copy(s3.uri("run1"), tmp_path, recursive=True)
    assert tree_of(Folder(tmp_path)) == {"a": b"1"}


def test_a_single_file_with_recursive_lands_under_its_name(target: Place, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    dataio.copy(tmp_path / "a", target.uri("p"), recursive=True)
    dataio.copy(target.uri("p/a"), tmp_path / "back", recursive=True)
    assert (tmp_path / "back/a").read_bytes() == b"1"


@pytest.mark.parametrize("into", ["p/", ""])
def test_a_slash_at_the_end_means_into(target: Place, tmp_path: Path, into: str) -> None:
    (tmp_path / "a").write_bytes(b"1")
    dataio.copy(tmp_path / "a", target.uri(into))
    assert target.names() == {f"{into}a"}


def test_a_local_folder_takes_a_file_in(s3: S3, tmp_path: Path) -> None:
    s3.write("p/a", b"1")
    dataio.copy(s3.uri("p/a"), tmp_path)
    assert (tmp_path / "a").read_bytes() == b"1"


@pytest.mark.parametrize("recursive", [False, True])
def test_a_missing_source(target: Place, tmp_path: Path, recursive: bool) -> None:
    with pytest.raises(FileNotFoundError):
        dataio.copy(target.uri("none"), tmp_path / "x", recursive=recursive)
    assert not (tmp_path / "x").exists()


def test_a_folder_is_copied_only_with_recursive(target: Place, tmp_path: Path) -> None:
    target.write("p/a", b"1")
    with pytest.raises(IsADirectoryError, match="recursive=True"):
        dataio.copy(target.uri("p/"), tmp_path / "x")


def test_an_object_onto_itself_is_left(target: Place) -> None:
    target.write("a", b"1")
    dataio.copy(target.uri("a"), target.uri("a"))
    assert tree_of(target) == {"a": b"1"}


def test_a_file_onto_itself_by_a_link_is_left(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "link").symlink_to("a")
    dataio.copy(tmp_path / "a", tmp_path / "link")
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "link").is_symlink()) == (b"1", True)


@pytest.mark.parametrize(("src", "dst"), [("p/", "p/q/"), ("p/q/", "p/"), ("p/", "p/")])
def test_a_tree_is_not_copied_into_itself(target: Place, src: str, dst: str) -> None:
    target.write("p/q/a", b"1")
    for verb in (dataio.sync, lambda one, other: dataio.copy(one, other, recursive=True)):
        with pytest.raises(ValueError, match="inside"):
            verb(target.uri(src), target.uri(dst))
    assert target.names() == {"p/q/a"}


@pytest.mark.parametrize("key", ["../x", "p/../../x", "//x", "/x", "a//b", "./x", "a/."])
def test_keys_that_are_no_file_names_never_leave_the_target(s3: S3, tmp_path: Path, key: str) -> None:
    inner = tmp_path / "inner"
    s3.write(f"p/{key}", b"1")
    for verb in (dataio.sync, lambda one, other: dataio.copy(one, other, recursive=True)):
        with pytest.raises(ValueError, match="cannot be a file") as caught:
            verb(s3.uri("p/"), inner)
        assert repr(key) in str(caught.value)
    assert [str(path) for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("key", [f"{'n' * 300}", "a"])
def test_keys_that_no_file_system_takes(s3: S3, tmp_path: Path, key: str) -> None:
    fill(s3, {f"p/{key}": b"1", "p/a/b": b"2"})
    with pytest.raises(OSError, match=r"n{300}|Is a directory|Not a directory|File exists"):
        dataio.copy(s3.uri("p"), tmp_path / "x", recursive=True)
    assert not Folder(tmp_path).unfinished()


def test_objects_that_stand_for_folders_make_no_files(s3: S3, tmp_path: Path) -> None:
    fill(s3, {"p/": b"", "p/b/": b"", "p/b/a": b"1"})
    dataio.copy(s3.uri("p"), tmp_path / "x", recursive=True)
    assert tree_of(Folder(tmp_path / "x")) == {"b/a": b"1"}


def test_verbs_do_not_take_patterns(s3: S3, tmp_path: Path) -> None:
    fill(s3, {"a*": b"1", "ab": b"2"})
    dataio.copy(s3.uri("a*"), tmp_path / "x")
    dataio.delete(s3.uri("a*"))
    assert ((tmp_path / "x").read_bytes(), s3.names()) == (b"1", {"ab"})


def test_the_content_type_goes_along(s3: S3, azure: Azure) -> None:
    dataio.write(s3.uri("a"), b"{}", content_type="application/json")
    dataio.copy(s3.uri("a"), azure.uri("a"))
    assert dataio.head(azure.uri("a")).content_type == "application/json"


def test_a_copy_ignores_the_cache(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAIO_CACHE_DIR", str(tmp_path / "cache"))
    s3.write("a", b"before")
    dataio.read(s3.uri("a"))
    s3.write("a", b"after")
    dataio.copy(s3.uri("a"), tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"after"


# -------------------------------------------------------------------- errors and interruptions


def test_the_first_error_is_raised_and_the_others_are_noted() -> None:
    began: list[int] = []
    gate = threading.Barrier(2)

    def work(item: int) -> None:
        began.append(item)
        if item < 2:
            gate.wait(10)
            raise OSError(f"item {item}")

    with pytest.raises(OSError, match="item") as caught:
        for_each(work, range(1000), workers=2)
    assert len(began) < 10
    assert caught.value.__notes__ == [f"also: item {1 - int(str(caught.value)[-1])}"]


@pytest.mark.parametrize("workers", [0, -1, 1.5, True])
def test_workers_are_a_positive_number(tmp_path: Path, workers: Any) -> None:
    fill(folder(tmp_path / "a"), {"x": b""})
    with pytest.raises(ValueError, match="workers"):
        dataio.copy(tmp_path / "a", tmp_path / "b", recursive=True, workers=workers)


def test_progress_is_told(tmp_path: Path) -> None:
    fill(folder(tmp_path / "a"), TREE)
    told: list[tuple[int, int]] = []
    dataio.sync(tmp_path / "a", tmp_path / "b", progress=lambda done, total: told.append((done, total)))
    assert told == [(done, len(TREE)) for done in range(1, len(TREE) + 1)]


def test_a_bar_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(folder(tmp_path / "a"), TREE)
    dataio.copy(tmp_path / "a", tmp_path / "b", recursive=True, progress=True)
    assert f"{len(TREE)} objects" in capsys.readouterr().err


class Slow(LocalStore):
    """Local files that come a chunk at a time, and say when one was begun."""

    scheme = "slow"

    def open(self, key: str, *args: Any, **options: Any) -> Any:
        body = super().open(key, *args, **options)
        chunks = body._chunks

        def slowly() -> Iterator[Any]:
            for chunk in chunks:
                Path(os.environ["SLOW_BEGUN"]).touch()
                time.sleep(0.05)
                yield chunk

        body._chunks = slowly()
        return body

    def uri(self, key: str) -> str:
        return f"slow://{key}"

    def copies_to(self, to: Any) -> bool:
        return False


@pytest.mark.timeout(60)
def test_ctrl_c_leaves_nothing_behind(s3_server: S3Server, s3: S3, tmp_path: Path) -> None:
    """Stopped in the middle of a multipart upload that would take a minute."""
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1200 * MIB)
    program = f"""
        import dataio
        from dataio.io.config import configure_credentials, configure_endpoint
        from dataio.io.store import register_store
        from tests.io.test_transfer import Slow
        configure_endpoint("s3", {s3_server.url!r})
        configure_credentials("s3", method="explicit", access_key_id={ACCESS_KEY_ID!r}, secret_access_key={SECRET_ACCESS_KEY!r})
        register_store("slow", lambda uri: Slow())
        dataio.copy("slow://{tmp_path}/large", {s3.uri("large")!r})
    """
    environment = {**os.environ, "SLOW_BEGUN": str(tmp_path / "begun"), "DATAIO_MULTIPART_PART_MIB": "5"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], env=environment, stderr=subprocess.PIPE) as process:
        while not s3.unfinished():
            assert process.poll() is None, process.stderr and process.stderr.read().decode()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in errors
    assert (s3.names(), s3.unfinished()) == (set(), [])


@pytest.mark.timeout(60)
def test_ctrl_c_among_many(tmp_path: Path) -> None:
    source = folder(tmp_path / "a")
    for number in range(200):
        source.write(str(number), content(3 * MIB))
    (tmp_path / "b").mkdir()
    program = f"""
        import dataio
        from dataio.io.store import register_store
        from tests.io.test_transfer import Slow
        register_store("slow", lambda uri: Slow())
        dataio.copy("slow://{tmp_path}/a", "{tmp_path}/b", recursive=True, workers=4)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environment = {**os.environ, "SLOW_BEGUN": str(tmp_path / "begun")}
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], env=environment, stderr=subprocess.PIPE) as process:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in errors
    copied = tree_of(Folder(tmp_path / "b"))
    assert len(copied) < 100
    assert all(data == source.read(name) for name, data in copied.items())
    assert not Folder(tmp_path / "b").unfinished()


def test_memory_is_bounded_by_a_few_parts(s3_server: S3Server, s3: S3, tmp_path: Path) -> None:
    size = 256 * MIB
    with open(tmp_path / "large", "wb") as file:
        file.truncate(size)
    program = f"""
        import resource
        import dataio
        from dataio.io.config import configure_credentials, configure_endpoint
        configure_endpoint("s3", {s3_server.url!r})
        configure_credentials("s3", method="explicit", access_key_id={ACCESS_KEY_ID!r}, secret_access_key={SECRET_ACCESS_KEY!r})
        dataio.write({s3.uri("small")!r}, b"1")
        dataio.copy({s3.uri("small")!r}, "{tmp_path}/small")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        dataio.copy("{tmp_path}/large", {s3.uri("large")!r})
        dataio.copy({s3.uri("large")!r}, "{tmp_path}/back")
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    environment = {**os.environ, "DATAIO_MULTIPART_PART_MIB": "5"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    out = subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, check=True)
    assert (tmp_path / "back").stat().st_size == size
    assert int(out.stdout) * 1024 < size / 2


# -------------------------------------------------------------------- sync


def test_a_tree_is_mirrored(target: Place, tmp_path: Path) -> None:
    fill(folder(tmp_path / "src"), TREE)
    fill(target, {"p/a": b"longer", "p/old": b"", "q": b"elsewhere"})
    told = dataio.sync(tmp_path / "src", target.uri("p"), delete=True)
    assert told == {"copied": len(TREE), "deleted": 1}
    assert tree_of(target) == {f"p/{name}": data for name, data in TREE.items()} | {"q": b"elsewhere"}


@pytest.mark.parametrize("strategy", ["size", "mtime", "checksum"])
def test_a_second_time_nothing_is_copied(target: Place, tmp_path: Path, strategy: str) -> None:
    fill(folder(tmp_path / "src"), TREE)
    dataio.sync(tmp_path / "src", target.uri("p"), strategy=strategy)
    assert dataio.sync(tmp_path / "src", target.uri("p"), strategy=strategy, delete=True) == {"copied": 0, "deleted": 0}


def test_extra_objects_stay_without_delete(target: Place, tmp_path: Path) -> None:
    fill(folder(tmp_path / "src"), {"a": b"1"})
    target.write("p/old", b"")
    dataio.sync(tmp_path / "src", target.uri("p"))
    assert target.names() == {"p/a", "p/old"}


def test_a_dry_run_tells_and_does_nothing(target: Place, tmp_path: Path) -> None:
    fill(folder(tmp_path / "src"), {"a": b"1", "b/c": b"2"})
    fill(target, {"p/old": b"", "p/a": b"1"})
    told = dataio.sync(tmp_path / "src", target.uri("p"), delete=True, dry_run=True)
    assert told == {"copied": 1, "deleted": 1, "copy": [target.uri("p/b/c")], "delete": [target.uri("p/old")]}
    assert target.names() == {"p/old", "p/a"}


@pytest.mark.parametrize("source", ["none", "none/deeper"])
def test_a_missing_source_never_empties_the_target(target: Place, s3: S3, tmp_path: Path, source: str) -> None:
    target.write("p/a", b"1")
    for missing in (f"{tmp_path}/{source}", s3.uri(source), f"memory://{unique()}/{source}", "s3://no-such-bucket-here/x"):
        with pytest.raises(FileNotFoundError):
            dataio.sync(missing, target.uri("p"), delete=True)
    assert tree_of(target) == {"p/a": b"1"}


def test_a_file_is_no_source_of_sync(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    fill(folder(tmp_path / "b"), {"x": b"1"})
    with pytest.raises(NotADirectoryError):
        dataio.sync(tmp_path / "a", tmp_path / "b", delete=True)
    assert (tmp_path / "b/x").exists()


def test_an_empty_folder_empties_the_target(target: Place, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    target.write("p/a", b"1")
    assert dataio.sync(tmp_path / "src", target.uri("p"), delete=True) == {"copied": 0, "deleted": 1}
    assert target.names() == set()


CHANGES = [  # strategy, seconds that the source is newer, whether another content of the same size is noticed
    ("size", 0, False),
    ("size", 100, False),
    ("mtime", -100, False),
    ("mtime", 100, True),
    ("checksum", -100, True),
]


@pytest.mark.parametrize(("strategy", "newer", "noticed"), CHANGES)
def test_what_each_strategy_notices(target: Place, tmp_path: Path, strategy: str, newer: int, noticed: bool) -> None:
    fill(folder(tmp_path / "src"), {"a": b"old"})
    dataio.sync(tmp_path / "src", target.uri("p"))
    (tmp_path / "src/a").write_bytes(b"new")
    os.utime(tmp_path / "src/a", (time.time() + newer,) * 2)
    assert dataio.sync(tmp_path / "src", target.uri("p"), strategy=strategy)["copied"] == noticed


def test_etags_are_compared_where_both_tell_the_content(s3: S3) -> None:
    fill(s3, {"a/x": b"old", "b/x": b"new"})
    assert dataio.sync(s3.uri("a"), s3.uri("b"))["copied"] == 1
    assert s3.read("b/x") == b"old"


def test_an_unknown_strategy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checksum"):
        dataio.sync(tmp_path / "a", tmp_path / "b", strategy="colour")


def test_nothing_is_removed_after_an_error(tmp_path: Path) -> None:
    fill(folder(tmp_path / "src"), {"a": b"1", "b": b"1"})
    fill(folder(tmp_path / "dst"), {"old": b"1"})
    (tmp_path / "dst/b").mkdir()
    with pytest.raises(IsADirectoryError):
        dataio.sync(tmp_path / "src", tmp_path / "dst", delete=True)
    assert (tmp_path / "dst/old").exists()


def test_folders_that_become_empty_go_too(tmp_path: Path) -> None:
    fill(folder(tmp_path / "src"), {"a": b"1"})
    fill(folder(tmp_path / "dst"), {"x/y/z": b"1"})
    dataio.sync(tmp_path / "src", tmp_path / "dst", delete=True)
    assert os.listdir(tmp_path / "dst") == ["a"]


NAMES = st.text("abé [", min_size=1, max_size=3)
TREES = st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.binary(max_size=3), max_size=6)


def possible(tree: dict[str, bytes]) -> dict[str, bytes]:
    """Without files that are folders of others."""
    return {name: data for name, data in tree.items() if not any(other.startswith(f"{name}/") for other in tree)}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=TREES.map(possible), before=TREES.map(possible))
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_trees_are_equal_afterwards(kind: str, source: dict[str, bytes], before: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as path:
        src = folder(Path(path, "src"))
        dst: Place = folder(Path(path, "dst")) if kind == "local" else Memory(unique())
        fill(src, source)
        fill(dst, before)
        changed = {name for name in source if name not in before or source[name] != before[name]}
        told = dataio.sync(src.base, dst.base, strategy="checksum", delete=True)
        assert tree_of(dst) == source
        assert told == {"copied": len(changed), "deleted": len(set(before) - set(source))}
        assert dataio.sync(src.base, dst.base, strategy="checksum", delete=True) == {"copied": 0, "deleted": 0}
        if isinstance(dst, Memory):
            dst.fs.rm(dst.root, recursive=True) if dst.fs.exists(dst.root) else None


def test_a_registered_store_takes_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOW_BEGUN", str(tmp_path / "begun"))
    register_store("slow", lambda uri: Slow())
    fill(folder(tmp_path / "a"), {"x/y": content(100)})
    dataio.copy(f"slow://{tmp_path}/a", tmp_path / "b", recursive=True)
    assert tree_of(Folder(tmp_path / "b")) == {"x/y": content(100)}
