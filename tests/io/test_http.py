"""Web servers through `HttpStore`: what is asked for, what comes back, and what each status means."""

from __future__ import annotations

import gzip
import logging
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from dataio.io.config import Transport
from dataio.io.errors import (
    ChangedError,
    HttpTooLargeError,
    RangeError,
    TransferError,
    UnsupportedError,
    UriError,
)
from dataio.io.stores.http import HttpStore
from dataio.io.uri import parse_uri
from tests.servers.misbehaving import MisbehavingServer, Reply, Seen, misbehaving, parts_of

pytestmark = pytest.mark.timeout(60)
BODY = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def server() -> Iterator[MisbehavingServer]:
    with misbehaving() as site:
        yield site


@pytest.fixture(autouse=True)
def _forget(server: MisbehavingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.forget()
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
    """A store of its own for a URL, and the key."""
    uri = parse_uri(url)
    return HttpStore(uri, Transport(**{"timeout": 10.0, **transport})), uri.key  # type: ignore[arg-type]


# --------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("/plain.txt", "/plain.txt"),
        ("/a[1].txt", "/a[1].txt"),
        ("/b?c=d&e=%2f", "/b?c=d&e=%2f"),
        ("/d+f%20%zz", "/d+f%20%zz"),
        ("/x/../y/./z", "/x/../y/./z"),
        ("//leading//inside/", "//leading//inside/"),
        ("/a b\tc", "/a%20b%09c"),
        ("/ü", "/%C3%BC"),
        ("/a\r\nX-Evil: 1", "/a%0D%0AX-Evil:%201"),
        ("/page#part", "/page"),
        ("", "/"),
        ("?q=1", "/?q=1"),
    ],
)
def test_path_and_query_are_sent_as_written(server: MisbehavingServer, written: str, sent: str) -> None:
    server.script(sent, Reply(body=b"here"))
    store, key = at(server.url + written)
    assert store.get(key) == b"here"
    assert server.seen[-1].target == sent


@pytest.mark.usefixtures("own_way")
def test_requests_name_the_client_and_ask_for_plain_bytes(server: MisbehavingServer) -> None:
    import dataio

    store, key = at(server.script("/ua", Reply(body=b"x")))
    store.get(key)
    assert server.seen[-1].headers["user-agent"] == f"dataio/{dataio.__version__}"
    assert server.seen[-1].headers["accept-encoding"] == "identity"


def test_headers_of_the_caller_are_sent(server: MisbehavingServer) -> None:
    store, key = at(server.script("/h", Reply(body=b"x")))
    store.get(key, headers={"X-Mine": "1", "user-agent": "me"})
    store.head(key, headers={"X-Mine": "2"})
    store.open(key, headers={"X-Mine": "3"}).close()
    assert [seen.headers["x-mine"] for seen in server.seen] == ["1", "2", "3"]
    assert server.seen[0].headers["user-agent"] == "me"


@pytest.mark.parametrize(
    ("headers", "error"),
    [({"A": 1}, TypeError), ({"A": "b\r\nC: d"}, ValueError), ({"A b": "c"}, ValueError), ({"Range": "bytes=0-1"}, ValueError)],
)
def test_headers_that_cannot_be_sent(server: MisbehavingServer, headers: dict[str, str], error: type[Exception]) -> None:
    store, key = at(server.script("/h", Reply(body=b"x")))
    with pytest.raises(error):
        store.get(key, headers=headers)
    assert server.seen == []


def test_user_and_password_become_a_header_and_stay_out_of_errors(server: MisbehavingServer) -> None:
    url = server.script("/private", Reply(401)).replace("http://", "http://me:se%40cret@")
    store, key = at(url)
    with pytest.raises(PermissionError) as caught:
        store.get(key)
    assert server.seen[-1].headers["authorization"] == "Basic bWU6c2VAY3JldA=="
    assert "cret" not in str(caught.value)


@pytest.mark.usefixtures("own_way")
def test_a_connection_is_used_again(server: MisbehavingServer) -> None:
    ports = set()
    store, key = at(server.script("/again", Reply(body=BODY)))
    for _ in range(5):
        store.get(key)
        store.get(key, 3, 5)
        store.head(key)
    manager = store._client._managers["http", None]
    pool = manager.connection_from_url(server.url)
    ports.add(pool.num_connections)
    assert ports == {1}


@pytest.mark.parametrize("host", ["127.0.0.1:99999", "127.0.0.1:x", "[::1", "a..b"])
def test_hosts_that_are_none(host: str) -> None:
    store, key = at(f"http://{host}/x", attempts=1)
    with pytest.raises((UriError, ConnectionError)):
        store.get(key)


def test_http2_says_what_is_missing() -> None:
    with pytest.raises(UnsupportedError, match="urllib3"):
        at("http://localhost/x", http_version="h2")


def test_writing_listing_and_signing_are_not_for_the_web(server: MisbehavingServer) -> None:
    store, key = at(f"{server.url}/x")
    for call in (
        lambda: store.put(key, b"x"),
        lambda: store.upload(key),
        lambda: store.delete(key),
        lambda: list(store.list("")),
        lambda: store.sign(key, expires=1, method="GET"),
    ):
        with pytest.raises(NotImplementedError, match="http://"):
            call()


# ----------------------------------------------------------------------- reads


@pytest.mark.parametrize(("offset", "size"), [(0, None), (0, 1), (5, 7), (len(BODY) - 3, 100), (17, None), (0, len(BODY)), (9, 0)])
def test_ranges(server: MisbehavingServer, offset: int, size: int | None) -> None:
    store, key = at(server.script("/ranges", Reply(body=BODY)))
    wanted = BODY[offset:] if size is None else BODY[offset : offset + size]
    assert store.get(key, offset, size) == wanted
    with store.open(key, offset, size) as body:
        assert b"".join(body) == wanted
        assert body.info.size == len(BODY)


def test_reads_into_memory_of_the_caller(server: MisbehavingServer) -> None:
    store, key = at(server.script("/into", Reply(body=BODY)))
    out = bytearray(100)
    assert store.get_into(key, 50, memoryview(out)) == 100
    assert out == BODY[50:150]
    assert store.get_into(key, len(BODY) - 10, memoryview(out)) == 10
    assert out[:10] == BODY[-10:]


@pytest.mark.usefixtures("own_way")
def test_near_ranges_come_by_one_request(server: MisbehavingServer) -> None:
    body = bytes(1 << 18)
    store, key = at(server.script("/merged", Reply(body=body)))
    found = store.get_ranges(key, [(200_000, 10), (0, 5), (100, 7), (3, 4)])
    assert [bytes(part) for part in found] == [body[200_000:200_010], body[:5], body[100:107], body[3:7]]
    assert [seen.method for seen in server.seen].count("HEAD") == 1  # whose version the far ones are held to
    reads = [seen for seen in server.seen if seen.method == "GET"]
    assert sorted(filter(None, parts_of(reads))) == ["bytes=0-106", "bytes=200000-200009"]
    assert len(reads) == 2


@pytest.mark.usefixtures("own_way")
def test_ranges_far_apart_are_of_one_version(server: MisbehavingServer) -> None:
    body = bytes(1 << 18)
    first, later = ({"ETag": f'"{version}"'} for version in ("a", "b"))
    url = server.script("/replaced", Reply(body=body, headers=first), Reply(body=body, headers=first), Reply(body=body, headers=later))
    store, key = at(url)
    with pytest.raises(ChangedError, match="replaced"):
        store.get_ranges(key, [(0, 10), (200_000, 10)])


@pytest.mark.parametrize("offset", [len(BODY) + 1, 10**12])
def test_a_range_behind_the_end(server: MisbehavingServer, offset: int) -> None:
    store, key = at(server.script("/behind", Reply(body=BODY)))
    for call in (lambda: store.get(key, offset, 5), lambda: store.open(key, offset, 5)):
        with pytest.raises(RangeError) as caught:
            call()
        assert isinstance(caught.value, ConnectionError)
        assert caught.value.status == 416


def test_a_range_at_the_end_and_an_empty_object_give_nothing(server: MisbehavingServer) -> None:
    store, key = at(server.script("/end", Reply(body=BODY)))
    assert store.get(key, len(BODY), 5) == b""
    empty, key = at(server.script("/empty", Reply(body=b"")))
    assert empty.get(key) == empty.get(key, 0, 10) == b""


def test_a_server_that_ignores_ranges(server: MisbehavingServer) -> None:
    store, key = at(server.script("/all", Reply(body=BODY, ranges=False)))
    for offset, size in ((5, 7), (0, 7), (5, None)):
        with pytest.raises(TransferError, match="ignores ranges"):
            store.get(key, offset, size)
    assert store.get(key, 0, len(BODY) + 5) == BODY, "all of it is what was asked for"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(206, b"abc", {"Content-Range": "bytes 7-9/100"}),
        Reply(206, b"abc", {}),
        Reply(206, b"abc", {"Content-Range": "nonsense"}),
        Reply(206, b"abc", {"Content-Range": "bytes 5-7/100", "Content-Encoding": "gzip"}),
    ],
)
def test_another_range_than_the_one_asked_for(server: MisbehavingServer, reply: Reply) -> None:
    store, key = at(server.script("/other", reply))
    with pytest.raises(TransferError, match="another range"):
        store.get(key, 5, 3)


def test_a_part_though_all_was_asked_for(server: MisbehavingServer) -> None:
    store, key = at(server.script("/part", Reply(206, b"abc", {"Content-Range": "bytes 0-2/100"})))
    with pytest.raises(TransferError, match="a part"):
        store.get(key)


def test_bodies_without_a_length(server: MisbehavingServer) -> None:
    store, key = at(server.script("/chunked", Reply(body=BODY, chunked=True, piece=999)))
    assert store.get(key) == BODY
    with store.open(key) as body:
        assert body.info.size is None
        assert b"".join(body) == BODY


def test_a_connection_that_ends_the_body(server: MisbehavingServer) -> None:
    """Neither a length nor chunks: HTTP/1.0 manners, the end of the connection is the end of the body."""
    store, key = at(server.script("/old", Reply(body=BODY, headers={"Connection": "close"})))
    assert store.get(key) == BODY


def test_the_version_that_is_asked_for(server: MisbehavingServer) -> None:
    store, key = at(server.script("/version", Reply(body=BODY, headers={"ETag": '"one"'})))
    assert store.get(key, 1, 3, if_match="one") == BODY[1:4]
    with pytest.raises(ChangedError):
        store.get(key, 1, 3, if_match="two")


@pytest.mark.parametrize("headers", [{}, {"ETag": '"two"'}, {"ETag": 'W/"one"'}])
def test_a_server_that_ignores_if_match(server: MisbehavingServer, headers: dict[str, str]) -> None:
    """Its answer is compared all the same: no ETag is not the same version either."""
    store, key = at(server.script("/careless", lambda seen, count: Reply(206, b"a", {**headers, "Content-Range": "bytes 0-0/9"})))
    with pytest.raises(ChangedError):
        store.get(key, 0, 1, if_match="one")


# ----------------------------------------------------------------------- limits


@pytest.mark.usefixtures("own_way")
def test_limit_is_checked_before_the_body_is_read(server: MisbehavingServer) -> None:
    store, key = at(server.script("/large", Reply(body=b"x" * 10, headers={"Content-Length": str(10**15)})))
    for call in (lambda: store.get(key, limit=100), lambda: store.open(key, limit=100)):
        with pytest.raises(HttpTooLargeError) as caught:
            call()
        assert isinstance(caught.value, RuntimeError)
        assert isinstance(caught.value, ConnectionError)


def test_limit_is_checked_while_reading(server: MisbehavingServer) -> None:
    store, key = at(server.script("/endless", Reply(body=BODY * 1000, chunked=True, piece=4096)))
    with pytest.raises(HttpTooLargeError):
        store.get(key, limit=10_000)
    with store.open(key, limit=10_000) as body, pytest.raises(HttpTooLargeError):
        for _ in body:
            pass


def test_limits_that_just_fit(server: MisbehavingServer) -> None:
    store, key = at(server.script("/fits", Reply(body=BODY)))
    assert store.get(key, limit=len(BODY)) == BODY
    assert store.get(key, 5, 7, limit=7) == BODY[5:12]
    with pytest.raises(HttpTooLargeError):
        store.get(key, limit=0)


@pytest.mark.usefixtures("own_way")
def test_memory_follows_what_came_and_not_what_was_announced(server: MisbehavingServer) -> None:
    body = b"x" * 10
    store, key = at(server.script("/boast", Reply(body=body, headers={"Content-Length": str(10**9)})), attempts=1)
    before = psutil.Process().memory_info().rss
    with pytest.raises(TransferError) as caught:
        store.get(key)
    assert caught.value.__cause__ is not None or "broke off" in str(caught.value)
    assert psutil.Process().memory_info().rss - before < 1 << 27


@pytest.mark.usefixtures("own_way")
def test_more_than_memory_holds(server: MisbehavingServer) -> None:
    store, key = at(server.script("/enormous", Reply(body=b"x" * 10, headers={"Content-Length": str(10**17)})))
    with pytest.raises(HttpTooLargeError, match="do not fit into memory"):
        store.get(key)


# ------------------------------------------------------------ compressed answers


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("coding", "encode"), [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress), ("GZIP", lambda b: gzip.compress(b[:99]) + gzip.compress(b[99:]))]
)
def test_compressed_answers_are_decoded(server: MisbehavingServer, coding: str, encode: object, chunked: bool) -> None:
    store, key = at(server.script(f"/coded-{coding}-{chunked}", Reply(body=encode(BODY), headers={"Content-Encoding": coding}, chunked=chunked, piece=50)))  # type: ignore[operator]
    assert store.get(key) == BODY
    with store.open(key) as body:
        assert body.info.size is None
        assert b"".join(body) == BODY
    assert store.head(key).size is None


def test_a_decompression_bomb_stops_at_the_limit(server: MisbehavingServer) -> None:
    bomb = gzip.compress(bytes(1 << 26))
    store, key = at(server.script("/bomb", Reply(body=bomb, headers={"Content-Encoding": "gzip"})))
    with pytest.raises(HttpTooLargeError):
        store.get(key, limit=1 << 20)


@pytest.mark.parametrize(
    ("coding", "body", "match"),
    [
        ("br", b"abc", "'br'"),
        ("gzip", gzip.compress(BODY)[:-9], "ends too early"),
        ("gzip", b"no gzip at all", "corrupt"),
        ("gzip", gzip.compress(BODY) + b"garbage", "corrupt"),
        ("gzip, gzip", gzip.compress(gzip.compress(BODY)), "'gzip, gzip'"),
    ],
)
def test_compressed_answers_that_cannot_be_decoded_are_errors(server: MisbehavingServer, coding: str, body: bytes, match: str) -> None:
    store, key = at(server.script("/undecodable", Reply(body=body, headers={"Content-Encoding": coding})))
    with pytest.raises(TransferError, match=match):
        store.get(key)


def test_a_range_of_a_compressed_answer_is_an_error(server: MisbehavingServer) -> None:
    store, key = at(server.script("/coded-range", Reply(body=gzip.compress(BODY), headers={"Content-Encoding": "gzip"})))
    with pytest.raises(TransferError):
        store.get(key, 5, 5)


# --------------------------------------------------------------- status and head


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, TransferError), (401, PermissionError), (403, PermissionError), (404, FileNotFoundError), (410, FileNotFoundError), (409, TransferError), (501, TransferError), (304, TransferError)],
)
def test_error_statuses(server: MisbehavingServer, status: int, error: type[Exception]) -> None:
    url = server.script(f"/status/{status}", Reply(status, b"" if status == 304 else b"why"))
    store, key = at(url)
    for call in (lambda: store.get(key), lambda: store.open(key)):
        with pytest.raises(error) as caught:
            call()
        assert isinstance(caught.value, ConnectionError)
        assert getattr(caught.value, "status", None) == status
        assert url in str(caught.value)
    assert len(server.requests(f"/status/{status}")) == (3 if status == 304 and store._quick else 2), "once each: such a status does not pass"


def test_exists_is_false_for_missing_only(server: MisbehavingServer) -> None:
    server.script("/there", Reply(body=b"x"))
    server.script("/gone", Reply(410))
    server.script("/secret", Reply(403))
    server.script("/broken", Reply(500))
    assert at(f"{server.url}/there")[0].exists("there")
    assert not at(f"{server.url}/gone")[0].exists("gone")
    assert not at(f"{server.url}/never")[0].exists("never")
    for key in ("secret", "broken"):
        with pytest.raises(ConnectionError):
            at(f"{server.url}/{key}", attempts=2)[0].exists(key)


def test_exists_sees_a_change_at_once(server: MisbehavingServer) -> None:
    store, key = at(server.script("/new", Reply(404), Reply(body=b"x"), Reply(404)))
    assert [store.exists(key) for _ in range(3)] == [False, True, False]


def test_head_tells_what_the_server_tells(server: MisbehavingServer) -> None:
    date = "Wed, 21 Oct 2015 07:28:00 GMT"
    url = server.script("/head", Reply(body=BODY, headers={"ETag": '"v1"', "Last-Modified": date, "Content-Type": "text/x"}))
    store, key = at(url)
    info = store.head(key)
    assert (info.size, info.etag, info.modified, info.content_type) == (len(BODY), "v1", 1445412480.0, "text/x")
    assert (info.status, info.url, info.http_version) == (200, url, "HTTP/1.1")
    assert info.headers["last-modified"] == date


@pytest.mark.parametrize("refusal", [400, 403, 405, 501])
@pytest.mark.parametrize("ranges", [True, False])
def test_head_where_head_is_refused(server: MisbehavingServer, refusal: int, ranges: bool) -> None:
    def reply(seen: Seen, count: int) -> Reply:
        return Reply(refusal) if seen.method == "HEAD" else Reply(body=BODY, ranges=ranges)

    store, key = at(server.script(f"/no-head-{refusal}-{ranges}", reply))
    assert store.head(key).size == len(BODY)
    assert store.exists(key)


def test_head_of_a_forbidden_object_is_forbidden(server: MisbehavingServer) -> None:
    store, key = at(server.script("/forbidden", Reply(403)))
    with pytest.raises(PermissionError):
        store.head(key)


def test_a_size_that_is_not_told(server: MisbehavingServer) -> None:
    store, key = at(server.script("/sizeless", Reply(body=BODY, chunked=True)))
    assert store.head(key).size is None


@pytest.mark.parametrize("length", ["-5", "x", "5, 6"])
def test_a_length_that_is_none(server: MisbehavingServer, length: str) -> None:
    """Never more or less than the server sent, and no crash."""
    store, key = at(server.script("/length", Reply(body=b"12345", headers={"Content-Length": length})), attempts=1)
    try:
        assert store.get(key) == b"12345"
    except ConnectionError:
        pass


# --------------------------------------------------------------------- redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(server: MisbehavingServer, status: int) -> None:
    server.script("/new place", Reply(body=BODY))
    server.script("/new%20place", Reply(body=BODY))
    store, key = at(server.script(f"/old-{status}", Reply(status, b"see there", {"Location": "/new place"})))
    assert store.get(key) == BODY
    assert store.get(key, 3, 4) == BODY[3:7]
    assert store.head(key).url == f"{server.url}/new place"


@pytest.mark.usefixtures("own_way")
def test_redirects_that_never_end(server: MisbehavingServer) -> None:
    store, key = at(server.script("/round", Reply(302, headers={"Location": "/round"})))
    with pytest.raises(TransferError, match="redirects"):
        store.get(key)
    assert len(server.requests("/round")) == 11


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://host/x", "data:text/plain,x"])
def test_redirects_to_what_is_not_the_web(server: MisbehavingServer, location: str) -> None:
    store, key = at(server.script("/away", Reply(302, headers={"Location": location})))
    with pytest.raises(TransferError, match="no http address"):
        store.get(key)


def test_a_redirect_without_a_location(server: MisbehavingServer) -> None:
    store, key = at(server.script("/nowhere", Reply(302)))
    with pytest.raises(TransferError, match="302"):
        store.get(key)


def test_credentials_stay_with_their_host(server: MisbehavingServer) -> None:
    secret = {"Authorization": "Bearer abcdefgh", "Cookie": "a=b", "X-Api-Key": "k", "X-Harmless": "1"}
    with misbehaving() as other:
        other.script("/target", Reply(body=b"x"))
        server.script("/stay", Reply(body=b"x"))
        away, key = at(server.script("/leave", Reply(302, headers={"Location": f"{other.url}/target"})))
        away.get(key, headers=secret)
        assert "authorization" in server.seen[-1].headers
        assert {"authorization", "cookie", "x-api-key"}.isdisjoint(other.seen[-1].headers)
        assert other.seen[-1].headers["x-harmless"] == "1"
        here, key = at(server.script("/within", Reply(302, headers={"Location": "/stay"})))
        here.get(key, headers=secret)
        assert server.seen[-1].headers["authorization"] == "Bearer abcdefgh"


def test_401_behind_a_redirect(server: MisbehavingServer) -> None:
    server.script("/wall", Reply(401))
    store, key = at(server.script("/to-wall", Reply(302, headers={"Location": "/wall"})))
    with pytest.raises(PermissionError):
        store.get(key)


# ----------------------------------------------------------------------- threads


@pytest.mark.usefixtures("no_leftovers")
def test_many_threads_share_a_store_and_nothing_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    with misbehaving() as site:
        for number in range(50):
            site.script(f"/{number}", Reply(body=BODY + str(number).encode(), headers={"ETag": f'"{number}"'}))
        store, _ = at(f"{site.url}/")
        with ThreadPoolExecutor(16) as pool, caplog.at_level(logging.WARNING):
            found = list(pool.map(lambda number: store.get(str(number % 50)), range(400)))
        assert found == [BODY + str(number % 50).encode() for number in range(400)]
        assert caplog.records == []
        store.close()


@pytest.mark.usefixtures("no_leftovers")
def test_bodies_that_are_not_read_to_the_end_close_their_connections() -> None:
    with misbehaving() as site:
        store, key = at(site.script("/long", Reply(body=bytes(1 << 24))))
        for _ in range(5):
            with store.open(key) as body:
                next(iter(body))
        assert threading.active_count() < 50
        store.close()
