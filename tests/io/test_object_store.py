"""What object stores promise beyond the contract of all stores: versions, resumed bodies, parts, credentials, exact listings,
and what is said when a store refuses."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from xml.sax.saxutils import escape

import obstore
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from obstore.store import MemoryStore

import dataio
from dataio.engine.errors import MissingDependencyError
from dataio.io.errors import (
    AccessDeniedError,
    ChangedError,
    DeadlineError,
    ObjectNotFoundError,
    RangeError,
    StoreError,
    TransferError,
)
from dataio.io.merged_ranges import grouped
from dataio.io.store import open_store
from dataio.io.stores import object_access
from dataio.io.stores.amazon import parse_page
from dataio.io.stores.object import ObjectStore
from dataio.io.stores.object_reads import LARGE
from dataio.io.stores.sdk import is_plain

from ..servers.misbehaving import MisbehavingServer, Reply, misbehaving, parts_of
from ..servers.s3 import S3Server
from .contract import content

MIB = 1 << 20
ETAG = {"ETag": '"v1"', "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT", "Accept-Ranges": "bytes"}


def opened(uri: str) -> ObjectStore:
    store, _ = open_store(uri, bucket_alone=True)
    assert isinstance(store, ObjectStore)
    return store


@pytest.fixture
def s3(s3_bucket: str) -> ObjectStore:
    return opened(s3_bucket)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAIO_MULTIPART_PART_MIB", "5")


@pytest.fixture(params=["provider's package", "obstore alone"])
def either(request: pytest.FixtureRequest, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A bucket with and without botocore."""
    if request.param == "obstore alone":
        monkeypatch.setattr(object_access, "installed", lambda package: False)
    return opened(s3_bucket)


@pytest.fixture
def server() -> Iterator[MisbehavingServer]:
    with misbehaving() as found:
        yield found


@pytest.fixture
def odd_server(server: MisbehavingServer) -> Iterator[tuple[MisbehavingServer, ObjectStore]]:
    """A server of scripts as an S3 endpoint; requests are tried again twice, at most a second each."""
    dataio.configure_endpoint("s3", server.url)
    dataio.configure_credentials("s3", access_key_id="key-of-the-tests", secret_access_key="secret-of-the-tests-0123456789")
    dataio.configure_transport("s3", timeout_secs=1, max_attempts=3, connect_timeout_secs=1)
    yield server, opened("s3://bucket")
    dataio.clear_credentials("s3")
    dataio.clear_transport_overrides()


# ------------------------------------------------------------------------ keys


@given(st.text(st.sampled_from("ab./\\ %\t\x7f\n?ü"), min_size=1, max_size=8) | st.text(min_size=1, max_size=8))
@example("a/./b")
@example("..")
@example("/")
@example("...")
def test_a_plain_key_is_one_that_obstore_keeps(key: str) -> None:
    if not is_plain(key):
        return
    store = MemoryStore()
    obstore.put(store, key, b"1")
    assert [meta["path"] for meta in obstore.list(store).collect()] == [key]


@pytest.mark.parametrize("key", ["/lead", "x//y", "trail/", ".", "a/..", "a\\b", "a\nb", "a\x7f", "", "/"])
def test_other_keys_are_not_given_to_obstore(key: str) -> None:
    assert not is_plain(key)


@pytest.mark.parametrize("key", ["a[1]", "b?c", "d e+f%20#", "ü", "...", ".hidden", "a/..b/c.", "%2F"])
def test_ordinary_keys_are(key: str) -> None:
    assert is_plain(key)


def test_an_odd_key_without_the_package_that_keeps_it_says_what_to_install(s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_access, "installed", lambda package: False)
    with pytest.raises(MissingDependencyError, match=r"'/x'.*pip install 'dataio-py\[s3\]'"):
        opened(s3_bucket).get("/x")


# ---------------------------------------------------------------------- reading


@pytest.mark.parametrize("size", [LARGE, 2 * LARGE + 12_345])
def test_large_objects_are_read_in_pieces(s3: ObjectStore, size: int) -> None:
    data = content(size)
    s3.put("large", data)
    assert s3.get("large") == data
    assert s3.get("large", 5) == data[5:]
    assert s3.get("large", 7, LARGE + 1) == data[7 : LARGE + 8]
    out = bytearray(size + 10)
    assert s3.get_into("large", 0, memoryview(out)) == size
    assert out[:size] == data


@pytest.mark.parametrize("read", ["get", "get_into"])
def test_an_object_that_is_replaced_between_its_pieces_is_an_error(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch, read: str) -> None:
    s3.put("large", content(LARGE + 1))
    wait_for_next = s3._fill

    def replaced(*args: Any) -> None:
        s3.put("large", content(LARGE + 1, seed=1))
        wait_for_next(*args)

    monkeypatch.setattr(s3, "_fill", replaced)
    with pytest.raises(ChangedError, match="large"):
        s3.get("large") if read == "get" else s3.get_into("large", 0, memoryview(bytearray(LARGE + 1)))


def test_ranges_far_apart_are_of_one_version(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put("data", content(4 * MIB))
    head = s3.head

    def then_replaced(key: str) -> Any:
        info = head(key)
        s3.put("data", content(4 * MIB, seed=1))
        return info

    monkeypatch.setattr(s3, "head", then_replaced)
    with pytest.raises(ChangedError):
        s3.get_ranges("data", [(0, 10), (3 * MIB, 10)])


def test_a_range_behind_the_end_among_others_is_an_error(s3: ObjectStore) -> None:
    s3.put("data", content(100))
    with pytest.raises(RangeError):
        s3.get_ranges("data", [(0, 10), (101, 5)])


@given(st.lists(st.tuples(st.integers(0, 1 << 26), st.integers(0, 1 << 20))))
def test_grouped_ranges_lie_in_their_requests(ranges: list[tuple[int, int]]) -> None:
    groups = grouped(ranges)
    assert sorted(at for _, _, members in groups for at in members) == list(range(len(ranges)))
    for begin, size, members in groups:
        assert all(begin <= ranges[at][0] and sum(ranges[at]) <= begin + size for at in members)
    assert sum(size for _, size, _ in groups) <= sum(size for _, size in ranges) + (64 << 10) * max(0, len(ranges) - len(groups))


def test_a_body_that_breaks_off_goes_on_where_it_broke(odd_server: tuple[MisbehavingServer, ObjectStore]) -> None:
    server, store = odd_server
    data = content(3 * MIB)
    server.script("/bucket/data", Reply(200, data, ETAG, drop_after=2 * MIB), Reply(200, data, ETAG))
    with store.open("data") as body:
        assert b"".join(map(bytes, body)) == data
    ranges = parts_of(server.requests("/bucket/data"))
    assert ranges[0] is None
    assert len(ranges) == 2
    assert ranges[1] is not None
    assert ranges[1] != "bytes=0-"


@pytest.mark.parametrize("second", [Reply(200, content(3 * MIB, seed=1), {**ETAG, "ETag": '"v2"'}), Reply(404), Reply(412)], ids=["other", "gone", "refused"])
def test_a_body_never_goes_on_with_another_version(odd_server: tuple[MisbehavingServer, ObjectStore], second: Reply) -> None:
    server, store = odd_server
    server.script("/bucket/data", Reply(200, content(3 * MIB), ETAG, drop_after=2 * MIB), second)
    with pytest.raises(ChangedError, match="data"), store.open("data") as body:
        b"".join(map(bytes, body))


def test_a_body_that_keeps_breaking_off_ends(odd_server: tuple[MisbehavingServer, ObjectStore]) -> None:
    server, store = odd_server
    server.script("/bucket/data", Reply(200, content(3 * MIB), ETAG, drop_after=1000))
    with pytest.raises(TransferError, match="data"), store.open("data") as body:
        b"".join(map(bytes, body))
    assert len(server.requests("/bucket/data")) <= 6


PASSING = [Reply(503), Reply(500), Reply(429), Reply(hang_up=True), Reply(200, b"123456", ETAG, drop_after=2)]


@pytest.mark.parametrize("reply", PASSING, ids=["503", "500", "429", "hang-up", "short"])
def test_what_may_pass_is_tried_again(odd_server: tuple[MisbehavingServer, ObjectStore], reply: Reply) -> None:
    server, store = odd_server
    server.script("/bucket/data", reply, reply, Reply(200, b"123456", ETAG))
    assert store.get("data") == b"123456"
    assert len(server.requests("/bucket/data")) == 3


@pytest.mark.parametrize(
    ("reply", "kind", "requests"),
    [
        (Reply(503), TransferError, 3),
        (Reply(hang_up=True), TransferError, 3),
        (Reply(200, b"1", ETAG, pause=3), DeadlineError, 3),
        (Reply(403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"), AccessDeniedError, 1),
        (Reply(401), AccessDeniedError, 1),
        (Reply(404), ObjectNotFoundError, 1),
        (Reply(400, b"<Error><Code>KeyTooLongError</Code><Message>Your key is too long</Message></Error>"), StoreError, 1),
    ],
    ids=["503", "hang-up", "slow", "403", "401", "404", "400"],
)
def test_what_does_not_pass_is_told(
    odd_server: tuple[MisbehavingServer, ObjectStore], reply: Reply, kind: type[Exception], requests: int
) -> None:
    server, store = odd_server
    server.script("/bucket/data", reply)
    with pytest.raises(kind, match="s3://bucket/data") as failed:
        store.get("data")
    assert len(server.requests("/bucket/data")) == requests
    assert failed.value.__cause__ is not None


@pytest.mark.parametrize("key", ["data", "/odd"])
def test_a_bucket_of_another_region_is_named(odd_server: tuple[MisbehavingServer, ObjectStore], key: str) -> None:
    server, store = odd_server
    wrong = b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region is wrong; expecting 'eu-west-1'</Message><Region>eu-west-1</Region></Error>"
    server.script(f"/bucket/{key}", Reply(400, wrong))
    with pytest.raises(StoreError, match="AWS_REGION=eu-west-1"):
        store.get(key)


def test_an_endpoint_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    dataio.configure_endpoint("s3", "http://127.0.0.1:1")
    dataio.configure_credentials("s3", access_key_id="key-of-the-tests", secret_access_key="secret-of-the-tests-0123456789")
    dataio.configure_transport("s3", max_attempts=1)
    try:
        for key in ("data", "/odd"):
            with pytest.raises(TransferError, match="connection failed"):
                opened("s3://bucket").get(key)
        with pytest.raises(TransferError, match="connection failed"):
            list(opened("s3://bucket").list(""))
    finally:
        dataio.clear_credentials("s3")
        dataio.clear_transport_overrides()


# ----------------------------------------------------------------- denied


@pytest.mark.parametrize("key", ["secret/data", "secret//odd"])
def test_denied_is_never_missing(s3_server: S3Server, s3_bucket: str, key: str) -> None:
    store = opened(s3_bucket)
    store.put(key, b"1")
    s3_server.deny(s3_bucket.removeprefix("s3://"), "secret/")
    for ask in (store.get, store.head, store.exists):
        with pytest.raises(PermissionError, match=key):
            ask(key)
    with pytest.raises(PermissionError):
        store.put(key, b"2")


def test_a_denied_listing_is_never_empty(odd_server: tuple[MisbehavingServer, ObjectStore]) -> None:
    server, store = odd_server
    server.script("/bucket", Reply(403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"))
    with pytest.raises(PermissionError, match=r"s3://bucket/p.*AccessDenied"):
        list(store.list("p"))


def test_a_listing_that_fails_midway_raises_and_does_not_end(odd_server: tuple[MisbehavingServer, ObjectStore]) -> None:
    server, store = odd_server
    first = b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken><Contents><Key>a</Key><Size>1</Size></Contents></ListBucketResult>"
    server.paths["/bucket"] = lambda seen, count: Reply(503) if "continuation-token" in seen.target else Reply(200, first)
    listing = store.list("")
    assert next(listing).key == "a"
    with pytest.raises(TransferError):
        next(listing)


# --------------------------------------------------------------------- listing


@pytest.mark.parametrize("delimited", [False, True])
def test_listings_without_the_package_are_the_same(either: ObjectStore, s3_server: S3Server, delimited: bool) -> None:
    client = s3_server.client()
    for key in ("a/1", "a/2/3", "ab", "b c", "ü/x", "empty"):
        client.put_object(Bucket=either.name, Key=key, Body=b"" if key == "empty" else b"1")
    expected = ["a/", "ab", "b c", "empty", "ü/"] if delimited else ["a/1", "a/2/3", "ab", "b c", "empty", "ü/x"]
    assert sorted(info.key for info in either.list("", delimited=delimited)) == expected
    assert sorted(info.key for info in either.list("a", delimited=delimited)) == (["a/", "ab"] if delimited else ["a/1", "a/2/3", "ab"])


@pytest.mark.parametrize("odd", ["a//b", "folder/", "/lead"])
def test_a_listing_without_the_package_never_lies(
    s3_bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    monkeypatch.setattr(object_access, "installed", lambda package: False)
    store = opened(s3_bucket)
    s3_server.client().put_object(Bucket=store.name, Key=odd, Body=b"")
    with pytest.raises(StoreError, match=r"cannot express.*pip install"):
        list(store.list(""))


def test_a_page_tells_where_the_next_begins() -> None:
    text = b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t&amp;1</NextContinuationToken><EncodingType>url</EncodingType><Contents><Key>a%20b+c</Key><Size>3</Size></Contents></ListBucketResult>"
    page = parse_page(text)
    assert page.token == "t&1"
    assert [(info.key, info.size) for info in page.infos] == [("a b c", 3)]


@given(st.lists(st.text(min_size=1, max_size=6).filter(str.isprintable), max_size=5))
@example(["&copy", "a&amp;b", "<Key>", "]]>", "&#65;"])
def test_names_are_read_from_any_xml(names: list[str]) -> None:
    entries = "".join(f"<Contents><Key>{escape(name)}</Key><Size>1</Size><ETag>&quot;e&quot;</ETag></Contents>" for name in names)
    for comment in ("", "<!-- read by the XML parser -->"):
        page = parse_page(f"<ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>{comment}{entries}</ListBucketResult>".encode())
        assert [info.key for info in page.infos] == names
        assert all((info.size, info.etag) == (1, "e") for info in page.infos)


@pytest.mark.parametrize(
    "text", [b"", b"<html>", b"<Other/>", b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", b"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>", b"<ListBucketResult><Contents><Key>a</Key><Size>1</Size></Contents>"],
    ids=["empty", "html", "other", "endless", "no size", "cut off"],
)
def test_what_is_no_listing_is_an_error(text: bytes) -> None:
    with pytest.raises(StoreError, match="listing"):
        parse_page(text)


# --------------------------------------------------------------------- writing


def test_large_objects_are_written_in_parts(either: ObjectStore, s3_server: S3Server, small_parts: None) -> None:
    data = content(12 * MIB)
    etag = either.put("data", data, content_type="text/x-test")
    assert either.get("data") == data
    info = either.head("data")
    assert (info.etag, info.content_type) == (etag, "text/x-test")
    assert etag is not None
    assert etag.endswith("-3")


def test_a_dropped_upload_leaves_no_parts(either: ObjectStore, s3_server: S3Server, small_parts: None) -> None:
    upload = either.upload("data")
    upload.write(content(17 * MIB))
    upload.abort()
    assert not s3_server.client().list_multipart_uploads(Bucket=either.name).get("Uploads")
    assert not either.exists("data")


def test_a_part_that_fails_is_sent_again(s3: ObjectStore, small_parts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = _failing_parts(s3, monkeypatch, times=2)
    data = content(12 * MIB)
    s3.put("data", data)
    assert s3.get("data") == data
    assert failures == []


def test_an_upload_whose_parts_keep_failing_leaves_nothing(
    s3: ObjectStore, s3_server: S3Server, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _failing_parts(s3, monkeypatch, times=1000)
    upload = s3.upload("data")
    with pytest.raises(TransferError, match="data"):
        upload.write(content(60 * MIB))  # more parts than may be under way
    assert not s3_server.client().list_multipart_uploads(Bucket=s3.name).get("Uploads")
    assert not s3.exists("data")
    with pytest.raises(ValueError, match="over"):
        upload.write(b"1")


def _failing_parts(store: ObjectStore, monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """The next parts of a store meet a 503 before they are sent."""
    from botocore.exceptions import ClientError

    client: Any = store.sdk("parts")
    send, left = client.client.upload_part, list(range(times))
    busy = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": {}}}

    def upload_part(**options: Any) -> Any:
        if left:
            left.pop()
            raise ClientError(busy, "UploadPart")
        return send(**options)

    monkeypatch.setattr(client.client, "upload_part", upload_part)
    return left


def test_an_upload_holds_a_few_parts_at_most(s3: ObjectStore, small_parts: None) -> None:
    """Peak memory of a process that uploads 30 parts while every part is a new buffer."""
    import tracemalloc

    tracemalloc.start()
    try:
        upload = s3.upload("data")
        for at in range(30):
            upload.write(bytearray(content(5 * MIB, seed=at)))
        upload.complete()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 15 * 5 * MIB
    assert s3.head("data").size == 150 * MIB


def test_objects_above_the_limit_of_one_copy_are_copied_in_parts(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch, small_parts: None) -> None:
    from dataio.io.stores import amazon

    monkeypatch.setattr(amazon, "COPY_LIMIT", 6 * MIB)
    monkeypatch.setattr(amazon, "COPY_PART", 5 * MIB)
    data = content(11 * MIB)
    s3.put("data", data, content_type="text/x-test")
    s3.copy("data", s3, "copy")
    assert s3.get("copy") == data
    assert s3.head("copy").content_type == "text/x-test"


def test_buckets_of_one_account_copy_on_the_server(s3: ObjectStore, s3_server: S3Server) -> None:
    s3_server.client().create_bucket(Bucket=f"{s3.name}-2")
    other = opened(f"s3://{s3.name}-2")
    s3.put("x//y", b"1")
    assert s3.copies_to(other)
    s3.copy("x//y", other, "d e+f%20#")
    assert other.get("d e+f%20#") == b"1"


@pytest.mark.parametrize("key", ["d e+f%20#", "x//y"])
@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_signed_urls_work_for_whoever_holds_them(request: pytest.FixtureRequest, scheme: str, key: str) -> None:
    import urllib3

    store = opened(request.getfixturevalue(f"{scheme}_bucket"))
    store.put(key, b"signed")
    url = store.sign(key, expires=60, method="GET")
    assert urllib3.request("GET", url).data == b"signed"
    put = store.sign(key, expires=60, method="PUT")
    answer = urllib3.request("PUT", put, body=b"by url", headers={"x-ms-blob-type": "BlockBlob"} if scheme == "az" else {})
    assert answer.status in (200, 201)
    assert store.get(key) == b"by url"


# ----------------------------------------------------------- processes and threads


def test_a_forked_process_reads_and_writes(s3: ObjectStore) -> None:
    """obstore's threads are gone in the child; without care the first read there would panic."""
    s3.put("data", b"before")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(s3, queue))
    child.start()
    try:
        assert queue.get(timeout=30) == [b"before", b"before", b"after"]
    finally:
        child.join(10)
        child.kill()
    assert s3.get("child") == b"after"


def _in_child(store: ObjectStore, queue: Any) -> None:
    found = [bytes(store.get("data"))]
    again = opened(f"s3://{store.name}")
    found.append(bytes(again.get("data")))
    again.put("child", b"after")
    found.append(bytes(again.get("child")))
    queue.put(found)


def test_threads_share_a_store(s3: ObjectStore) -> None:
    def round_trip(at: int) -> bool:
        key = f"{'/' if at % 2 else ''}{at}"
        s3.put(key, content(1000, seed=at))
        return s3.get(key) == content(1000, seed=at)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(round_trip, range(64)))


def test_shards_serve_the_same_bucket(s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAIO_OBJECT_SHARDS", "3")
    store = opened(s3_bucket)
    store.put("data", b"1")
    assert [store.get("data") for _ in range(4)] == [b"1"] * 4
