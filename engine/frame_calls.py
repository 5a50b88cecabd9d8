"""Methods of a Polars query as values: what a `Relation` of the plan holds.

An expression of Polars has no equality that a plan could use, so it is wrapped with its serialised form, which is compared and signed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import polars as pl

    from .plan import Plan

Lower = Callable[["Plan"], "pl.LazyFrame"]
"""Gives the Polars query of another plan, for calls that take one (a join)."""


class FrameStep(Protocol):
    """A step from one Polars query to the next. A value: hashable, compared by content."""

    def apply(self, frame: pl.LazyFrame, lower: Lower) -> pl.LazyFrame:
        """The step on `frame`."""

    def canonical(self) -> dict[str, Any]:
        """Nested plain dicts, equal for equal steps; part of a plan's signature."""

    def rows(self, rows: int) -> int | None:
        """How many rows come out of so many, None where that depends on their values."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameExpr:
    """A Polars expression that is compared by its serialised form."""

    expr: pl.Expr
    key: str

    @staticmethod
    def of(expr: pl.Expr) -> FrameExpr:
        """Wrap an expression; one that cannot be serialised is known by its text."""
        try:
            form = expr.meta.serialize(format="json")
        except Exception:  # a Python function inside that cannot be pickled
            form = str(expr)
        return FrameExpr(expr, hashlib.sha256(form.encode()).hexdigest())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrameExpr) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return " ".join(str(self.expr).split())

    def canonical(self) -> dict[str, Any]:
        return {"polars": self.key}


@dataclass(frozen=True, slots=True)
class FrameCall:
    """A method of a LazyFrame with its arguments: texts, numbers, `FrameExpr`s, plans, and tuples of these; `then` is called on the result."""

    method: str
    args: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    then: FrameCall | None = None

    def apply(self, frame: pl.LazyFrame, lower: Lower) -> pl.LazyFrame:
        args = [_given(value, lower) for value in self.args]
        made: Any = getattr(frame, self.method)(*args, **{name: _given(value, lower) for name, value in self.options})
        return made if self.then is None else self.then.apply(made, lower)

    def canonical(self) -> dict[str, Any]:
        found: dict[str, Any] = {"call": self.method, "args": _canonical(self.args), "options": {n: _canonical(v) for n, v in self.options}}
        return found if self.then is None else {**found, "then": self.then.canonical()}

    @property
    def keeps_rows(self) -> bool:
        """Whether each row comes out as one row, if in another place or with other columns."""
        return self.method in ("with_columns", "sort")

    def rows(self, rows: int) -> int | None:
        return rows if self.keeps_rows else None

    def __str__(self) -> str:
        parts = [_text(value) for value in self.args] + [f"{name}={_text(value)}" for name, value in self.options]
        then = "" if self.then is None else f".{self.then}"
        return f"{self.method}({', '.join(parts)}){then}"


def expressions_in(step: FrameCall) -> Iterator[FrameExpr]:
    """The expressions among the arguments of a step."""
    for value in (*step.args, *(value for _, value in step.options)):
        yield from (item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, FrameExpr))
    if step.then is not None:
        yield from expressions_in(step.then)


def _given(value: Any, lower: Lower) -> Any:
    from .plan import Plan

    if isinstance(value, FrameExpr):
        return value.expr
    if isinstance(value, Plan):
        return lower(value)
    return [_given(item, lower) for item in value] if isinstance(value, tuple) else value


def _canonical(value: Any) -> Any:
    from .plan import Plan
    from .signature import canonical_plan

    if isinstance(value, FrameExpr):
        return value.canonical()
    if isinstance(value, Plan):
        return canonical_plan(value)
    return [_canonical(item) for item in value] if isinstance(value, tuple) else value


def _text(value: Any) -> str:
    from .explain import plan_text
    from .plan import Plan

    if isinstance(value, Plan):
        return "[" + "; ".join(line.strip() for line in plan_text(value).splitlines()) + "]"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return str(value) if isinstance(value, FrameExpr) else repr(value)


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows drawn without replacement, in their order: `count` of them, or each with probability `fraction`.

    Row i is drawn by a hash of (seed, i), so the same rows come out wherever and however often the plan runs.
    """

    count: int | None
    fraction: float | None
    seed: int

    def apply(self, frame: pl.LazyFrame, lower: Lower) -> pl.LazyFrame:
        import polars as pl

        names = frame.collect_schema().names()
        row, draw = free_name("row", names), free_name("draw", names)
        drawn = frame.with_row_index(row).with_columns(_hashed(pl.col(row).cast(pl.UInt64), self.seed).alias(draw))
        if self.fraction is not None:
            below = int(self.fraction * 2**64)
            kept = drawn if below >= 2**64 else drawn.filter(pl.col(draw) < pl.lit(below, pl.UInt64))
        else:
            kept = drawn.bottom_k(min(self.count or 0, 2**32 - 1), by=[draw, row]).sort(row)
        return kept.select(names)

    def canonical(self) -> dict[str, Any]:
        return {"sample": self.count, "fraction": self.fraction, "seed": self.seed}

    def rows(self, rows: int) -> int | None:
        return None if self.count is None else min(rows, self.count)

    def __str__(self) -> str:
        what = f"n={self.count}" if self.fraction is None else f"fraction={self.fraction}"
        return f"sample({what}, seed={self.seed})"


def _hashed(number: pl.Expr, seed: int) -> pl.Expr:
    """SplitMix64 of `number` and the seed. Polars' own hash may change between its versions."""
    import polars as pl

    def literal(value: int) -> pl.Expr:
        return pl.lit(value % 2**64, pl.UInt64)

    x = number * literal(0x9E3779B97F4A7C15) + literal((seed + 1) * 0xD1342543DE82EF95)
    x = (x ^ (x // literal(2**30))) * literal(0xBF58476D1CE4E5B9)
    x = (x ^ (x // literal(2**27))) * literal(0x94D049BB133111EB)
    return x ^ (x // literal(2**31))


def free_name(wanted: str, names: Iterable[str]) -> str:
    """A column name that is not taken."""
    taken, name = set(names), f"__{wanted}"
    while name in taken:
        name = f"_{name}"
    return name
