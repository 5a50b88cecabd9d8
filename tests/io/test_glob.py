"""`glob`: the rules of pathlib, the same for files and for keys."""

from __future__ import annotations

import glob as standard
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio.io.globbing import matcher

from ..servers.s3 import S3Server
from .contract import Place, unique
from .places import S3, Folder, Memory

NAMES = st.text("ab.[]*?!-^é", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
TREES = st.sets(st.lists(NAMES, min_size=1, max_size=3).map(tuple), max_size=8)
PARTS = st.one_of(st.just("*"), st.just("**"), st.text("ab.[]*?!-^é", min_size=1, max_size=5))
PATTERNS = st.lists(PARTS.filter(lambda part: part == "**" or ("**" not in part and part not in (".", ".."))), min_size=1, max_size=4)


def files_of(tree: set[tuple[str, ...]]) -> list[str]:
    """The names that can be files together: none is a folder of another."""
    return sorted("/".join(name) for name in tree if not any(other[: len(name)] == name for other in tree if other != name))


@settings(max_examples=150, deadline=None)
@given(tree=TREES, pattern=PATTERNS)
def test_patterns_mean_what_they_mean_to_pathlib(tree: set[tuple[str, ...]], pattern: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in files_of(tree):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
        if pattern[-1] == "**":  # to pathlib of this version only folders, the root among them
            expected = set(root.glob("/".join([*pattern, "*"])))
        else:
            expected = set(root.glob("/".join(pattern)))
        asked = "/".join([standard.escape(folder), *pattern])
        assert dataio.glob(asked) == sorted(str(path) for path in expected - {root})


@settings(max_examples=150, deadline=None)
@given(tree=TREES, pattern=PATTERNS)
def test_keys_match_as_files_do(tree: set[tuple[str, ...]], pattern: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        names = files_of(tree)
        for name in names:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        matches = matcher("/".join(pattern))
        found = dataio.glob("/".join([standard.escape(folder), *pattern]))
        assert [name for name in names if matches(name)] == [path[len(folder) + 1 :] for path in found if os.path.isfile(path)]


KEYS = ["a.txt", "a[1].txt", "b.jpg", ".hidden", "x/a.txt", "x/y/a.txt", "x/y/z/c.txt", "q?.txt"]
CASES = [  # pattern, keys
    pytest.param("*.txt", ["a.txt", "a[1].txt", "q?.txt"], id="a star stays in its folder"),
    pytest.param("*/*.txt", ["x/a.txt"], id="one folder"),
    pytest.param("**/a.txt", ["a.txt", "x/a.txt", "x/y/a.txt"], id="two stars take any number of folders"),
    pytest.param("x/**", ["x/a.txt", "x/y/a.txt", "x/y/z/c.txt"], id="all below"),
    pytest.param("?.*", ["a.txt", "b.jpg"], id="question mark"),
    pytest.param("[!a].*", ["b.jpg"], id="set"),
    pytest.param("*hidden", [".hidden"], id="hidden"),
    pytest.param("a[[]1].txt", ["a[1].txt"], id="escaped"),
    pytest.param(standard.escape("q?.txt"), ["q?.txt"], id="standard escape"),
    pytest.param("x/y/a.txt", ["x/y/a.txt"], id="no wildcard"),
    pytest.param("x/y/none.txt", [], id="no wildcard, missing"),
    pytest.param("none/*", [], id="missing folder"),
]


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "local":
        yield Folder(tmp_path)
    elif request.param == "memory":
        memory = Memory(unique())
        yield memory
        for name in memory.names():
            memory.remove(name)
    else:
        server: S3Server = request.getfixturevalue("s3_server")
        yield S3(server, request.getfixturevalue("s3_bucket"))


@pytest.mark.parametrize(("pattern", "expected"), CASES)
def test_the_same_rules_everywhere(place: Place, pattern: str, expected: list[str]) -> None:
    for name in KEYS:
        place.write(name, b"1")
    found = [uri.removeprefix(place.base) for uri in dataio.glob(place.base + pattern)]
    assert [name for name in found if not os.path.isdir(place.base + name)] == sorted(expected)


def test_a_wildcard_in_the_first_name_of_a_bucket(s3_bucket: str) -> None:
    dataio.write(f"{s3_bucket}/p/x", b"")
    dataio.write(f"{s3_bucket}/q/x", b"")
    assert dataio.glob(f"{s3_bucket}/*/x") == [f"{s3_bucket}/p/x", f"{s3_bucket}/q/x"]


def test_relative_patterns_give_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").touch()
    assert (dataio.glob("*"), dataio.glob("a/*"), dataio.glob("./*/b"), dataio.glob("*/")) == (["a"], ["a/b"], ["./a/b"], ["a"])


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).symlink_to(tmp_path)
    (tmp_path / "file").touch()
    assert [os.path.basename(path) for path in dataio.glob(f"{tmp_path}/**/file")].count("file") >= 1


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A folder in which root, too, is refused what others are."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "open").mkdir()
        (folder / "shut").mkdir()
        (folder / "open/x").touch()
        (folder / "shut").chmod(0)
        folder.chmod(0o755)
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(before)
            (folder / "shut").chmod(0o700)


def test_a_folder_that_may_not_be_read_is_told(as_nobody: Path) -> None:
    with pytest.raises(PermissionError, match="shut"):
        dataio.glob(f"{as_nobody}/*/x")


def test_folders_without_matches_are_not_read(as_nobody: Path) -> None:
    assert dataio.glob(f"{as_nobody}/o*/x") == [f"{as_nobody}/open/x"]
    assert dataio.glob(f"{as_nobody}/*") == [f"{as_nobody}/open", f"{as_nobody}/shut"]
