"""`tf.train.Example`, by protobuf: its messages are described here, so that no generated module is needed.

Source: tensorflow/core/example/feature.proto and example.proto.
"""

from __future__ import annotations

from functools import cache
from typing import Any

_LABELS = {"bytes": 12, "float": 2, "int64": 3}


@cache
def _message() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="dataio/inspect/example.proto", package="dataio.inspect", syntax="proto3")
    repeated, optional, message = 3, 1, 11
    for kind, number in _LABELS.items():
        one = file.message_type.add(name=f"{kind.title()}List")
        one.field.add(name="value", number=1, label=repeated, type=number)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, kind in enumerate(_LABELS, 1):
        name = f".dataio.inspect.{kind.title()}List"
        feature.field.add(name=f"{kind}_list", number=number, label=optional, type=message, type_name=name, oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=optional, type=9)
    entry.field.add(name="value", number=2, label=optional, type=message, type_name=".dataio.inspect.Feature")
    features.field.add(name="feature", number=1, label=repeated, type=message, type_name=".dataio.inspect.Features.FeatureEntry")
    whole = file.message_type.add(name="Example")
    whole.field.add(name="features", number=1, label=optional, type=message, type_name=".dataio.inspect.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("dataio.inspect.Example"))


def example(payload: bytes) -> dict[str, list[Any]] | None:
    """Values by feature; None where the payload is no Example with features."""
    from google.protobuf.message import DecodeError

    try:
        found = _message().FromString(payload)
    except DecodeError:
        return None
    if not found.features.feature:
        return None
    values: dict[str, list[Any]] = {}
    for name, feature in found.features.feature.items():
        kind = feature.WhichOneof("kind")
        values[name] = list(getattr(feature, kind).value) if kind else []
    return values
