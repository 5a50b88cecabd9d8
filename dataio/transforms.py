"""Transform factories: one record's value to another. One per registered op, made on first use."""

from .namespaces import resolver

__getattr__, __dir__ = resolver("transforms")

del resolver
