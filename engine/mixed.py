"""Sources mixed by weight.

Where every part can be read by position so can the mixture; otherwise it is a stream whose state holds those of its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .combine import listed, scattered
from .errors import CheckpointError, SourceError
from .mixture import Mixture
from .shuffle import Recent, grouped
from .source import IndexedSource, Pass, RowSource
from .streams import WHOLE, Chunk, Stream

Stop = Literal["first", "all"]


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a mixture in which the same parts take turns.

    Attributes:
        start, stop: positions of the whole; `stop` is None without end.
        parts: numbers of the parts that are not exhausted.
        taken: records of each of those that came before.
        mixture: their turns.
    """

    start: int
    stop: int | None
    parts: tuple[int, ...]
    taken: tuple[int, ...]
    mixture: Mixture


class MixedRows(RowSource):
    """Sources by weight.

    Args:
        parts: the sources.
        weights: one per source.
        seed: of the order within the shares; None takes the pass's.
        stop: "first" ends where a source would give a record that it does not have; "all" goes on without it.
    """

    def __init__(
        self, parts: Sequence[RowSource], weights: Sequence[float], seed: int | None, stop: Stop
    ) -> None:
        Mixture(weights)  # refuses bad weights here and not in the middle of an epoch
        self.parts, self.weights, self.seed, self.stop = tuple(parts), tuple(weights), seed, stop

    def describe(self) -> str:
        parts = listed([f"{w:g} {p.describe()}" for p, w in zip(self.parts, self.weights, strict=True)])
        return f"mix(seed={self.seed}, stop={self.stop}) of {parts}"

    def length(self) -> int | None:
        """Known when every record comes; where the first source ends otherwise hangs on the turns."""
        lengths = [part.length() for part in self.parts]
        return None if self.stop == "first" or None in lengths else sum(filter(None, lengths))

    def stream(self, pass_: Pass, state: Any = None) -> Stream:
        return MixedStream(self, pass_, state)

    def mixture(self, alive: Sequence[int], pass_: Pass, phase: int) -> Mixture:
        """The turns of the parts that are not exhausted, in the phase with this number."""
        seed = pass_.seed if self.seed is None else self.seed
        return Mixture([self.weights[part] for part in alive], seed, pass_.epoch, phase)


class MixedStream(Stream):
    """Draws record by record, since how much the parts hold is found out on the way."""

    def __init__(self, source: MixedRows, pass_: Pass, state: Any) -> None:
        self._source, self._pass = source, pass_
        count = len(source.parts)
        if state is None:
            state = {"position": 0, "phase": 0, "start": 0, "alive": [*range(count)], "parts": [None] * count}
        if len(state["parts"]) != count:
            raise CheckpointError(
                f"the checkpoint was made with {len(state['parts'])} sources in a mixture that now has {count}"
            )
        self.position, self._phase, self._start = (int(state[name]) for name in ("position", "phase", "start"))
        self._alive: list[int] = list(state["alive"])
        self._streams = [part.stream(pass_, at) for part, at in zip(source.parts, state["parts"], strict=True)]
        self._mixture = self._turns()

    def _turns(self) -> Mixture | None:
        return self._source.mixture(self._alive, self._pass, self._phase) if self._alive else None

    def read(self, count: int, part: slice = WHOLE) -> Chunk:
        found: list[Any] = []
        error: SourceError | None = None
        while len(found) < count and self._mixture is not None and error is None:
            start = self.position + len(found) - self._start
            turns = self._mixture.at(range(start, start + count - len(found)))[0]
            for turn in turns.tolist():
                chunk = self._streams[self._alive[turn]].read(1)
                found += chunk.as_rows()
                error = chunk.error
                if not chunk.count:
                    if error is None:
                        self._exhausted(turn, self.position + len(found))
                    break
        self.position += len(found)
        return Chunk(len(found), found[part], error=error)

    def _exhausted(self, turn: int, position: int) -> None:
        if self._source.stop == "first":
            self._alive = []
        else:
            del self._alive[turn]
        self._phase, self._start = self._phase + 1, position
        self._mixture = self._turns()

    def state(self) -> Any:
        return {
            "position": self.position,
            "phase": self._phase,
            "start": self._start,
            "alive": list(self._alive),
            "parts": [stream.state() for stream in self._streams],
        }

    def held(self) -> int:
        return sum(stream.held() for stream in self._streams)

    def close(self) -> None:
        self._mixture = None
        for stream in self._streams:
            stream.close()


class IndexedMixedRows(MixedRows, IndexedSource):
    """The same of indexed sources: which record of which source has a position is worked out from their lengths."""

    parts: tuple[IndexedSource, ...]

    def __init__(
        self, parts: Sequence[IndexedSource], weights: Sequence[float], seed: int | None, stop: Stop
    ) -> None:
        super().__init__(parts, weights, seed, stop)
        self._recent: Recent[list[Phase]] = Recent()

    def length(self) -> int | None:
        lengths = tuple(part.length() for part in self.parts)
        return self._phases(lengths, Pass())[-1].stop

    def order_identity(self) -> Any:
        parts = [part.order_identity() for part in self.parts]
        lengths = [] if self.stop == "first" else [part.length() for part in self.parts]
        return [f"mix(seed={self.seed}, stop={self.stop})", *self.weights, *lengths, *parts]

    def stream(self, pass_: Pass, state: Any = None) -> Stream:
        return IndexedSource.stream(self, pass_, state)

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        phases = self._phases(tuple(part.length() for part in self.parts), pass_)
        consecutive = isinstance(positions, range) and positions.step == 1
        if len(phases) == 1 and consecutive:
            return scattered(len(positions), self._of_phase(phases[0], positions, None, pass_, consecutive=True))
        array = np.asarray(positions, np.int64)
        starts = [phase.start for phase in phases]
        owners = np.searchsorted(starts, array, side="right") - 1
        return scattered(
            len(array),
            (
                group
                for owner, places in grouped(owners)
                for group in self._of_phase(
                    phases[owner], array[places] - starts[owner], places, pass_, consecutive=consecutive
                )
            ),
        )

    def _of_phase(
        self, phase: Phase, positions: Any, places: Any, pass_: Pass, *, consecutive: bool
    ) -> Iterator[tuple[list[int], list[Any]]]:
        """The records at positions of one phase, source by source, with their places in what was asked for."""
        turns, records = phase.mixture.at(positions)
        for turn, rows in grouped(turns):
            first = int(records[rows[0]]) + phase.taken[turn]
            wanted = range(first, first + len(rows))  # consecutive positions take consecutive records of a source
            if not consecutive:
                wanted = (records[rows] + phase.taken[turn]).tolist()
            given = self.parts[phase.parts[turn]].at(wanted, pass_)
            yield (rows if places is None else places[rows]).tolist(), given

    def _phases(self, lengths: tuple[int | None, ...], pass_: Pass) -> list[Phase]:
        return self._recent.get((lengths, pass_), lambda: self._make_phases(lengths, pass_))

    def _make_phases(self, lengths: tuple[int | None, ...], pass_: Pass) -> list[Phase]:
        taken = [0] * len(lengths)
        start, found = 0, list[Phase]()
        while True:
            alive = [part for part, length in enumerate(lengths) if length is None or taken[part] < length]
            if not found and (self.stop == "first" or not alive):
                alive = [*range(len(lengths))]
            if not alive:
                return found
            left = [None if (length := lengths[part]) is None else length - taken[part] for part in alive]
            mixture = self.mixture(alive, pass_, len(found)).within(left)
            stop = None if mixture.stop is None else start + mixture.stop
            before = tuple(taken[part] for part in alive)
            found.append(Phase(start, stop, tuple(alive), before, mixture))
            if mixture.stop is None or stop is None or self.stop == "first":
                return found
            for part, count in zip(alive, mixture.counts(mixture.stop), strict=True):
                taken[part] += count
            start = stop


def mixed(parts: Sequence[RowSource], weights: Sequence[float], seed: int | None, stop: Stop) -> RowSource:
    """Sources by weight; see `MixedRows`.

    Raises:
        PlanError: no sources, or a weight that is not positive and finite.
    """
    indexed = [part for part in parts if isinstance(part, IndexedSource)]
    if len(indexed) == len(parts):
        return IndexedMixedRows(indexed, weights, seed, stop)
    return MixedRows(parts, weights, seed, stop)
