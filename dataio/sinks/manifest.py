"""`_dataio.json`, the state of a sink beside its shards: what was asked for, the shards that are whole, and where the loader
stands behind the last of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ..engine.errors import DataioError
from ..io.errors import ObjectNotFoundError
from ..io.verbs import read, write

VERSION = 1
ERRORS_KEPT = 100
"""Failed records that the manifest describes; all are counted. `quarantine=` keeps them all."""


class SinkError(DataioError, ValueError):
    """A sink that cannot be written, or not gone on with."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard that is whole: its name in the folder, rows, bytes of the file, and records that failed while it was filled."""

    name: str
    rows: int
    bytes: int
    failed: int


@dataclass(slots=True)
class Manifest:
    """What the file holds.

    Attributes:
        wanted: plan, source and options; a sink goes on only where they are the same.
        layout: how each field is stored, settled by the first shard; None before.
        shards: those that are whole, in order, without gap.
        state: the loader's state in front of the batch in which the last of them ends.
        taken: positions in that batch of the records that are in shards already.
        errors: the first failed records.
        complete: nothing is left to do.
    """

    wanted: dict[str, Any]
    layout: dict[str, Any] | None = None
    shards: list[Shard] = field(default_factory=list)
    state: dict[str, Any] | None = None
    taken: list[int] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    failed: int = 0
    complete: bool = False

    def save(self, uri: str) -> None:
        """Write it, atomically."""
        write(uri, json.dumps({"version": VERSION, **asdict(self)}, indent=1, default=str).encode())

    def check(self, wanted: dict[str, Any], uri: str) -> None:
        """Refuse to go on with another sink.

        Raises:
            SinkError: it says what differs.
        """
        ours: dict[str, Any] = json.loads(json.dumps(wanted))
        other = [name for name in {**self.wanted, **ours} if self.wanted.get(name) != ours.get(name)]
        if other:
            told = "; ".join(f"{n}: {_short(self.wanted.get(n))} there, {_short(ours.get(n))} here" for n in other)
            raise SinkError(f"{uri} is of another sink ({told}): write to another folder, or replace it with overwrite=True")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:197] + "..."


def load_manifest(uri: str) -> Manifest | None:
    """The manifest at `uri`, None where there is none.

    Raises:
        SinkError: the file is no manifest of this version.
    """
    try:
        data = bytes(read(uri))
    except (ObjectNotFoundError, FileNotFoundError):
        return None
    try:
        found = json.loads(data)
        if found.pop("version") != VERSION:
            raise SinkError(f"{uri}: made by another version of dataio; replace the sink with overwrite=True")
        found["shards"] = [Shard(**shard) for shard in found["shards"]]
        return Manifest(**found)
    except SinkError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SinkError(f"{uri}: no manifest of a sink ({type(error).__name__}: {error})") from error
