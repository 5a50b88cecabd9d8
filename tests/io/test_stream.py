"""`Stream`: one cursor under bytes, lines and server-sent events, on every scheme, with nothing loaded ahead."""

from __future__ import annotations

import itertools
import re
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dataio
from dataio.io import stream as module
from dataio.io.errors import ResponseTooLargeError
from dataio.io.store import Body, ObjectInfo
from dataio.io.stream import HeadInfo, Stream
from dataio.io.uri import parse_uri
from tests.servers.misbehaving import MisbehavingServer, Reply, misbehaving

pytestmark = pytest.mark.timeout(60)
BODY = bytes(range(256)) * 1000
TEXT = "one\ntwo\r\nthree\rfour\n\nü last".encode()


@pytest.fixture(scope="module")
def server() -> Iterator[MisbehavingServer]:
    with misbehaving() as site:
        yield site


@pytest.fixture(params=["http", "file", "memory"])
def place(request: pytest.FixtureRequest, server: MisbehavingServer, tmp_path: Path) -> Callable[[bytes], str]:
    """Makes an object and tells its URI."""

    def put(data: bytes) -> str:
        if request.param == "http":
            return server.script("/object", Reply(body=data, headers={"ETag": '"e"', "Content-Type": "text/plain"}))
        uri = str(tmp_path / "object") if request.param == "file" else "memory://stream/object"
        dataio.write(uri, data)
        return uri

    return put


def of_chunks(chunks: Sequence[bytes]) -> Stream:
    """A stream whose store gives these chunks."""
    info = ObjectInfo(key="k", size=None)
    return Stream(HeadInfo.of(parse_uri("http://host/k"), info), Body(info, iter(chunks)), None)


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(at % (len(data) + 1) for at in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


# ------------------------------------------------------------------------ bytes


def test_all_bytes(place: Callable[[bytes], str]) -> None:
    with dataio.stream(place(BODY)) as stream:
        assert stream.status == 200
        assert stream.content_length == len(BODY)
        assert stream.read_all() == BODY
        assert stream.read_all() == b""


@pytest.mark.parametrize("size", [1000, 65536, 10**7])
def test_pieces_have_the_size_that_was_asked_for(place: Callable[[bytes], str], size: int) -> None:
    with dataio.stream(place(BODY)) as stream:
        parts = list(stream.iter_bytes(size))
    assert b"".join(parts) == BODY
    assert {len(part) for part in parts[:-1]} <= {size}


def test_a_range(place: Callable[[bytes], str]) -> None:
    uri = place(BODY)
    with dataio.stream(uri, offset=100, size=50) as stream:
        assert stream.content_length == 50
        assert stream.read_all() == BODY[100:150]
    with dataio.stream(uri, offset=len(BODY) - 5, size=50) as stream:
        assert stream.content_length == 5
        assert stream.read_all() == BODY[-5:]


def test_an_empty_object(place: Callable[[bytes], str]) -> None:
    uri = place(b"")
    for read in (lambda s: s.read_all(), lambda s: b"".join(s.iter_bytes()), lambda s: b"".join(s.iter_lines()), lambda s: b"".join(s.iter_events())):
        with dataio.stream(uri) as stream:
            assert read(stream) == b""


def test_one_cursor_under_all_methods(place: Callable[[bytes], str]) -> None:
    with dataio.stream(place(b"line 1\nline 2\n12345678rest\nend")) as stream:
        assert next(stream.iter_lines()) == "line 1"
        assert next(stream.iter_lines()) == "line 2"
        assert next(stream.iter_bytes(3)) == b"123"
        assert next(stream.iter_bytes(5)) == b"45678"
        assert next(stream.iter_lines()) == "rest"
        assert stream.read_all() == b"end"


def test_nothing_is_left_after_the_context(place: Callable[[bytes], str]) -> None:
    with dataio.stream(place(BODY)) as stream:
        pieces = stream.iter_bytes(10)
        assert next(pieces) == BODY[:10]
    assert stream.read_all() == b""
    assert list(pieces) == []
    stream.close()


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_that_are_none(size: int) -> None:
    with pytest.raises(ValueError, match="chunk_size"):
        of_chunks([]).iter_bytes(size)
    with pytest.raises(TypeError):
        of_chunks([]).iter_bytes(1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"offset": 1}, ValueError),
        ({"size": 1}, ValueError),
        ({"offset": -1, "size": 1}, ValueError),
        ({"offset": 1, "size": "1"}, TypeError),
        ({"offset": True, "size": 1}, TypeError),
        ({"max_response_bytes": -1}, ValueError),
        ({"headers": {"A": "b"}}, NotImplementedError),
    ],
)
def test_arguments_that_do_not_go(tmp_path: Path, arguments: dict[str, Any], error: type[Exception]) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    with pytest.raises(error):
        dataio.stream(str(path), **arguments)


def test_a_path_object_is_no_uri(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        dataio.stream(tmp_path)  # type: ignore[arg-type]


def test_missing(tmp_path: Path, server: MisbehavingServer) -> None:
    for uri in (str(tmp_path / "none"), f"{server.url}/none", "memory://stream/none"):
        with pytest.raises(FileNotFoundError):
            dataio.stream(uri)


def test_the_limit(place: Callable[[bytes], str]) -> None:
    uri = place(BODY)
    with pytest.raises(RuntimeError), dataio.stream(uri, max_response_bytes=len(BODY) - 1) as stream:
        stream.read_all()
    with dataio.stream(uri, max_response_bytes=len(BODY)) as stream:
        assert stream.read_all() == BODY


# ------------------------------------------------------------- what the answer told


def test_what_a_web_server_tells(server: MisbehavingServer) -> None:
    date = "Wed, 21 Oct 2015 07:28:00 GMT"
    url = server.script("/told?token=abcdef", Reply(body=b"x", headers={"ETag": '"v"', "Last-Modified": date, "Content-Type": "a/b", "X-Mine": "1"}))
    with dataio.stream(url, headers={"X-Asked": "2"}) as stream:
        assert (stream.status, stream.http_version, stream.content_length) == (200, "HTTP/1.1", 1)
        assert (stream.etag, stream.last_modified, stream.content_type) == ('"v"', date, "a/b")
        assert stream.headers["x-mine"] == "1"
        assert stream.url == f"{server.url}/told?token=***"
    assert server.seen[-1].headers["x-asked"] == "2"


def test_what_a_file_tells(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    with dataio.stream(str(path)) as stream:
        assert (stream.status, stream.http_version, stream.content_length, stream.url) == (200, "n/a", 3, f"file://{path}")
        assert stream.headers == {"content-length": "3", "accept-ranges": "bytes"}
        assert (stream.etag, stream.last_modified, stream.content_type) == (None, None, None)


def test_what_other_stores_tell_is_put_as_headers() -> None:
    info = HeadInfo.of(parse_uri("s3://b/k"), ObjectInfo(key="k", size=3, etag="e", modified=0.0, content_type="a/b"))
    assert info.headers == {"content-length": "3", "content-type": "a/b", "etag": '"e"', "last-modified": "Thu, 01 Jan 1970 00:00:00 GMT"}
    assert (info.etag, info.http_version, info.url) == ('"e"', "n/a", "s3://b/k")


# --------------------------------------------------------------------- life, memory


def test_the_body_is_not_loaded_on_opening(server: MisbehavingServer) -> None:
    url = server.script("/huge", Reply(body=bytes(1 << 26)))
    tracemalloc.start()
    try:
        with dataio.stream(url) as stream:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            for _ in stream.iter_bytes():
                pass
            assert tracemalloc.get_traced_memory()[1] - before < 1 << 24
    finally:
        tracemalloc.stop()


def test_a_line_without_end_is_an_error_and_not_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 1000)
    with pytest.raises(ResponseTooLargeError, match="a line"):
        list(of_chunks([b"x" * 100] * 11).iter_lines())
    with pytest.raises(ResponseTooLargeError, match="an event"):
        list(of_chunks([b"data: 12345678\n"] * 100).iter_events())
    assert len(list(of_chunks([b"x" * 99 + b"\n"] * 100).iter_lines())) == 100


@pytest.mark.usefixtures("no_leftovers")
def test_streams_that_are_dropped_leave_nothing() -> None:
    with misbehaving() as site:
        url = site.script("/x", Reply(body=bytes(1 << 24)))
        for _ in range(3):
            next(dataio.stream(url).iter_bytes())
        dataio.io.store.forget_stores("http")


def test_lines_come_as_soon_as_they_are_there(server: MisbehavingServer) -> None:
    """The second line is sent only after the first one was read."""
    go_on = threading.Event()

    class Slow(bytes):
        def __getitem__(self, at: Any) -> Any:
            if isinstance(at, slice) and at.start:
                assert go_on.wait(20)
            return bytes(self)[at]

    url = server.script("/live", Reply(body=Slow(b"first\nlater\n"), chunked=True, piece=6))
    with dataio.stream(url) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "first"
        go_on.set()
        assert next(lines) == "later"


# ------------------------------------------------------------------------ lines


def test_lines(place: Callable[[bytes], str]) -> None:
    with dataio.stream(place(TEXT)) as stream:
        assert list(stream.iter_lines()) == ["one", "two", "three", "four", "", "ü last"]


LINES = st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"\xc3\xbc", b"\xff", b""]), max_size=30).map(b"".join)
CUTS = st.lists(st.integers(0, 100), max_size=10)


@given(data=LINES, cuts=CUTS)
def test_lines_do_not_depend_on_chunks(data: bytes, cuts: list[int]) -> None:
    expected = [line.decode("utf-8", "replace") for line in data.splitlines()]
    assert list(of_chunks(cut(data, cuts)).iter_lines()) == expected


@given(data=LINES, cuts=CUTS, count=st.integers(0, 5), size=st.integers(1, 9))
def test_lines_then_bytes_then_lines_lose_nothing(data: bytes, cuts: list[int], count: int, size: int) -> None:
    """A carriage return and the newline behind it end one line together, whoever reads on."""
    stream = of_chunks(cut(data, cuts))
    lines = [line for _, line in zip(range(count), stream.iter_lines(), strict=False)]
    kept = data.splitlines(keepends=True)
    assert lines == [line.rstrip(b"\r\n").decode("utf-8", "replace") for line in kept[:count]]
    rest = b"".join(kept[count:])
    taken = next(stream.iter_bytes(size), b"")
    assert taken == rest[:size]
    assert stream.read_all() == rest[size:]


# ----------------------------------------------------------------------- events


def event(data: str = "", event: str | None = None, id: str | None = None, retry: int | None = None) -> dict[str, Any]:
    return {"event": event, "data": data, "id": id, "retry": retry}


EVENTS = [
    pytest.param("data: a\n\n", [event("a")], id="one"),
    pytest.param("data: a\r\n\r\ndata:b\r\rdata:  c\n\n", [event("a"), event("b"), event(" c")], id="ends-and-spaces"),
    pytest.param("data: a\ndata\ndata: b\n\n", [event("a\n\nb")], id="several-data"),
    pytest.param("event: add\ndata: 73857293\n\n", [event("73857293", "add")], id="event"),
    pytest.param("id: 1\ndata: x\n\ndata: y\n\n", [event("x", id="1"), event("y")], id="id-is-not-carried-over"),
    pytest.param("id\ndata: x\n\n", [event("x", id="")], id="empty-id"),
    pytest.param("id: 1\0\ndata: x\n\n", [event("x")], id="id-with-nul"),
    pytest.param("retry: 3000\n\n", [event(retry=3000)], id="retry-alone"),
    pytest.param("retry: 3s\nretry: -1\nretry: ٣\nretry:\ndata: x\n\n", [event("x")], id="retry-that-is-none"),
    pytest.param("event: ping\n\n", [event("", "ping")], id="without-data"),
    pytest.param(": comment\n\n:\n\n", [], id="comments"),
    pytest.param(": comment\ndata: a\n: more\n\n", [event("a")], id="comment-inside"),
    pytest.param("unknown: 1\nDATA: 2\n\n", [], id="unknown-fields"),
    pytest.param("\ufeffdata: a\n\n\ufeffdata: b\n\n", [event("a")], id="byte-order-mark-at-the-beginning-only"),
    pytest.param("\n\n\ndata: a\n\n\n\n", [event("a")], id="blank-lines"),
    pytest.param("data: a\n\ndata: cut off\n", [event("a")], id="cut-off"),
    pytest.param("data: a\n\ndata: cut", [event("a")], id="cut-off-in-a-line"),
    pytest.param("data: a: b:c\n\n", [event("a: b:c")], id="colons"),
    pytest.param("event: a\nevent: b\nid: 1\nid: 2\ndata:\n\n", [event("", "b", "2")], id="the-last-one-counts"),
    pytest.param("data: ü€😀\n\n", [event("ü€😀")], id="characters"),
    pytest.param("", [], id="nothing"),
]


@pytest.mark.parametrize(("text", "expected"), EVENTS)
def test_events(text: str, expected: list[dict[str, Any]]) -> None:
    data = text.encode()
    for chunks in ([data], [data[at : at + 1] for at in range(len(data))]):
        assert list(of_chunks(chunks).iter_events()) == expected


def by_the_standard(text: str) -> list[dict[str, Any]]:
    """The grammar of the standard on a whole text, as plainly as it goes."""
    text = text.removeprefix("\ufeff")
    ended = re.sub(r"\r\n|\r", "\n", text)
    blocks = re.split(r"\n\n|(?<![^\n])\n", ended[: ended.rfind("\n") + 1])
    found = []
    for block in blocks[:-1]:
        fields = [re.fullmatch(r"([^:]*)(?:: ?(.*))?", line) for line in block.split("\n") if line and not line.startswith(":")]
        pairs = [(field[1], field[2] or "") for field in fields if field is not None]
        one = event("\n".join(value for name, value in pairs if name == "data"))
        known = [name for name, _ in pairs if name in ("data", "event")]
        for name, value in pairs:
            if name == "event" or (name == "id" and "\0" not in value):
                one[name] = value
                known.append(name)
            if name == "retry" and re.fullmatch("[0-9]+", value):
                one["retry"] = int(value)
                known.append(name)
        if known:
            found.append(one)
    return found


@given(
    text=st.lists(st.sampled_from(["data: a", "data", "id: 1", "id: \0", "event: e", "retry: 5", "retry: x", ":c", "z: 1", "\n", "\n", "\r", "\r\n", "\n\n", "\ufeff"]), max_size=25).map("".join),
    cuts=CUTS,
)
def test_events_of_any_text_in_any_chunks(text: str, cuts: list[int]) -> None:
    assert list(of_chunks(cut(text.encode(), cuts)).iter_events()) == by_the_standard(text)
