"""Argument checks made from annotations."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

import dataio
from dataio.engine.arguments import (
    Count,
    Offset,
    Pixels,
    Positive,
    Probability,
    Size,
    check_dynamic,
    check_value,
)
from dataio.engine.expr import Col, ConstValue, ParamRef

ACCEPTED: list[tuple[Any, Any, Any]] = [
    (Size, 3, 3),
    (Size, np.int16(3), 3),
    (Count, 0, 0),
    (Probability, 1, 1.0),
    (Probability, np.float32(0.5), 0.5),
    (Positive, 0.25, 0.25),
    (bool, True, True),
    (str, "a", "a"),
    (Literal["a", "b"], "b", "b"),
    (int | None, None, None),
    (int | None, 4, 4),
    (tuple[float, ...], [1, 2.5], (1.0, 2.5)),
    (tuple[float, ...], np.array([1.0, 2.0]), (1.0, 2.0)),
    (tuple[int, int], (1, 2), (1, 2)),
    (dict, {"free": "form"}, {"free": "form"}),
]


@pytest.mark.parametrize(("annotation", "value", "expected"), ACCEPTED, ids=str)
def test_accepted(annotation: Any, value: Any, expected: Any) -> None:
    found = check_value(annotation, "op(x=)", value)
    assert found == expected
    assert type(found) is type(expected)


REFUSED: list[tuple[Any, Any, type[Exception], str]] = [
    (Size, True, TypeError, "integer"),
    (Size, 2.0, TypeError, "integer"),
    (Size, "3", TypeError, "integer"),
    (Size, -1, TypeError, ">= 1"),
    (Size, 0, ValueError, ">= 1"),
    (Count, -1, TypeError, ">= 0"),
    (Probability, 1.5, ValueError, "<= 1"),
    (Probability, -0.5, ValueError, ">= 0"),
    (Probability, True, TypeError, "number"),
    (Probability, float("nan"), ValueError, "finite"),
    (Probability, "0.5", TypeError, "number"),
    (Positive, 0.0, ValueError, "> 0"),
    (Positive, float("inf"), ValueError, "finite"),
    (bool, 1, TypeError, "bool"),
    (str, 1, TypeError, "str"),
    (Literal["a", "b"], "c", ValueError, "'a', 'b'"),
    (Literal["a", "b"], None, TypeError, "'a', 'b'"),
    (tuple[float, ...], "12", TypeError, "sequence"),
    (tuple[float, ...], (), ValueError, "empty"),
    (tuple[float, ...], (1.0, "a"), TypeError, r"x=\)\[1\]"),
    (tuple[int, int], (1,), ValueError, "2 entries"),
    (int, Col("h"), TypeError, "literal"),
    (float, ParamRef("p"), TypeError, "literal"),
]


@pytest.mark.parametrize(("annotation", "value", "error", "message"), REFUSED, ids=str)
def test_refused(annotation: Any, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        check_value(annotation, "op(x=)", value)
    assert "op(x=)" in str(caught.value)


@pytest.mark.parametrize("annotation", [Pixels, Offset])
def test_dynamic_parameters_take_references(annotation: Any) -> None:
    assert check_dynamic(annotation, "h", Col("height")) == Col("height")
    assert check_dynamic(annotation, "h", "height") == Col("height")
    assert check_dynamic(annotation, "h", ParamRef("p")) == ParamRef("p")
    assert check_dynamic(annotation, "h", ConstValue(7)) == 7
    assert check_dynamic(annotation, "h", np.uint8(7)) == 7
    for bad in (2.5, True, -1):
        with pytest.raises(TypeError):
            check_dynamic(annotation, "h", bad)
        with pytest.raises(TypeError):
            check_dynamic(annotation, "h", ConstValue(bad))


def test_literal_parameters_refuse_references() -> None:
    slot = dataio.slot("image").decode_image()
    with pytest.raises(TypeError, match="literal"):
        slot.resize_short(dataio.col("size"))
    with pytest.raises(TypeError, match="literal"):
        slot.random_resized_crop(h=dataio.col("h"), w=4)
