"""Records whose bytes come from Python code: `from_callable`, `from_iterable`, `from_iterator`."""

from __future__ import annotations

import operator
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dataio.engine.errors import OpError, did_you_mean
from dataio.engine.source import IndexedSource, Pass
from dataio.io.reader import BytesLike, Reader

from .records import RecordSource
from .rows import OnePassRows


def from_callable(
    fn: Callable[[int], Any],
    *,
    length: int,
    slots: Iterable[str] | None = None,
    label: str | None = None,
    extras: Callable[[int], Mapping[str, Any]] | None = None,
) -> RecordSource:
    """`length` records whose bytes are `fn(0)`, `fn(1)`, ...; sized, so it shuffles and shards.

    `fn` is called when a record is read, in a worker and perhaps in several at a time, not when it is iterated.
    A record is `{"key": "pycall:i", "reader": ...}`, or has one reader per name in `slots`.

    Args:
        fn: gives bytes-like, str (as UTF-8), int, float, a NumPy scalar or numeric array; with `slots`, a mapping
            of those by slot name. It is called once per record, however many slots read it.
        length: number of records.
        slots: names of the slots that `fn` fills.
        label: how readers and errors name this source, instead of "pycall".
        extras: more fields for record `i`, computed when iterating; they win over the record's own.

    Raises:
        TypeError, ValueError: an argument of the wrong type or range.
    """
    if not callable(fn):
        raise TypeError(f"from_callable takes a function of the record's number, got {fn!r}")
    if extras is not None and not callable(extras):
        raise TypeError(f"extras must be a function of the record's number or None, got {extras!r}")
    return RecordSource(
        CallRows(fn, _checked_length(length), _checked_slots(slots), _checked_label(label, "pycall"), extras)
    )


def from_iterable(
    fn: Iterable[Any] | Callable[[], Iterable[Any]],
    *,
    slots: Iterable[str] | None = None,
    label: str | None = None,
) -> RecordSource:
    """Records whose bytes are the items of an iterable, or of what a function without arguments returns.

    One pass, in order: a second iteration is empty. Items and records are as in `from_callable`, keys `pyiter:i`.

    Raises:
        TypeError, ValueError: an argument of the wrong type or range.
    """
    iterable, factory = isinstance(fn, Iterable), callable(fn)
    if isinstance(fn, (str, bytes, bytearray, memoryview)) or not (iterable or factory):
        raise TypeError(f"from_iterable takes an iterable or a function that returns one, got {fn!r}")
    if iterable and factory:
        raise TypeError(
            f"from_iterable cannot tell whether to call or to iterate {fn!r}; pass lambda: iter(...)"
        )
    names, title = _checked_slots(slots), _checked_label(label, "pyiter")

    def start() -> Iterator[dict[str, Any]]:
        items = fn() if callable(fn) else fn
        if not isinstance(items, Iterable):
            raise TypeError(f"the function given to from_iterable returned {items!r}, which is not iterable")
        for number, item in enumerate(items):
            readers = {name: ItemReader(item, name, f"{title}:{number}") for name in names or ()}
            yield {
                "key": f"pyiter:{number}",
                **(readers or {"reader": ItemReader(item, None, f"{title}:{number}")}),
            }

    return RecordSource(OnePassRows(start, title), sequential=True)


def from_iterator(
    iterator: Iterable[Any], *, slot: str | None = None, label: str | None = None
) -> IteratorReader:
    """A `Reader` each of whose reads takes the next item of `iterator`.

    Args:
        iterator: gives bytes-like items, or mappings when `slot` is given.
        slot: the item's field to read.
        label: how errors name this reader, instead of "pyiter".

    Raises:
        TypeError, ValueError: an argument of the wrong type.
        RuntimeError: on reading past the last item.
    """
    if isinstance(iterator, (str, bytes, bytearray, memoryview)) or not isinstance(iterator, Iterable):
        raise TypeError(f"from_iterator takes an iterator of bytes-like items, got {iterator!r}")
    names = None if slot is None else _checked_slots([slot])
    return IteratorReader(iter(iterator), names[0] if names else None, _checked_label(label, "pyiter"))


class CallRows(IndexedSource):
    """The records of `from_callable`, by number."""

    def __init__(
        self,
        fn: Callable[[int], Any],
        length: int,
        slots: tuple[str, ...] | None,
        title: str,
        extras: Callable[[int], Mapping[str, Any]] | None,
    ) -> None:
        self._fn, self._length, self._slots, self._title, self._extras = fn, length, slots, title, extras

    def describe(self) -> str:
        return f"from_callable {self._title}: {self._length} records"

    def length(self) -> int:
        return self._length

    def at(self, positions: Sequence[int], pass_: Pass) -> list[Any]:
        return [self._record(position) for position in positions]  # `map` would take a StopIteration of extras for the end

    def _record(self, index: int) -> dict[str, Any]:
        record: dict[str, Any] = {"key": f"pycall:{index}"}
        call = Call(self._fn, index, f"{self._title}:{index}", self._slots or ())
        if self._slots is None:
            record["reader"] = CallableReader(call, None)
        else:
            record.update((name, CallableReader(call, name)) for name in self._slots)
        if self._extras is not None:
            more = self._extras(index)
            if not isinstance(more, Mapping):
                raise TypeError(f"extras({index}) must return a mapping, got {more!r}")
            record.update(more)
        return record


class Call:
    """One call of a function, shared by the slots of its record: made by the first, forgotten after the last."""

    def __init__(self, fn: Callable[[int], Any], index: int, title: str, slots: tuple[str, ...]) -> None:
        self.fn, self.index, self.title, self.slots = fn, index, title, slots
        self._lock = threading.Lock()
        self._value: Any = None
        self._waiting: set[str] = set()

    def value_for(self, slot: str) -> Any:
        with self._lock:
            if slot not in self._waiting:  # nobody has called yet, or this slot is read a second time
                self._value, self._waiting = self.fn(self.index), set(self.slots)
            value = self._value
            self._waiting.discard(slot)
            if not self._waiting:
                self._value = None
            return value

    def __reduce__(self) -> tuple[type[Call], tuple[Any, ...]]:
        return Call, (self.fn, self.index, self.title, self.slots)


class CallableReader(Reader):
    """Reads what a function returns for one record, or one slot of it."""

    __slots__ = ("call", "slot")

    def __init__(self, call: Call, slot: str | None) -> None:
        self.call, self.slot = call, slot

    def read_all(self) -> BytesLike:
        if self.slot is None:
            return value_bytes(self.call.fn(self.call.index), self.call.title)
        return slot_bytes(self.call.value_for(self.slot), self.slot, self.call.title)

    def _source(self) -> str:
        return self.call.title

    def __repr__(self) -> str:
        return f"Reader(source={self.call.title})"


class ItemReader(Reader):
    """Reads one item that is already here."""

    __slots__ = ("item", "slot", "title")

    def __init__(self, item: Any, slot: str | None, title: str) -> None:
        self.item, self.slot, self.title = item, slot, title

    def read_all(self) -> BytesLike:
        return item_bytes(self.item, self.slot, self.title)

    def _source(self) -> str:
        return self.title

    def __repr__(self) -> str:
        return f"Reader(source={self.title})"


class IteratorReader(Reader):
    """Each read takes the next item of an iterator; safe to share between threads."""

    def __init__(self, items: Iterator[Any], slot: str | None, title: str) -> None:
        self._items, self._slot, self._title, self._taken = items, slot, title, 0
        self._lock = threading.Lock()

    def read_all(self) -> BytesLike:
        with self._lock:
            try:
                item = next(self._items)
            except StopIteration:
                raise RuntimeError(f"{self._title} is exhausted: it gave {self._taken} items") from None
            number, self._taken = self._taken, self._taken + 1
        return item_bytes(item, self._slot, f"{self._title}:{number}")

    def capabilities(self) -> dict[str, Any]:
        """Each read is another item: there are no parts."""
        return {**super().capabilities(), "ranges": "unsupported"}

    def _source(self) -> str:
        return self._title

    def __repr__(self) -> str:
        return f"Reader(source={self._title})"


def item_bytes(item: Any, slot: str | None, title: str) -> BytesLike:
    return value_bytes(item, title) if slot is None else slot_bytes(item, slot, title)


def slot_bytes(values: Any, slot: str, title: str) -> BytesLike:
    """The bytes of one slot of a record's values.

    Raises:
        OpError: `values` is no mapping, or lacks the slot, or its value has no bytes.
    """
    if not isinstance(values, Mapping):
        raise OpError(
            f"{title}: with slots the value must be a mapping by slot name, got {type(values).__name__}"
        )
    if slot not in values:
        names = [str(name) for name in values]
        raise OpError(
            f"{title} has no value for slot {slot!r}{did_you_mean(slot, names)}; it has: {', '.join(names)}"
        )
    return value_bytes(values[slot], f"{title}, slot {slot!r}")


def value_bytes(value: Any, title: str) -> BytesLike:
    """A Python value as bytes.

    bytes-like as it is; str as UTF-8; int and float as 8 little-endian bytes; NumPy scalars and numeric arrays in
    C order, without a copy where they are contiguous.

    Raises:
        OpError: a value of another kind, or an int beyond 64 bits.
    """
    if isinstance(value, (bytes, bytearray)):
        return value
    if isinstance(value, memoryview):
        return value if value.c_contiguous else value.tobytes()
    if isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, (str, float)):
        if value.dtype.kind in "biufc" and value.dtype.isnative:
            return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
        raise OpError(
            f"{title}: a {value.dtype} array has no defined bytes; give numbers in native byte order"
        )
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return struct.pack("<q", value)
        except struct.error:
            raise OpError(f"{title}: the integer {value} does not fit 8 bytes") from None
    if isinstance(value, float):
        return struct.pack("<d", value)
    raise OpError(
        f"{title}: {type(value).__name__} has no defined bytes; give bytes, str, int, float or a numeric NumPy array"
    )


def _checked_length(length: Any) -> int:
    if isinstance(length, (bool, np.bool_)):
        raise TypeError(f"length must be an int, got {length!r}")
    try:
        number = operator.index(length)
    except TypeError:
        raise TypeError(f"length must be an int, got {length!r}") from None
    if number < 0:
        raise ValueError(f"length must not be negative, got {number}")
    return number


def _checked_slots(slots: Any) -> tuple[str, ...] | None:
    if slots is None:
        return None
    if isinstance(slots, (str, bytes)) or not isinstance(slots, Iterable):
        raise TypeError(f"slots must be a list of slot names, got {slots!r}")
    names = tuple(slots)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a slot name must be a str, got {name!r}")
    if not names or "" in names or len(set(names)) != len(names):
        raise ValueError(f"slots must be different, non-empty names, at least one; got {list(names)!r}")
    return names


def _checked_label(label: Any, default: str) -> str:
    if label is not None and not isinstance(label, str):
        raise TypeError(f"label must be a str or None, got {label!r}")
    return label or default
