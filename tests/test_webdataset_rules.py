"""`webdataset`: how names become samples, what is told of shards that are out of order or damaged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataio
from dataio.io.tar_stream import TarError
from dataio.sources.samples import DuplicateEntryError

from .test_webdataset import Entries, header, loader_of, numbered, read, steps, tar

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")

Found = list[tuple[str, dict[str, bytes]]]
Make = Callable[[Entries | bytes], str]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """`make(entries or bytes)` writes a shard and gives its path."""
    written: list[Path] = []

    def shard(content: Entries | bytes) -> str:
        path = tmp_path / f"{len(written)}.tar"
        path.write_bytes(content if isinstance(content, bytes) else tar(content))
        written.append(path)
        return str(path)

    return shard


def found(shards: Any, **options: Any) -> Found:
    """Key and contents of each sample."""
    samples = map(read, dataio.webdataset(shards, **options))
    return [(sample.pop("__key__"), {name: value for name, value in sample.items() if name != "__shard__"}) for sample in samples]


NAMES = ["a/x.seg.PNG", "a/x.jpg", "b/x.JPG"]
RULES: dict[str, tuple[dict[str, Any], Found]] = {
    "base names": ({"on_duplicate": "error"}, [("x", {"seg.PNG": b"0", "jpg": b"1", "JPG": b"2"})]),
    "paths": ({"key": "path"}, [("a/x", {"seg.PNG": b"0", "jpg": b"1"}), ("b/x", {"JPG": b"2"})]),
    "last dot": ({"suffix": "last_dot"}, [("x.seg", {"PNG": b"0"}), ("x", {"jpg": b"1", "JPG": b"2"})]),
    "lower case": ({"key": "path", "lowercase": True}, [("a/x", {"seg.png": b"0", "jpg": b"1"}), ("b/x", {"jpg": b"2"})]),
}


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_keys_and_suffixes(make: Make, rule: str, index: bool) -> None:
    options, expected = RULES[rule]
    shard = make([(name, str(i).encode()) for i, name in enumerate(NAMES)])
    assert found(shard, index=index, **options) == expected


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("suffix", ["first_dot", "last_dot"])
def test_hidden_entries_belong_to_no_sample(make: Make, suffix: str, index: bool) -> None:
    shard = make([(name, b"") for name in (".x.jpg", "._x.jpg", "_x.jpg", "d.d/x", "x.jpg")])
    assert found(shard, suffix=suffix, index=index) == [("x", {"jpg": b""})]


@pytest.mark.parametrize("index", [False, True])
def test_names_that_are_no_utf8_stay_different(make: Make, index: bool) -> None:
    names = [b"\xff.x".decode("utf-8", "surrogateescape"), b"\xfe.x".decode("utf-8", "surrogateescape"), "\u00ff.x"]
    shard = make(b"".join(raw_header(name, 0) for name in names) + bytes(1024))
    assert [key for key, _ in found(shard, index=index)] == [name[:-2] for name in names]


def raw_header(name: str, size: int) -> bytes:
    """A header with the name's bytes as they are."""
    block = bytearray(header("0.x", size))
    raw = name.encode("utf-8", "surrogateescape")
    block[:100] = raw.ljust(100, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize("suffix", ["__key__", "__shard__"])
def test_an_entry_cannot_take_the_place_of_the_key(make: Make, suffix: str) -> None:
    with pytest.raises(ValueError, match=f"'{suffix}', which records use"):
        found(make([(f"0.{suffix}", b"")]), on_duplicate="last")


# ---------------------------------------------------------------------------------------------- out of order

MIXED: Entries = [("0.a", b"1"), ("1.a", b"2"), ("0.b", b"3"), ("2.a", b"4")]
TWICE: Entries = [("d/0.a", b"1"), ("e/0.a", b"2"), ("1.a", b"3"), ("d/0.a", b"4")]
POLICIES: dict[str, tuple[Entries, dict[str, Any], Found]] = {
    "runs": (MIXED, {}, [("0", {"a": b"1"}), ("1", {"a": b"2"}), ("0", {"b": b"3"}), ("2", {"a": b"4"})]),
    "merged": (MIXED, {"on_interleaved": "merge", "index": True}, [("0", {"a": b"1", "b": b"3"}), ("1", {"a": b"2"}), ("2", {"a": b"4"})]),
    "first": (TWICE, {"on_duplicate": "first"}, [("0", {"a": b"1"}), ("1", {"a": b"3"})]),
    "last": (TWICE, {"on_duplicate": "last"}, [("0", {"a": b"2"}), ("1", {"a": b"3"}), ("0", {"a": b"4"})]),
    "last, merged": (TWICE, {"on_duplicate": "last", "on_interleaved": "merge", "index": True}, [("0", {"a": b"4"}), ("1", {"a": b"3"})]),
}  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_out_of_order_follows_the_policy_and_is_told_once(make: Make, policy: str, caplog: pytest.LogCaptureFixture) -> None:
    entries, options, expected = POLICIES[policy]
    with caplog.at_level(logging.WARNING, logger="dataio.sources"):
        source = dataio.webdataset(make(entries), **options)
        for _ in range(2):
            again = [(sample["__key__"], {k: v for k, v in read(sample).items() if k[0] != "_"}) for sample in source]
            assert again == expected
    texts = [record.getMessage() for record in caplog.records]
    assert texts
    assert len(set(texts)) == len(texts)
    assert all("0.tar" in text and "'" in text for text in texts)


@pytest.mark.parametrize("policy", ["runs", "first", "last"])
def test_an_index_gives_the_same_samples(make: Make, policy: str) -> None:
    entries, options, expected = POLICIES[policy]
    assert found(make(entries), index=True, **options) == expected


@pytest.mark.parametrize("index", [False, True])
def test_a_key_that_returns_can_be_an_error(make: Make, index: bool) -> None:
    with pytest.raises(ValueError, match=r"0\.tar has the sample '0' in two places"):
        found(make(MIXED), on_interleaved="error", index=index)


def test_duplicates_are_errors_of_an_index_too(make: Make) -> None:
    with pytest.raises(DuplicateEntryError, match=r"'d/0\.a' twice"):
        found(make([TWICE[0], *TWICE[2:]]), index=True)
    with pytest.raises(ValueError, match="'a' twice"):
        found(make(TWICE[:2]), index=True)


@pytest.mark.parametrize("cut", range(5))
def test_a_pass_that_drops_duplicates_is_resumed_exactly(make: Make, cut: int) -> None:
    shard = make([*numbered(0, 4), *numbered(2, 4)])
    with loader_of(dataio.webdataset(shard, on_duplicate="first"), size=1) as loader:
        head = steps(loader, cut) if cut else []
        state = loader.state_dict()
    with loader_of(dataio.webdataset(shard, on_duplicate="first"), size=1) as loader:
        loader.load_state_dict(state)
        rest = steps(loader)
    assert [key for keys, _ in head + rest for key in keys] == [f"{i:04d}" for i in range(6)]


# --------------------------------------------------------------------------------------------------- damage


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 11 * 1024), key=st.sampled_from(["basename", "path"]))
def test_a_cut_shard_delivers_what_is_whole_with_and_without_an_index(make: Make, cut: int, key: str) -> None:
    entries = [(f"{i}.{suffix}", bytes([i]) * 700) for i in range(3) for suffix in ("a", "b")]
    shards = [make(tar(entries)[:cut]), make(entries)]
    forwards = found(shards, on_damage="skip", key=key)
    assert forwards == found(shards, on_damage="skip", key=key, index=True)
    whole = found(shards[1])
    kept = len(forwards) - len(whole)
    assert forwards == whole[:kept] + whole
    assert kept >= cut // (2 * 1536) - 1


def test_a_damaged_shard_is_told_once_and_the_others_are_read(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    source = dataio.webdataset([make(tar(numbered(0, 9))[:-11000]), make(numbered(10, 3))], on_damage="skip")
    with caplog.at_level(logging.WARNING, logger="dataio.sources"), loader_of(source, size=1) as loader:
        first, second = steps(loader), steps(loader)
    assert first == second
    assert [key for keys, _ in first for key in keys][-3:] == ["0010", "0011", "0012"]
    (record,) = caplog.records
    assert "0.tar" in record.getMessage()


def test_a_loader_gets_what_is_whole_and_then_one_error(make: Make) -> None:
    shard = make(tar(numbered(0, 9))[:-11000])
    keys: list[str] = []
    with loader_of(dataio.webdataset(shard), size=1, on_failure="skip") as loader, pytest.raises(RuntimeError, match=r"0\.tar is cut off"):  # noqa: PT012
        for batch in loader:
            keys += batch.keys
    assert keys == [key for key, _ in found(shard, on_damage="skip")]
    assert len(keys) >= 3


def test_a_missing_shard_is_no_damage(make: Make, tmp_path: Path) -> None:
    for index in (False, True):
        with pytest.raises(FileNotFoundError, match=r"absent\.tar"):
            found([make(MIXED), str(tmp_path / "absent.tar")], on_damage="skip", index=index)


# -------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize("name", ["key", "suffix", "on_interleaved", "on_duplicate", "on_damage"])
def test_an_unknown_rule_is_refused_when_the_source_is_made(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be one of '"):
        dataio.webdataset("x.tar", **{name: "other"})


def test_merging_needs_an_index() -> None:
    with pytest.raises(ValueError, match="index=True"):
        dataio.webdataset("x.tar", on_interleaved="merge")


def test_options_of_other_types() -> None:
    with pytest.raises(TypeError, match="lowercase"):
        dataio.webdataset("x.tar", lowercase=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="index"):
        dataio.webdataset("x.tar", index=3)  # type: ignore[arg-type]


def test_a_damaged_shard_has_no_index(make: Make) -> None:
    with pytest.raises(TarError, match=r"0\.tar is cut off"):
        dataio.webdataset(make(tar(MIXED)[:1024]), index=True)
