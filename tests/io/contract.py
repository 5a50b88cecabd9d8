"""What every store promises, as test classes that the tests of each store inherit.

A subclass gives the fixture `place`: where its objects lie, and another client that looks at the same place.
"""

from __future__ import annotations

import glob
import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import dataio
from dataio.io.errors import ChangedError, ResponseTooLargeError
from dataio.io.store import ObjectInfo, Store, open_store

MIB = 1 << 20
SIZES = [0, 1, 5 * MIB + 1]
PLAIN_KEYS = ["a[1]", "b?c", "d e+f%20#", "ü", "%2F", "a*b", "q&r=s;t", "x=1,y", "~'!()@$", ".hidden", "deep/er/still", "a:b", "\U0001f600"]
"""Keys that any store can hold, however a URL or a shell would read them."""
ODD_KEYS = ["/lead", "x//y", "//", "trail/", "x/../y", "../up", "x/./y"]
"""Keys that only object stores can hold: in a file system they are other names of the same file."""
SECRETS = ["secret-of-the-tests-0123456789", "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq"]


def content(size: int, seed: int = 0) -> bytes:
    """Bytes without a pattern, the same for the same arguments."""
    return random.Random(seed).randbytes(size)


class Place(ABC):
    """A bucket or folder of the test's own, seen through another client than dataio.

    Attributes:
        base: URI that a name is appended to, such as "s3://bucket/".
        missing: URI of an object in a bucket that does not exist; None where that means nothing.
    """

    base: str
    missing: str | None = None

    @abstractmethod
    def write(self, name: str, data: bytes) -> None: ...

    @abstractmethod
    def read(self, name: str) -> bytes: ...

    @abstractmethod
    def names(self) -> set[str]:
        """Of all objects."""

    def remove(self, name: str) -> None:
        raise NotImplementedError

    def unfinished(self) -> list[str]:
        """Uploads and temporary files that were begun and neither completed nor dropped."""
        return []

    def uri(self, name: str) -> str:
        return self.base + name

    def open(self, name: str = "") -> tuple[Store, str]:
        """What dataio makes of the URI."""
        return open_store(self.uri(name), bucket_alone=True)

    def listed(self, prefix: str = "", *, delimited: bool = False) -> list[str]:
        """What dataio lists, without the base; prefixes keep their "/"."""
        store, base = self.open()
        return [info.key.removeprefix(base) for info in self.infos(store, base + prefix, delimited)]

    @staticmethod
    def infos(store: Store, prefix: str, delimited: bool = False) -> list[ObjectInfo]:
        return list(store.list(prefix, delimited=delimited))


class ReadContract:
    """What can be read, and what is said where it cannot."""

    behind_the_end: type[Exception] | None = None
    """Raised by a range that begins behind the end; None gives nothing."""
    etags = True
    keys = PLAIN_KEYS

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        raise NotImplementedError("a contract is tested by its subclasses")

    @pytest.fixture
    def written(self, place: Place) -> tuple[Store, str]:
        """An object of 1,000 bytes, `content(1000)`."""
        place.write("data.bin", content(1000))
        return place.open("data.bin")

    @pytest.mark.parametrize("size", SIZES)
    def test_whole_objects_are_read(self, place: Place, size: int) -> None:
        place.write("data.bin", content(size))
        store, key = place.open("data.bin")
        assert bytes(store.get(key)) == content(size)

    @pytest.mark.parametrize("size", SIZES)
    def test_objects_are_read_in_chunks(self, place: Place, size: int) -> None:
        place.write("data.bin", content(size))
        store, key = place.open("data.bin")
        with store.open(key) as body:
            assert body.info.size == size
            assert b"".join(map(bytes, body)) == content(size)

    @pytest.mark.parametrize(("offset", "size"), [(0, 1000), (0, 1), (999, 1), (10, 500), (900, 500), (1000, 0), (5, 0), (0, 0)])
    def test_ranges_are_cut_short_at_the_end(self, written: tuple[Store, str], offset: int, size: int) -> None:
        store, key = written
        expected = content(1000)[offset : offset + size]
        assert bytes(store.get(key, offset, size)) == expected
        with store.open(key, offset, size) as body:
            assert b"".join(map(bytes, body)) == expected

    def test_a_range_may_go_to_the_end(self, written: tuple[Store, str]) -> None:
        store, key = written
        assert bytes(store.get(key, 400)) == content(1000)[400:]

    @pytest.mark.parametrize("offset", [1001, 2**40])
    def test_a_range_behind_the_end_has_nothing(self, written: tuple[Store, str], offset: int) -> None:
        store, key = written
        if self.behind_the_end is None:
            assert bytes(store.get(key, offset, 10)) == b""
            return
        with pytest.raises(self.behind_the_end, match=r"data\.bin"):
            store.get(key, offset, 10)

    @pytest.mark.parametrize(("offset", "size"), [(-1, 5), (0, -1), (-5, None)])
    def test_negative_numbers_are_refused(self, written: tuple[Store, str], offset: int, size: int | None) -> None:
        store, key = written
        with pytest.raises(ValueError, match="negative"):
            store.get(key, offset, size)
        with pytest.raises(ValueError, match="negative"):
            store.open(key, offset, size)

    @pytest.mark.parametrize(("offset", "room", "filled"), [(0, 1000, 1000), (10, 100, 100), (950, 100, 50)])
    def test_a_buffer_is_filled(self, written: tuple[Store, str], offset: int, room: int, filled: int) -> None:
        store, key = written
        out = bytearray(room)
        assert store.get_into(key, offset, memoryview(out)) == filled
        assert bytes(out[:filled]) == content(1000)[offset : offset + filled]

    def test_many_ranges_of_one_object(self, written: tuple[Store, str]) -> None:
        store, key = written
        ranges = [(0, 10), (5, 10), (990, 100), (500, 0), (20, 1)]
        assert [bytes(part) for part in store.get_ranges(key, ranges)] == [content(1000)[a : a + n] for a, n in ranges]
        assert store.get_ranges(key, []) == []

    def test_head_tells_the_size(self, written: tuple[Store, str]) -> None:
        store, key = written
        info = store.head(key)
        assert (info.key, info.size, info.is_prefix) == (key, 1000, False)
        assert (info.etag is not None) == self.etags
        assert info.etag is None or '"' not in info.etag

    def test_exists_sees_another_client_at_once(self, place: Place) -> None:
        store, key = place.open("new.bin")
        assert not store.exists(key)
        place.write("new.bin", b"1")
        assert store.exists(key)
        place.write("new.bin", b"22")
        assert store.head(key).size == 2
        assert bytes(store.get(key)) == b"22"
        place.remove("new.bin")
        assert not store.exists(key)

    @pytest.mark.parametrize("verb", ["get", "range", "open", "head", "get_into", "get_ranges"])
    def test_a_missing_object_is_named(self, place: Place, verb: str) -> None:
        store, key = place.open("folder/none.bin")
        with pytest.raises(FileNotFoundError, match=r"folder/none\.bin") as failed:
            _read_by(store, key, verb)
        assert not any(secret in story(failed.value) for secret in SECRETS)

    @pytest.mark.parametrize("verb", ["get", "range", "open", "head"])
    def test_a_missing_bucket_is_told(self, place: Place, verb: str) -> None:
        if place.missing is None:
            pytest.skip("has no buckets")
        store, key = open_store(place.missing)
        with pytest.raises(FileNotFoundError):
            _read_by(store, key, verb)
        assert not store.exists(key)

    @pytest.mark.parametrize("limit", [0, 1, 99])
    def test_more_than_the_limit_is_not_read(self, written: tuple[Store, str], limit: int) -> None:
        store, key = written
        for read in (
            lambda: store.get(key, limit=limit),
            lambda: store.get(key, 10, 100, limit=limit),
            lambda: b"".join(map(bytes, store.open(key, limit=limit))),
        ):
            with pytest.raises((ResponseTooLargeError, ConnectionError), match=r"data\.bin"):
                read()

    def test_as_much_as_the_limit_is_read(self, written: tuple[Store, str]) -> None:
        store, key = written
        assert bytes(store.get(key, limit=1000)) == content(1000)
        assert bytes(store.get(key, 10, 100, limit=100)) == content(1000)[10:110]
        assert bytes(store.get(key, 950, 100, limit=50)) == content(1000)[950:]

    def test_another_version_is_an_error(self, place: Place, written: tuple[Store, str]) -> None:
        store, key = written
        if not self.etags:
            pytest.skip("has no ETags")
        etag = store.head(key).etag
        assert bytes(store.get(key, 1, 5, if_match=etag)) == content(1000)[1:6]
        place.write("data.bin", content(1001, seed=1))  # nginx tells versions apart by second and size
        with pytest.raises(ChangedError, match=r"data\.bin"):
            store.get(key, 1, 5, if_match=etag)

    def test_keys_are_read_as_they_are_written(self, place: Place) -> None:
        for at, name in enumerate(self.keys):
            place.write(name, content(10 + at, seed=at))
        for at, name in enumerate(self.keys):
            store, key = place.open(name)
            assert bytes(store.get(key)) == content(10 + at, seed=at), name
            assert bytes(store.get(key, 2, 3)) == content(10 + at, seed=at)[2:5], name
            assert store.head(key).size == 10 + at, name
            assert store.exists(key), name
            assert b"".join(map(bytes, store.open(key))) == content(10 + at, seed=at), name
            assert not store.exists(place.open(name + "_")[1]), name


class StoreContract(ReadContract):
    """What can be listed and written besides."""

    refused: list[str] = []
    """Keys that the service itself cannot hold: writing one is an error, never another key."""
    folders = False
    """Whether there are folders, so that a name is either one or an object."""
    etags_of_writes = True
    """Whether a write tells the ETag that it made; where there is none it tells None."""
    many = 1_050
    """Objects of which a listing comes in pages."""

    # ---------------------------------------------------------------- writing

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_whole_objects_are_written(self, place: Place, size: int, kind: Callable[[bytes], bytes]) -> None:
        store, key = place.open("data.bin")
        etag = store.put(key, kind(content(size)))
        assert place.read("data.bin") == content(size)
        assert etag == (store.head(key).etag if self.etags_of_writes else None)
        assert place.names() == {"data.bin"}

    def test_an_object_is_replaced(self, place: Place) -> None:
        store, key = place.open("data.bin")
        store.put(key, b"first and longer")
        store.put(key, b"second")
        assert bytes(store.get(key)) == place.read("data.bin") == b"second"

    @pytest.mark.parametrize("sizes", [[], [0], [1], [3, 0, 5], [5 * MIB, 1], [MIB] * 11 + [7]], ids=str)
    def test_parts_become_one_object(self, place: Place, sizes: list[int]) -> None:
        store, key = place.open("data.bin")
        parts = [content(size, seed=at) for at, size in enumerate(sizes)]
        upload = store.upload(key)
        reused = bytearray(MIB * 5)
        for part in parts:  # the buffer of a part may be used again at once
            reused[: len(part)] = part
            upload.write(memoryview(reused)[: len(part)])
        upload.complete()
        assert place.read("data.bin") == b"".join(parts)
        assert place.names() == {"data.bin"}
        assert place.unfinished() == []

    @pytest.mark.parametrize("sizes", [[], [1], [MIB] * 11], ids=["nothing", "little", "parts"])
    def test_an_upload_that_is_dropped_leaves_nothing(self, place: Place, sizes: list[int]) -> None:
        store, key = place.open("data.bin")
        upload = store.upload(key)
        for size in sizes:
            upload.write(content(size))
        assert not store.exists(key)
        upload.abort()
        upload.abort()
        assert place.names() == set()
        assert place.unfinished() == []

    def test_an_upload_that_is_dropped_keeps_what_was_there(self, place: Place) -> None:
        place.write("data.bin", b"before")
        store, key = place.open("data.bin")
        upload = store.upload(key)
        upload.write(content(6 * MIB))
        upload.abort()
        assert place.read("data.bin") == b"before"

    def test_uploads_side_by_side(self, place: Place) -> None:
        def write(at: int) -> None:
            store, key = place.open(f"{at}.bin")
            upload = store.upload(key)
            for part in range(3):
                upload.write(content(2 * MIB, seed=at * 10 + part))
            upload.complete()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))
        for at in range(4):
            assert place.read(f"{at}.bin") == b"".join(content(2 * MIB, seed=at * 10 + part) for part in range(3))

    # ---------------------------------------------------------------- deleting and copying

    def test_deleting_is_idempotent(self, place: Place) -> None:
        place.write("data.bin", b"1")
        place.write("data.bin2", b"2")
        store, key = place.open("data.bin")
        store.delete(key)
        store.delete(key)
        assert place.names() == {"data.bin2"}

    def test_copies_inside_the_store(self, place: Place) -> None:
        place.write("data.bin", content(1000))
        place.write("taken.bin", b"old")
        store, key = place.open("data.bin")
        assert store.copies_to(store)
        for name in ("copy.bin", "folder/copy.bin", "taken.bin"):
            store.copy(key, store, place.open(name)[1])
            assert place.read(name) == content(1000)
        store.copy(key, store, key)
        assert place.read("data.bin") == content(1000)

    def test_a_copy_of_nothing_is_an_error(self, place: Place) -> None:
        store, key = place.open("none.bin")
        with pytest.raises(FileNotFoundError, match=r"none\.bin"):
            store.copy(key, store, place.open("copy.bin")[1])
        assert place.names() == set()

    # ---------------------------------------------------------------- listing

    NAMES = ["b/1", "b/2", "b/deep/3", "b2/x", "a", "b", "c d/e", "z.tmp"]

    def _written_names(self, place: Place) -> list[str]:
        names = [name for name in self.NAMES if not (self.folders and name == "b")]
        for name in names:
            place.write(name, name.encode())
        return names

    @pytest.mark.parametrize("prefix", ["", "b", "b/", "b/d", "b/deep/3", "c ", "none", "B"])
    def test_a_prefix_is_a_plain_string(self, place: Place, prefix: str) -> None:
        names = self._written_names(place)
        assert place.listed(prefix) == sorted(name for name in names if name.startswith(prefix))

    @pytest.mark.parametrize(
        ("prefix", "expected"),
        [
            ("", ["a", "b", "b/", "b2/", "c d/", "z.tmp"]),
            ("b/", ["b/1", "b/2", "b/deep/"]),
            ("b", ["b", "b/", "b2/"]),
            ("c d/", ["c d/e"]),
            ("none/", []),
        ],
    )
    def test_one_level_of_a_listing(self, place: Place, prefix: str, expected: list[str]) -> None:
        names = self._written_names(place)
        found = place.listed(prefix, delimited=True)
        assert sorted(found) == [name for name in expected if name.endswith("/") or name in names]
        store, base = place.open()
        infos = place.infos(store, base + prefix, delimited=True)
        assert all(info.is_prefix == info.key.endswith("/") for info in infos)

    def test_a_listing_tells_sizes(self, place: Place) -> None:
        self._written_names(place)
        store, base = place.open()
        infos = {info.key.removeprefix(base): info for info in place.infos(store, base)}
        assert {name: info.size for name, info in infos.items()} == {name: len(name) for name in infos}
        assert all(info.modified is not None for info in infos.values())
        assert all((info.etag is not None) == self.etags for info in infos.values())

    def test_a_listing_sees_another_client_at_once(self, place: Place) -> None:
        assert place.listed() == []
        place.write("folder/new.bin", b"1")
        assert place.listed() == place.listed("folder/") == ["folder/new.bin"]
        place.remove("folder/new.bin")
        assert place.listed() == place.listed("folder/") == []

    def test_a_listing_of_a_missing_bucket_is_an_error(self, place: Place) -> None:
        if place.missing is None:
            pytest.skip("has no buckets")
        store, _ = open_store(place.missing)
        with pytest.raises(FileNotFoundError):
            list(store.list(""))

    def test_long_listings_and_deletes_come_in_pages(self, place: Place) -> None:
        store, base = place.open()
        names = [f"many/{at:05d}" for at in range(self.many)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: store.put(place.open(name)[1], b"."), names))
        store.put(base + "other", b".")
        assert place.listed("many/") == names
        assert place.listed("", delimited=True) == ["many/", "other"]
        store.delete_many(base + name for name in (*names, "many/none"))
        assert place.names() == {"other"}

    # ---------------------------------------------------------------- keys

    def test_keys_are_opaque_in_every_request(self, place: Place) -> None:
        seen: set[str] = set()
        for at, name in enumerate(self.keys):
            data = content(10 + at, seed=at)
            store, key = place.open(name)
            assert store.uri(key) == place.uri(name)
            store.put(key, data)
            seen.add(name)
            assert place.names() == seen, name
            assert place.read(name) == data, name
            assert bytes(store.get(key)) == data, name
            assert bytes(store.get(key, 2, 3)) == data[2:5], name
            assert store.head(key).size == len(data), name
            assert store.exists(key), name
        assert sorted(place.listed()) == sorted(self.keys)
        for name in self.keys:
            assert name in place.listed(name), name
            store, key = place.open(name)
            if not name.endswith("/"):
                store.copy(key, store, place.open(name + "~")[1])
                assert place.read(name + "~") == place.read(name), name
                store.delete(place.open(name + "~")[1])
            upload = store.upload(key)
            upload.write(b"by parts")
            upload.complete()
            assert place.read(name) == b"by parts", name
            store.delete(key)
            seen.remove(name)
            assert place.names() == seen, name

    def test_keys_that_the_service_cannot_hold_are_refused(self, place: Place) -> None:
        for name in self.refused:
            store, key = place.open(name)
            with pytest.raises((ValueError, NotImplementedError, OSError)):
                store.put(key, b"1")
            assert place.names() == set(), name


class VerbContract:
    """The verbs on a store whose URIs dataio opens by itself."""

    def test_keys_are_opaque_in_every_verb(self, place: Place) -> None:
        for at, name in enumerate(self.keys):  # type: ignore[attr-defined]
            uri, data = place.uri(name), content(10 + at, seed=at)
            place.open(name)
            dataio.write(uri, data)
            assert place.read(name) == data, name
            assert dataio.read(uri) == data, name
            assert dataio.read(uri, offset=2, size=3) == data[2:5], name
            assert dataio.head(uri).content_length == len(data), name
            assert dataio.exists(uri), name
            assert dataio.glob(place.base + glob.escape(name)) == [uri], name
            with dataio.stream(uri) as stream:
                assert stream.read_all() == data, name
        base = place.base.rstrip("/") + "/"
        assert sorted(dataio.ls(base)) == sorted(place.uri(name) for name in place.names())
        for name in self.keys:  # type: ignore[attr-defined]
            uri = place.uri(name)
            if not name.endswith("/"):
                dataio.copy(uri, place.uri("copied"))
                assert place.read("copied") == place.read(name), name
            dataio.delete(uri)
            dataio.delete(uri)
            assert not dataio.exists(uri), name
            assert name not in place.names()
        dataio.delete(base, recursive=True)
        assert place.names() == set()

    def test_a_tree_goes_there_and_back(self, place: Place, tmp_path_factory: pytest.TempPathFactory) -> None:
        here, back = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("back")
        files = {name: content(1000 + at, seed=at) for at, name in enumerate(["a", "b/c d", "b/[x]/#", "b/\u00fc", ".hidden", "b2/e"])}
        files["large"] = content(6 * MIB)
        for name, data in files.items():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).write_bytes(data)
        there = place.uri("tree")
        assert dataio.sync(str(here), there)["copied"] == len(files)
        assert place.names() == {f"tree/{name}" for name in files}
        assert dataio.sync(str(here), there)["copied"] == 0
        assert dataio.sync(there, str(back))["copied"] == len(files)
        assert {path.relative_to(back).as_posix(): path.read_bytes() for path in back.rglob("*") if path.is_file()} == files
        (here / "a").unlink()
        assert dataio.sync(str(here), there, delete=True)["deleted"] == 1
        assert "tree/a" not in place.names()
        assert place.unfinished() == []

    def test_what_is_not_there(self, place: Place) -> None:
        uri = place.uri("none")
        assert not dataio.exists(uri)
        assert dataio.ls(uri) == dataio.glob(uri) == dataio.glob(place.uri("none/*")) == []
        for verb in (dataio.read, dataio.head, dataio.stream, lambda uri: dataio.copy(uri, place.uri("b"))):
            with pytest.raises(FileNotFoundError, match="none"):
                verb(uri)
        assert place.names() == set()


def _read_by(store: Store, key: str, verb: str) -> None:
    if verb == "get":
        store.get(key)
    elif verb == "range":
        store.get(key, 2, 3)
    elif verb == "open":
        list(store.open(key))
    elif verb == "head":
        store.head(key)
    elif verb == "get_into":
        store.get_into(key, 0, memoryview(bytearray(4)))
    else:
        list(store.get_ranges(key, [(0, 1), (2, 3)]))


def story(error: BaseException | None) -> str:
    """An error and what it came of, as a traceback would show them."""
    told = []
    while error is not None:
        told += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    return "\n".join(told)


def unique() -> str:
    """A name that no other test has."""
    return f"t-{uuid.uuid4().hex[:12]}"
