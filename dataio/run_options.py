"""The options of `run`, checked, and the loader that they make."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, cast

from .batches import Batch
from .device import Sender, this_device, transport_to
from .engine.calls import BatchTransform
from .engine.executors.base import Executor, Placement
from .engine.explain import function_name
from .engine.ledger import parse_bytes
from .engine.physical import Program
from .engine.plan import Shape, record_count, walk, with_source
from .engine.run import RunOptions
from .engine.settings import default_executor
from .failures import failure_handling, min_survivors
from .loader import DataLoader
from .outputs import find_adapter, on_device
from .sharding import agreement_for, as_shard, as_share, check_shardable
from .sources.records import reordered

if TYPE_CHECKING:
    from .pipelines import BoundPipeline


def make_loader(
    bound: BoundPipeline,
    output: Any,
    *,
    concurrency: Any,
    pin_memory: Any,
    ragged: Any,
    on_failure: Any,
    order: Any,
    seed: Any,
    emit_empty_batches: Any,
    log_errors: Any,
    max_failures: Any,
    quarantine: Any,
    max_bytes: Any,
    cache: Any,
    device: Any,
    context: Any,
    workers: Any,
    worker_niceness: Any,
    worker_cpus: Any,
    shard: Any,
    steps: Any,
) -> DataLoader:
    """Check the run options and make the loader; see `BoundPipeline.run`."""
    name, adapter = find_adapter(output)
    if device is not None and not isinstance(device, str):
        raise TypeError(f"device must be a str, got {device!r}")
    _check_pinning(pin_memory)
    _choice("ragged", ragged, "list", "error", "skip")
    sender = _sender(device, pin_memory, ragged) if name == "torch" else None
    if device is not None and sender is None:
        adapter = on_device(name, adapter, device)
    if context is not None and not callable(context):
        raise TypeError(f"context must be callable, got {context!r}")
    _check_batch_maps(bound.pipeline.map_batches)
    spec = as_shard(shard)
    share = as_share(spec, steps)
    failures = failure_handling(log_errors, max_failures, quarantine, share)
    plan = bound.plan(whole_records=context is not None or failures.path is not None)
    if spec is not None and spec.of > 1 and not spec.sticky:
        plan = with_source(plan, reordered)
    if share.of > 1 and seed is None:
        seed = 0  # all ranks draw the same order
    check_shardable(share, next(n for n in walk(plan) if isinstance(n, Shape)))
    options = RunOptions(
        concurrency=_concurrency(concurrency),
        min_survivors=min_survivors(on_failure),
        order=cast(Literal["submit", "completion"], _choice("order", order or "submit", "submit", "completion")),
        seed=_seed(seed),
        context=context,
        share=share,
        agreement=agreement_for(share, record_count(plan) is not None),
        ahead=0 if sender is None else 1,
        originals=failures.path is not None,
    )
    placement = _placement(worker_niceness, worker_cpus)
    kind, reason = _workers(workers, placement)
    return DataLoader(
        plan,
        options,
        executor=lambda program: _make_executor(kind, program, reason, placement),
        wrap=lambda finished: Batch(finished, name, adapter, ragged, sender.send(finished) if sender else {}),
        emit_empty=bool(emit_empty_batches),
        failures=failures,
        pins=sender is not None and sender.pin,
        max_bytes=None if max_bytes is None else parse_bytes("max_bytes", max_bytes),
        cache=cache,
    )


def _check_batch_maps(maps: tuple[Any, ...]) -> None:
    """Batch transforms work on the engine's buffers, so they come before Python maps, which may return anything."""
    python: Any = None
    for function in maps:
        if not isinstance(function, BatchTransform):
            python = function
        elif python is not None:
            raise NotImplementedError(
                f"the batch transform {function} stands after the Python map {function_name(python)}; put it before"
            )


def _choice(name: str, value: Any, *choices: str) -> str:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return cast(str, value)


def _check_pinning(value: Any) -> None:
    if value == "auto" or value is False:
        return
    if value is not True:
        raise ValueError(f'pin_memory must be a bool or "auto", got {value!r}')
    try:
        import torch

        usable = torch.cuda.is_available()
    except ImportError:
        usable = False
    if not usable:
        raise RuntimeError("pin_memory=True needs a usable CUDA runtime; none was found")


def _sender(device: str | None, pin_memory: bool | str, ragged: str) -> Sender | None:
    """What copies torch tensors elsewhere ahead of the consumer; None where they stay in the batch buffers."""
    target = "cpu" if device is None else this_device(device)
    pin = pin_memory is True or (pin_memory == "auto" and target.startswith("cuda"))
    if device is None and not pin:
        return None
    return Sender(lambda: transport_to(target), pin=pin, ragged=ragged == "list")


def _concurrency(value: Any) -> int | None:
    if isinstance(value, str):
        if value != "auto":
            raise ValueError(f'concurrency must be an integer or "auto", got {value!r}')
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f'concurrency must be an integer or "auto", got {value!r}')
    if value < 1:
        raise ValueError(f"concurrency must be at least 1, got {value}")
    return value


def _seed(value: Any) -> int:
    if value is None:
        return secrets.randbits(63)
    if isinstance(value, bool):
        raise TypeError("seed must be an integer, got a bool")
    value = int(value)
    if not 0 <= value < 1 << 64:
        raise ValueError(f"seed must be in [0, 2**64), got {value}")
    return cast(int, value)


def _workers(value: Any, placement: Placement) -> tuple[str, str]:
    """(kind of executor, why): what was asked for, else what the options or the environment ask for."""
    kind = _choice("workers", value or "auto", "auto", "thread", "process")
    placed = placement != Placement()
    if kind == "thread" and placed:
        raise ValueError(
            "worker_niceness and worker_cpus are for worker processes; threads share those of the trainer: "
            'run with workers="process"'
        )
    if kind != "auto":
        return kind, f"workers={kind!r}"
    if placed:
        return "process", "worker_niceness or worker_cpus is set"
    kind = default_executor()
    return kind, f"DATAIO_EXECUTOR={kind}"


def _placement(niceness: Any, cpus: Any) -> Placement:
    if niceness is None:
        niceness = 0
    elif isinstance(niceness, bool) or not isinstance(niceness, int):
        raise TypeError(f"worker_niceness must be an integer, got {niceness!r}")
    elif not 0 <= niceness <= 19:
        raise ValueError(f"worker_niceness must be in 0 to 19, got {niceness}")
    if cpus is None:
        return Placement(niceness)
    if isinstance(cpus, str) or not isinstance(cpus, Iterable):
        raise TypeError(f"worker_cpus must be core numbers, got {cpus!r}")
    chosen = list(cpus)
    if any(isinstance(cpu, bool) or not isinstance(cpu, int) for cpu in chosen):
        raise TypeError(f"worker_cpus must be core numbers, got {chosen!r}")
    if not hasattr(os, "sched_getaffinity"):
        raise ValueError("worker_cpus: this platform cannot keep a process to some cores")
    usable = os.sched_getaffinity(0)
    if not chosen or not usable.issuperset(chosen):
        raise ValueError(f"worker_cpus must be some of the cores {sorted(usable)}, got {chosen}")
    return Placement(niceness, tuple(sorted(set(chosen))))


def _make_executor(kind: str, program: Program, reason: str, placement: Placement) -> Executor:
    from .engine.executors.auto import make_executor

    return make_executor(kind, program, reason, placement)
