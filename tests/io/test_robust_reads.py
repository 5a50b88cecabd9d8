"""Reads from servers that fail: attempts, resumption under a version, time limits, parallel ranges of large objects."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from email.utils import formatdate

import pytest

from dataio.io.config import Transport
from dataio.io.errors import ChangedError, DeadlineError, TransferError
from dataio.io.stores import parallel
from dataio.io.stores.http import HttpStore
from dataio.io.uri import parse_uri
from tests.servers.misbehaving import MisbehavingServer, Reply, Seen, misbehaving, parts_of

pytestmark = pytest.mark.timeout(60)
BODY = os.urandom(100_000)
ETAG = {"ETag": '"v1"'}
DATED = {"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
Read = Callable[[HttpStore, str], bytes]


@pytest.fixture
def server() -> Iterator[MisbehavingServer]:
    with misbehaving() as site:
        yield site


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataio.io.retry.FIRST_WAIT", 0.01)


@pytest.fixture
def own_way() -> None:
    """For tests of what only `HttpStore`'s own requests show; see `_both_ways`."""


@pytest.fixture(autouse=True, params=["own", "obstore"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with small objects read by the store's own requests, and by obstore."""
    if request.param == "obstore" and "own_way" in request.fixturenames:
        pytest.skip("one way only")
    monkeypatch.setattr(HttpStore, "_by_obstore", request.param == "obstore")


def at(url: str, **transport: object) -> tuple[HttpStore, str]:
    uri = parse_uri(url)
    return HttpStore(uri, Transport(**{"timeout": 10.0, **transport})), uri.key  # type: ignore[arg-type]


def whole(store: HttpStore, key: str) -> bytes:
    return bytes(store.get(key))


def streamed(store: HttpStore, key: str) -> bytes:
    with store.open(key) as body:
        return b"".join(body)


def into(store: HttpStore, key: str) -> bytes:
    out = bytearray(len(BODY))
    return bytes(out[: store.get_into(key, 0, memoryview(out))])


every_way = pytest.mark.parametrize("read", [whole, streamed, into])

# --------------------------------------------------------------------- attempts


@every_way
@pytest.mark.parametrize("failure", [Reply(500), Reply(503), Reply(429), Reply(408), Reply(hang_up=True), Reply(599)])
def test_what_may_pass_is_tried_again(server: MisbehavingServer, read: Read, failure: Reply) -> None:
    store, key = at(server.script("/x", failure, failure, Reply(body=BODY)))
    assert read(store, key) == BODY
    assert len(server.requests("/x")) == 3


@pytest.mark.parametrize("failure", [Reply(503), Reply(hang_up=True)])
def test_attempts_run_out(server: MisbehavingServer, failure: Reply) -> None:
    url = server.script("/x", failure)
    store, key = at(url)
    with pytest.raises(TransferError) as caught:
        store.get(key)
    assert len(server.requests("/x")) == 4
    assert url in str(caught.value)
    assert caught.value.status == (503 if failure.status == 503 else None)


def test_a_lost_connection_is_the_cause_of_the_error(server: MisbehavingServer) -> None:
    store, key = at(server.script("/x", Reply(hang_up=True)), attempts=1)
    with pytest.raises(ConnectionError) as caught:
        store.get(key)
    assert caught.value.__cause__ is not None


def test_head_is_tried_again(server: MisbehavingServer) -> None:
    store, key = at(server.script("/x", Reply(503), Reply(body=BODY)))
    assert store.head(key).size == len(BODY)


def test_nobody_listens() -> None:
    with misbehaving() as site:
        url = f"{site.url}/x"
    store, key = at(url)
    with pytest.raises(ConnectionError, match="refused"):
        store.get(key)


def test_a_host_that_has_no_address() -> None:
    store, key = at("http://no-such-host.invalid/x", attempts=1)
    with pytest.raises(ConnectionError):
        store.get(key)


@pytest.mark.usefixtures("own_way")
def test_retry_after_is_kept(server: MisbehavingServer) -> None:
    import time

    store, key = at(server.script("/x", Reply(429, headers={"Retry-After": "1"}), Reply(body=b"x")))
    began = time.monotonic()
    store.get(key)
    assert time.monotonic() - began >= 1.0


@pytest.mark.parametrize("after", ["100000", formatdate(4e9, usegmt=True)])
@pytest.mark.usefixtures("own_way")
def test_a_wait_over_the_deadline_is_not_begun(server: MisbehavingServer, after: str) -> None:
    store, key = at(server.script("/x", Reply(503, headers={"Retry-After": after})), deadline=5.0)
    with pytest.raises(TransferError):
        store.get(key)
    assert len(server.requests("/x")) == 1


@pytest.mark.parametrize("after", ["soon", "-1", ""])
def test_a_retry_after_that_is_none(server: MisbehavingServer, after: str) -> None:
    store, key = at(server.script("/x", Reply(503, headers={"Retry-After": after}), Reply(body=b"x")))
    assert store.get(key) == b"x"


# ------------------------------------------------------------------ broken bodies


@every_way
@pytest.mark.parametrize("version", [ETAG, DATED, {**ETAG, **DATED}])
@pytest.mark.usefixtures("own_way")
def test_a_body_that_breaks_off_is_resumed(server: MisbehavingServer, read: Read, version: dict[str, str]) -> None:
    store, key = at(server.script("/x", Reply(body=BODY, headers=version, drop_after=40_000), Reply(body=BODY, headers=version)))
    assert read(store, key) == BODY
    _, second = server.requests("/x")
    assert second.headers["if-range"] == version.get("ETag", version.get("Last-Modified"))
    assert 0 < int(second.headers["range"].removeprefix("bytes=").partition("-")[0]) <= 40_000


@pytest.mark.usefixtures("own_way")
def test_a_range_that_breaks_off_is_resumed_to_its_own_end(server: MisbehavingServer) -> None:
    store, key = at(server.script("/x", Reply(body=BODY, headers=ETAG, drop_after=10_000), Reply(body=BODY, headers=ETAG)))
    assert store.get(key, 1000, 50_000) == BODY[1000:51_000]
    assert str(parts_of(server.seen)[1]).endswith("-50999")


@every_way
def test_a_body_may_break_off_often_while_it_gets_on(server: MisbehavingServer, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataio.io.stores.download.PROGRESS", 5_000)
    store, key = at(server.script("/x", Reply(body=BODY, headers=ETAG, drop_after=10_000)))
    assert read(store, key) == BODY
    assert len(server.requests("/x")) >= 10


@every_way
def test_a_body_that_gets_nowhere_is_given_up(server: MisbehavingServer, read: Read) -> None:
    store, key = at(server.script("/x", Reply(body=BODY, headers=ETAG, drop_after=1)))
    with pytest.raises(TransferError):
        read(store, key)
    assert len(server.requests("/x")) <= 17


@every_way
def test_a_length_that_promises_too_much(server: MisbehavingServer, read: Read) -> None:
    """The connection closes in order, before the announced end."""
    long = {**ETAG, "Content-Length": str(len(BODY) + 10)}
    store, key = at(server.script("/x", Reply(body=BODY, headers=long, ranges=False)))
    with pytest.raises((TransferError, ChangedError)):
        read(store, key)


@pytest.mark.usefixtures("own_way")
def test_a_length_that_promises_too_little(server: MisbehavingServer) -> None:
    """What lies behind it is no part of the object, and no answer to the next request."""
    store, key = at(server.script("/x", Reply(body=b"abcdef", headers={"Content-Length": "3"})))
    server.script("/y", Reply(body=b"other"))
    for _ in range(5):
        assert store.get(key) == b"abc"
        assert store.get("y") == b"other"


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.usefixtures("own_way")
def test_without_a_version_a_whole_read_begins_anew(server: MisbehavingServer, chunked: bool) -> None:
    store, key = at(server.script("/x", Reply(body=BODY, drop_after=40_000, chunked=chunked, piece=7000), Reply(body=BODY, chunked=chunked)))
    assert whole(store, key) == BODY
    assert parts_of(server.seen) == [None, None]


def test_without_a_version_a_stream_that_handed_out_bytes_fails(server: MisbehavingServer) -> None:
    store, key = at(server.script("/x", Reply(body=BODY, drop_after=40_000), Reply(body=BODY)))
    with store.open(key) as body, pytest.raises(TransferError):
        b"".join(body)


def test_without_a_version_a_stream_begins_anew_before_its_first_byte(server: MisbehavingServer) -> None:
    store, key = at(server.script("/x", Reply(body=BODY, drop_after=0), Reply(body=BODY)))
    assert streamed(store, key) == BODY


@every_way
def test_a_chunked_body_that_breaks_off_is_never_taken_for_whole(server: MisbehavingServer, read: Read) -> None:
    store, key = at(server.script("/x", Reply(body=BODY, drop_after=40_000, chunked=True, ranges=False)))
    with pytest.raises(ConnectionError):
        read(store, key)


@every_way
def test_a_server_without_ranges_sends_the_same_version_again(server: MisbehavingServer, read: Read) -> None:
    if read is into:
        pytest.skip("asks for a range to begin with")
    store, key = at(server.script("/x", Reply(body=BODY, headers=ETAG, drop_after=40_000, ranges=False), Reply(body=BODY, headers=ETAG, ranges=False)))
    assert read(store, key) == BODY


# ------------------------------------------------------------------- other versions


@every_way
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ETAG, {"ETag": '"v2"'}),
        (DATED, {"Last-Modified": "Thu, 22 Oct 2015 07:28:00 GMT"}),
        (ETAG, {}),
    ],
)
@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.usefixtures("own_way")
def test_a_version_that_changes_midway_is_an_error(server: MisbehavingServer, read: Read, before: dict[str, str], after: dict[str, str], ranges: bool) -> None:
    other = bytes(len(BODY))
    store, key = at(server.script("/x", Reply(body=BODY, headers=before, drop_after=40_000), Reply(body=other, headers=after, ranges=ranges)))
    with pytest.raises(ChangedError):
        read(store, key)


@every_way
@pytest.mark.usefixtures("own_way")
def test_an_object_that_shrank_midway_is_an_error(server: MisbehavingServer, read: Read) -> None:
    def careless(seen: Seen, count: int) -> Reply:
        return Reply(416, headers={**ETAG, "Content-Range": "bytes */10"})

    store, key = at(server.script("/x", Reply(body=BODY, headers=ETAG, drop_after=40_000), careless))
    with pytest.raises(ChangedError):
        read(store, key)


@every_way
def test_an_object_that_is_removed_midway(server: MisbehavingServer, read: Read) -> None:
    store, key = at(server.script("/x", Reply(body=BODY, headers=ETAG, drop_after=40_000), Reply(404)))
    with pytest.raises(FileNotFoundError):
        read(store, key)


# ------------------------------------------------------------------------ time


@every_way
@pytest.mark.parametrize(
    "slow",
    [
        pytest.param(Reply(body=BODY, pause=0.05, piece=1), id="trickle"),
        pytest.param(Reply(body=BODY, pause=0.05, piece=1, headers=ETAG), id="trickle-of-a-version"),
        pytest.param(Reply(body=BODY, pause=30.0), id="silence"),
        pytest.param(Reply(body=BODY, trickle_head=0.05), id="slow-head"),
    ],
)
def test_a_server_that_holds_its_readers_is_given_up(server: MisbehavingServer, read: Read, slow: Reply) -> None:
    store, key = at(server.script("/x", slow), timeout=0.3, attempts=2)
    with pytest.raises(DeadlineError) as caught:
        read(store, key)
    assert isinstance(caught.value, TimeoutError)


def test_a_chunked_trickle_is_given_up_by_a_whole_read(server: MisbehavingServer) -> None:
    store, key = at(server.script("/x", Reply(body=BODY, pause=0.05, piece=1, chunked=True)), timeout=0.3, attempts=1)
    with pytest.raises(DeadlineError):
        store.get(key)


def test_a_stream_without_an_end_may_take_its_time(server: MisbehavingServer) -> None:
    """Events come when they come: only a silence is too long."""
    store, key = at(server.script("/x", Reply(body=b"0123456789", pause=0.1, piece=1, chunked=True)), timeout=0.5, attempts=1)
    assert streamed(store, key) == b"0123456789"


def test_the_time_of_the_consumer_does_not_count(server: MisbehavingServer) -> None:
    import time

    store, key = at(server.script("/x", Reply(body=BODY * 50)), timeout=0.3, attempts=1)
    with store.open(key) as body:
        chunks = iter(body)
        parts = [next(chunks)]
        time.sleep(0.6)
        parts.extend(chunks)
    assert b"".join(parts) == BODY * 50


def test_a_silence_that_passes(server: MisbehavingServer) -> None:
    store, key = at(server.script("/x", Reply(body=BODY, pause=30.0), Reply(body=BODY)), timeout=0.3)
    assert whole(store, key) == BODY


# --------------------------------------------------------------- parallel ranges


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of 100 KB are large."""
    monkeypatch.setattr(parallel, "PIECE", 4096)
    monkeypatch.setattr(parallel, "READ", 1024)
    monkeypatch.setattr(parallel, "FAST", 1e12)


RANGED = {**ETAG, "Accept-Ranges": "bytes"}


def slow_front(seen: Seen, count: int) -> Reply:
    """The first connection is slow, so that the others have work."""
    return Reply(body=BODY, headers=RANGED, pause=0.02 if count == 0 else 0.0, piece=4096)


@pytest.mark.usefixtures("small_pieces", "no_leftovers")
@pytest.mark.parametrize("read", [whole, into])
@pytest.mark.usefixtures("own_way")
def test_large_objects_come_by_parallel_ranges(read: Read) -> None:
    with misbehaving() as server:
        store, key = at(server.script("/x", slow_front))
        assert read(store, key) == BODY
        parts = [part for part in parts_of(server.seen)[1:] if part is not None]
        assert len(parts) > 3
        assert all(seen.headers.get("if-match") == '"v1"' for seen in server.seen[1:] if "if-range" not in seen.headers)
        store.close()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("failure", [Reply(503), Reply(hang_up=True), Reply(body=BODY, headers=RANGED, ranges=False), Reply(429)])
def test_ranges_that_fail_are_read_by_the_first_connection(server: MisbehavingServer, failure: Reply) -> None:
    def reply(seen: Seen, count: int) -> Reply:
        return slow_front(seen, count) if count == 0 or "if-range" in seen.headers else failure

    store, key = at(server.script("/x", reply))
    assert whole(store, key) == BODY


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.usefixtures("own_way")
def test_parts_of_two_versions_are_never_put_together(server: MisbehavingServer) -> None:
    """The object is replaced while its first connection is under way."""

    def reply(seen: Seen, count: int) -> Reply:
        return slow_front(seen, 0) if count == 0 else Reply(body=bytes(len(BODY)), headers={**RANGED, "ETag": '"v2"'})

    store, key = at(server.script("/x", reply))
    try:
        assert whole(store, key) == BODY
    except ChangedError:
        pass


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("headers", [{"Accept-Ranges": "bytes"}, ETAG, {"ETag": 'W/"v1"', "Accept-Ranges": "bytes"}, {**ETAG, "Accept-Ranges": "none"}])
@pytest.mark.usefixtures("own_way")
def test_no_parallel_ranges_without_a_version_or_without_ranges(server: MisbehavingServer, headers: dict[str, str]) -> None:
    store, key = at(server.script("/x", Reply(body=BODY, headers=headers, pause=0.005, piece=4096)))
    assert whole(store, key) == BODY
    assert len(server.seen) == 1


@pytest.mark.usefixtures("small_pieces", "no_leftovers")
def test_a_large_read_that_fails_leaves_no_thread() -> None:
    with misbehaving() as server:

        def reply(seen: Seen, count: int) -> Reply:
            return Reply(body=BODY, headers=RANGED, drop_after=20_000) if count == 0 else Reply(404)

        store, key = at(server.script("/x", reply))
        with pytest.raises(FileNotFoundError):
            store.get(key)
        store.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dataio-range")]
