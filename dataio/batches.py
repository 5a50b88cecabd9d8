"""`Batch`: what a training loop gets."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from .device import Arriving
from .engine.batch import FinishedBatch, SlotColumn
from .outputs import Adapter


class Batch:
    """The survivors of one batch, slot by slot. Tensors are made on first touch and belong to the batch: they stay
    valid after the loader is closed, and nobody writes to them again.

    `batch["image"]` is one tensor [B, ...] where all rows share shape and dtype, a list of per-row tensors where they do
    not (`ragged="list"`), and a list of Python values for object slots (`passthrough`, `as_object=True`).
    """

    __slots__ = ("__weakref__", "_adapter", "_arriving", "_cache", "_finished", "_output", "_ragged")

    def __init__(
        self, finished: FinishedBatch, output: str, adapter: Adapter, ragged: str, arriving: Arriving
    ) -> None:
        self._finished = finished
        self._arriving = arriving
        self._output = output
        self._adapter = adapter
        self._ragged = ragged
        self._cache: dict[str, Any] = {}

    # ---------------------------------------------------------------- slots

    def __getitem__(self, slot: str | int) -> Any:
        """The slot by name or position.

        Raises:
            KeyError, IndexError: no such slot.
            RuntimeError: a ragged slot under `ragged="error"` or `"skip"`.
        """
        name = self._name(slot)
        if name not in self._cache:
            arrived = self._arriving.get(name)
            column = self._finished.slots[name]
            self._cache[name] = self._convert(name, column) if arrived is None else arrived()
        return self._cache[name]

    def _name(self, slot: str | int) -> str:
        names = list(self._finished.slots)
        if isinstance(slot, int):
            if not -len(names) <= slot < len(names):
                raise IndexError(f"slot {slot} of a batch with {len(names)} slots")
            return names[slot]
        if slot not in self._finished.slots:
            raise KeyError(f"no slot {slot!r}; the batch has: {', '.join(names)}")
        return slot

    def _convert(self, name: str, column: SlotColumn) -> Any:
        if column.objects:
            return column.rows
        if not len(self):
            return []
        if column.dense is not None:
            return self._adapter(column.dense)
        if self._ragged != "list":
            shapes = {f"{r.dtype.name}{list(r.shape)}" for r in column.rows or ()}
            raise RuntimeError(
                f"slot {name!r} is ragged (rows of {', '.join(sorted(shapes)[:3])}): resize, crop or pad it to one shape, "
                'or run with ragged="list"'
            )
        return [self._adapter(row) for row in column.rows or ()]

    def __contains__(self, slot: object) -> bool:
        return slot in self._finished.slots

    def __iter__(self) -> Iterator[Any]:
        return (self[name] for name in self._finished.slots)

    def __len__(self) -> int:
        return self._finished.length

    @property
    def slot_names(self) -> list[str]:
        """Active slots, object slots included."""
        return list(self._finished.slots)

    @property
    def tensors(self) -> tuple[Any, ...]:
        """All tensor slots in slot order; object slots, and ragged ones under `ragged="skip"`, are left out."""
        return tuple(
            self[name]
            for name, column in self._finished.slots.items()
            if not column.objects and not (column.ragged and self._ragged == "skip" and len(self))
        )

    @property
    def tensor(self) -> Any:
        """The only tensor slot.

        Raises:
            RuntimeError: there is none, or more than one.
        """
        found = self.tensors
        if len(found) != 1:
            raise RuntimeError(f"batch.tensor needs exactly one tensor slot, this batch has {len(found)}")
        return found[0]

    # ---------------------------------------------------------------- rows

    @property
    def keys(self) -> list[str]:
        """One key per survivor."""
        return self._finished.keys

    @property
    def indices(self) -> list[int]:
        """Position of each survivor in its batch as submitted."""
        return list(self._finished.indices)

    @property
    def errors(self) -> list[dict[str, Any]]:
        """One dict per failed row: index, key, stage, op, message, slot, record, uri, offset, type. Fresh copies."""
        return copy.deepcopy(self._finished.errors)

    @property
    def context(self) -> list[Any] | None:
        """What `run(context=fn)` returned for each survivor; None without `context=`."""
        return self._finished.context

    def original_hws(self, slot: int = 0) -> list[tuple[int, int] | None]:
        """(height, width) in pixels before any transform, per survivor; None for slots that are no images."""
        column = self._finished.slots[self._name(int(slot))]
        return list(column.sizes) if column.sizes is not None else [None] * len(self)

    def __repr__(self) -> str:
        return (
            f"Batch(samples={len(self)}, slots={len(self._finished.slots)}, output={self._output!r}, "
            f"errors={len(self._finished.errors)})"
        )
