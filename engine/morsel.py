"""A morsel: some tens of consecutive records on their way through the workers.

Columns that came as Arrow stay Arrow (`batch`); what Arrow cannot hold, and columns of Python records, travel as plain
lists beside it (`objects`). Within a process nothing is converted; between processes Arrow columns are sent as Arrow IPC,
the lists pickled.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .failure import Failure

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(slots=True)
class Morsel:
    """Rows `[offset, offset + length)` of a batch, the records at positions `indices` of the epoch.

    `skip` lists rows (relative to the morsel) that failed before they got here. `fetched` holds, for slots whose values lie
    in remote stores, what was fetched ahead for each row: bytes, a `Failure`, or None for a value that is to be read.
    """

    indices: Sequence[int]
    offset: int
    length: int
    objects: dict[str, Sequence[Any]] = field(default_factory=dict)
    batch: pa.RecordBatch | None = None
    skip: frozenset[int] = frozenset()
    fetched: dict[str, list[Any]] = field(default_factory=dict)

    def values(self, name: str) -> Sequence[Any]:
        """A column as something indexable by row; binary columns give zero-copy views of the Arrow buffer."""
        found = self.objects.get(name)
        if found is not None:
            return found
        if self.batch is None:
            raise KeyError(name)
        found = column_values(self.batch.column(name))
        self.objects[name] = found
        return found

    def arrow(self, name: str) -> bool:
        """Whether the column came as Arrow."""
        return self.batch is not None and name in self.batch.schema.names

    def record(self, row: int) -> Morsel:
        """The morsel of one of its records."""
        return Morsel(
            indices=self.indices[row : row + 1],
            offset=self.offset + row,
            length=1,
            objects={name: values[row : row + 1] for name, values in self.objects.items()},
            batch=None if self.batch is None else self.batch.slice(row, 1),
            skip=frozenset((0,)) if row in self.skip else frozenset(),
            fetched={name: values[row : row + 1] for name, values in self.fetched.items()},
        )

    def title(self) -> str:
        """`record 3` or `records 3 to 9`, for messages."""
        first, last = self.indices[0], self.indices[-1]
        return f"record {first}" if first == last else f"records {first} to {last}"

    def to_ipc(self) -> tuple[bytes, bytes]:
        """(Arrow IPC message, pickled rest) for another process; the message is empty without Arrow columns."""
        message = b"" if self.batch is None else _stream(self.batch)
        names = () if self.batch is None else self.batch.schema.names
        # Plain lists are pickled: converting some tens of strings to Arrow and back costs twenty times as much.
        rest = {name: values for name, values in self.objects.items() if name not in names}
        import cloudpickle

        header = (self.indices, self.offset, self.length, self.skip, rest)
        try:
            pickled = pickle.dumps(header, protocol=5)
        except Exception:  # a lambda, a local class
            pickled = b"__main__"
        if b"__main__" in pickled:  # pickled by name, which a worker does not have: it never runs the user's script
            pickled = cloudpickle.dumps(header, protocol=5)
        return message, pickled

    def fetched_parts(self) -> tuple[Any, ...]:
        """What was fetched, for another process, each value as it is: (pickled rest, bytes...); empty without any."""
        if not self.fetched:
            return ()
        # A number stands for a value that follows.
        parts: list[Any] = []
        rest: dict[str, list[Any]] = {}
        for name, values in self.fetched.items():
            rest[name] = []
            for value in values:
                apart = value is not None and not isinstance(value, Failure)
                rest[name].append(len(parts) if apart else value)
                if apart:
                    parts.append(value)
        return pickle.dumps(rest, protocol=5), *parts

    @classmethod
    def from_ipc(cls, message: Any, pickled: Any, *fetched: Any) -> Morsel:
        """A morsel from its `to_ipc` and `fetched_parts`."""
        indices, offset, length, skip, rest = pickle.loads(pickled)
        morsel = cls(indices, offset, length, rest, _from_stream(message) if message else None, skip)
        if fetched:
            parts = fetched[1:]
            morsel.fetched = {
                name: [parts[value] if isinstance(value, int) else value for value in values]
                for name, values in pickle.loads(fetched[0]).items()
            }
        return morsel


def _stream(batch: pa.RecordBatch) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _from_stream(message: Any) -> pa.RecordBatch:
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(message)) as reader:
        return reader.read_next_batch()


def column_values(array: pa.Array) -> Sequence[Any]:
    """Python values of an Arrow column: views for binary, str for strings, Python numbers, arrays (views) for tensors
    of fixed shape, None for null."""
    import pyarrow as pa

    if isinstance(array, pa.FixedShapeTensorArray) and not pa.types.is_boolean(array.type.value_type):
        if array.null_count:
            return [scalar.to_numpy() if scalar.is_valid else None for scalar in array]
        return list(array.to_numpy_ndarray())
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_dictionary(kind):
        return column_values(array.dictionary_decode())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _binary_views(array)
    if pa.types.is_fixed_size_binary(kind):
        return _binary_views(array.cast(pa.binary()))
    if pa.types.is_struct(kind):
        # A struct of encoded bytes and a path, as image data sets have it: keep the bytes a view.
        names = [f.name for f in kind]
        columns = [column_values(array.field(i)) for i in range(len(names))]
        valid = array.is_valid().to_pylist()
        return [dict(zip(names, row)) if ok else None for row, ok in zip(zip(*columns), valid)] if names else valid
    values: list[Any] = array.to_pylist()
    return values


def _binary_views(array: pa.Array) -> list[memoryview | None]:
    import numpy as np
    import pyarrow as pa

    _, offsets_buffer, data_buffer = array.buffers()
    wide = pa.types.is_large_binary(array.type)
    offsets = np.frombuffer(offsets_buffer, np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
    data = memoryview(data_buffer).cast("B") if data_buffer is not None else memoryview(b"")  # Arrow's are of signed bytes, which decoders refuse
    bounds = offsets.tolist()
    views: list[memoryview | None] = [data[a:b] for a, b in itertools.pairwise(bounds)]
    if array.null_count:
        for i, ok in enumerate(array.is_valid().to_pylist()):
            if not ok:
                views[i] = None
    return views
