"""Ops are declared once: checks, factories, slot methods, kernels, fusions, executors, signature."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataio
from dataio.engine import registry
from dataio.engine.arguments import Offset, Pixels, Probability, Size
from dataio.engine.calls import OpCall, Transform
from dataio.engine.errors import PlanError
from dataio.engine.registry import (
    lookup,
    register_check,
    register_fusion,
    register_kernel,
    register_op,
    slot_methods,
)
from dataio.engine.schema import Takes, TensorType

from .helpers import npy, numbers, ops, run

__all__ = ["ops"]
pytestmark = pytest.mark.usefixtures("ops")
ROOT = Path(__file__).parents[2]


def add(value: np.ndarray, *, amount: Offset = 1, times: Size = 1, label: str | None = None) -> np.ndarray:
    """Add `amount`, `times` times."""
    return np.asarray(value + np.asarray(amount * times, value.dtype))


def same(given: TensorType, **_: Any) -> TensorType:
    return given


def transform(name: str, **arguments: Any) -> OpCall:
    return lookup(name, "transform").call(**arguments)


def test_the_function_is_handed_back_unchanged() -> None:
    assert register_op("add_probe")(add) is add


def test_factory_slot_method_and_signature() -> None:
    register_op("add_probe", positional=("amount",))(add)
    factory = dataio.transforms.add_probe  # type: ignore[attr-defined]
    assert factory.__name__ == "add_probe"
    assert factory.__doc__ == "Add `amount`, `times` times."
    parameters = inspect.signature(factory).parameters
    assert [(p.name, p.default, p.kind.name) for p in parameters.values()] == [
        ("amount", 1, "KEYWORD_ONLY"),
        ("times", 1, "KEYWORD_ONLY"),
        ("label", None, "KEYWORD_ONLY"),
    ]
    assert "add_probe" in dir(dataio.transforms)
    assert slot_methods()["add_probe"] is lookup("add_probe", "transform")
    slot = dataio.slot("x").decode_npy()
    assert "add_probe" in dir(slot)
    assert slot.add_probe(3).transforms == (factory(amount=3),)  # type: ignore[attr-defined]
    assert slot.add_probe(amount=3, times=2).transforms == (factory(amount=3, times=2),)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="at most 1"):
        slot.add_probe(3, 2)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="twice"):
        slot.add_probe(3, amount=2)  # type: ignore[attr-defined]


def test_how_the_slot_method_may_differ() -> None:
    register_op("add_probe", method="plus", method_defaults={"amount": 5}, method_hides=("label",))(add)
    slot = dataio.slot("x").decode_npy()
    (call,) = slot.plus().transforms  # type: ignore[attr-defined]
    assert call.arguments == {"amount": 5, "times": 1, "label": None}
    with pytest.raises(TypeError, match="the factory add_probe"):
        slot.plus(label="a")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        slot.add_probe()  # type: ignore[attr-defined]


def test_calls_are_values() -> None:
    register_op("add_probe")(add)
    call = transform("add_probe", amount=np.int64(3))
    assert call == transform("add_probe", amount=3)
    assert hash(call) == hash(transform("add_probe", amount=3))
    assert str(call) == "add_probe(amount=3)"
    assert str(transform("add_probe")) == "add_probe()"
    assert call.canonical() == {
        "op": "add_probe",
        "version": 1,
        "args": {"amount": 3, "times": 1, "label": None},
    }
    assert isinstance(call, Transform)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"amount": -1}, TypeError, r"add_probe\(amount=\) must be >= 0"),
    ({"amount": 1.5}, TypeError, "integer"),
    ({"times": 0}, ValueError, r"add_probe\(times=\) must be >= 1"),
    ({"times": dataio.col("n")}, TypeError, "literal"),
    ({"amuont": 1}, TypeError, r"did you mean 'amount'\?.*it takes: amount, times, label"),
    ({"label": 3}, TypeError, "str"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD, ids=str)
def test_arguments_are_checked_where_they_are_written(arguments: Any, error: type[Exception], message: str) -> None:
    register_op("add_probe")(add)
    with pytest.raises(error, match=message):
        dataio.transforms.add_probe(**arguments)  # type: ignore[attr-defined]
    with pytest.raises(error, match=message):
        dataio.slot("x").decode_npy().add_probe(**arguments)  # type: ignore[attr-defined]


def test_a_required_argument() -> None:
    def needy(value: Any, *, h: Pixels, prob: Probability = 0.5) -> Any:
        return value

    register_op("needy")(needy)
    with pytest.raises(TypeError, match="needy\\(\\) needs the argument 'h'"):
        transform("needy")


def test_a_check_sees_all_arguments() -> None:
    def pair(value: Any, *, low: int, high: int) -> Any:
        return value

    def check(low: int, high: int) -> dict[str, Any]:
        if low > high:
            raise ValueError("low > high")
        return {"low": low, "high": high}

    register_op("pair")(pair)
    register_check("pair")(check)
    assert transform("pair", low=1, high=2).arguments == {"low": 1, "high": 2}
    with pytest.raises(ValueError, match="low > high"):
        transform("pair", low=3, high=2)


REFUSED: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "no identifier": (add, {"name": "not a name"}, ValueError, "identifier"),
    "no name": (add, {"name": ""}, ValueError, "identifier"),
    "no such kind": (add, {"name": "x", "kind": "filter"}, ValueError, "decoder, transform, batch_transform"),
    "no function": (3, {"name": "x"}, TypeError, "callable"),
    "two positional": (lambda value, size: value, {"name": "x"}, TypeError, "keyword-only"),
    "none positional": (lambda *, size: size, {"name": "x"}, TypeError, "keyword-only"),
    "any keywords": (lambda value, **rest: value, {"name": "x"}, TypeError, "keyword-only"),
}


@pytest.mark.parametrize(("function", "facts", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_declarations_are_checked(function: Any, facts: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        register_op(**facts)(function)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match=r"transform 'resize' is already registered by dataio\.formats"):
        register_op("resize")(add)
    register_op("add_probe")(add)
    register_op("add_probe", version=2)(add)  # the same function again: a module that is reloaded
    assert lookup("add_probe", "transform").version == 2


def test_a_clash_shows_before_the_built_in_ops_are_loaded() -> None:
    code = (
        "import dataio\n"
        "try:\n    dataio.register_op('resize')(lambda value: value)\n"
        "except ValueError as error:\n    print('refused:', error)\n"
        "print(dataio.slot('x').decode_image().resize(h=2, w=3).transforms[0])\n"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert out.stdout.startswith("refused: transform 'resize' is already registered by dataio.formats")
    assert out.stdout.endswith("resize(h=2, w=3)\n")


def test_unknown_names_suggest_the_close_one() -> None:
    with pytest.raises(PlanError, match=r"no transform is called 'resise' \(did you mean 'resize'\?\)"):
        lookup("resise", "transform")
    with pytest.raises(AttributeError, match=r"did you mean 'center_crop'\?"):
        dataio.transforms.centre_crop  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"did you mean 'resize_short'\?"):
        dataio.slot("x").resize_shrot  # type: ignore[attr-defined]  # noqa: B018


# -------------------------------------------------------------------- running


def source(n: int = 5) -> list[dict[str, Any]]:
    return [{"x": npy(np.full((2, 3), i, np.int32)), "by": i} for i in range(n)]


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("infer", [None, same], ids=["by-row", "allocated"])
def test_an_op_runs_on_both_executors(workers: str, infer: Any) -> None:
    register_op("add_probe", infer=infer)(add)
    found = run(numbers(transform("add_probe", amount=2, times=3)), source(), workers=workers)
    assert [row[0][0] for b in found for row in b["slots"]["x"]] == [6, 7, 8, 9, 10]


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_dynamic_arguments(workers: str) -> None:
    register_op("add_probe")(add)
    pipe = numbers(transform("add_probe", amount="by"), size=5)
    assert pipe.required_columns() == {"sources": ["x"], "scalars": ["by"], "groupers": []}
    (found,) = run(pipe, source(), workers=workers)
    assert [row[0][0] for row in found["slots"]["x"]] == [0, 2, 4, 6, 8]
    bad = [*source(2), {"x": npy(1)}, {"x": npy(1), "by": "7"}, {"x": npy(1), "by": 1.0}, {"x": npy(1), "by": -1}]
    (found,) = run(numbers(transform("add_probe", amount="by"), size=9), bad, workers=workers)
    assert found["errors"] == [
        (2, "x", "transform", "add_probe", "MissingFieldError"),
        (3, "x", "transform", "add_probe", "TypeError"),
        (4, "x", "transform", "add_probe", "TypeError"),
        (5, "x", "transform", "add_probe", "TypeError"),
    ]


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_decoder_of_ones_own(workers: str) -> None:
    register_op("hexa", kind="decoder")(decode_hexa)
    slot = dataio.slot("x").decode_hexa(base=16)  # type: ignore[attr-defined]
    (found,) = run(dataio.pipeline(slot, dataio.batch(9)), [b"ff", b"10", b"zz"], workers=workers)
    assert found["slots"]["x"] == [255, 16]
    assert found["errors"] == [(2, "x", "decode", "hexa", "ValueError")]


def decode_hexa(data: Any, *, base: Size = 16) -> np.ndarray:
    return np.array(int(bytes(data), base))


def test_what_an_op_takes_is_proved_or_checked_per_row() -> None:
    register_op("add_probe", takes=Takes(dtypes=("int32",), ranks=(2,)))(add)
    (found,) = run(numbers(transform("add_probe")), [*source(1), {"x": npy(np.zeros((2, 3)))}, {"x": npy(np.int32(1))}])
    assert [e[0] for e in found["errors"]] == [1, 2]
    slot = dataio.slot("x").decode_image().apply(transform("add_probe"))
    with pytest.raises(ValueError, match="slot 'x': add_probe takes int32"):
        run(dataio.pipeline(slot, dataio.batch(2)), [])


def test_an_op_that_breaks_its_own_declaration_is_a_row_error() -> None:
    register_op("liar", infer=lambda given: TensorType((2,), "int32"))(lambda value: value)
    (found,) = run(numbers(transform("liar"), size=9), source(2))
    assert [e[3:] for e in found["errors"]] == [("liar", "OpError")] * 2


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_the_out_kernel_writes_into_the_batch(workers: str) -> None:
    def infer(given: TensorType, **_: Any) -> TensorType:
        return TensorType((2, 3), "int32")

    register_op("add_probe", infer=infer)(add)
    register_kernel("add_probe", "out")(add_into)
    (found,) = run(numbers(transform("add_probe", amount=1), size=9), source(3), workers=workers)
    assert [row[0][0] for row in found["slots"]["x"]] == [100, 101, 102]


def add_into(value: np.ndarray, out: np.ndarray, *, amount: int, times: int, label: str | None) -> None:
    """A result of its own, to see that this form ran."""
    assert out.base is not None
    out[...] = value + 99 + amount


def test_the_batched_kernel_takes_the_whole_column() -> None:
    columns: list[int] = []
    register_op("hexa", kind="decoder")(decode_hexa)

    def batched(values: Any, *, base: int) -> Any:
        columns.append(len(values))
        return None if len(values) == 1 else np.array([int(bytes(v), base) for v in values])

    register_kernel("hexa", "batched", kind="decoder")(batched)
    slot = dataio.slot("x").decode_hexa()  # type: ignore[attr-defined]
    found = run(dataio.pipeline(slot, dataio.batch(4)), [b"1", b"2", b"zz", b"4", b"5", b"6", b"7", b"8", b"9"])
    assert sorted(columns) == [1, 4, 4]  # workers take them in any order
    assert [b["slots"]["x"] for b in found] == [[1, 2, 4], [5, 6, 7, 8], [9]]
    assert found[0]["errors"] == [(2, "x", "decode", "hexa", "ValueError")]


def test_setup_runs_once_per_worker_thread() -> None:
    import threading

    seen: list[str] = []
    register_op("add_probe")(add)
    register_kernel("add_probe", "setup")(lambda: seen.append(threading.current_thread().name))
    run(numbers(transform("add_probe"), size=1), source(20))
    assert seen
    assert len(set(seen)) == len(seen)
    assert all(name.startswith("dataio-worker-") for name in seen)


def test_a_fusion_of_ones_own() -> None:
    register_op("add_probe")(add)

    @register_fusion("add_twice")
    def add_twice(first: OpCall, second: OpCall) -> tuple[OpCall, ...] | None:
        """add_probe(a), add_probe(b) -> add_probe(a + b)"""
        if not (first.name == second.name == "add_probe"):
            return None
        return (transform("add_probe", amount=first.arguments["amount"] + second.arguments["amount"]),)

    pipe = numbers(*(transform("add_probe", amount=k) for k in (1, 2, 3)), size=9)
    text = pipe.bind(source()).explain()
    assert "Rules that fired: add_twice" in text
    assert text.endswith("x: npy() -> add_probe(amount=6)\n  Batch size=9, drop_last=False, prefetch=4")
    (found,) = run(pipe, source())
    assert [row[0][0] for row in found["slots"]["x"]] == [6, 7, 8, 9, 10]


SCRIPT = """
import io, sys
import numpy as np
import dataio
from dataio.engine.arguments import Pixels

class Table:
    offset = 10

@dataio.register_op("main_probe")
def main_probe(value: np.ndarray, *, k: Pixels = 2) -> np.ndarray:
    "Multiply by k."
    return value * k + Table.offset

def npy(value):
    out = io.BytesIO()
    np.save(out, value)
    return out.getvalue()

if __name__ == "__main__":
    records = [{"x": npy(np.full(2, i)), "k": i + 1} for i in range(5)]
    pipe = dataio.pipeline(
        dataio.map(lambda r: {**r, "k": r["k"] + 1}),
        dataio.slot("x").decode_npy().main_probe(k="k"),
        dataio.batch(5),
    )
    with pipe.bind(records).run("numpy", workers=sys.argv[1]) as loader:
        for batch in loader:
            print(batch["x"][:, 0].tolist(), batch.errors)
"""


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_an_op_of_main(tmp_path: Path, workers: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    out = subprocess.run(
        [sys.executable, str(script), workers],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": ""},
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert out.stdout == "[10, 13, 18, 25, 34] []\n", out.stderr


def test_hidden_ops_have_no_factory() -> None:
    register_op("hidden_probe", hidden=True)(add)
    assert lookup("hidden_probe", "transform").hidden
    assert "hidden_probe" not in dir(dataio.transforms)
    with pytest.raises(AttributeError):
        dataio.slot("x").hidden_probe  # type: ignore[attr-defined]  # noqa: B018


def test_providers_are_imported_on_first_look() -> None:
    code = (
        "from dataio.engine import registry\n"
        "registry.provide_ops('extra_ops')\n"
        "import sys; assert 'extra_ops' not in sys.modules\n"
        "import dataio; dataio.slot('x').passthrough().from_extra()\n"
        "assert 'extra_ops' in sys.modules\n"
    )
    module = "from dataio.engine.registry import register_op\ndef load_ops():\n    register_op('from_extra')(lambda value: value)\n"
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "extra_ops.py").write_text(module)
        path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, timeout=60, check=True)
    assert "extra_ops" not in registry._providers
