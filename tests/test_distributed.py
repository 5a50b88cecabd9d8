"""Ranks that are processes of their own, in a process group: equal steps whatever each of them reads.

Every rank calls a collective in every step, as training does, so a rank that took a step alone would hang, and the
time limit of `launch` would end the test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .servers.process import free_port

TIMEOUT = 90  # seconds; a pair of ranks takes about one

# Imports torch once, two seconds of each rank's time, and then makes each rank by fork, which no thread is there to disturb.
NURSERY = """
import json, os, sys, time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d

import dataio
import dataio.engine.run
import dataio.loader
from dataio.engine.errors import SourceError, StepsError

assert os.listdir("/proc/self/task") == [str(os.getpid())]
for line in sys.stdin:
    job = json.loads(line)
    pids = []
    for rank in range(2):
        pids.append(os.fork())
        if not pids[-1]:
            break
    else:
        print(json.dumps(pids), flush=True)
        print(json.dumps([os.waitpid(pid, 0)[1] for pid in pids]), flush=True)
        continue
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{job['folder']}/{name}{rank}", os.O_CREAT | os.O_WRONLY), number)
    os.environ.update(job["environment"])
    port = job["port"]
    break
else:
    sys.exit()

store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=60))
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
X = dataio.slot("x").decode_bytes()

def records(count, name="r"):
    return [{"x": bytes([i % 251]), "key": f"{name}{i}", "kind": i % 3} for i in range(count)]

def steps(loader, most=None):
    '''The keys of each step; all ranks must take it.'''
    found = []
    for batch in loader:
        dist.all_reduce(torch.ones(1))
        found.append(batch.keys)
        if len(found) == most:
            break
    return found

def load(source, *stages, **options):
    return dataio.pipeline(X, *(stages or (dataio.batch(4),))).bind(source).run("torch", workers="thread", seed=3, **options)

def say(value):
    print(json.dumps(value), flush=True)

exec(compile(job["script"], "rank.py", "exec"))
dist.barrier()
dist.destroy_process_group()
store.wait(["ended"]) if rank == 0 else store.set("ended", "1")  # the store ends with rank 0
os._exit(0)  # taking torch apart would take a second
"""

Launch = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def nursery() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", NURSERY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DATAIO_CPU_WORKERS": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    ) as process:
        yield process


@pytest.fixture
def launch(nursery: subprocess.Popen[str], tmp_path: Path) -> Launch:
    """What each of two ranks says last; a rank that does not end in time fails the test."""

    def run(script: str, **environment: str) -> list[Any]:
        job = {"folder": str(tmp_path), "port": free_port(), "environment": environment, "script": textwrap.dedent(script)}
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        print(json.dumps(job), file=nursery.stdin, flush=True)
        pids = json.loads(nursery.stdout.readline())
        late = threading.Timer(TIMEOUT, lambda: [os.kill(pid, signal.SIGKILL) for pid in pids])
        late.start()
        ended = json.loads(nursery.stdout.readline())
        late.cancel()
        for rank, status in enumerate(ended):
            assert os.WTERMSIG(status) != signal.SIGKILL, "a rank hung"
            assert status == 0, (tmp_path / f"err{rank}").read_text()[-3000:]
        return [json.loads((tmp_path / f"out{rank}").read_text().splitlines()[-1]) for rank in range(2)]

    return run


def flat(steps: list[list[str]]) -> list[str]:
    return [key for step in steps for key in step]


# --------------------------------------------------------------------------------- one source, dealt out to the ranks


def test_a_filtered_source_of_unknown_length_is_dealt_out_in_equal_steps(launch: Launch) -> None:
    """37 of 74 records pass the filter, which no rank knows before it has read them."""
    first, second = launch(
        """
        found = {}
        for how in ("pad", "drop", "short"):
            source = dataio.scan(records(74)).filter(lambda r: r["x"][0] % 2 == 1)
            with load(source, shard="auto", steps=how) as loader:
                found[how] = [steps(loader) for epoch in range(2)]
        say(found)
        """,
    )
    expected = [f"r{i}" for i in range(1, 74, 2)]
    for how in ("pad", "drop", "short"):
        for epoch in range(2):
            own, others = first[how][epoch], second[how][epoch]
            assert len(own) == len(others) == (4 if how == "drop" else 5)
            delivered = flat(own) + flat(others)
            assert sorted(set(delivered)) == sorted(expected[:32] if how == "drop" else expected)
            if how != "pad":
                assert len(set(delivered)) == len(delivered)
            if how != "short":
                assert {len(step) for step in own + others} == {4}


def test_a_long_filtered_source_is_agreed_on_window_by_window(launch: Launch) -> None:
    """200 of 1,000 records: 50 steps of 2 on each rank, which are several windows of 8 batches."""
    first, second = launch(
        """
        source = dataio.scan(lambda: iter(records(1000))).filter(lambda r: int(r["key"][1:]) % 5 == 0)
        with load(source, dataio.batch(2, prefetch=1), shard="auto", steps="pad") as loader:
            say(steps(loader))
        """,
    )
    assert len(first) == len(second) == 50
    assert sorted(flat(first) + flat(second)) == sorted(f"r{i}" for i in range(0, 1000, 5))


def test_ranks_stop_together_and_go_on_in_a_world_of_another_size(launch: Launch) -> None:
    """What two ranks delivered in 3 steps and what follows, on two ranks or on one with batches twice as large."""
    script = """
        def kept(record):
            return record["kind"] != 1

        def make(ranks, size):
            shard, how = ({"id": rank, "of": 2}, "short") if ranks == 2 else (None, None)
            source = dataio.scan(dataio.records(records(60)).shuffle()).filter(kept)
            return load(source, dataio.batch(size), shard=shard, steps=how)

        with make(2, 3) as loader:
            whole = steps(loader)
        with make(2, 3) as loader:
            before = steps(loader, 3)
            state = json.loads(json.dumps(loader.state_dict()))
        with make(2, 3) as loader:
            loader.load_state_dict(state)
            after = steps(loader)
        with make(1, 6) as loader:
            loader.load_state_dict(state)
            alone = [batch.keys for batch in loader]
        say([whole, before, after, alone, state])
        """
    first, second = launch(script)
    assert first[4] == second[4], "ranks that took the same steps have the same state"
    for whole, before, after, *_ in (first, second):
        assert before + after == whole
    together = [sorted(a + b) for a, b in zip(first[2], second[2], strict=True)]
    assert [sorted(step) for step in first[3]] == together


# --------------------------------------------------------------------------------- each rank has records of its own


def test_ranks_with_records_of_their_own_agree_on_the_steps(launch: Launch) -> None:
    """Rank 0 has 10 records, rank 1 has 93: 3 and 24 batches of 4."""
    first, second = launch(
        """
        own = {0: 10, 1: 93}[rank]
        found = {}
        for how in ("drop", "pad", "short"):
            for kind, source in {"list": records(own, str(rank)), "generators": lambda: iter(records(own, str(rank)))}.items():
                with load(source, steps=how) as loader:
                    found[f"{how} {kind}"] = [steps(loader) for epoch in range(2)]
                    try:
                        len(loader)
                    except TypeError:
                        pass
                    else:
                        raise AssertionError("the other rank's records are not known here")
        say(found)
        """,
    )
    own = [f"0{i}" for i in range(10)], [f"1{i}" for i in range(93)]
    for kind in ("list", "generators"):
        for epoch in range(2):
            for how in ("drop", "pad", "short"):
                few, many = first[f"{how} {kind}"][epoch], second[f"{how} {kind}"][epoch]
                assert len(few) == len(many) == (2 if how == "drop" else 24)
                if how == "drop":
                    assert (flat(few), flat(many)) == (own[0][:8], own[1][:8])
                elif how == "short":
                    assert (flat(few), flat(many)) == own
                else:
                    assert flat(few) == own[0] + ["09"] * (24 * 4 - 10)
                    assert flat(many) == own[1] + ["192"] * 3


def test_buckets_and_packed_rows_of_each_rank_are_agreed_on(launch: Launch) -> None:
    first, second = launch(
        """
        source = records({0: 31, 1: 11}[rank], str(rank))
        found = {}
        for how in ("drop", "pad", "short"):
            for stage in (dataio.bucket_by("kind", 4), dataio.pack(8, size=2, tokens=lambda r: 1), dataio.group_by("kind")):
                with load(source, stage, steps=how) as loader:
                    found[f"{how} {type(stage).__name__}"] = steps(loader)
        say(found)
        """,
    )
    for name in first:
        assert len(first[name]) == len(second[name]) > 0
        if name.startswith("short"):
            assert sorted(flat(first[name])) == sorted(f"0{i}" for i in range(31))
            assert sorted(flat(second[name])) == sorted(f"1{i}" for i in range(11))


def test_ranks_that_leave_an_epoch_early_begin_the_next_one_together(launch: Launch) -> None:
    first, second = launch(
        """
        with load(records({0: 50, 1: 42}[rank], str(rank)), steps="short") as loader:
            say([steps(loader, 2), steps(loader, 9), steps(loader), steps(loader)])
        """,
    )
    assert [list(map(len, found)) for found in (first, second)] == [[2, 9, 13, 13]] * 2
    assert flat(first[2]) == flat(first[3]) == [f"0{i}" for i in range(50)]


@pytest.mark.parametrize("how", ["drop", "pad", "short"])
def test_ranks_with_records_of_their_own_resume_each_from_its_state(how: str, launch: Launch) -> None:
    """The cut is where rank 0 has no records left, or just before."""
    first, second = launch(
        f"""
        source = records({{0: 10, 1: 45}}[rank], str(rank))
        def make():
            return load(source, steps="{how}")
        with make() as loader:
            found = [steps(loader)]
        for cut in (1, 2, 3, 5, 10, 12):
            with make() as loader:
                before = steps(loader, cut)
                state = json.loads(json.dumps(loader.state_dict()))
            with make() as loader:
                loader.load_state_dict(state)
                found.append(before + steps(loader))
        say(found)
        """,
    )
    for whole, *resumed in (first, second):
        assert len(whole) == (2 if how == "drop" else 12)
        assert all(found == whole for found in resumed[: 1 if how == "drop" else None])


# --------------------------------------------------------------------------------- ranks that fail


def test_a_rank_that_never_iterates_is_an_error_on_the_others(launch: Launch) -> None:
    first, second = launch(
        """
        with load(records(20), steps="short") as loader:
            error = None
            if rank == 0:
                try:
                    steps(loader)
                except StepsError as raised:
                    error = str(raised)
            dist.barrier()
        say(error)
        """,
        DATAIO_STEPS_TIMEOUT_SECS="2",
    )
    assert "waited 2 s for rank(s) [1]" in first
    assert second is None


def test_closing_does_not_wait_for_the_other_ranks(launch: Launch) -> None:
    first, _ = launch(
        """
        waited = None
        loader = load(records(20), steps="short")
        if rank == 0:
            iterator = iter(loader)
            time.sleep(0.3)
            began = time.monotonic()
            loader.close()
            waited = time.monotonic() - began
        dist.barrier()
        loader.close()
        say(waited)
        """,
        DATAIO_STEPS_TIMEOUT_SECS="60",
        DATAIO_DRAIN_TIMEOUT_MS="20000",
    )
    assert first < 10


@pytest.mark.parametrize("failing", [0, 1])
def test_when_a_source_fails_all_ranks_end_with_the_same_step(failing: int, launch: Launch) -> None:
    found = launch(
        f"""
        def source():
            for i, record in enumerate(records(90, str(rank))):
                if rank == {failing} and i == 42:
                    raise OSError("the disk is gone")
                yield record

        taken, error = [], None
        with load(source, steps="short") as loader:
            try:
                for batch in loader:
                    dist.all_reduce(torch.ones(1))
                    taken.append(batch.keys)
            except (SourceError, StepsError) as raised:
                error = [type(raised).__name__, str(raised)]
        say([taken, error])
        """,
    )
    assert [len(taken) for taken, _ in found] == [11, 11]
    assert flat(found[failing][0]) == [f"{failing}{i}" for i in range(42)]
    kind, text = found[failing][1]
    assert kind == "SourceError"
    assert "the disk is gone" in text
    kind, text = found[1 - failing][1]
    assert kind == "StepsError"
    assert f"rank(s) {failing}" in text


def test_a_plan_that_fails_on_one_rank_ends_the_others(launch: Launch) -> None:
    """Not only sources fail: here a bucket without a size."""
    first, second = launch(
        """
        found = records(40)
        found[20]["kind"] = "another" if rank == 1 else 0
        error, taken = None, 0
        with load(found, dataio.bucket_by("kind", {0: 2, 1: 2, 2: 2}), steps="drop") as loader:
            try:
                for batch in loader:
                    dist.all_reduce(torch.ones(1))
                    taken += 1
            except Exception as raised:
                error = type(raised).__name__
        say([taken, error])
        """,
    )
    assert first[0] == second[0] > 0
    assert (first[1], second[1]) == ("StepsError", "PlanError")


def test_a_trainer_that_waits_on_the_store_does_not_hold_up_its_loader(launch: Launch) -> None:
    """Rank 1 waits for a key that rank 0 writes only after its last batch, which rank 1's loader must agree to meanwhile."""
    first, second = launch(
        """
        def source():
            for i, record in enumerate(records(48)):
                if i == 32:
                    time.sleep(1)
                yield record

        with load(source, steps="short") as loader:
            batches = iter(loader)
            taken = sum(1 for _, batch in zip(range(48 if rank == 0 else 8), batches))
            if rank == 0:
                store.set("done", "1")
            else:
                store.wait(["done"])
                taken += sum(1 for batch in batches)
        say(taken)
        """,
    )
    assert (first, second) == (12, 12)
