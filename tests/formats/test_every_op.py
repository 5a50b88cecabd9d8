"""What must hold for every op, whatever it does; the examples are in `op_examples.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import dataio
from dataio.engine.calls import OpCall, draws
from dataio.engine.errors import OpError, PlanError
from dataio.engine.physical import compile_calls
from dataio.engine.registry import OpSpec, specs
from dataio.engine.schema import Takes, TensorType, type_of
from dataio.engine.work import BoundBody, Row, bind_steps
from dataio.formats import OP_MODULES
from dataio.io.ranges import open_ranges

from .helpers import injected
from .op_examples import DECODERS, ELSEWHERE, EXAMPLES, DecoderExample, Example, npy, registered

MODULES = {f"dataio.formats.{module}" for module in OP_MODULES}
BUILT_IN = {
    kind: {spec.name: spec for spec in specs(kind) if spec.function.__module__ in MODULES}
    for kind in ("decoder", "transform")
}
DECLARED: list[Example] = registered(EXAMPLES, set(BUILT_IN["transform"]))
READ: list[DecoderExample] = registered(DECODERS, set(BUILT_IN["decoder"]))
CHECKED = [spec for spec in BUILT_IN["transform"].values() if spec.takes != Takes()]

every_example = pytest.mark.parametrize("example", DECLARED, ids=lambda example: example.name)
every_transform = pytest.mark.parametrize("spec", BUILT_IN["transform"].values(), ids=lambda spec: spec.name)


def bound(call: OpCall, given: TensorType, seed: int) -> tuple[Any, Row]:
    """The call, compiled for values of type `given`, and the row that holds its random stream."""
    row = Row({}, 1)
    row.rng = np.random.default_rng(seed)
    (step,) = bind_steps(compile_calls((call,), given, "x")[0], row)
    return step, row


def run(example: Example, value: np.ndarray, seed: int = 0) -> np.ndarray:
    """The plain function on one value, as the engine calls it."""
    step, row = bound(example.call, type_of(value, example.layout), seed)
    found = BoundBody((step,), row)(value)
    assert isinstance(found, np.ndarray)
    return found


def run_out(example: Example, value: np.ndarray, out: np.ndarray, seed: int = 0) -> None:
    """The `out` kernel on one value."""
    given = type_of(value, example.layout)
    step, row = bound(example.call, given, seed)
    filled = {**injected(example.call.spec, given, seed), "rng": row.rng}
    arguments = {**step.arguments, **{name: filled[name] for name in example.call.spec.injected}}
    step.out(value, out, **arguments)


def output_type(example: Example, given: TensorType) -> TensorType:
    call = example.call
    return call.spec.output_type(given, call.arguments)


def agrees(inferred: TensorType, found: np.ndarray) -> bool:
    """Whether what was inferred, as far as it commits itself, is what came out."""
    if inferred.dtype not in (None, found.dtype.name):
        return False
    if inferred.shape is None:
        return True
    return len(inferred.shape) == found.ndim and all(i in (None, n) for i, n in zip(inferred.shape, found.shape))


def test_every_op_has_an_example() -> None:
    assert set(BUILT_IN["transform"]) - {example.op for example in EXAMPLES} - set(ELSEWHERE) == set()
    assert set(BUILT_IN["decoder"]) - {example.op for example in DECODERS} == set()


@pytest.mark.parametrize("kind", ["decoder", "transform"])
def test_every_example_is_of_an_op(kind: str) -> None:
    named = {example.op for example in EXAMPLES} | set(ELSEWHERE) if kind == "transform" else {e.op for e in DECODERS}
    assert named - set(BUILT_IN[kind]) == set()  # type: ignore[index]


@every_example
def test_the_inferred_type_is_the_actual_one(example: Example) -> None:
    for shape in example.shapes:
        value = example.value(shape)
        inferred, found = output_type(example, type_of(value, example.layout)), run(example, value)
        assert agrees(inferred, found), (shape, str(inferred), found.dtype, found.shape)
        assert example.varies or inferred.static, (shape, str(inferred))
        assert inferred.layout == (example.layout if example.gives == "same" else example.gives)


@every_example
def test_what_is_inferred_of_unknown_sizes_holds(example: Example) -> None:
    value = example.value()
    found = run(example, value)
    channel = {"HWC": value.ndim - 1, "CHW": 0}.get(example.layout or "", -1)
    vague: list[TensorType] = [
        TensorType(tuple(n if axis == channel else None for axis, n in enumerate(value.shape)), value.dtype.name, example.layout),
        TensorType((None,) * value.ndim, value.dtype.name, example.layout),
        TensorType(None, value.dtype.name),
        TensorType(None, value.dtype.name, example.layout),
        TensorType(),
    ]  # fmt: skip
    for given in vague:
        assert agrees(inferred := output_type(example, given), found), (str(given), str(inferred), found.shape)


@every_example
def test_the_out_kernel_equals_the_plain_function(example: Example) -> None:
    if "out" not in example.call.spec.kernels:
        pytest.skip("no out kernel")
    for shape in example.shapes:
        value = example.value(shape)
        plain = run(example, value, seed=3)
        batch = np.full((3, *plain.shape), 77, plain.dtype)
        run_out(example, value, batch[1, ...], seed=3)
        np.testing.assert_array_equal(batch[1], plain)
        assert (batch[::2] == np.full((), 77, plain.dtype)).all(), "it wrote outside its row"


@every_example
def test_the_input_stays_as_it_is(example: Example) -> None:
    for shape in example.shapes:
        value = example.value(shape)
        before = value.copy()
        value.flags.writeable = False
        for seed in range(3):
            run(example, value, seed)
        np.testing.assert_array_equal(value, before)


def strided(value: np.ndarray) -> Iterator[np.ndarray]:
    """The same values in other places: with gaps, backwards, in Fortran order."""
    for axis in range(value.ndim):
        sparse = np.repeat(value, 2, axis=axis)
        yield sparse[tuple(slice(None, None, 2) if i == axis else slice(None) for i in range(value.ndim))]
        yield np.flip(np.flip(value, axis).copy(), axis)
    yield np.asfortranarray(value)


@every_example
def test_strided_inputs_give_the_same(example: Example) -> None:
    value = example.value()
    plain = run(example, value)
    for view in strided(value):
        np.testing.assert_array_equal(run(example, view), plain)
        if "out" in example.call.spec.kernels:
            out = np.empty(plain.shape, plain.dtype)
            run_out(example, view, out)
            np.testing.assert_array_equal(out, plain)


@every_example
def test_equal_streams_give_equal_results(example: Example) -> None:
    value = example.value()
    found = [run(example, value, seed) for seed in range(12)]
    for seed, first in enumerate(found):
        np.testing.assert_array_equal(run(example, value, seed), first)
    if example.chance:
        assert len({(one.shape, one.tobytes()) for one in found}) > 1
    else:
        assert all(np.array_equal(one, found[0], equal_nan=one.dtype.kind == "f") for one in found)


@every_transform
def test_only_random_ops_get_a_stream(spec: OpSpec) -> None:
    assert ("rng" in spec.injected) == spec.random


@every_example
def test_records_share_no_memory(example: Example) -> None:
    first, second = example.value(seed=1), example.value(seed=2)
    found = run(example, first)
    kept = found.copy()
    assert not np.shares_memory(run(example, second), found)
    np.testing.assert_array_equal(found, kept)


def refused_types(takes: Takes) -> Iterator[TensorType]:
    """Types that `takes` excludes, one for each thing it asks for."""
    dtype = takes.dtypes[0] if takes.dtypes else "uint8"
    layout = takes.layouts[0] if takes.layouts else None
    channels = takes.channels[0] if takes.channels else 3
    image = (20, 24, channels) if layout == "HWC" else (channels, 20, 24)
    shape = image if layout or not takes.ranks else (2,) * takes.ranks[0]
    if takes.dtypes:
        yield TensorType(shape, "float64" if "float64" not in takes.dtypes else "float16", layout)
    if len(takes.layouts) == 1:
        other = "CHW" if layout == "HWC" else "HWC"
        yield TensorType((channels, 20, 24) if other == "CHW" else (20, 24, channels), dtype, other)
    if takes.channels and 4 not in takes.channels:
        yield TensorType((20, 24, 4) if layout == "HWC" else (4, 20, 24), dtype, layout)
    if takes.ranks or takes.layouts:
        yield TensorType((2,) * (max(takes.ranks or (3,)) + 1), dtype)


@pytest.mark.parametrize("spec", CHECKED, ids=lambda spec: spec.name)
def test_what_an_op_does_not_take_is_refused_when_the_plan_compiles(spec: OpSpec) -> None:
    example = next((e for e in DECLARED if e.op == spec.name), None)
    arguments = {} if example is None else example.call.arguments
    refused = list(refused_types(spec.takes))
    assert refused
    for given in refused:
        with pytest.raises(PlanError, match=re.escape(f"takes {spec.takes}, got")):
            spec.output_type(given, arguments)


@pytest.mark.parametrize("spec", CHECKED, ids=lambda spec: spec.name)
def test_a_bad_record_is_lost_alone(spec: OpSpec) -> None:
    example = next((e for e in DECLARED if e.op == spec.name), None)
    if example is None:
        pytest.skip("no value of ours fits it")
    good = example.column(4)
    bad = [np.ones(tuple(n or 1 for n in t.shape or ()), t.dtype) for t in refused_types(spec.takes)]
    records = [{"x": npy(value)} for value in (*good[:2], *bad, *good[2:])]
    chain = dataio.slot("x").decode_npy().apply(example.call)
    with dataio.pipeline(chain, dataio.batch(len(records))).bind(records).run("numpy", on_failure=0) as loader:
        (batch,) = loader
    assert [error["index"] for error in batch.errors] == list(range(2, 2 + len(bad)))
    for error in batch.errors:
        assert (error["slot"], error["stage"], error["op"]) == ("x", "transform", spec.name)
        assert re.search(r"takes|wants|ambiguous", error["message"]), error["message"]
    assert len(batch["x"]) == len(good)


@pytest.mark.parametrize("workers", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_random_ops_draw_the_same_whoever_runs_them(workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [e for e in DECLARED if e.make is EXAMPLES[0].make and draws(e.call)]
    assert len({e.op for e in examples}) >= 4
    stages = [dataio.slot(e.name.replace("-", "_")).decode_npy().apply(e.call) for e in examples]
    files = [npy(value) for value in examples[0].column(7)]
    records = [{e.name.replace("-", "_"): file for e in examples} for file in files]

    def rows(kind: str, count: int) -> dict[str, list[bytes]]:
        monkeypatch.setenv("DATAIO_CPU_WORKERS", str(count))
        found: dict[str, list[bytes]] = {}
        with dataio.pipeline(*stages, dataio.batch(3)).bind(records).run("numpy", seed=5, workers=kind) as loader:
            for batch in loader:
                assert batch.errors == []
                for name in batch.slot_names:
                    found.setdefault(name, []).extend(row.tobytes() for row in batch[name])
        return found

    expected = rows("thread", 1)
    assert all(len(column) == len(files) for column in expected.values())
    assert rows(workers, 3) == expected


@every_transform
def test_the_docstring_says_what_goes_in_and_out(spec: OpSpec) -> None:
    text = spec.function.__doc__ or ""
    assert len(text.split()) > 5
    assert re.search(r"Returns:|Raises:|Args:|view|dtype|\[", text), text


@contextmanager
def source_of(example: DecoderExample) -> Iterator[Any]:
    """What the decoder is given for the example's file."""
    source = example.source()
    if example.call.spec.reads != "ranges":
        yield source
        return
    reader = open_ranges(source)
    try:
        yield reader
    finally:
        reader.close()


@pytest.mark.parametrize("example", READ, ids=lambda example: example.op)
def test_decoders_give_what_they_infer(example: DecoderExample) -> None:
    call = example.call
    with source_of(example) as source:
        found = call.spec.function(source, **call.arguments)
    inferred = call.spec.output_type(TensorType(), call.arguments)
    if example.dtype == "object":
        assert inferred.dtype == "object"
        return
    assert (found.shape, found.dtype.name) == (example.shape, example.dtype)
    assert agrees(inferred, found)
    assert found.flags.writeable
    assert found.flags.c_contiguous


@pytest.mark.parametrize("example", READ, ids=lambda example: example.op)
def test_the_out_kernel_of_a_decoder_equals_the_plain_function(example: DecoderExample) -> None:
    call = example.call
    if "out" not in call.spec.kernels:
        pytest.skip("no out kernel")
    with source_of(example) as source:
        plain = call.spec.function(source, **call.arguments)
        out = np.full(plain.shape, 77, plain.dtype)
        assert call.spec.kernels["out"](source, out, **call.arguments) is not False
    np.testing.assert_array_equal(out, plain)


@pytest.mark.parametrize("example", READ, ids=lambda example: example.op)
def test_a_damaged_file_is_an_op_error(example: DecoderExample) -> None:
    whole = example.source()
    if not isinstance(whole, bytes) or example.op in ("bytes", "text", "json"):
        pytest.skip("any bytes will do")
    decode: Callable[..., Any] = example.call.spec.function
    for data in (b"", b"\x00" * 64, whole[: min(20, len(whole) // 2)]):  # 20 bytes are less than any header
        source = open_ranges(data) if example.call.spec.reads == "ranges" else data
        with pytest.raises(OpError):
            decode(source, **example.call.arguments)
