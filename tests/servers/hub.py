"""A small Hugging Face hub: repositories with revisions, tokens, pages of listings, large files on another server.

What it answers was taken down from the real one: `resolve` gives small files itself, and large ones by a redirect that
tells their size and ETag; errors come with X-Error-Code and X-Error-Message; listings go on by a Link header.
"""

from __future__ import annotations

import hashlib
import json
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .misbehaving import MisbehavingServer, Reply, Seen, misbehaving

PAGE = 3
"""Entries on one page of a listing."""


@dataclass
class Repository:
    """Attributes:
    revisions: files by name of the revision.
    large: names of files that lie on the content server.
    token: that may read it, None for everybody.
    gated: whether its files, not its name, want a permission.
    """

    revisions: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    large: set[str] = field(default_factory=set)
    token: str | None = None
    gated: bool = False

    @property
    def files(self) -> dict[str, bytes]:
        return self.revisions["main"]


class Hub:
    """Attributes:
    site: the hub; `site.url` is the endpoint.
    content: the server of large files, which has ETags of its own.
    repositories: by kind and name, such as "models/org/name".
    """

    def __init__(self, site: MisbehavingServer, content: MisbehavingServer) -> None:
        self.site, self.content = site, content
        self.repositories: dict[str, Repository] = {}
        self.moved: dict[str, str] = {}
        site.otherwise = self._answer

    def add(self, name: str, *, kind: str = "models") -> Repository:
        """A new repository."""
        made = self.repositories[f"{kind}/{name}"] = Repository()
        return made

    def _answer(self, seen: Seen, count: int) -> Reply:
        path, _, query = seen.target.partition("?")
        if path.startswith("/api/"):
            kind, organisation, name, verb, *rest = path.removeprefix("/api/").split("/")
        else:
            parts = path.removeprefix("/").split("/")
            kind = "datasets" if parts[0] == "datasets" else "models"
            organisation, name, verb, *rest = parts[1:] if kind == "datasets" else parts
        repository = self.repositories.get(f"{kind}/{organisation}/{name}")
        if (to := self.moved.get(f"{kind}/{organisation}/{name}")) is not None:
            return Reply(307, b"moved", {"Location": seen.target.replace(f"{organisation}/{name}", to, 1), "ETag": '"of-the-redirect"'})
        sent = seen.headers.get("authorization")
        if repository is None or (repository.token is not None and sent is None):
            return _error(401, "RepoNotFound", "Repository not found")
        if repository.token is not None and sent != f"Bearer {repository.token}":
            return _error(403, "", "Forbidden")
        files = repository.revisions.get(urllib.parse.unquote(rest[0]))
        if files is None:
            return _error(404, "RevisionNotFound", "Invalid rev id")
        name = urllib.parse.unquote("/".join(rest[1:]))
        if verb == "tree":
            return self._tree(seen, files, repository, name, urllib.parse.parse_qs(query))
        if repository.gated:
            return _error(403, "GatedRepo", "Access to model is restricted: ask its authors")
        return self._resolve(repository, files, name)

    def _resolve(self, repository: Repository, files: dict[str, bytes], name: str) -> Reply:
        if name not in files:
            return _error(404, "EntryNotFound", "Entry not found")
        body, headers = files[name], {"X-Repo-Commit": _hash(json.dumps(sorted(files)).encode())}
        if name not in repository.large:
            return Reply(body=body, headers={**headers, "ETag": f'"{_hash(body)}"', "Content-Type": "text/plain"})
        at = f"/blobs/{_hash(body)}"
        if at not in self.content.paths:
            self.content.script(at, Reply(body=body, headers={"ETag": '"of-the-content-server"', "Accept-Ranges": "bytes"}))
        linked = {"X-Linked-Size": str(len(body)), "X-Linked-ETag": f'"{_hash(body)}"'}
        return Reply(302, b"Found", {**headers, **linked, "Location": f"{self.content.url}{at}?signature=abcdef"})

    def _tree(self, seen: Seen, files: dict[str, bytes], repository: Repository, folder: str, query: dict[str, list[str]]) -> Reply:
        below = f"{folder}/" if folder else ""
        entries: dict[str, dict[str, object]] = {}
        for name, body in sorted(files.items()):
            if not name.startswith(below):
                continue
            parts = name.removeprefix(below).split("/")
            for depth in range(1, len(parts)):
                path = below + "/".join(parts[:depth])
                entries[path] = {"type": "directory", "path": path, "size": 0, "oid": "d"}
            lfs = {"lfs": {"oid": _hash(body), "size": len(body)}} if name in repository.large else {}
            entries[name] = {"type": "file", "path": name, "size": len(body), "oid": "pointer" if lfs else _hash(body), **lfs}
        if folder and not entries:
            return _error(404, "EntryNotFound", "Entry not found")
        if query["recursive"] == ["false"]:
            entries = {path: entry for path, entry in entries.items() if "/" not in path.removeprefix(below)}
        start = int(query.get("cursor", ["0"])[0])
        page = list(entries.values())[start : start + PAGE]
        headers = {"Content-Type": "application/json"}
        if start + PAGE < len(entries):
            address = f"{self.site.url}{seen.target.partition('?')[0]}?recursive={query['recursive'][0]}&cursor={start + PAGE}"
            headers["Link"] = f'<{address}>; rel="next"'
        return Reply(body=json.dumps(page).encode(), headers=headers)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _error(status: int, code: str, message: str) -> Reply:
    return Reply(status, message.encode(), {"X-Error-Code": code, "X-Error-Message": message})


@contextmanager
def hub() -> Iterator[Hub]:
    """A hub and its content server."""
    with misbehaving() as site, misbehaving() as content:
        yield Hub(site, content)
