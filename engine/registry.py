"""The op registry: an op is one plain function plus declared facts.

`register_op` reads the function's signature (annotations of `engine.arguments` give the checks and tell which
parameters may vary per record) and hands the function back unchanged. Faster kernels of the same op are added by
`register_kernel`, rewrites of two neighbouring ops by `register_fusion`. Everything else (namespace factories, slot
methods, argument checks, canonical form, stubs, the docs table) is made from the `OpSpec` built here.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar

from .arguments import check_dynamic, check_value, is_dynamic_annotation, is_dynamic_text
from .calls import CALLS, OpCall, OpKind, calls_within
from .errors import PlanError, did_you_mean
from .expr import Col, ConstValue, ParamRef
from .forks import new_lock_in_child
from .schema import Takes, TensorType

F = TypeVar("F", bound=Callable[..., Any])
KernelKind: TypeAlias = Literal["out", "view", "batched", "batched_out", "sources_out", "original_hw", "setup", "inner_type"]
Infer: TypeAlias = Callable[..., TensorType]
Reads: TypeAlias = bool | Literal["ranges"]

INJECTED = ("rng", "layout")
"""Parameters the engine fills in: the record's random generator, the image layout of the value."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of an op, from its signature."""

    name: str
    annotation: Any
    default: Any
    dynamic: bool

    @property
    def text(self) -> bool:
        """True for a text parameter that a column may give."""
        return is_dynamic_text(self.annotation)

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    def check(self, op: str, value: Any) -> Any:
        if self.dynamic:
            return check_dynamic(self.annotation, f"{op}({self.name}=)", value)
        if isinstance(value, ConstValue):
            value = value.value
        return check_value(self.annotation, f"{op}({self.name}=)", value)


@dataclass(eq=False)
class OpSpec:
    """What the engine may rely on about an op.

    Attributes:
        name, kind, version: identity; all three enter the plan's signature.
        function: `fn(value, *, ...) -> value`; a decoder gets bytes-like data (or the slot's Python value
            when `reads` is False).
        takes: what the value must be.
        infer: `infer(type, **arguments) -> TensorType` for literal arguments; an argument that varies per
            record is passed as None. None: nothing is known of the output.
        random: draws from the record's stream (parameter `rng`, a `numpy.random.Generator`).
        reads: decoders only: False gets the slot's value as it stands in the record, "ranges" an
            `engine.source.RangeReader` instead of all bytes.
        kernels: optional faster forms, see `register_kernel`.
        internal: arguments that only rewrite rules set; no signature, stub or table shows them.
        method: name of the slot method, None for none; `method_function` is a hand-written one, for the few
            whose signature differs from the op's; `method_defaults` are other defaults of the slot method;
            `positional` parameters may be given by position there.
        positional_only: parameters that factory and method take by position only, first.
    """

    name: str
    kind: OpKind
    version: int
    function: Callable[..., Any]
    takes: Takes = field(default_factory=Takes)
    infer: Infer | None = None
    random: bool = False
    reads: Reads = True
    hidden: bool = False
    internal: tuple[str, ...] = ()
    method: str | None = None
    method_function: Callable[..., Any] | None = None
    method_defaults: dict[str, Any] = field(default_factory=dict)
    positional: tuple[str, ...] = ()
    positional_only: tuple[str, ...] = ()
    kernels: dict[KernelKind, Callable[..., Any]] = field(default_factory=dict)

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @cached_property
    def injected(self) -> tuple[str, ...]:
        # A decoder makes the value, so there is no layout to fill in: its `layout` is an argument of its own.
        names = INJECTED if self.kind != "decoder" else ("rng",)
        return tuple(n for n in names if n in self._signature.parameters)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        hints = typing.get_type_hints(self.function, include_extras=True)
        named = [
            p
            for p in self._signature.parameters.values()
            if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name not in self.injected
        ]
        return tuple(
            Parameter(p.name, hints.get(p.name, Any), p.default, is_dynamic_annotation(hints.get(p.name)))
            for p in named
        )

    @cached_property
    def signature(self) -> inspect.Signature:
        """The signature of the namespace factory: the op's own, keyword-only but for `positional_only`."""
        return inspect.Signature(
            [
                inspect.Parameter(p.name, self._parameter_kind(p.name), default=p.default, annotation=p.annotation)
                for p in self._ordered(self.positional_only)
            ]
        )

    def _ordered(self, first: tuple[str, ...]) -> list[Parameter]:
        """The public parameters, those of `first` in front."""
        return sorted(self.public_parameters, key=lambda p: first.index(p.name) if p.name in first else len(first))

    def _parameter_kind(self, name: str) -> Any:
        if name in self.positional_only:
            return inspect.Parameter.POSITIONAL_ONLY
        return inspect.Parameter.KEYWORD_ONLY

    @property
    def public_parameters(self) -> tuple[Parameter, ...]:
        """The arguments that users give."""
        return tuple(p for p in self.parameters if p.name not in self.internal)

    @cached_property
    def method_signature(self) -> inspect.Signature:
        """The signature of the slot method (without self)."""
        if self.method_function is not None:
            return inspect.signature(self.method_function, eval_str=True)
        ordered = self._ordered((*self.positional_only, *self.positional))
        return inspect.Signature(
            [
                inspect.Parameter(
                    p.name,
                    inspect.Parameter.POSITIONAL_OR_KEYWORD
                    if p.name in self.positional
                    else self._parameter_kind(p.name),
                    default=self.method_defaults.get(p.name, p.default),
                    annotation=p.annotation,
                )
                for p in ordered
                if p.name not in self.method_hides
            ]
        )

    method_hides: tuple[str, ...] = ()

    def bind(self, what: str, positional: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, of a factory or method `what` that takes `positional_only` and `positional` in order.

        Raises:
            TypeError: too many positions, a name twice, or a positional-only argument by name.
        """
        places = (*self.positional_only, *positional)
        if len(args) > len(places):
            allowed = f"at most {len(places)}" if places else "no"
            raise TypeError(f"{what}() takes {allowed} arguments by position; name the others")
        given = dict(zip(places, args))
        for name, value in kwargs.items():
            if name in given:
                raise TypeError(f"{what}() got the argument {name!r} twice")
            if name in self.positional_only:
                raise TypeError(f"{what}() takes {name!r} by position only")
            given[name] = value
        return given

    def call(self, **arguments: Any) -> OpCall:
        """Check the arguments and make the call.

        Raises:
            TypeError, ValueError: as `engine.arguments.check_value`.
        """
        known = {p.name: p for p in self.parameters}
        for name in arguments:
            if name not in known:
                raise TypeError(
                    f"{self.name}() has no argument {name!r}{did_you_mean(name, known)}; "
                    f"it takes: {', '.join(known) or 'none'}"
                )
        args = []
        for p in self.parameters:
            if p.name not in arguments and p.required:
                raise TypeError(f"{self.name}() needs the argument {p.name!r}")
            args.append((p.name, p.check(self.name, arguments[p.name]) if p.name in arguments else p.default))
        if (check := _checks.get((self.kind, self.name))) is not None:
            args = list(check(**dict(args)).items())
        return CALLS[self.kind](self.name, self.version, tuple(args))

    def output_type(self, given: TensorType, arguments: dict[str, Any]) -> TensorType:
        """The type after this op; arguments that are references become None.

        Raises:
            PlanError: the op refuses `given`.
        """
        if (why := self.takes.complaint(given)) is not None:
            raise PlanError(f"{self.name} {why}")
        if self.infer is None:
            return TensorType()
        literal = {k: None if isinstance(v, (Col, ParamRef)) else v for k, v in arguments.items()}
        try:
            return self.infer(given, **literal)
        except ValueError as error:
            raise PlanError(f"{self.name}: {error}") from error


Fusion: TypeAlias = Callable[[OpCall, OpCall], "tuple[OpCall, ...] | None"]
Simplification: TypeAlias = Callable[[OpCall], "tuple[OpCall, ...] | None"]

_lock = threading.RLock()
new_lock_in_child(sys.modules[__name__], "_lock", threading.RLock)
_specs: dict[tuple[OpKind, str], OpSpec] = {}
_fusions: dict[str, Fusion] = {}
_simplifications: dict[str, Simplification] = {}
_checks: dict[tuple[OpKind, str], Callable[..., dict[str, Any]]] = {}
_process_setups: list[Callable[[], None]] = []
_providers: list[str] = ["dataio.formats"]
_loaded: set[str] = set()


def _load_providers() -> None:
    """Import the modules that declare ops, once, on first look."""
    with _lock:
        for module in _providers:
            if module not in _loaded:
                _loaded.add(module)
                importlib.import_module(module).load_ops()


def _is_provided(function: Callable[..., Any]) -> bool:
    module = getattr(function, "__module__", None) or ""
    return any(module == provider or module.startswith(f"{provider}.") for provider in _providers)


def register_op(
    name: str,
    *,
    kind: OpKind = "transform",
    version: int = 1,
    takes: Takes | None = None,
    infer: Infer | None = None,
    random: bool = False,
    reads: Reads = True,
    hidden: bool = False,
    internal: tuple[str, ...] = (),
    method: str | Callable[..., Any] | Literal["auto"] | None = "auto",
    method_defaults: dict[str, Any] | None = None,
    method_hides: tuple[str, ...] = (),
    positional: tuple[str, ...] = (),
    positional_only: tuple[str, ...] = (),
) -> Callable[[F], F]:
    """Declare a function as an op; the function itself is returned unchanged.

    The function takes the value first and its arguments as keywords: `fn(value, *, size: Size, prob: Probability =
    0.5)`. Two keyword names are filled in by the engine and are no arguments: `rng` (a `numpy.random.Generator`, the
    record's stream) and `layout` ("HWC" or "CHW").

    Args:
        name: the op's name; also its slot method (`decode_<name>` for a decoder).
        kind: "decoder" (bytes or the slot's value to a value), "transform", or "batch_transform" (Batch to Batch).
        version: raise it when results change; checkpoints compare it.
        takes: dtypes, layouts, channel counts and ranks that the op accepts.
        infer: output type from input type and arguments, so that batches are allocated ahead.
        random: the op draws from `rng`.
        reads: decoders: False to get the slot's Python value instead of bytes, "ranges" to get an open
            `RangeReader`, for files of which one record needs a small part.
        hidden: made by rewrite rules only: no factory, no method.
        internal: arguments that only rewrite rules set.
        method, method_defaults, method_hides, positional: how the slot method differs from the op.
        positional_only: arguments that users give by position, in front of the others.

    Raises:
        ValueError: an empty name, an unknown kind, or a name that another function has taken.
        TypeError: not callable, or arguments that are not keyword-only.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"an op's name must be a Python identifier, got {name!r}")
    if kind not in CALLS:
        raise ValueError(f"kind must be one of {', '.join(CALLS)}, got {kind!r}")

    def declare(function: F) -> F:
        if not callable(function):
            raise TypeError(f"an op must be callable, got {function!r}")
        kinds = [p.kind for p in inspect.signature(function).parameters.values()]
        if not kinds or kinds[0] is inspect.Parameter.KEYWORD_ONLY or any(
            k is not inspect.Parameter.KEYWORD_ONLY for k in kinds[1:]
        ):
            raise TypeError(f"op {name!r}: write fn(value, *, argument=...): arguments are keyword-only")
        if not _is_provided(function):
            _load_providers()  # so that a clash shows here, not where the built-in ops are loaded later
        automatic = {"decoder": f"decode_{name}", "transform": name, "batch_transform": None}[kind]
        spec = OpSpec(
            name=name,
            kind=kind,
            version=version,
            function=function,
            takes=takes or Takes(),
            infer=infer,
            random=random,
            reads=reads,
            hidden=hidden,
            internal=internal,
            method=None if hidden or method is None else method if isinstance(method, str) and method != "auto" else automatic,
            method_function=method if callable(method) else None,
            method_defaults=method_defaults or {},
            method_hides=method_hides,
            positional=positional,
            positional_only=positional_only,
        )
        if spec.method_function is not None:
            spec.method = spec.method_function.__name__
        with _lock:
            taken = _specs.get((kind, name))
            if taken is not None and (taken.function.__module__, taken.function.__qualname__) != (
                getattr(function, "__module__", None),
                getattr(function, "__qualname__", None),
            ):
                raise ValueError(
                    f"{kind} {name!r} is already registered by {taken.function.__module__}; choose another name"
                )
            _specs[(kind, name)] = spec
        return function

    return declare


def register_kernel(op: str, kernel: KernelKind, *, kind: OpKind = "transform") -> Callable[[F], F]:
    """Add a faster form of an op that is already declared.

    * `"out"`: `fn(value, out, **arguments) -> None` writes the result into `out`, one row of the batch buffer. A
      decoder whose output type is not known ahead is offered a row like that of the batch before, and returns False,
      with nothing written, when its result does not fit.
    * `"view"`: decoders: `fn(data, **arguments) -> array`, the same result in the source's own memory, read-only, where
      that can be; used when another op follows.
    * `"batched"`: decoders: `fn(values, **arguments) -> array | None` turns a list of bytes-like sources into one
      stacked array `[n, ...]`, or a list of row values; None when this column needs the per-row form.
    * `"batched_out"`: decoders: `fn(values, out, **arguments) -> bool` does the same into `out`, rows like those of the
      batch before; False, with `out` in any state, when they do not fit.
    * `"sources_out"`: decoders that read their source in parts: `fn(sources, out, **arguments) -> list[int]` reads and
      decodes a column of sources into `out`, rows like those of the batch before; gives the rows that it filled. The others,
      and whatever is wrong with them, are left to the per-row form.
    * `"original_hw"`: decoders: `fn(data, value, **arguments) -> (h, w)`, the size before any transform.
    * `"inner_type"`: `fn(given, **arguments) -> TensorType`, what the ops inside this op may be given, when that is
      not just what the op itself is given.
    * `"setup"`: `fn() -> None`, called once on every worker thread before its first morsel (thread-local settings).
    """

    def declare(function: F) -> F:
        lookup(op, kind, load=False).kernels[kernel] = function
        return function

    return declare


def register_check(op: str, *, kind: OpKind = "transform") -> Callable[[F], F]:
    """Declare what an op's arguments must be together: `fn(**arguments) -> dict` returns them, perhaps in another form.

    It raises ValueError or TypeError when a call is built; each argument by itself has been checked by then.
    """

    def declare(function: F) -> F:
        with _lock:
            _checks[(kind, op)] = function
        return function

    return declare


def register_fusion(name: str) -> Callable[[Fusion], Fusion]:
    """Declare a rewrite of two neighbouring op calls; `fn(first, second)` returns the new calls, or None."""

    def declare(function: Fusion) -> Fusion:
        with _lock:
            _fusions[name] = function
        return function

    return declare


def fusions() -> dict[str, Fusion]:
    _load_providers()
    return dict(_fusions)


def register_simplification(name: str) -> Callable[[Simplification], Simplification]:
    """Declare a rewrite of one op call; `fn(call)` returns the calls that stand in its place, or None."""

    def declare(function: Simplification) -> Simplification:
        with _lock:
            _simplifications[name] = function
        return function

    return declare


def simplifications() -> dict[str, Simplification]:
    _load_providers()
    return dict(_simplifications)


def lookup(name: str, kind: OpKind, *, load: bool = True) -> OpSpec:
    """The spec of an op.

    Raises:
        PlanError: no such op; the message suggests the closest name.
    """
    spec = _specs.get((kind, name))
    if spec is None and load:
        _load_providers()
        spec = _specs.get((kind, name))
    if spec is None:
        known = [s.name for s in specs(kind)] if load else []
        raise PlanError(f"no {kind} is called {name!r}{did_you_mean(name, known)}")
    return spec


def specs(kind: OpKind | None = None) -> Iterator[OpSpec]:
    """All visible ops, sorted by kind and name."""
    _load_providers()
    for (k, _), spec in sorted(_specs.items()):
        if not spec.hidden and kind in (None, k):
            yield spec


def slot_methods() -> dict[str, OpSpec]:
    """Slot method name to op."""
    return {s.method: s for s in specs() if s.method is not None}


def carried(calls: Iterable[OpCall]) -> tuple[str | OpSpec, ...]:
    """What another process may lack of the ops in `calls`, those that users registered: the module that registers one, or its spec."""
    found: dict[str, str | OpSpec] = {}
    for call in calls_within(calls):
        function = call.spec.function
        if _is_provided(function):
            continue
        module = sys.modules.get(getattr(function, "__module__", None) or "")
        importable = module is not None and module.__name__ != "__main__" and getattr(module, getattr(function, "__qualname__", ""), None) is function
        found[call.name] = module.__name__ if importable and module is not None else replace(call.spec)  # a copy has no cached signature
    return tuple(found.values())


def adopt(carried: Iterable[str | OpSpec]) -> None:
    """Register what `carried` gave, where the process that it came to has no op of the name."""
    for item in carried:
        if isinstance(item, str):
            importlib.import_module(item)
        else:
            with _lock:
                _specs.setdefault((item.kind, item.name), item)


def register_process_setup(function: Callable[[], None]) -> Callable[[], None]:
    """Declare what each worker process calls once before any op, such as limits on a library's own threads."""
    if function not in _process_setups:
        _process_setups.append(function)
    return function


def process_setups() -> tuple[Callable[[], None], ...]:
    """The functions declared by `register_process_setup`."""
    _load_providers()
    return tuple(_process_setups)


def provide_ops(module: str) -> None:
    """Name a module whose `load_ops()` declares ops, imported on first look at the registry."""
    if module not in _providers:
        _providers.append(module)
