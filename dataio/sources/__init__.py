"""Where records come from: lists, files, manifests, functions, samplers, frames, tables and data sets.

`RecordSource` and the functions beside it make sources; `as_source` turns whatever `bind` is given into the
engine's `Source`.
"""

from __future__ import annotations

from .archive import Archive, archive
from .binding import as_source
from .combine import concat, mix
from .files import files, manifest
from .npz import Npz, npz
from .python import from_callable, from_iterable, from_iterator
from .records import RecordSource, records
from .sampler import from_sampler
from .tfrecord import tfrecord
from .urls import urls
from .webdataset import webdataset

__all__ = [
    "Archive",
    "Npz",
    "RecordSource",
    "archive",
    "as_source",
    "concat",
    "files",
    "from_callable",
    "from_iterable",
    "from_iterator",
    "from_sampler",
    "manifest",
    "mix",
    "npz",
    "records",
    "tfrecord",
    "urls",
    "webdataset",
]
