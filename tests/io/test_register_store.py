"""`register_store`: a user's own `Store` under a scheme of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

import dataio
from dataio.io.resolve import read_source
from dataio.io.store import forget_stores, known_schemes, open_store
from dataio.io.stores.local import LocalStore
from dataio.io.uri import Uri

from .contract import unique


class Shelf(dataio.Store):
    """A dictionary, with no more than what a store has to have."""

    def __init__(self, uri: Uri, objects: dict[str, bytes]) -> None:
        self.scheme, self.name, self.objects = uri.scheme, "", objects

    def get(
        self,
        key: str,
        offset: int = 0,
        size: int | None = None,
        *,
        if_match: str | None = None,
        headers: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> bytes:
        self.head(key)
        return self.objects[key][offset : None if size is None else offset + size]

    def open(
        self,
        key: str,
        offset: int = 0,
        size: int | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> dataio.Body:
        return dataio.Body(self.head(key), iter([self.get(key, offset, size)]))

    def head(self, key: str, *, headers: Mapping[str, str] | None = None) -> dataio.ObjectInfo:
        if key not in self.objects:
            raise FileNotFoundError(self.uri(key))
        return dataio.ObjectInfo(key, len(self.objects[key]))


@pytest.fixture
def objects() -> Iterator[dict[str, bytes]]:
    """What `shelf://` holds."""
    held = {"a/b?c#d": b"0123456789"}
    dataio.register_store("shelf", lambda uri: Shelf(uri, held))
    yield held
    forget_stores("shelf")


@pytest.mark.usefixtures("objects")
def test_a_key_is_all_that_stands_behind_the_scheme() -> None:
    store, key = open_store("SHELF://a/b?c#d")
    assert key == "a/b?c#d"
    assert store.get(key) == b"0123456789"
    assert store.uri(key) == "shelf://a/b?c#d"


@pytest.mark.usefixtures("objects")
def test_what_a_store_need_not_have_follows_from_the_rest() -> None:
    store, key = open_store("shelf://a/b?c#d")
    assert store.exists(key)
    assert not store.exists("none")
    out = bytearray(4)
    assert store.get_into(key, 8, memoryview(out)) == 2
    assert store.get_ranges(key, [(0, 2), (5, 2)]) == [b"01", b"56"]


@pytest.mark.usefixtures("objects")
def test_what_a_store_lacks_says_so() -> None:
    store, key = open_store("shelf://a/b?c#d")
    uses = [
        lambda: store.put(key, b""),
        lambda: store.upload(key),
        lambda: store.delete(key),
        lambda: list(store.list("")),
        lambda: store.copy(key, store, "c"),
        lambda: store.sign(key, expires=1, method="GET"),
    ]
    for use in uses:
        with pytest.raises(NotImplementedError, match="shelf://"):
            use()


@pytest.mark.usefixtures("objects")
def test_slots_read_from_it() -> None:
    assert bytes(read_source("shelf://a/b?c#d")) == b"0123456789"


@pytest.mark.usefixtures("objects")
def test_it_is_among_the_known_schemes() -> None:
    assert "shelf" in known_schemes()
    with pytest.raises(ValueError, match="shelf"):
        open_store("shelve://a")


def test_registering_again_replaces_it_at_once(objects: dict[str, bytes]) -> None:
    assert open_store("shelf://a/b?c#d")[0].exists("a/b?c#d")
    dataio.register_store("shelf", lambda uri: Shelf(uri, {}))
    assert not open_store("shelf://a/b?c#d")[0].exists("a/b?c#d")
    assert objects


def test_a_store_is_made_once() -> None:
    made = []

    def make(uri: Uri) -> dataio.Store:
        made.append(uri)
        return Shelf(uri, {})

    dataio.register_store("shelf", make)
    assert open_store("shelf://a")[0] is open_store("shelf://b")[0]
    assert made == [Uri("shelf", "", "a")]


def test_an_error_of_the_factory_is_the_users_own() -> None:
    def make(uri: Uri) -> dataio.Store:
        raise LookupError("no shelf here")

    dataio.register_store("shelf", make)
    with pytest.raises(LookupError, match="no shelf here"):
        open_store("shelf://a")


def test_a_scheme_of_fsspec_may_be_replaced() -> None:
    name = unique()
    dataio.register_store("ftp", lambda uri: Shelf(uri, {name: b"own"}))
    assert open_store(f"ftp://{name}")[0].get(name) == b"own"


@pytest.mark.parametrize("scheme", ["", "s", "1a", "a/b", "a b", "a://", "ü1", None, 5])
def test_what_is_no_scheme_is_refused(scheme: str) -> None:
    with pytest.raises(ValueError, match="scheme"):
        dataio.register_store(scheme, lambda uri: LocalStore())


def test_what_makes_no_stores_is_refused() -> None:
    with pytest.raises(TypeError, match="callable"):
        dataio.register_store("shelf", "shelf")  # type: ignore[arg-type]
