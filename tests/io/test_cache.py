"""The local cache: what is kept, when the store is asked again, and what happens to what is damaged, full or forbidden."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import random
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataio
from dataio import Cache
from dataio.io.cache import CachedStore, as_cache, cached
from dataio.io.cache_files import FOLDER
from dataio.io.errors import ObjectNotFoundError, RangeError, ResponseTooLargeError
from dataio.io.store import Body, BytesLike, ObjectInfo, Store, Upload, forget_stores, open_store

from ..conftest import npy


class Shop(Store):
    """A store in memory that counts its requests."""

    scheme, name = "shop", "b"

    def __init__(self, objects: Mapping[str, bytes] | None = None, *, tells: Iterable[str] = ("size", "etag"), headers: Mapping[str, str] | None = None) -> None:
        self.objects = dict(objects or {})
        self.requests: Counter[str] = Counter()
        self.tells = set(tells)
        self.headers = dict(headers or {})
        self.versions: Counter[str] = Counter()
        self.before_chunk: Callable[[], None] = lambda: None

    def _info(self, key: str) -> ObjectInfo:
        if key not in self.objects:
            raise ObjectNotFoundError("No such object", uri=self.uri(key))
        told: dict[str, Any] = {
            "size": len(self.objects[key]),
            "etag": f"v{self.versions[key]}",
            "modified": float(self.versions[key]),
        }
        return ObjectInfo(**{"key": key, "size": None, **{what: told[what] for what in self.tells}}, headers=self.headers)

    def get(self, key: str, offset: int = 0, size: int | None = None, *, if_match: str | None = None, headers: Mapping[str, str] | None = None, limit: int | None = None) -> bytes:
        self.requests[f"GET {key}"] += 1
        data = self.objects[key]
        if offset > len(data):
            raise RangeError("behind the end", uri=self.uri(key))
        part = data[offset:] if size is None else data[offset : offset + size]
        if limit is not None and len(part) > limit:
            raise ResponseTooLargeError(f"{self.uri(key)} is larger than {limit}")
        return part

    def open(self, key: str, offset: int = 0, size: int | None = None, *, headers: Mapping[str, str] | None = None, limit: int | None = None) -> Body:
        info, data = self._info(key), self.get(key, offset, size, limit=limit)

        def chunks() -> Iterator[bytes]:
            for at in range(0, len(data), 1000):
                self.before_chunk()
                yield data[at : at + 1000]

        return Body(info, chunks())

    def head(self, key: str, *, headers: Mapping[str, str] | None = None) -> ObjectInfo:
        self.requests[f"HEAD {key}"] += 1
        return self._info(key)

    def put(self, key: str, data: BytesLike, *, content_type: str | None = None) -> str | None:
        self.objects[key] = bytes(data)
        self.versions[key] += 1
        return f"v{self.versions[key]}"

    def upload(self, key: str, *, content_type: str | None = None) -> Upload:
        shop, parts = self, bytearray()

        class Parts(Upload):
            def write(self, data: BytesLike) -> None:
                parts.extend(data)

            def complete(self) -> str | None:
                return shop.put(key, parts)

            def abort(self) -> None:
                parts.clear()

        return Parts()

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def copies_to(self, to: Store) -> bool:
        return isinstance(to, Shop)

    def copy(self, key: str, to: Store, to_key: str) -> None:
        to.put(to_key, self.objects[key])


DATA = bytes(range(256)) * 40


def over(shop: Store, directory: Path, *, later: bool = False, **options: Any) -> Store:
    """A cache in front of a shop; `later` as a process does that begins after what is kept there was read."""
    store = cached(shop, Cache(str(directory), **options))
    assert isinstance(store, CachedStore)
    if later:
        store._folder._begin()
    return store


def files(directory: Path) -> list[Path]:
    """The entries and parts of a cache."""
    return sorted(path for path in (directory / FOLDER).glob("??/*"))


def used(directory: Path) -> int:
    """Bytes of all entries and parts, while nobody may add any."""
    sizes = {}  # by file: one that is renamed meanwhile is seen twice
    try:
        lock = (directory / FOLDER / "usage").open("rb")
    except FileNotFoundError:
        return 0
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in files(directory):
            try:
                facts = path.stat()
            except FileNotFoundError:
                continue
            sizes[facts.st_ino] = facts.st_size
    return sum(sizes.values())


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("key", ["k", "a[1]", "b?c", "d e+f%20#", "ü", "/lead", "x//y", "../z", "k" * 900])
def test_an_object_is_read_from_the_store_once(key: str, tmp_path: Path) -> None:
    shop = Shop({key: DATA})
    store = over(shop, tmp_path)
    assert [bytes(store.get(key)) for _ in range(3)] == [DATA] * 3
    with store.open(key) as body:
        assert b"".join(body) == DATA
        assert (body.info.key, body.info.size, body.info.etag) == (key, len(DATA), "v0")
    assert shop.requests == {f"GET {key}": 1}


@pytest.mark.parametrize("size", [0, 1, 2 * 1024 * 1024 + 1])
def test_sizes(size: int, tmp_path: Path) -> None:
    data = random.Random(0).randbytes(size)
    store = over(Shop({"k": data}), tmp_path)
    assert [store.get("k"), store.get("k"), b"".join(store.open("k"))] == [data] * 3


def test_ranges_come_from_a_kept_object_and_do_not_fill_the_cache(tmp_path: Path) -> None:
    shop = Shop({"k": DATA})
    store = over(shop, tmp_path)
    assert store.get("k", 5, 10) == DATA[5:15]
    assert (shop.requests["GET k"], files(tmp_path)) == (1, [])
    store.get("k")
    shop.requests.clear()
    out = bytearray(7)
    assert store.get_into("k", 250, memoryview(out)) == 7
    assert bytes(out) == DATA[250:257]
    assert store.get("k", 5, 10) == DATA[5:15]
    assert store.get("k", len(DATA) - 3, 10) == DATA[-3:]
    assert store.get("k", 100) == DATA[100:]
    assert store.get_ranges("k", [(0, 2), (300, 4)]) == [DATA[:2], DATA[300:304]]
    assert b"".join(store.open("k", 3, 2000)) == DATA[3:2003]
    assert store.get("k", 1, 1, if_match="v0") == DATA[1:2]
    assert shop.requests == {}


def test_what_is_wrong_with_a_range_or_a_limit_is_told_as_without_a_cache(tmp_path: Path) -> None:
    store = over(Shop({"k": DATA}), tmp_path)
    store.get("k")
    with pytest.raises(RangeError):
        store.get("k", len(DATA) + 1, 1)
    with pytest.raises(ResponseTooLargeError):
        store.get("k", limit=10)
    assert store.get("k", 0, 10, limit=10) == DATA[:10]


def test_a_missing_object_is_missing_and_leaves_nothing(tmp_path: Path) -> None:
    store = over(Shop(), tmp_path)
    with pytest.raises(FileNotFoundError, match="shop://"):
        store.get("k")
    assert files(tmp_path) == []


def test_threads_read_an_object_once(tmp_path: Path) -> None:
    shop = Shop({f"k{i}": DATA for i in range(8)})
    shop.before_chunk = lambda: time.sleep(0.001)
    store = over(shop, tmp_path)
    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(store.get, [f"k{i % 8}" for i in range(128)])) == {DATA}
    assert shop.requests == {f"GET k{i}": 1 for i in range(8)}


@pytest.mark.parametrize(
    ("shop", "options"),
    [
        pytest.param(Shop({"k": DATA}, tells=["etag"]), {}, id="no-size"),
        pytest.param(Shop({"k": DATA}, tells=["size"]), {}, id="no-version"),
        pytest.param(Shop({"k": DATA}, headers={"cache-control": "private, no-store"}), {}, id="no-store"),
        pytest.param(Shop({"k": DATA}), {"max_bytes": len(DATA)}, id="larger-than-the-limit"),
    ],
)
def test_an_object_that_is_not_kept(shop: Shop, options: dict[str, Any], tmp_path: Path) -> None:
    shop.requests.clear()
    store = over(shop, tmp_path, **options)
    assert [store.get("k"), b"".join(store.open("k"))] == [DATA] * 2
    assert (shop.requests["GET k"], files(tmp_path)) == (2, [])


def test_an_object_that_is_longer_or_shorter_than_the_store_says_is_not_kept(tmp_path: Path) -> None:
    shop = Shop({"k": DATA})
    honest = shop._info
    for wrong in (-1, 1):
        shop._info = lambda key, wrong=wrong: ObjectInfo(key, len(DATA) + wrong, honest(key).etag)  # type: ignore[method-assign, misc]
        assert over(shop, tmp_path).get("k") == DATA
    assert files(tmp_path) == []


# ---------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("policy", "heads", "seen"),
    [("never", 0, b"old"), ("once", 1, b"new"), ("always", 1, b"new")],
)
def test_an_object_that_changed_before_this_process_began(policy: str, heads: int, seen: bytes, tmp_path: Path) -> None:
    shop = Shop({"k": b"old"})
    over(shop, tmp_path).get("k")
    shop.put("k", b"new")
    shop.requests.clear()
    assert over(shop, tmp_path, later=True, revalidate=policy).get("k") == seen
    assert shop.requests["HEAD k"] <= heads + 1
    assert shop.requests["GET k"] == (seen == b"new")


@pytest.mark.parametrize(("policy", "heads"), [("never", 0), ("once", 1), ("always", 3)])
def test_how_often_the_store_is_asked_about_an_unchanged_object(policy: str, heads: int, tmp_path: Path) -> None:
    shop = Shop({"k": DATA})
    over(shop, tmp_path).get("k")
    shop.requests.clear()
    store = over(shop, tmp_path, later=True, revalidate=policy)
    assert [store.get("k"), store.get("k", 1, 2), store.get("k")] == [DATA, DATA[1:3], DATA]
    assert shop.requests == ({"HEAD k": heads} if heads else {})


def test_an_object_that_is_gone_or_forbidden_is_not_served_from_the_cache(tmp_path: Path) -> None:
    shop = Shop({"k": DATA})
    over(shop, tmp_path).get("k")
    store = over(shop, tmp_path, later=True)
    del shop.objects["k"]
    with pytest.raises(FileNotFoundError):
        store.get("k")


def test_modification_times_do_where_there_is_no_etag(tmp_path: Path) -> None:
    shop = Shop({"k": b"old"}, tells=["size", "modified"])
    store = over(shop, tmp_path, revalidate="always")
    assert store.get("k") == b"old"
    assert store.get("k") == b"old"
    assert shop.requests["GET k"] == 1
    shop.put("k", b"new")
    assert store.get("k") == b"new"


@pytest.mark.parametrize("change", ["put", "upload", "delete", "delete_many", "copy"])
def test_a_change_through_dataio_is_seen_at_once(change: str, tmp_path: Path) -> None:
    shop = Shop({"k": b"old", "other": b"new"})
    store = over(shop, tmp_path, revalidate="never")
    assert store.get("k") == b"old"
    if change == "put":
        store.put("k", b"new")
    elif change == "upload":
        upload = store.upload("k")
        upload.write(b"new")
        upload.complete()
    elif change == "copy":
        assert store.copies_to(store)
        store.copy("other", store, "k")
    elif change == "delete":
        store.delete("k")
    else:
        store.delete_many(iter(["x", "k"]))
    if change.startswith("delete"):
        with pytest.raises(FileNotFoundError):
            store.get("k")
    else:
        assert store.get("k") == b"new"


def test_a_download_that_began_before_a_write_is_not_kept_after_it(tmp_path: Path) -> None:
    shop = Shop({"k": DATA})
    store = over(shop, tmp_path, revalidate="never")
    begun, go_on = threading.Event(), threading.Event()

    def pause() -> None:
        begun.set()
        assert go_on.wait(60)

    shop.before_chunk = pause
    reader = threading.Thread(target=store.get, args=["k"])
    reader.start()
    assert begun.wait(60)
    writer = threading.Thread(target=store.put, args=["k", b"new"])
    writer.start()
    while shop.objects["k"] != b"new":
        time.sleep(0.001)
    go_on.set()
    reader.join(60)
    writer.join(60)
    assert store.get("k") == b"new"


# ---------------------------------------------------------------- damage


def _flip(path: Path, at: int, keep_time: bool) -> None:
    facts = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ 1]))
    if keep_time:
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.parametrize(
    ("damage", "options"),
    [
        pytest.param(lambda path: os.truncate(path, 100), {}, id="cut"),
        pytest.param(lambda path: os.truncate(path, 0), {}, id="emptied"),
        pytest.param(lambda path: path.open("ab").write(b"more"), {}, id="longer"),
        pytest.param(lambda path: _flip(path, 10, False), {}, id="altered"),
        pytest.param(lambda path: _flip(path, len(DATA) + 20, True), {}, id="footer"),
        pytest.param(lambda path: _flip(path, 10, True), {"verify": True}, id="bit-rot-when-verified"),
    ],
)
def test_a_damaged_entry_is_fetched_again(damage: Callable[[Path], object], options: dict[str, Any], tmp_path: Path) -> None:
    shop = Shop({"k": DATA})
    store = over(shop, tmp_path, **options)
    store.get("k")
    (path,) = files(tmp_path)
    damage(path)
    assert [store.get("k"), store.get("k")] == [DATA] * 2
    assert shop.requests["GET k"] == 2


def test_an_entry_under_the_name_of_another_is_not_taken(tmp_path: Path) -> None:
    shop = Shop({"a": b"aaa", "b": b"bbb"})
    store = over(shop, tmp_path)
    store.get("a")
    (a,) = files(tmp_path)
    store.get("b")
    (b,) = set(files(tmp_path)) - {a}
    os.replace(a, b)
    assert store.get("b") == b"bbb"


def test_an_entry_that_is_removed_while_it_is_read_is_read_to_its_end(tmp_path: Path) -> None:
    shop = Shop({"k": DATA * 400})
    store = over(shop, tmp_path)
    store.get("k")
    with store.open("k") as body:
        chunks = iter(body)
        first = next(chunks)
        for path in files(tmp_path):
            path.unlink()
        assert bytes(first) + b"".join(chunks) == DATA * 400
    assert shop.requests["GET k"] == 1


def test_a_cache_that_is_removed_while_it_is_used_is_made_again(tmp_path: Path) -> None:
    import shutil

    store = over(Shop({"k": DATA}), tmp_path)
    store.get("k")
    shutil.rmtree(tmp_path / FOLDER)
    assert store.get("k") == DATA
    assert len(files(tmp_path)) == 1


def test_a_download_that_fails_leaves_nothing(tmp_path: Path) -> None:
    shop = Shop({"k": DATA})

    def fail() -> None:
        raise ConnectionResetError("gone")

    shop.before_chunk = fail
    store = over(shop, tmp_path, max_bytes=10**6)
    with pytest.raises(ConnectionResetError):
        store.get("k")
    assert files(tmp_path) == []
    assert (tmp_path / FOLDER / "usage").read_bytes() == bytes(8)


# ---------------------------------------------------------------- the limit


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    shop = Shop({f"k{i}": DATA for i in range(5)})
    store = over(shop, tmp_path, max_bytes=int(len(DATA) * 4.5))
    paths = {}
    for i in range(4):
        store.get(f"k{i}")
        (paths[i],) = set(files(tmp_path)) - set(paths.values())
        os.utime(paths[i], (1e9 + i, paths[i].stat().st_mtime))
    store.get("k0")  # now the one that was used last
    store.get("k4")
    assert set(paths.values()) & set(files(tmp_path)) == {paths[0], paths[2], paths[3]}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["read", "write", "delete", "damage"]), st.integers(0, 5), st.integers(0, 3000)), max_size=40),
    st.sampled_from([2000, 6000, None]),
)
def test_reads_are_those_of_the_store_and_the_limit_holds(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]], limit: int | None) -> None:
    directory = tmp_path_factory.mktemp("cache")
    shop = Shop()
    store = over(shop, directory, max_bytes=limit)
    for step, number, size in steps:
        key = f"k{number}"
        if step == "write":
            store.put(key, random.Random(size).randbytes(size))
        elif step == "delete":
            store.delete(key)
        elif step == "damage" and (found := files(directory)):
            os.truncate(found[number % len(found)], size)
        elif key in shop.objects:
            assert store.get(key) == shop.objects[key]
        if step != "damage" and limit is not None:
            assert used(directory) <= max(limit, 0) + sum(size for step, _, size in steps if step == "damage")
    assert not [path for path in files(directory) if path.suffix]


READER = """
import random, sys, threading
sys.path.insert(0, {root!r})
from tests.io.test_cache import Shop, over
from pathlib import Path
shop = Shop({{f"k{{i}}": random.Random(i).randbytes(1000 * (i % 7 + 1)) for i in range(40)}})
store = over(shop, Path(sys.argv[1]), max_bytes=60_000)
def work(seed):
    draw = random.Random(seed)
    for _ in range(150):
        key = f"k{{draw.randrange(40)}}"
        if store.get(key) != shop.objects[key]:
            print("WRONG", key, flush=True)
threads = [threading.Thread(target=work, args=[i + int(sys.argv[2])]) for i in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
print("done", flush=True)
"""
ROOT = Path(__file__).parents[2]


def test_the_limit_holds_at_every_moment_while_processes_read(tmp_path: Path) -> None:
    script = READER.format(root=str(ROOT))
    command = [sys.executable, "-c", script, str(tmp_path)]
    readers = [subprocess.Popen([*command, str(i * 100)], stdout=subprocess.PIPE, text=True) for i in range(2)]
    most = 0
    while any(reader.poll() is None for reader in readers):
        most = max(most, used(tmp_path))
    assert [reader.communicate(timeout=60)[0] for reader in readers] == ["done\n"] * 2
    assert 30_000 < most <= 60_000
    assert used(tmp_path) == int.from_bytes((tmp_path / FOLDER / "usage").read_bytes(), "big")
    assert not [path for path in files(tmp_path) if path.suffix]


# ---------------------------------------------------------------- places that cannot be used


def _blocked(directory: Path) -> None:
    directory.write_text("a file in the way")


def _open_to_all(directory: Path) -> None:
    (directory / FOLDER).mkdir(parents=True)
    (directory / FOLDER).chmod(0o777)


def _linked(directory: Path) -> None:
    directory.mkdir()
    (directory / "elsewhere").mkdir()
    (directory / FOLDER).symlink_to(directory / "elsewhere")


@pytest.mark.parametrize("spoil", [_blocked, _open_to_all, _linked])
def test_a_directory_that_cannot_be_used_gives_one_warning_and_reads_go_on(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    spoil(directory)
    shop = Shop({"k": DATA})
    store = over(shop, directory)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [store.get("k"), store.get("k"), store.get("k", 1, 2)] == [DATA, DATA, DATA[1:3]]
        store.delete("k")
    assert [w.category for w in caught] == [RuntimeWarning]
    assert "reads go on without it" in str(caught[0].message)
    assert shop.requests["GET k"] == 3


def test_a_full_disk_gives_one_warning_and_reads_go_on(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small tmpfs cannot be mounted here")
    try:
        shop = Shop({f"k{i}": DATA for i in range(12)})
        store = over(shop, tmp_path)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                assert {store.get(key) for key in shop.objects} == {DATA}
        assert len(caught) == 1
        assert os.strerror(errno.ENOSPC) in str(caught[0].message)
        assert not [path for path in files(tmp_path) if path.suffix]
        assert 0 < len(files(tmp_path)) < 12
        assert shop.requests["GET k0"] == 1
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_files_are_private_and_hold_no_secret(tmp_path: Path) -> None:
    shop = Shop({"k?sig=hushhush": DATA})
    shop.uri = lambda key: f"http://me:topsecret@host/{key}"  # type: ignore[method-assign]
    over(shop, tmp_path).get("k?sig=hushhush")
    (path,) = files(tmp_path)
    assert [p.stat().st_mode & 0o777 for p in (path, path.parent, tmp_path / FOLDER)] == [0o600, 0o700, 0o700]
    text = path.read_bytes().removeprefix(DATA) + str(path).encode()
    assert b"hushhush" not in text
    assert b"topsecret" not in text
    assert b"http://***@host/k?sig=***" in text


# ---------------------------------------------------------------- how it is asked for


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Cache(""), ValueError),
        (lambda: Cache("d", max_bytes=0), ValueError),
        (lambda: Cache("d", max_bytes=1.5), TypeError),  # type: ignore[arg-type]
        (lambda: Cache("d", revalidate="often"), ValueError),  # type: ignore[arg-type]
        (lambda: Cache(3), TypeError),  # type: ignore[arg-type]
        (lambda: as_cache(True), TypeError),
    ],
)
def test_wrong_options(make: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


def test_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert as_cache(None) is None
    monkeypatch.setenv("DATAIO_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("DATAIO_CACHE_MAX_MB", "3")
    monkeypatch.setenv("DATAIO_CACHE_VERIFY", "1")
    monkeypatch.setenv("DATAIO_CACHE_REVALIDATE", "never")
    assert as_cache(None) == Cache(str(tmp_path), 3_000_000, "never", True)
    assert as_cache(False) is None


@pytest.fixture
def shop_scheme() -> Iterator[Shop]:
    shop = Shop({"b/k": DATA})
    dataio.register_store("shop", lambda uri: shop)
    yield shop
    forget_stores()


def test_a_store_has_a_cache_where_one_is_asked_for(shop_scheme: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert open_store("shop://b/k")[0] is shop_scheme
    with_cache, key = open_store("shop://b/k", cache=tmp_path)
    assert isinstance(with_cache, CachedStore)
    assert with_cache.inner is shop_scheme
    assert open_store("shop://b/k", cache=tmp_path)[0] is with_cache
    assert with_cache.get(key) == DATA
    forget_stores()
    monkeypatch.setenv("DATAIO_CACHE_DIR", str(tmp_path))
    assert isinstance(open_store("shop://b/k")[0], CachedStore)
    assert open_store("shop://b/k", cache=False)[0] is shop_scheme
    assert not isinstance(open_store(str(tmp_path))[0], CachedStore)


def test_readers_and_reads_take_a_cache(shop_scheme: Shop, tmp_path: Path) -> None:
    assert dataio.read("shop://b/k", cache=tmp_path) == DATA
    found = pickle.loads(pickle.dumps(dataio.reader("shop://b/k", cache=tmp_path)))
    assert found.read_all() == DATA
    assert found.read_range(5, 3) == DATA[5:8]
    with found.open() as file:
        file.seek(100)
        assert file.read(4) == DATA[100:104]
    assert shop_scheme.requests["GET b/k"] == 1
    assert dataio.reader("shop://b/k", cache=False).read_all() == DATA
    assert shop_scheme.requests["GET b/k"] == 2


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_run_takes_a_cache(workers: str, shop_scheme: Shop, tmp_path: Path) -> None:
    shop_scheme.objects = {f"b/{i}": npy(np.arange(6, dtype=np.int32)) for i in range(8)}
    bound = dataio.pipeline(dataio.slot("x").decode_npy(), dataio.batch(4)).bind([f"shop://b/{i}" for i in range(8)])
    with bound.run("numpy", workers=workers, cache=tmp_path) as loader:
        for _ in range(3):
            assert [batch["x"].shape for batch in loader] == [(4, 6), (4, 6)]
    assert {what: count for what, count in shop_scheme.requests.items() if what.startswith("GET")} == {f"GET b/{i}": 1 for i in range(8)}
    assert len(files(tmp_path)) == 8
