"""`hf://` and `hfd://` on a small hub of the tests' own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

import dataio
from dataio.io.errors import AccessDeniedError, ChangedError, ObjectNotFoundError, TransferError
from dataio.io.store import Store, open_store
from tests.servers.hub import Hub, Repository, hub
from tests.servers.misbehaving import Reply, Seen

pytestmark = pytest.mark.timeout(60)
TOKEN = "hf_abcdefghij0123"
LARGE = bytes(range(256)) * 500


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("dataio.io.retry.FIRST_WAIT", 0.01)
    with hub() as made:
        dataio.configure_endpoint("hf", made.site.url)
        yield made
        dataio.clear_credentials()


@pytest.fixture
def repository(site: Hub) -> Repository:
    """org/model with small and large files."""
    made = site.add("org/model")
    made.files.update({"config.json": b"{}", "data/a.bin": LARGE, "data/b.txt": b"b", "data/deep/c.txt": b"c", "database": b"d"})
    made.large.add("data/a.bin")
    return made


def at(uri: str) -> tuple[Store, str]:
    return open_store(uri)


def read(uri: str) -> bytes:
    store, key = at(uri)
    return bytes(store.get(key))


# ------------------------------------------------------------------------ reading


def test_small_and_large_files(repository: Repository) -> None:
    assert read("hf://org/model/config.json") == b"{}"
    assert read("hf://org/model/data/a.bin") == LARGE
    store, key = at("hf://org/model/data/a.bin")
    assert store.get(key, 300, 50) == LARGE[300:350]
    with store.open(key, 1000) as body:
        assert body.info.size == len(LARGE)
        assert b"".join(body) == LARGE[1000:]


def test_data_sets_are_apart_from_models(site: Hub, repository: Repository) -> None:
    site.add("org/model", kind="datasets").files["config.json"] = b"of the data set"
    assert read("hfd://org/model/config.json") == b"of the data set"
    assert read("hf://org/model/config.json") == b"{}"
    assert site.site.seen[0].target == "/datasets/org/model/resolve/main/config.json"


@pytest.mark.parametrize(("written", "revision"), [("v1.0", "v1.0"), ("refs%2Fpr%2F1", "refs/pr/1")])
def test_revisions(site: Hub, repository: Repository, written: str, revision: str) -> None:
    repository.revisions[revision] = {"x/y": b"then"}
    assert read(f"hf://org/model@{written}/x/y") == b"then"
    assert site.site.seen[0].target == f"/org/model/resolve/{written}/x/y"
    assert [info.key for info in at(f"hf://org/model@{written}/x/y")[0].list("")] == ["x/y"]


@pytest.mark.parametrize("name", ["a[1]", "b?c", "d e+f%20#", "ü", "x/%2F/y", "a&b=c"])
def test_names_are_opaque(site: Hub, repository: Repository, name: str) -> None:
    repository.files[name] = name.encode()
    assert read(f"hf://org/model/{name}") == name.encode()
    store, _ = at("hf://org/model/x")
    assert store.exists(name)
    assert name in [info.key for info in store.list("")]


def test_head_asks_the_hub_alone(site: Hub, repository: Repository) -> None:
    for key in ("data/a.bin", "data/b.txt"):
        store, _ = at(f"hf://org/model/{key}")
        info = store.head(key)
        listed = next(one for one in store.list(key))
        assert (info.size, info.etag, info.status) == (listed.size, listed.etag, 200)
        assert "x-repo-commit" in info.headers
    assert site.content.seen == []


def test_the_etag_of_a_read_is_the_one_of_its_head(repository: Repository) -> None:
    store, key = at("hf://org/model/data/a.bin")
    etag = store.head(key).etag
    assert store.get(key, 0, 10, if_match=etag) == LARGE[:10]
    with store.open(key) as body:
        assert body.info.etag == etag
    with pytest.raises(ChangedError):
        store.get(key, 0, 10, if_match="another")


def test_a_repository_that_moved(site: Hub, repository: Repository) -> None:
    site.moved["models/old/name"] = "org/model"
    assert read("hf://old/name/data/a.bin") == LARGE
    store, key = at("hf://old/name/data/a.bin")
    assert store.head(key).etag == at("hf://org/model/x")[0].head(key).etag


# --------------------------------------------------------------------------- tokens


def test_the_token_goes_to_the_hub_and_not_to_the_content_server(site: Hub, repository: Repository) -> None:
    repository.token = TOKEN
    dataio.configure_credentials("hf", method="hf_token", token=TOKEN)
    assert read("hf://org/model/data/a.bin") == LARGE
    assert site.site.seen[-1].headers["authorization"] == f"Bearer {TOKEN}"
    assert "authorization" not in site.content.seen[-1].headers


def test_the_token_of_the_environment(site: Hub, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.token = TOKEN
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert read("hf://org/model/config.json") == b"{}"


def test_a_token_of_one_repository(site: Hub, repository: Repository) -> None:
    repository.token = TOKEN
    site.add("org/other").files["x"] = b"x"
    dataio.configure_credentials("hf", method="hf_token", token=TOKEN, bucket="org/model")
    assert read("hf://org/model/config.json") == b"{}"
    assert read("hf://org/other/x") == b"x"
    assert "authorization" not in site.site.seen[-1].headers


def test_data_sets_take_the_token_of_models(site: Hub) -> None:
    made = site.add("org/set", kind="datasets")
    made.files["x"], made.token = b"x", TOKEN
    dataio.configure_credentials("hf", method="hf_token", token=TOKEN)
    assert read("hfd://org/set/x") == b"x"


def test_no_token_where_one_is_wanted(site: Hub, repository: Repository) -> None:
    repository.token = TOKEN
    for call in (lambda: read("hf://org/model/config.json"), lambda: at("hf://org/model/x")[0].exists("config.json"), lambda: list(at("hf://org/model/x")[0].list(""))):
        with pytest.raises(AccessDeniedError, match="HF_TOKEN"):
            call()


def test_a_wrong_token_is_not_shown(site: Hub, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.token = TOKEN
    monkeypatch.setenv("HF_TOKEN", "hf_wrong98765")
    with pytest.raises(PermissionError) as caught:
        read("hf://org/model/config.json")
    assert "hf_wrong98765" not in repr(caught.value)


def test_a_gated_repository_says_so(repository: Repository) -> None:
    repository.gated = True
    with pytest.raises(PermissionError, match="restricted: ask its authors"):
        read("hf://org/model/config.json")


@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
def test_offline(site: Hub, repository: Repository, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE"):
        read("hf://org/model/config.json")
    assert site.site.seen == []


# ------------------------------------------------------------------------- missing


def test_missing_files_and_revisions(site: Hub, repository: Repository) -> None:
    for uri in ("hf://org/model/none", "hf://org/model@none/config.json"):
        with pytest.raises(ObjectNotFoundError) as caught:
            read(uri)
        assert not isinstance(caught.value, ConnectionError)
    assert not at("hf://org/model/x")[0].exists("none")


def test_a_repository_that_is_not_there_or_not_ours(site: Hub) -> None:
    """The hub does not tell one from the other, so neither is 'missing'."""
    with pytest.raises(PermissionError):
        read("hf://org/none/x")


@pytest.mark.parametrize("uri", ["hf://org/model", "hf://org", "hf://org/model@/x", "hfd:///x/y"])
def test_uris_that_name_no_file(uri: str) -> None:
    with pytest.raises(ValueError, match="hf"):
        read(uri)


def test_nothing_is_remembered_between_questions(repository: Repository) -> None:
    store, _ = at("hf://org/model/x")
    assert not store.exists("new")
    repository.files["new"] = b"x"
    assert store.exists("new")
    assert "new" in [info.key for info in store.list("")]


# ------------------------------------------------------------------------- listings


@pytest.mark.parametrize("prefix", ["", "data", "data/", "data/d", "data/deep/", "conf", "none", "none/x", "data/a.bin"])
def test_listing_takes_a_plain_prefix_over_all_pages(repository: Repository, prefix: str) -> None:
    found = [info.key for info in at("hf://org/model/x")[0].list(prefix)]
    assert sorted(found) == sorted(name for name in repository.files if name.startswith(prefix))


def test_listing_of_one_level(repository: Repository) -> None:
    store, _ = at("hf://org/model/x")

    def level(prefix: str) -> dict[str, bool]:
        return {info.key: info.is_prefix for info in store.list(prefix, delimited=True)}

    assert level("") == {"config.json": False, "data/": True, "database": False}
    assert level("data/") == {"data/a.bin": False, "data/b.txt": False, "data/deep/": True}
    assert level("dat") == {"data/": True, "database": False}


def test_listing_of_a_revision_that_is_not_there(repository: Repository) -> None:
    for prefix in ("", "folder/"):
        with pytest.raises(FileNotFoundError):
            list(at("hf://org/model@none/x")[0].list(prefix))


def test_a_listing_that_cannot_be_read(site: Hub, repository: Repository) -> None:
    for body in (b"<html>", b"{}", b'[{"type": "file"}]'):
        site.site.script("/api/models/org/model/tree/main", Reply(body=body))
        with pytest.raises(TransferError, match="listing"):
            list(at("hf://org/model/x")[0].list(""))


def test_a_listing_that_goes_on_elsewhere(site: Hub, repository: Repository) -> None:
    """The token would go there."""
    site.site.script("/api/models/org/model/tree/main", Reply(body=b"[]", headers={"Link": f'<{site.content.url}/x>; rel="next"'}))
    with pytest.raises(TransferError, match="another host"):
        list(at("hf://org/model/x")[0].list(""))


def test_verbs(repository: Repository) -> None:
    assert dataio.read("hf://org/model/config.json") == b"{}"
    assert dataio.exists("hf://org/model/config.json")
    assert dataio.ls("hf://org/model/data/") == [f"hf://org/model/data/{name}" for name in ("a.bin", "b.txt", "deep/c.txt")]
    with pytest.raises(NotImplementedError):
        dataio.write("hf://org/model/x", b"x")


# --------------------------------------------------------------------- robust reads


@pytest.mark.parametrize("large", [True, False])
def test_a_body_that_breaks_off_is_resumed_through_the_hub(site: Hub, repository: Repository, large: bool) -> None:
    if not large:
        repository.large.clear()
    server = site.content if large else site.site
    store, key = at("hf://org/model/data/a.bin")
    etag = store.head(key).etag
    [path] = [f"/blobs/{etag}"] if large else ["/org/model/resolve/main/data/a.bin"]
    whole = Reply(body=LARGE, headers={"ETag": f'"{etag}"'})
    server.script(path, *([] if large else [whole]), replace(whole, drop_after=50_000), whole)
    assert store.get(key) == LARGE


def test_a_branch_that_moves_midway_is_an_error(site: Hub, repository: Repository) -> None:
    """The content server still has the old file; the hub leads to another one when the rest is asked for."""
    store, key = at("hf://org/model/data/a.bin")
    etag = store.head(key).etag

    def move(seen: Seen, count: int) -> Reply:
        repository.files[key] = bytes(len(LARGE))
        return Reply(body=LARGE, drop_after=50_000)

    site.content.script(f"/blobs/{etag}", move)
    with pytest.raises(ChangedError):
        store.get(key)


def test_a_small_file_that_is_replaced_midway_is_an_error(site: Hub, repository: Repository) -> None:
    old, new = Reply(body=LARGE, headers={"ETag": '"old"'}, drop_after=50_000), Reply(body=LARGE, headers={"ETag": '"new"'})
    site.site.script("/org/model/resolve/main/x", old, new)
    with pytest.raises(ChangedError):
        read("hf://org/model/x")


def test_an_overloaded_hub_is_asked_again(site: Hub, repository: Repository) -> None:
    site.site.script("/org/model/resolve/main/config.json", Reply(503), Reply(429), Reply(body=b"{}"))
    assert read("hf://org/model/config.json") == b"{}"
