"""What random ops draw, and when: the same for sibling slots, records of one seed, executors and worker counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dataio
from dataio import transforms
from dataio.engine.calls import OpCall, draws
from dataio.engine.schema import type_of

from .helpers import injected, noise, transform
from .op_examples import EXAMPLES, Example, npy
from .test_every_op import BUILT_IN

RANDOM = [example for example in EXAMPLES if draws(example.call)]
ALIKE = 24
"""Records that are compared: enough that two independent coins would not agree on all of them."""

every_random_example = pytest.mark.parametrize("example", RANDOM, ids=lambda example: example.name)


def test_every_random_op_is_among_the_examples() -> None:
    random = {name for name, spec in BUILT_IN["transform"].items() if spec.random}
    assert random - {example.op for example in RANDOM} == {"custom"}


def slot(name: str, *calls: OpCall) -> Any:
    return dataio.slot(name).decode_npy().apply(*calls)


def rows(stages: list[Any], records: list[dict[str, Any]], size: int = 8, **options: Any) -> dict[str, list[np.ndarray]]:
    """Each slot's rows, in order, of a run without errors."""
    found: dict[str, list[np.ndarray]] = {}
    with dataio.pipeline(*stages, dataio.batch(size)).bind(records).run("numpy", **{"seed": 3, **options}) as loader:
        for batch in loader:
            assert batch.errors == []
            for name in batch.slot_names:
                found.setdefault(name, []).extend(np.array(row) for row in batch[name])
    return found


def same(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return len(first) == len(second) and all(map(np.array_equal, first, second))


def variety(found: list[np.ndarray]) -> int:
    return len({(row.shape, row.tobytes()) for row in found})


# ---------------------------------------------------------------- streams


@every_random_example
def test_sibling_slots_draw_alike(example: Example) -> None:
    records = [dict.fromkeys("ab", npy(example.value()))] * ALIKE
    found = rows([slot("a", example.call), slot("b", example.call)], records)
    assert same(found["a"], found["b"])
    assert not example.chance or variety(found["a"]) > 1


@every_random_example
def test_a_record_with_a_seed_is_the_same_in_every_place_epoch_and_run(example: Example) -> None:
    file = npy(example.value())
    seeded, other = {"x": file, "seed": 9}, {"x": file}
    first = rows([slot("x", example.call)], [seeded, other, other, seeded, seeded])
    second = rows([slot("x", example.call)], [other, seeded], seed=77, size=1)
    assert same([first["x"][0]] * 3, [first["x"][3], first["x"][4], second["x"][1]])


@pytest.mark.parametrize("op", ["hflip", "vflip"])
def test_boxes_turn_with_their_image(op: str) -> None:
    image, table = noise(6, 7), np.array([[0.1, 0.2, 0.4, 0.5]], np.float32)
    records = [{"image": npy(image), "boxes": npy(table), **({"seed": i} if i % 2 else {})} for i in range(ALIKE)]
    stages = [slot("image", getattr(transforms, op)()), slot("boxes", getattr(transforms, f"bbox_{op}")())]
    found = rows(stages, records)
    turned = [not np.array_equal(row, image) for row in found["image"]]
    assert turned == [not np.array_equal(row, table) for row in found["boxes"]]
    assert 0 < sum(turned) < ALIKE


def test_equal_crops_cut_the_same_window() -> None:
    image = noise(20, 30)
    mask = np.arange(600, dtype=np.int32).reshape(20, 30, 1)
    records = [{"image": npy(image), "mask": npy(mask)}] * ALIKE
    crop = transforms.random_crop(h=5, w=6)
    found = rows([slot("image", crop), slot("mask", crop)], records)
    for pixels, places in zip(found["image"], found["mask"], strict=True):
        y, x = divmod(int(places[0, 0, 0]), 30)
        np.testing.assert_array_equal(pixels, image[y : y + 5, x : x + 6])
    assert variety(found["mask"]) > 1


def test_the_second_op_of_a_chain_draws_the_next_numbers() -> None:
    image = noise(5, 7)
    flips = [slot("once", transforms.hflip()), slot("twice", transforms.hflip(), transforms.vflip())]
    found = rows(flips, [dict.fromkeys(("once", "twice"), npy(image))] * 64)
    across = [not np.array_equal(row, image) for row in found["once"]]
    results = {(False, False): image, (True, False): image[:, ::-1], (False, True): image[::-1], (True, True): image[::-1, ::-1]}
    seen = set()
    for turned, row in zip(across, found["twice"], strict=True):
        (coins,) = (coins for coins, result in results.items() if np.array_equal(row, result))
        assert coins[0] == turned
        seen.add(coins)
    assert seen == set(results)


def test_what_an_arm_draws_moves_the_stream_on() -> None:
    """After an arm that draws, the next op draws other numbers than after one that draws nothing."""
    image = npy(noise(5, 7))
    coin = transforms.vflip()
    stages = [
        slot("still", transforms.sometimes(transforms.crop(y=0, x=0, h=5, w=7), prob=1.0), coin),
        slot("moved", transforms.sometimes(transforms.random_crop(h=5, w=7), prob=1.0), coin),
        slot("alone", coin),
        slot("selected", transforms.select([(dataio.cond.shape(0, ">", 0), transforms.crop(y=0, x=0, h=5, w=7))]), coin),
    ]
    found = rows(stages, [dict.fromkeys(("still", "moved", "alone", "selected"), image)] * 64)
    assert not same(found["still"], found["moved"])
    assert not same(found["still"], found["alone"])  # the coin of `sometimes`
    assert same(found["selected"], found["alone"])  # `select` draws nothing


# ---------------------------------------------------------------- what is drawn


class Recorder:
    """A generator that keeps the names of the methods it was asked by."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.generator, name)

        def recorded(*args: Any, **named: Any) -> Any:
            self.asked.append(name)
            return method(*args, **named)

        return recorded


def asked(call: OpCall, value: np.ndarray, layout: Any, seed: int = 0) -> list[str]:
    """What the plain function asks the generator for; the out kernel must ask for the same."""
    spec, given = call.spec, type_of(value, layout)
    plain, out = (Recorder(np.random.default_rng(seed)) for _ in range(2))
    filled = injected(spec, given, seed)
    result = spec.function(value, **{**call.arguments, **filled, "rng": plain})
    if "out" in spec.kernels:
        spec.kernels["out"](value, np.empty(result.shape, result.dtype), **{**call.arguments, **filled, "rng": out})
        assert out.asked == plain.asked
    return plain.asked


def gated() -> Iterator[Any]:
    for name, spec in BUILT_IN["transform"].items():
        if "prob" in {p.name for p in spec.parameters} and name != "sometimes":
            example = next(e for e in EXAMPLES if e.op == name)
            yield pytest.param(example, id=name)


@pytest.mark.parametrize("example", list(gated()))
def test_the_gate_draws_once_and_first(example: Example) -> None:
    arguments = example.given_arguments
    shut, ajar = (transform(example.op, **{**arguments, "prob": prob}) for prob in (0.0, 1.0))
    assert asked(shut, example.value(), example.layout) == ["random"]
    assert asked(ajar, example.value(), example.layout)[0] == "random"


DRAWN: list[tuple[str, dict[str, Any], int]] = [
    ("color_jitter", {}, 0),
    ("color_jitter", {"hue": 0.1}, 1),
    ("color_jitter", {"brightness": 0.1, "saturation": 0.1}, 2),
    ("color_jitter", {"brightness": 0.1, "contrast": 0.1, "saturation": 0.1, "hue": 0.1}, 4),
    ("random_affine", {}, 0),
    ("random_affine", {"degrees": 5.0}, 1),
    ("random_affine", {"scale_range": (0.5, 2.0)}, 1),
    ("random_affine", {"scale_range": (2.0, 2.0)}, 0),
    ("random_affine", {"shear_deg": 5.0}, 1),
    ("gaussian_noise", {"std": 0.0}, 0),
]


@pytest.mark.parametrize(("op", "arguments", "draws"), DRAWN)
def test_what_is_off_draws_nothing(op: str, arguments: dict[str, Any], draws: int) -> None:
    value = np.ones((3, 4), np.float32) if op == "gaussian_noise" else noise(8, 9)
    found = asked(transform(op, **arguments), value, None if op == "gaussian_noise" else "HWC")
    assert len(found) == draws


# ---------------------------------------------------------------- whoever runs them

NOT_IMAGES = [e for e in RANDOM if e.make is not EXAMPLES[0].make]
"""`test_every_op.py` runs those on images."""


@pytest.mark.parametrize(("workers", "count"), [("thread", 1), ("thread", 3), pytest.param("process", 2, marks=pytest.mark.slow)])
def test_other_random_ops_draw_the_same_whoever_runs_them(workers: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {f"s{i}": example for i, example in enumerate(NOT_IMAGES)}
    records = [{name: npy(example.value(seed=i)) for name, example in named.items()} for i in range(7)]
    stages = [slot(name, example.call) for name, example in named.items()]
    expected = {name: rows([slot(name, named[name].call)], records, size=1)[name] for name in named}
    monkeypatch.setenv("DATAIO_CPU_WORKERS", str(count))
    found = rows(stages, records, size=3, workers=workers)
    assert {name: same(found[name], expected[name]) for name in named} == dict.fromkeys(named, True)
