"""`Query.describe`: figures for each column, in one pass and bounded memory. Libraries: Polars (per batch), NumPy."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..engine.errors import OpError
from ..engine.relational import streamed
from ..formats.image.header import Header, read_header
from ..inspect.images import Together
from ..inspect.kinds import HEAD, kind_of
from .preview import aligned
from .text import cut, number, one_line, plural, short

if TYPE_CHECKING:
    import polars as pl

    from ..query import Query

BATCH = 4096
"""Rows whose figures are worked out together."""
SAMPLE = 1 << 16
"""Values of a column that quantiles and histograms are made of, at most; all of them where there are no more."""
_SAMPLES = 1 << 24
"""The same for all columns together."""
DISTINCT = 10_000
"""Distinct values of a column that are counted one by one."""
_DISTINCT_TEXT = 1 << 24
"""Characters of these, at most."""
_TRIED = 16
"""Values of a column of bytes that are looked at before it is taken for one without images."""
_BINS = 24
_TOP = 8
Histogram: TypeAlias = tuple[tuple[int, ...], tuple[float, ...]]
"""Counts, and the edges of their bins, one more."""


@dataclass(frozen=True, slots=True)
class ColumnFigures:
    """Figures of one column.

    Attributes:
        name, type: of the column, as Polars calls it.
        of: what the numbers are of: "" the values themselves, "elements" of tensors and arrays of one shape, "length" (characters of text,
            items of lists), "bytes" (sizes).
        count, nulls: values, and nulls. `strange` values are NaN or infinite, and no part of what follows.
        unique: distinct values, nulls left out; None where they are not counted (lists, bytes) or over 10,000.
        over: whether they are over 10,000.
        low, high, mean, std: of the numbers; NaN without any. `std` divides by n - 1.
        quantiles: the quartiles 0.25, 0.5 and 0.75; None without numbers. `sampled` tells that they are those of a sample.
        least, greatest: of values that have an order, as text; "" for others.
        top: the most frequent values as text, with their counts, where the distinct ones are counted.
        histogram: of the numbers, None without any.
        images: of a column of encoded images, what `dataio stats` tells of images: counts by format, size and aspect.
        broken: images whose header cannot be read.
    """

    name: str
    type: str
    of: str = ""
    count: int = 0
    nulls: int = 0
    strange: int = 0
    unique: int | None = None
    over: bool = False
    low: float = np.nan
    high: float = np.nan
    mean: float = np.nan
    std: float = np.nan
    quantiles: tuple[float, float, float] | None = None
    sampled: bool = False
    least: str = ""
    greatest: str = ""
    top: tuple[tuple[str, int], ...] = ()
    histogram: Histogram | None = None
    images: dict[str, Any] | None = None
    broken: int = 0


@dataclass(frozen=True, eq=False)
class Description:
    """Figures of the columns of a query; shown in notebooks, printed as a table.

    Attributes:
        title: what was described.
        rows: how many.
        columns: in order.
    """

    title: str
    rows: int
    columns: tuple[ColumnFigures, ...]

    def __getitem__(self, name: str) -> ColumnFigures:
        """The figures of one column.

        Raises:
            KeyError: no such column.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def to_polars(self) -> pl.DataFrame:
        """A row for each column: `column`, `type`, `of` (text); `count`, `nulls`, `strange`, `unique` (int64); `min`, `q25`, `median`, `q75`, `max`,
        `mean`, `std` (float64); `least`, `greatest` (text). Null where there is nothing to say."""
        import polars as pl

        def plain(value: float) -> float | None:
            return value if value == value else None

        text, whole, real = pl.String, pl.Int64, pl.Float64
        schema = {"column": text, "type": text, "of": text, "count": whole, "nulls": whole, "strange": whole, "unique": whole}
        schema |= dict.fromkeys(("min", "q25", "median", "q75", "max", "mean", "std"), real) | {"least": text, "greatest": text}
        rows = []
        for c in self.columns:
            low, middle, high = c.quantiles or (np.nan, np.nan, np.nan)
            numbers = [plain(value) for value in (c.low, low, middle, high, c.high, c.mean, c.std)]
            rows.append((c.name, c.type, c.of or None, c.count, c.nulls, c.strange, c.unique, *numbers, c.least or None, c.greatest or None))
        return pl.DataFrame(rows, schema=schema, orient="row")

    def save(self, uri: str | os.PathLike[str]) -> None:
        """Write an HTML page with histograms to a local path or a URI; errors are those of `dataio.write`."""
        from ..io.verbs import write
        from .page import page

        write(uri, page(self).encode(), content_type="text/html; charset=utf-8")

    def _repr_html_(self) -> str:
        from .charts import described

        return described(self)

    def __repr__(self) -> str:
        return "\n".join([self.title, plural(self.rows, "row"), *aligned(self.table(), 28)])

    def table(self) -> list[list[str]]:
        """The figures as text, a row for each column, with a heading."""
        rows = [["column", "type", "count", "nulls", "unique", "min", "q25", "median", "q75", "max", "mean", "std"]]
        for c in self.columns:
            unique = f"over {DISTINCT:,}" if c.over else "" if c.unique is None else f"{c.unique:,}"
            low, middle, high = ("", "", "") if c.quantiles is None else map(number, c.quantiles)
            ends = (c.least, c.greatest) if not c.of and c.low != c.low else (_text(c.low), _text(c.high))
            kind = f"{c.type} ({c.of})" if c.of else c.type
            rows.append([one_line(c.name), kind, f"{c.count:,}", f"{c.nulls:,}", unique, ends[0], low, middle, high, ends[1], _text(c.mean), _text(c.std)])
        return rows


def _text(value: float) -> str:
    return number(value) if value == value else ""


def describe(query: Query) -> Description:
    """See `Query.describe`."""
    from .rows import title_of

    lazy = query.to_lazy()
    schema = lazy.collect_schema()
    sample = max(1024, min(SAMPLE, _SAMPLES // max(1, len(schema))))
    columns = [_Column(name, dtype, sample) for name, dtype in schema.items()]
    files = _Files(schema.names())
    rows = 0
    for frame in streamed(lazy):
        for part in frame.iter_slices(BATCH):
            rows += part.height
            for column, series in zip(columns, part.iter_columns()):
                column.add(series)
            files.add(part)
    found = [column.figures() for column in columns]
    return Description(title_of(query.plan), rows, tuple(files.onto(found)))


class _Numbers:
    """Count, mean and spread of numbers, added to batch by batch, and a sample of them.

    Source of the merged variance: Chan, Golub and LeVeque 1979, "Updating formulae". The sample keeps the values whose random draws are smallest.
    """

    def __init__(self, sample: int) -> None:
        self.count = 0
        self.mean = self.squares = 0.0
        self.low, self.high = np.inf, -np.inf
        self._sample = sample
        self._values = np.empty(0)
        self._draws = np.empty(0)
        self._rng = np.random.default_rng(0)

    def add(self, values: np.ndarray) -> None:
        """Finite float64[n]."""
        if not values.size:
            return
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        count, mean = values.size, float(values.mean())
        with np.errstate(over="ignore", invalid="ignore"):
            apart, total = mean - self.mean, self.count + count
            self.squares += float(((values - mean) ** 2).sum()) + apart * apart * self.count * count / total
            self.mean += apart * count / total
        self.count = total
        self._values = np.concatenate([self._values, values])
        self._draws = np.concatenate([self._draws, self._rng.random(values.size)])
        if len(self._values) > 2 * self._sample:
            self._cut()

    def _cut(self) -> None:
        if len(self._values) > self._sample:
            kept = np.argpartition(self._draws, self._sample)[: self._sample]
            self._values, self._draws = self._values[kept], self._draws[kept]

    def figures(self) -> dict[str, Any]:
        if not self.count:
            return {}
        self._cut()
        low, middle, high = np.quantile(self._values, [0.25, 0.5, 0.75]).tolist()
        with np.errstate(over="ignore", invalid="ignore"):
            std = float(np.sqrt(self.squares / (self.count - 1))) if self.count > 1 else np.nan
        return {
            "low": self.low,
            "high": self.high,
            "mean": self.mean,
            "std": std,
            "quantiles": (low, middle, high),
            "sampled": self.count > len(self._values),
            "histogram": self._histogram(),
        }

    def _histogram(self) -> Histogram | None:
        values = self._values
        whole = self.high - self.low < _BINS and bool((values == np.rint(values)).all())
        bins: Any = np.arange(self.low - 0.5, self.high + 1) if whole and max(abs(self.low), abs(self.high)) < 1 << 50 else _BINS
        try:
            counts, edges = np.histogram(values, bins=bins)
        except ValueError:  # a range too small, or too large, for floats to be cut into bins
            return None
        return tuple(counts.tolist()), tuple(edges.tolist())


class _Column:
    """One column on the way."""

    def __init__(self, name: str, dtype: pl.DataType, sample: int) -> None:
        import polars as pl

        self.name, self.given = name, str(dtype)
        self.tensor = hasattr(dtype, "ext_storage")  # an Arrow extension type, which older releases of Polars have as its storage
        self.dtype: Any = dtype.ext_storage() if hasattr(dtype, "ext_storage") else dtype
        dtype = self.dtype
        self.count = self.nulls = self.strange = self.broken = self.tried = 0
        self.numbers = _Numbers(sample)
        self.least: Any = None
        self.greatest: Any = None
        self.images = Together()
        self.encoded = dtype == pl.Binary or (isinstance(dtype, pl.Struct) and any(f.name == "bytes" and f.dtype == pl.Binary for f in dtype.fields))
        plain = dtype.is_numeric() or dtype.is_temporal() or dtype in (pl.String, pl.Boolean, pl.Categorical, pl.Enum)
        self.ordered = plain
        self.distinct: Counter[Any] | None = Counter() if plain else None
        self.over = False
        self._characters = 0
        self.of = "length" if dtype in (pl.String, pl.Categorical, pl.Enum, pl.List) else "bytes" if self.encoded else ""
        if isinstance(dtype, pl.Array) and _innermost(dtype).is_numeric():
            self.of = "elements"

    def add(self, series: pl.Series) -> None:
        import polars as pl

        if self.tensor:
            series = series.ext.storage()
        given = series.drop_nulls()
        self.nulls += len(series) - len(given)
        self.count += len(given)
        if not len(given):
            return
        dtype = self.dtype
        if self.ordered:
            self._order(given)
            self._distinct(given)
        if dtype.is_numeric() or dtype == pl.Boolean:
            self._number(given)
        elif self.of == "length":
            self._number(given.list.len() if dtype == pl.List else given.cast(pl.String).str.len_chars())
        elif self.of == "elements":
            while isinstance(given.dtype, pl.Array):
                given = given.explode()
            self._number(given.drop_nulls())
        elif self.encoded:
            data = (given if dtype == pl.Binary else given.struct.field("bytes")).drop_nulls()
            self._number(data.bin.size())
            self._look(data)

    def _number(self, given: pl.Series) -> None:
        import polars as pl

        values = given.cast(pl.Float64, strict=False).to_numpy()
        finite = values[np.isfinite(values)]
        self.strange += len(values) - len(finite)
        self.numbers.add(finite)

    def _order(self, given: pl.Series) -> None:
        import polars as pl

        if self.dtype in (pl.Categorical, pl.Enum):
            given = given.cast(pl.String)
        low, high = given.min(), given.max()
        if low is not None and low == low:
            self.least = low if self.least is None else min(self.least, low)
            self.greatest = high if self.greatest is None else max(self.greatest, high)

    def _distinct(self, given: pl.Series) -> None:
        if self.distinct is None:
            return
        for value, count in given.value_counts().iter_rows():
            if value not in self.distinct:
                self._characters += len(value) if isinstance(value, str) else 0
            self.distinct[value] += count
        if len(self.distinct) > DISTINCT or self._characters > _DISTINCT_TEXT:
            self.distinct, self.over = None, True

    def _look(self, data: pl.Series) -> None:
        """Headers of images, as long as there are any."""
        if self.tried >= _TRIED and not self.images.count:
            return
        for value in data:
            self.tried += 1
            if kind_of("", value[:HEAD]).name != "image":
                self.broken += 1
                continue
            try:
                header = read_header(value)
            except OpError:
                self.broken += 1
                continue
            self.images.add(None, header)  # type: ignore[arg-type]
            if self.tried >= _TRIED and not self.images.count:
                return

    def figures(self) -> ColumnFigures:
        pictured = self.images.count > 0
        return ColumnFigures(
            name=self.name,
            type=self.given,
            of=self.of,
            count=self.count,
            nulls=self.nulls,
            strange=self.strange,
            unique=None if self.distinct is None else len(self.distinct),
            over=self.over,
            least=_shown(self.least),
            greatest=_shown(self.greatest),
            top=tuple((_shown(value), count) for value, count in self._top()),
            images=self.images.stats() if pictured else None,
            broken=self.broken if pictured else 0,
            **self.numbers.figures(),
        )

    def _top(self) -> list[tuple[Any, int]]:
        if not self.distinct:
            return []
        # by count, then by value, so that equal counts have one order whatever the batches were
        return sorted(self.distinct.items(), key=lambda item: (-item[1], str(item[0])))[:_TOP]


def _innermost(dtype: Any) -> Any:
    while hasattr(dtype, "inner"):
        dtype = dtype.inner
    return dtype


def _shown(value: Any) -> str:
    return "" if value is None else cut(one_line(value[:200]), 60) if isinstance(value, str) else short(value, 60)


class _Files:
    """Images that a scan of files lists, by its columns `path`, `width`, `height` and `format`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.images = Together()
        self._reads = {"path", "width", "height", "format"} <= set(names)

    def add(self, part: pl.DataFrame) -> None:
        if self._reads:
            for width, height, kind in part.select("width", "height", "format").drop_nulls().iter_rows():
                if isinstance(width, int) and isinstance(height, int) and isinstance(kind, str) and min(width, height) > 0:
                    self.images.add(None, Header(height, width, kind))  # type: ignore[arg-type]

    def onto(self, columns: Sequence[ColumnFigures]) -> Iterator[ColumnFigures]:
        """The columns, that of paths with the figures of the images."""
        told = {name: value for name, value in self.images.stats().items() if name not in ("channels", "exif_rotated")}  # not known here
        for column in columns:
            yield replace(column, images=told) if column.name == "path" and self.images.count else column
