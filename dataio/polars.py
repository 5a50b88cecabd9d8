"""Every op as a Polars expression. Importing this module registers the namespace `dio`:

    import dataio.polars
    frame.with_columns(thumb=pl.col("image").dio.decode_image().dio.resize(h=64, w=64))

A chain begins with a decoder, has the methods of `dataio.slot`, and runs as one: what is between its ops is no column. It runs in parallel by the engine that
runs pipelines. `dataio.col("h")` as an argument reads another column. Columns have the types that `Query.with_slots` gives them; a null stays null.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import pyarrow as pa

from .arrow_columns import type_of_rows
from .arrow_function import ArrowFunction, arrow_function, warn_of_failures
from .engine.calls import draws
from .engine.errors import PlanError
from .engine.physical import compile_chain
from .engine.relational import frame_batches, frame_of, frame_schema
from .pipelines import Pipeline
from .slot_methods import SlotMethods
from .stages import SlotStage

__all__ = ["SlotExpr"]
_CHAIN = "_dataio_chain"
"""Attribute of an expression that a chain made, by which the chain goes on."""
ON_FAILURE = ("null", "raise")


@pl.api.register_expr_namespace("dio")
class SlotExpr(SlotMethods):
    """Ops on the values of an expression: `expr.dio.decode_image()` and every other method of `dataio.slot` give an expression.

    Raises:
        PlanError: a chain that does not begin with a decoder, an optional slot, ops that do not fit together.
        TypeError, ValueError: arguments, as for `dataio.slot`.
    """

    def __init__(self, expr: pl.Expr) -> None:
        found = getattr(expr, _CHAIN, None)
        if found is None:
            name = expr.meta.output_name(raise_if_undetermined=False) or "value"
            found = Chained(expr, SlotStage(name))
        self._chain: Chained = found

    @property
    def output(self) -> str:
        """The name that errors give."""
        return self._chain.stage.output

    @property
    def transforms(self) -> tuple[Any, ...]:
        """Those of the chain so far."""
        return self._chain.stage.transforms

    def apply(self, *things: Any) -> pl.Expr:
        """Append transforms, or a decoder if there is none yet, or an unbound `dataio.chain()`, as `dataio.slot(...).apply` does."""
        return replace(self._chain, stage=self._chain.stage.apply(*things)).expr()

    def decode(self, decoder: Any) -> pl.Expr:
        """Set the decoder, from `dataio.decoders`."""
        return replace(self._chain, stage=self._chain.stage.decode(decoder)).expr()

    def typed(self, kind: pa.DataType) -> pl.Expr:
        """Say the Arrow type of the result, where it is not known before the chain runs (`decode_npy` without `cast`).

        Raises:
            TypeError: no Arrow type.
        """
        if not isinstance(kind, pa.DataType):
            raise TypeError(f"typed() takes a pyarrow.DataType, got {kind!r}")
        return replace(self._chain, kind=kind).expr()

    def on_failure(self, what: str) -> pl.Expr:
        """What becomes of a value that an op fails on: "null" (unless said otherwise), with a warning on `dataio.rows` that says how many and why, or
        "raise": BatchError.

        Raises:
            ValueError: neither.
        """
        if what not in ON_FAILURE:
            raise ValueError(f"on_failure must be one of {', '.join(map(repr, ON_FAILURE))}, got {what!r}")
        return replace(self._chain, failing=what).expr()


@dataclass(frozen=True, slots=True)
class Chained:
    """A chain over the values of an expression."""

    base: pl.Expr
    stage: SlotStage
    kind: pa.DataType | None = None
    failing: str = "null"

    def expr(self) -> pl.Expr:
        """The expression, which knows its chain."""
        chain = self.stage
        if chain.decoder is None:
            raise PlanError("a chain of dio begins with a decoder: .dio.decode_image(), or .dio.decode_array() for a column of tensors or numbers")
        calls = chain.to_chain().calls
        columns = chain.to_chain().columns()
        name = chain.output if chain.output not in columns else _free(chain.output, columns)
        run = ChainRun(replace(chain, output=name), self.kind, self.failing, columns)
        given = pl.struct(self.base.alias(name), *columns) if columns else self.base
        made = given.map_batches(run, return_dtype=run.dtype(), is_elementwise=not any(map(draws, calls)))
        if columns and (own := self.base.meta.output_name(raise_if_undetermined=False)) is not None:
            made = made.alias(own)
        setattr(made, _CHAIN, self)
        return made


def _free(name: str, taken: Iterable[str]) -> str:
    while name in taken:
        name += "_"
    return name


@dataclass(frozen=True)
class ChainRun:
    """What Polars calls with a column, or a part of one."""

    stage: SlotStage
    kind: pa.DataType | None
    failing: str
    columns: tuple[str, ...]

    def function(self) -> ArrowFunction:
        slot = self.stage.output
        return arrow_function(
            Pipeline((self.stage,)), columns=(), errors=None if self.failing == "raise" else _free("error", [slot]),
            types={} if self.kind is None else {slot: self.kind}, nulls=True,
        )  # fmt: skip

    def dtype(self) -> pl.DataType | None:
        """The type of the result; None where that of the column tells it. A chain of no known type may go on, but is refused when it runs."""
        self.function()  # it checks the chain
        if self.kind is not None:
            return _dtype(self.kind)
        chain = self.stage.to_chain()
        if chain.decoder.name in ("array", "passthrough"):
            return None
        found = type_of_rows(compile_chain(chain).type)
        return pl.Null() if found is None else _dtype(found)

    def __call__(self, values: pl.Series) -> pl.Series:
        function, slot = self.function(), self.stage.output
        frame = values.struct.unnest() if self.columns else values.to_frame(slot)
        schema = function.schema(frame_schema(frame.schema))
        table = pa.Table.from_batches(function(frame_batches(frame)), schema)
        if function.errors is not None and (failed := table.num_rows - table[function.errors].null_count):
            warn_of_failures("dio", failed, table.num_rows, table[function.errors].drop_null()[0].as_py())
        return frame_of(table.select([slot])).to_series().rename(values.name)


def _dtype(kind: pa.DataType) -> pl.DataType:
    return frame_of(pa.schema([("value", kind)]).empty_table()).dtypes[0]
