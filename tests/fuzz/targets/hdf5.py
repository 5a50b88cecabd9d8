"""`open_hdf5`: all data sets and their metadata. What the HDF5 library does with a file is in here too."""

from __future__ import annotations

import io

import h5py
import numpy as np

import dataio
from dataio.engine.errors import OpError
from dataio.io.errors import ReadError

LIMIT = 1 << 22


def _file(libver: str, fill: int) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w", libver=libver) as file:
        values = np.arange(12, dtype="i4").reshape(4, 3)
        if fill == 0:
            file["plain"] = values
            file["scalar"] = 1.5
            file["g/h/bools"] = np.array([True, False])
            file["compound"] = np.zeros(2, [("a", ">i4"), ("b", "f8")])
            file["plain"].attrs.update({"n": 5, "s": "text", "a": [1, 2]})
        elif fill == 1:
            file.create_dataset("packed", data=values, chunks=(2, 2), compression="gzip", shuffle=True, fletcher32=True)
            file.create_dataset("growing", data=values, maxshape=(None, 3), chunks=(2, 3))
        else:
            file.create_dataset("words", data=["a", "bb"], dtype=h5py.string_dtype())
            file["soft"] = h5py.SoftLink("/words")
            file["g/again"] = file["/"]
            file["elsewhere"] = h5py.ExternalLink("other.h5", "/x")
    return out.getvalue()


def seeds() -> list[bytes]:
    """Small files of all kinds, in the oldest and the newest layout."""
    return [_file(libver, fill) for libver in ("earliest", "latest") for fill in range(3)]


def run(data: bytes) -> None:
    """Read everything."""
    try:
        session = dataio.open_hdf5(data, max_output_bytes=LIMIT)
    except (OpError, ReadError):
        return
    with session:
        try:
            keys = session.keys()
        except (OpError, ReadError):
            return
        for key in keys[:100]:
            for read in (session.metadata, session.read):
                try:
                    read(key=key)
                except (OpError, ReadError):
                    pass
