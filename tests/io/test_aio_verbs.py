"""`dataio.aio`: every verb for asyncio, which never keeps the event loop waiting."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dataio
from dataio.io.store import Body, BytesLike, register_store
from dataio.io.stores.local import LocalStore

from .contract import MIB, content

VERBS = ["copy", "delete", "exists", "fetch", "fetch_into", "glob", "head", "ls", "lsd", "read", "sign", "sync", "write"]

pytestmark = pytest.mark.usefixtures("no_leftovers")


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_a_twin(name: str) -> None:
    twin, verb = getattr(dataio.aio, name), getattr(dataio, name)
    assert inspect.iscoroutinefunction(twin)
    assert inspect.signature(twin) == inspect.signature(verb)


def test_verbs_on_an_object(s3_bucket: str, tmp_path: Path) -> None:
    uri = f"{s3_bucket}/p/a"

    async def main() -> None:
        aio = dataio.aio
        await aio.write(uri, b"12345")
        assert await aio.read(uri, offset=1, size=3) == b"234"
        out = bytearray(5)
        assert (await aio.fetch_into(uri, out), out) == (5, b"12345")
        assert (await aio.head(uri)).content_length == 5
        assert [await aio.ls(s3_bucket), await aio.glob(f"{s3_bucket}/*/a"), await aio.lsd(s3_bucket)] == [[uri], [uri], [f"{s3_bucket}/p/"]]
        await aio.copy(uri, tmp_path / "a")
        assert await aio.sync(f"{s3_bucket}/p", tmp_path / "tree") == {"copied": 1, "deleted": 0}
        assert (await aio.sign(uri)).startswith("http")
        await aio.delete(uri)
        assert not await aio.exists(uri)

    asyncio.run(main())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "tree/a").read_bytes() == b"12345"


def test_errors_are_those_of_the_verb(s3_bucket: str) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        asyncio.run(dataio.aio.read(f"{s3_bucket}/none"))
    with pytest.raises(ValueError, match="offset"):
        asyncio.run(dataio.aio.read(f"{s3_bucket}/none", offset=1))


def test_many_at_once(s3_bucket: str) -> None:
    async def main() -> list[bytes]:
        uris = [f"{s3_bucket}/{number}" for number in range(200)]
        await asyncio.gather(*(dataio.aio.write(uri, uri.encode()) for uri in uris))
        return await asyncio.gather(*(dataio.aio.read(uri) for uri in uris))

    assert asyncio.run(main()) == [f"{s3_bucket}/{number}".encode() for number in range(200)]


class Gated(LocalStore):
    """Local files; each chunk, and each read, waits for a gate."""

    scheme = "gated"
    gate: threading.Event
    waiting: threading.Event

    def get(self, key: str, *args: Any, **options: Any) -> BytesLike:
        self.waiting.set()
        assert self.gate.wait(30)
        return super().get(key, *args, **options)

    def open(self, key: str, *args: Any, **options: Any) -> Body:
        body = super().open(key, *args, **options)

        def chunks() -> Iterator[BytesLike]:
            for chunk in body:
                yield chunk
                self.waiting.set()
                assert self.gate.wait(30)

        return Body(body.info, chunks(), body.close)

    def uri(self, key: str) -> str:
        return f"gated://{key}"

    def copies_to(self, to: Any) -> bool:
        return False


@pytest.fixture
def gated() -> Gated:
    store = Gated()
    store.gate, store.waiting = threading.Event(), threading.Event()
    register_store("gated", lambda uri: store)
    return store


async def until(event: threading.Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0.005)


@pytest.mark.timeout(30)
def test_the_loop_goes_on_meanwhile(gated: Gated, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")

    async def main() -> bytes:
        reading = asyncio.create_task(dataio.aio.read(f"gated://{tmp_path}/a"))
        await until(gated.waiting)
        gated.gate.set()  # which nobody could do while the loop is kept waiting
        return await reading

    assert asyncio.run(main()) == b"1"


@pytest.mark.timeout(30)
def test_a_cancelled_task_goes_on_at_once(gated: Gated, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await dataio.aio.read(f"gated://{tmp_path}/a")
        assert not gated.gate.is_set()

    asyncio.run(main())
    gated.gate.set()  # the request ends by itself, and its thread with it


@pytest.mark.timeout(30)
def test_a_cancelled_copy_stops_and_leaves_nothing(gated: Gated, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content(20 * MIB))

    async def main() -> None:
        copying = asyncio.create_task(dataio.aio.copy(f"gated://{tmp_path}/a", tmp_path / "b"))
        await until(gated.waiting)
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying

    asyncio.run(main())
    gated.gate.set()
    deadline = time.monotonic() + 10
    while os.listdir(tmp_path) != ["a"]:
        assert time.monotonic() < deadline, os.listdir(tmp_path)
        time.sleep(0.01)


@pytest.mark.timeout(30)
def test_a_cancelled_tree_begins_nothing_more(gated: Gated, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for number in range(100):
        (tmp_path / f"src/{number}").write_bytes(content(2 * MIB, number))

    async def main() -> None:
        copying = asyncio.create_task(dataio.aio.copy(f"gated://{tmp_path}/src", tmp_path / "dst", recursive=True, workers=2))
        await until(gated.waiting)
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying

    asyncio.run(main())
    gated.gate.set()
    time.sleep(0.2)
    assert not list((tmp_path / "dst").rglob("*"))


def test_a_forked_child_has_threads_of_its_own(gated: Gated, tmp_path: Path) -> None:
    program = f"""
        import asyncio, os, warnings
        import dataio
        warnings.simplefilter("ignore")
        async def main():
            reading = [asyncio.create_task(dataio.aio.read("{tmp_path}/a")) for _ in range(50)]
            await asyncio.sleep(0)
            child = os.fork()
            if child == 0:
                asyncio._set_running_loop(None)
                text = asyncio.new_event_loop().run_until_complete(dataio.aio.read("{tmp_path}/a"))
                os._exit(0 if text == b"1" else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            await asyncio.gather(*reading)
        asyncio.run(main())
    """
    (tmp_path / "a").write_bytes(b"1")
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)


# -------------------------------------------------------------------- stream


@pytest.mark.parametrize("opened", [False, True])
def test_a_stream_comes_in_chunks(s3_bucket: str, opened: bool) -> None:
    dataio.write(f"{s3_bucket}/a", content(200_000))

    async def main() -> list[bytes]:
        chunks = dataio.aio.stream(f"{s3_bucket}/a")
        if not opened:
            return [chunk async for chunk in chunks]
        async with chunks:
            assert chunks.info.content_length == 200_000
            return [chunk async for chunk in chunks.iter_bytes(1000)]

    chunks = asyncio.run(main())
    assert b"".join(chunks) == content(200_000)
    assert len(chunks) == (200 if opened else 4)


def test_lines_and_events_and_the_rest(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\ntwo\n\ndata: x\n\nrest")

    async def main() -> list[Any]:
        async with dataio.aio.stream(f"{tmp_path}/a") as stream:
            lines = stream.iter_lines()
            first = [await anext(lines) for _ in range(3)]
            event = await anext(stream.iter_events())
            return [*first, event["data"], await stream.read_all()]

    assert asyncio.run(main()) == ["one", "two", "", "x", b"rest"]


def test_a_stream_is_bounded_and_checked() -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(dataio.aio.stream("/none").read_all())
    with pytest.raises(RuntimeError, match="async with"):
        _ = dataio.aio.stream("/none").info


@pytest.mark.timeout(30)
def test_a_stream_that_is_left_while_it_waits(gated: Gated, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content(4 * MIB))

    async def main() -> None:
        async with asyncio.timeout(0.3), dataio.aio.stream(f"gated://{tmp_path}/a") as stream:
            async for _ in stream.iter_bytes(MIB):
                pass

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert gated.waiting.is_set()
    gated.gate.set()


def test_nothing_is_read_after_closing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1234")

    async def main() -> None:
        async with dataio.aio.stream(f"{tmp_path}/a") as stream:
            pass
        with pytest.raises(ValueError, match="closed"):
            await stream.read_all()

    asyncio.run(main())
