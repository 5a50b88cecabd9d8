"""The dataflow engine: expressions, plans, rules, the op registry, actors and executors.

It knows no image, no URI scheme and no torch: it meets them as registered ops, source readers
and output adapters. Read `docs/arch.md` for the way of one record through these files.
"""
