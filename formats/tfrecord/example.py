"""`tf.train.Example`, by protobuf's C core: the messages are described here, so that no generated module is needed.

Source: tensorflow/core/example/feature.proto and example.proto.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from ...engine.errors import OpError

Values: TypeAlias = list[bytes] | list[float] | list[int]
_PACKAGE = "dataio.tfrecord"
_KINDS = {"bytes": 12, "float": 2, "int64": 3}
"""The kinds of a feature and protobuf's numbers of the types of their values."""
_FLOAT_MAX = float(np.finfo(np.float32).max)


@cache
def example_class() -> Any:
    """The message class."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="dataio/tfrecord.proto", package=_PACKAGE, syntax="proto3")
    optional, repeated, text, message = 1, 3, 9, 11
    for kind, type_number in _KINDS.items():
        values = file.message_type.add(name=f"{kind.title()}List")
        values.field.add(name="value", number=1, label=repeated, type=type_number)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, kind in enumerate(_KINDS, 1):
        name = f".{_PACKAGE}.{kind.title()}List"
        feature.field.add(name=f"{kind}_list", number=number, label=optional, type=message, type_name=name, oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")  # a protobuf map
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=optional, type=text)
    entry.field.add(name="value", number=2, label=optional, type=message, type_name=f".{_PACKAGE}.Feature")
    features.field.add(name="feature", number=1, label=repeated, type=message, type_name=f".{_PACKAGE}.Features.FeatureEntry")
    whole = file.message_type.add(name="Example")
    whole.field.add(name="features", number=1, label=optional, type=message, type_name=f".{_PACKAGE}.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))


@cache
def _parser() -> tuple[Any, type[Exception]]:
    from google.protobuf.message import DecodeError

    return example_class().FromString, DecodeError


def parse_example(payload: bytes, features: frozenset[str] | None = None) -> dict[str, Values]:
    """Values by feature name, sorted; a feature without a kind is left out.

    Args:
        payload: a serialised `tf.train.Example`; an empty one has no features.
        features: those wanted; None for all.

    Raises:
        OpError: no Example.
    """
    parse, broken = _parser()
    try:
        message = parse(payload)
    except broken as error:
        raise OpError(f"no tf.train.Example: {error}") from error
    found: dict[str, Values] = {}
    by_name = message.features.feature
    for name in sorted(by_name if features is None else features.intersection(by_name)):  # protobuf keeps no order
        feature = by_name[name]
        kind = feature.WhichOneof("kind")
        if kind == "bytes_list":
            found[name] = feature.bytes_list.value[:]
        elif kind == "int64_list":
            found[name] = feature.int64_list.value[:]
        elif kind == "float_list":
            found[name] = feature.float_list.value[:]
    return found


def encode_example(features: Mapping[str, Any]) -> bytes:
    """A serialised `tf.train.Example`, the same bytes for equal features.

    Args:
        features: by name, a value or a flat list, tuple or NumPy array of values, all of one kind: bytes-like or str (as UTF-8);
            int and bool (int64); float (stored as float32), or ints and floats mixed. An empty list without a dtype is written as one
            of bytes.

    Raises:
        TypeError: a name that is no str, a value of another type.
        OpError: kinds mixed in one feature, an array of more than one axis, a number that does not fit.
    """
    message = example_class()()
    into = message.features.feature
    for name, value in features.items():
        if not isinstance(name, str):
            raise TypeError(f"names of features are str, got {name!r}")
        kind, values = _typed(name, value)
        try:
            target = getattr(into[name], f"{kind}_list")
            target.SetInParent()  # an empty list is there
            target.value.extend(values)
        except (ValueError, OverflowError) as error:
            raise OpError(f"feature {name!r}: {error}") from error
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded


def _typed(name: str, value: Any) -> tuple[str, Iterable[Any]]:
    """The kind of a feature, and its values as protobuf takes them."""
    if isinstance(value, (np.ndarray, np.generic)):
        if value.ndim > 1:
            raise OpError(f"feature {name!r}: an Example holds flat lists, got shape {value.shape}; store value.ravel() and the shape")
        kind = "int64" if value.dtype.kind in "iub" else "float" if value.dtype.kind == "f" else None
        if kind is not None:
            return kind, _checked_floats(name, value.reshape(-1).tolist()) if kind == "float" else map(int, value.reshape(-1).tolist())
        value = value.tolist()
    values: list[Any]
    if isinstance(value, (bytes, bytearray, memoryview, str, int, float)):
        values = [value]
    elif isinstance(value, (list, tuple)):
        values = list(value)
    else:
        raise TypeError(f"feature {name!r}: values are bytes, str, int or float, or a list or array of them; got {type(value).__name__}")
    if all(isinstance(one, (bytes, bytearray, memoryview, str)) for one in values):
        return "bytes", [one.encode() if isinstance(one, str) else bytes(one) for one in values]
    if all(isinstance(one, (int, np.integer, np.bool_)) for one in values):
        return "int64", [int(one) for one in values]
    if all(isinstance(one, (int, float, np.number)) and not isinstance(one, complex) for one in values):
        return "float", _checked_floats(name, [float(one) for one in values])
    kinds = sorted({type(one).__name__ for one in values})
    raise OpError(f"feature {name!r} mixes or has values that an Example does not: {', '.join(kinds)}; they are bytes, str, int or float")


def _checked_floats(name: str, values: list[float]) -> list[float]:
    for value in values:
        if abs(value) > _FLOAT_MAX and math.isfinite(value):
            raise OpError(f"feature {name!r}: {value} does not fit a float32")
    return values
