"""Tar shards and archives: the walk over headers, samples read forwards and by an index, index files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile

import dataio
from dataio.io import verbs
from dataio.io.tar_stream import StreamTape, TarWalk

URI, INDEX = "memory://fuzz/x.tar", "memory://fuzz/x.index"
LIMIT = 1 << 20


def _tar(form: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, kind in [("a/0.x", b"0"), ("a/0.y.z", b"0"), ("1.x", b"0"), ("d" * 60 + "/" + "é" * 30 + ".x", b"0"), ("l.x", b"2"), ("d.x", b"3"), ("f.d", b"5")]:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.size = 5 if kind == b"0" else 0
            archive.addfile(info, io.BytesIO(b"12345") if info.size else None)
    return out.getvalue()


def seeds() -> list[bytes]:
    plain = [_tar(form) for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
    verbs.write(URI, plain[0])
    verbs.delete(INDEX)
    dataio.webdataset(URI, index=INDEX)
    return [*plain, gzip.compress(plain[0]), bz2.compress(plain[1]), lzma.compress(plain[2]), bytes(verbs.read(INDEX))]


def run(data: bytes) -> None:
    try:
        walk = TarWalk(StreamTape([data]), "x")
        while walk.next() is not None:
            pass
    except ValueError:
        pass
    verbs.write(URI, data)
    rules = {"on_damage": "skip", "on_duplicate": "last", "key": "path", "lowercase": True}
    for index, options in ((False, {}), (False, rules), (True, {}), (True, {**rules, "on_interleaved": "merge"})):
        try:
            for sample in dataio.webdataset(URI, index=index, max_output_bytes=LIMIT, **options):
                for value in sample.values():
                    if not isinstance(value, str):
                        value.read_all()
        except (ValueError, RuntimeError):  # documented: TarError, a suffix or an entry twice, an entry above the limit
            pass
    try:
        for entry in dataio.archive(URI, max_output_bytes=LIMIT).entries():
            entry["reader"].read_all()
    except (ValueError, RuntimeError):
        pass
    if data[:6] == b"ARROW1":
        verbs.write(INDEX, data)
        verbs.write(URI, _tar(tarfile.USTAR_FORMAT))
        try:
            for sample in dataio.webdataset(URI, index=INDEX):
                assert sample["__key__"]
        except ValueError:
            pass
