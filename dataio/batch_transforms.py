"""Batch transform factories: a whole batch to another. One per registered op, made on first use."""

from .namespaces import resolver

__getattr__, __dir__ = resolver("batch_transforms")

del resolver
