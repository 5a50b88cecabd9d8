"""`random`, `np.random` and `rng` inside Python functions of records: draws that follow from the record alone."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import gauss
from typing import Any

import numpy as np
import numpy.random as numpy_random
import pyarrow as pa
import pytest
from numpy.random import rand

import dataio
from dataio.engine.custom import global_generators, record_caller

pytestmark = pytest.mark.usefixtures("two_workers", "no_leftovers")

X = dataio.slot("x").decode(dataio.decoders.array())
RECORDS = [{"i": i, "x": np.zeros(1), "key": str(i)} for i in range(24)]


def python(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "x": np.array([random.random(), random.gauss(0, 1)])}


def numpy(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "x": np.random.random(3)}


def both(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "x": np.array([random.random(), np.random.normal()])}


def given(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**record, "x": rng.random(2)}


def some(record: dict[str, Any]) -> bool:
    return random.random() < 0.6


def some_by_rng(record: dict[str, Any], rng: np.random.Generator) -> bool:
    return bool(rng.random() < 0.6)


def copies(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**record, "key": f"{record['i']}.{n}", "x": np.random.random(1)} for n in range(random.randrange(3))]


def yielded(record: dict[str, Any]) -> Any:
    for n in range(2):
        yield {**record, "key": f"{record['i']}.{n}", "x": np.array([random.random()])}


def yielded_by_rng(record: dict[str, Any], rng: np.random.Generator) -> Any:
    for n in range(3):
        yield {**record, "key": f"{record['i']}.{n}", "x": rng.random(1) + random.random()}


def jittered(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**record, "x": record["x"] + rng.random(1)}


def rng_and_both(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**record, "x": np.array([random.random(), np.random.normal(), rng.random()])}


MAPS = {"random": python, "np.random": numpy, "both": both, "rng": given, "rng and both": rng_and_both, "named": dataio.custom_op(python, name="python")}
SOURCES: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
    **{name: functools.partial(lambda f: (RECORDS, [dataio.map(f)]), f) for name, f in MAPS.items()},
    "of columns": lambda: (pa.table({"i": range(24), "key": [str(i) for i in range(24)]}), [dataio.map(python)]),
    "of a source": lambda: (dataio.records(RECORDS).map_records(python), []),
    "of a shuffle": lambda: (dataio.records(RECORDS).shuffle(), [dataio.map(numpy)]),
    "of generators": lambda: (lambda: iter(RECORDS), [dataio.map(both)]),
    "filter": lambda: (dataio.scan(RECORDS).filter(some), [dataio.map(python)]),
    "filter by rng": lambda: (dataio.scan(RECORDS).filter(some_by_rng), [dataio.map(given)]),
    "flat map": lambda: (dataio.records(RECORDS).flat_map_records(copies), []),
    "flat map that yields": lambda: (dataio.records(RECORDS).flat_map_records(yielded), []),
    "flat map that yields by rng": lambda: (dataio.records(RECORDS).flat_map_records(yielded_by_rng), [dataio.map(jittered)]),
}
Values = dict[str, list[float]]


def load(source: str, batch: int = 4, **options: Any) -> dataio.DataLoader:
    records, maps = SOURCES[source]()
    return dataio.pipeline(*maps, X, dataio.batch(batch)).bind(records).run("numpy", **{"seed": 5, "workers": "thread", **options})


def values(loader: dataio.DataLoader, most: int | None = None) -> Values:
    found: Values = {}
    for number, batch in enumerate(loader, 1):
        found.update((key, row.tolist()) for key, row in zip(batch.keys, batch["x"], strict=True))
        if number == most:
            break
    return found


def epoch(source: str, **options: Any) -> Values:
    with load(source, **options) as loader:
        return values(loader)


# ------------------------------------------------------------------------------------- what draws follow from


@pytest.mark.parametrize("source", SOURCES)
def test_records_draw_differently_and_the_same_in_every_run(source: str) -> None:
    first = epoch(source)
    assert len({tuple(row) for row in first.values()}) == len(first) > 8
    assert epoch(source) == first
    assert epoch(source, seed=6) != first


@pytest.mark.parametrize("source", SOURCES)
def test_the_trainers_seeds_change_nothing(source: str) -> None:
    random.seed(1)
    np.random.seed(1)
    first = epoch(source)
    random.seed(2)
    np.random.seed(2)
    assert epoch(source) == first


@pytest.mark.parametrize("source", SOURCES)
def test_each_epoch_draws_anew(source: str) -> None:
    with load(source) as loader:
        first, second = values(loader), values(loader)
    assert all(second[key] != row for key, row in first.items() if key in second)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("workers", "kind"), [(1, "thread"), (4, "thread"), (2, "process")])
def test_workers_change_no_draw(source: str, workers: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = epoch(source)
    monkeypatch.setenv("DATAIO_CPU_WORKERS", str(workers))
    assert epoch(source, workers=kind) == expected


@pytest.mark.parametrize("source", SOURCES)
def test_the_batch_size_changes_no_draw(source: str) -> None:
    assert epoch(source, batch=7) == epoch(source)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("of", [2, 3])
def test_the_number_of_ranks_changes_no_draw(source: str, of: int) -> None:
    together: Values = {}
    for rank in range(of):
        together |= epoch(source, shard={"id": rank, "of": of, "pad": False})
    assert together == epoch(source)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_resumed_run_draws_what_it_would_have_drawn(source: str, cut: int) -> None:
    with load(source) as loader:
        found = values(loader, cut)
        state = json.loads(json.dumps(loader.state_dict()))
    with load(source) as loader:
        loader.load_state_dict(state)
        found |= values(loader)
    assert found == epoch(source)


@pytest.mark.parametrize("stage", [dataio.group_by, lambda key: dataio.bucket_by(key, 4)], ids=["group_by", "bucket_by"])
def test_a_key_may_draw(stage: Any) -> None:
    def key(record: dict[str, Any]) -> int:
        return random.randrange(3)

    def found() -> list[list[str]]:
        with dataio.pipeline(X, stage(key)).bind(RECORDS).run("numpy", seed=5) as loader:
            return [batch.keys for batch in loader]

    assert found() == found()


# ------------------------------------------------------------------------------------- the trainer's generators


@pytest.mark.parametrize("source", SOURCES)
def test_the_trainers_generators_are_put_back(source: str) -> None:
    random.seed(7)
    np.random.seed(7)
    expected = random.getstate(), np.random.get_state()
    epoch(source)
    assert random.getstate() == expected[0]
    assert repr(np.random.get_state()) == repr(expected[1])


def test_they_are_put_back_after_a_function_that_raises() -> None:
    def raising(record: Any) -> Any:
        raise ValueError(random.random())

    state = random.getstate()
    with pytest.raises(ValueError, match=r"0\."):
        record_caller(raising, 0, 0)(None, 0)
    assert random.getstate() == state


def test_a_caller_inside_another_puts_back_what_the_outer_one_draws() -> None:
    def drawn(nested: bool) -> list[float]:
        def outer(record: Any) -> Any:
            first = random.random()
            if nested:
                record_caller(lambda record: random.random() + np.random.random(), 0, 0)(None, 9)
            return [first, random.random(), np.random.random()]

        return record_caller(outer, 0, 0)(None, 1)

    assert drawn(nested=True) == drawn(nested=False)


def test_the_draws_of_rng_do_not_depend_on_other_generators() -> None:
    def draws(record: Any, rng: np.random.Generator) -> Any:
        return rng.random()

    def draws_more(record: Any, rng: np.random.Generator) -> Any:
        return random.random() and rng.random()

    assert record_caller(draws, 0, 0)(None, 1) == record_caller(draws_more, 0, 0)(None, 1)


def test_threads_draw_as_one_thread_does() -> None:
    call = record_caller(lambda record: [random.random(), np.random.random(), random.random()], 0, 0)
    expected = [call(None, index) for index in range(200)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda index: call(None, index), range(200))) == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_inside_a_call_of_another_thread_draws_too() -> None:
    inside, done = threading.Event(), threading.Event()

    def waits(record: Any) -> Any:
        inside.set()
        done.wait(30)
        return random.random()

    thread = threading.Thread(target=record_caller(waits, 0, 0), args=(None, 0))
    thread.start()
    inside.wait(30)
    if (child := os.fork()) == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)  # ends a child that waits for the lock for ever
            record_caller(python, 0, 0)({}, 1)
            os._exit(0)
        finally:
            os._exit(1)
    try:
        assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        thread.join()


# ------------------------------------------------------------------------------------- who is found to draw


def helper(record: Any) -> Any:
    return random.random()


def through_a_helper(record: Any) -> Any:
    return helper(record)


def through_two(record: Any) -> Any:
    return through_a_helper(record)


def imported(record: Any) -> Any:
    return gauss(0, 1)


def imported_numpy(record: Any) -> Any:
    return rand()


def imported_module(record: Any) -> Any:
    return numpy_random.normal()


def inside(record: Any) -> Any:
    import random

    return random.random()


def numpy_inside(record: Any) -> Any:
    import numpy as np

    return np.random.random()


def in_a_comprehension(record: Any) -> Any:
    return [random.random() for _ in range(2)]


def closing_over(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def closure(record: Any) -> Any:
        return function(record)

    return closure


def decorated(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(function)
    def wrapper(record: Any) -> Any:
        return function(record)

    return wrapper


augment = types.ModuleType("augment")
augment.jitter = helper  # type: ignore[attr-defined]


def through_a_module(record: Any) -> Any:
    return augment.jitter(record)


class Augment:
    def __init__(self, inner: Any = None) -> None:
        self.inner = inner

    def __call__(self, record: Any) -> Any:
        return self.method(record)

    def method(self, record: Any) -> Any:
        return self._deep(record)

    def _deep(self, record: Any) -> Any:
        return np.random.random()

    @classmethod
    def of_the_class(cls, record: Any) -> Any:
        return random.random()

    @staticmethod
    def static(record: Any) -> Any:
        return random.random()

    @property
    def drawn(self) -> float:
        return random.random()

    def by_property(self, record: Any) -> Any:
        return self.drawn

    def by_attribute(self, record: Any) -> Any:
        return self.inner(record)


class Inherited(Augment):
    pass


class Made:
    def __init__(self, record: Any) -> None:
        self.value = random.random()


DRAWING: dict[str, tuple[Any, str]] = {
    "function": (python, "random"),
    "numpy": (numpy, "numpy.random"),
    "helper": (through_a_helper, "random"),
    "helper of a helper": (through_two, "random"),
    "from random import": (imported, "random"),
    "from numpy.random import": (imported_numpy, "numpy.random"),
    "import numpy.random as": (imported_module, "numpy.random"),
    "import inside": (inside, "random"),
    "import numpy inside": (numpy_inside, "numpy.random"),
    "comprehension": (in_a_comprehension, "random"),
    "lambda": (lambda record: random.random(), "random"),
    "closure": (closing_over(helper), "random"),
    "decorator": (decorated(helper), "random"),
    "module": (through_a_module, "random"),
    "partial": (functools.partial(both), "random"),
    "partial of a partial": (functools.partial(functools.partial(helper)), "random"),
    "partial that is given one": (functools.partial(lambda f, record: f(record), helper), "random"),
    "custom op": (dataio.custom_op(helper, name="helper"), "random"),
    "bound method": (Augment().method, "numpy.random"),
    "class method": (Augment.of_the_class, "random"),
    "static method": (Augment.static, "random"),
    "property": (Augment().by_property, "random"),
    "attribute": (Augment(helper).by_attribute, "random"),
    "object": (Augment(), "numpy.random"),
    "object of a subclass": (Inherited(), "numpy.random"),
    "object that holds another": (Augment(Augment()).by_attribute, "numpy.random"),
    "class": (Made, "random"),
    "the generator's own": (random.choice, "random"),
}


@pytest.mark.parametrize("name", DRAWING)
def test_who_draws_is_found(name: str) -> None:
    function, module = DRAWING[name]
    assert module in global_generators(function)


@pytest.mark.parametrize("name", [name for name in DRAWING if name not in ("function", "numpy", "partial", "the generator's own")])
def test_who_draws_is_seeded_by_record(name: str) -> None:
    def drawn(index: int) -> Any:
        found = record_caller(DRAWING[name][0], 3, 0)("record", index)
        return getattr(found, "value", found)

    assert drawn(4) == drawn(4) != drawn(5)


def plain(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "size": np.mean(record["x"]), "text": json.dumps(record["key"])}


class Plain:
    def __init__(self) -> None:
        self.cache: dict[str, Any] = {}

    def __call__(self, record: Any) -> Any:
        return self.cache.setdefault(record["key"], plain(record))


def own_generator(record: Any) -> Any:
    return OWN.random()


OWN = random.Random(1)


def recursive(record: Any) -> Any:
    return recursive(record) if record else record


@pytest.mark.parametrize(
    "function",
    [plain, Plain(), functools.partial(plain), len, dict, str.upper, own_generator, recursive, dataio.custom_op(plain, name="p")],
    ids=["function", "object", "partial", "builtin", "type", "method", "own generator", "recursive", "custom op"],
)
def test_who_draws_nothing_is_called_plainly(function: Any) -> None:
    assert global_generators(function) == frozenset()
