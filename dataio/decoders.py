"""Decoder factories: bytes, or a slot's value, to a value. One per registered op, made on first use."""

from .namespaces import resolver

__getattr__, __dir__ = resolver("decoders")

del resolver
