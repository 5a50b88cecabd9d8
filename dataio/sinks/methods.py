"""The `sink_` methods of `BoundPipeline`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ..pipelines import BoundPipeline
    from .run import SinkReport

SHARD_SIZE = "256MB"
WRITERS = 2


class SinkMethods:
    """Run a pipeline once over its source and store what comes out, as files of a training set."""

    def sink_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        shard_size: int | str = SHARD_SIZE,
        columns: Sequence[str] = (),
        ragged: Sequence[str] = (),
        compression: str = "zstd",
        overwrite: bool = False,
        writers: int = WRITERS,
        progress: Callable[[SinkReport], Any] | None = None,
        **options: Any,
    ) -> SinkReport:
        """Store every record that survives as a row of Parquet files `part-00000.parquet`, `part-00001.parquet`, ...

        A row has the record's `key`, each slot, and the fields of `columns`. Slots whose rows in the first shard have one shape
        are columns of `arrow.fixed_shape_tensor` (0-d: of numbers), others, and those of bool, structs of `data` (list of the elements in C order) and
        `shape` (list of int32); text, bytes and other Python values have the type that Arrow gives them. The order is the
        source's. A pipeline without shape stage runs in batches of 64; `drop_last` and padding of shards are off: no record
        is lost and none stored twice.

        Each file appears when it is whole. `_dataio.json` in the folder says which are. A call that finds one of the same plan,
        source and options goes on behind the last whole shard, and returns at once where all is done; a kill of the process
        so costs at most the shards that were not noted. The functions of a pipeline have to give the same for the same
        record, which random ops do.

        Args:
            path: a folder, local (made where it is missing) or a URI that can be written.
            shard_size: rows of one file, or bytes such as "256MB": of the values before compression, and so the last row may
                reach beyond it. Memory holds up to `writers` + 1 shards, and what the format needs to write them.
            columns: fields of the records, as bound, to keep beside the slots.
            ragged: slots to store with a shape per row though those of the first shard have one.
            compression: as `write_parquet` takes it.
            overwrite: remove the sink that is there and begin again.
            writers: shards written at a time, each by a thread.
            progress: called with the report so far after each shard.
            options: of `run`: concurrency, on_failure (default 0: failed records are counted and left out), seed (default 0),
                log_errors, max_failures, quarantine, max_bytes, cache, workers, worker_niceness, worker_cpus and shard. With
                a shard the files are `part-{id}-of-{of}-{number}` and the manifest is `_dataio-{id}-of-{of}.json`, so
                that all ranks may write into one folder.

        Returns:
            What is stored, by this call and those that it went on from.

        Raises:
            SinkError: (a ValueError) a folder with another sink, or with files of one and no manifest; a pipeline that packs; values
                that the format cannot hold, or that do not fit those of the first shard: it names field and record.
            TypeError, ValueError: options out of range.
            OSError: as `dataio.write` says. The shards that are whole stay.
            FailureBudgetError, and what strict runs raise: as `run` says.
        """
        from .arrow_shards import save_parquet

        return self._sink(path, ("parquet", "parquet", save_parquet, True), shard_size, columns, ragged, overwrite, writers, progress,
                          options, {"compression": compression})  # fmt: skip

    def sink_feather(
        self,
        path: str | os.PathLike[str],
        *,
        shard_size: int | str = SHARD_SIZE,
        columns: Sequence[str] = (),
        ragged: Sequence[str] = (),
        compression: str = "none",
        overwrite: bool = False,
        writers: int = WRITERS,
        progress: Callable[[SinkReport], Any] | None = None,
        **options: Any,
    ) -> SinkReport:
        """Store every record that survives as a row of Feather (Arrow IPC) files `part-00000.arrow`, ...; all else as `sink_parquet`.

        Args:
            compression: none, lz4 or zstd.
        """
        from .arrow_shards import save_feather

        return self._sink(path, ("feather", "arrow", save_feather, True), shard_size, columns, ragged, overwrite, writers, progress,
                          options, {"compression": compression})  # fmt: skip

    def sink_webdataset(
        self,
        path: str | os.PathLike[str],
        *,
        shard_size: int | str = SHARD_SIZE,
        columns: Sequence[str] = (),
        encode: Mapping[str, str] | None = None,
        overwrite: bool = False,
        writers: int = WRITERS,
        progress: Callable[[SinkReport], Any] | None = None,
        **options: Any,
    ) -> SinkReport:
        """Store every record that survives as a sample of tar files `part-00000.tar`, ...; all else as `sink_parquet`.

        A sample's members are `<key>.<field>.<suffix>`: `npy` for arrays, `txt` for text, `bin` for bytes, `json` for other
        values; slots of `encode` are images. Fields that are None have no member. In keys, what would end the sample's name or
        leave the folder (dots, slashes) and all that is not plain is percent-encoded: `urllib.parse.unquote` gives it back.

        Args:
            encode: per slot "jpg", "png" or another format of `write_image`: uint8 [h, w], [h, w, 3] or [h, w, 4] become
                such files. JPEG loses detail.

        Raises:
            SinkError: two records of a shard have one key, or a field name has a slash.
        """
        from .tar_shards import save_tar

        return self._sink(path, ("webdataset", "tar", save_tar, False), shard_size, columns, (), overwrite, writers, progress,
                          options, {"encode": dict(encode or {})})  # fmt: skip

    def sink_safetensors(
        self,
        path: str | os.PathLike[str],
        *,
        shard_size: int | str = SHARD_SIZE,
        columns: Sequence[str] = (),
        ragged: Sequence[str] = (),
        overwrite: bool = False,
        writers: int = WRITERS,
        progress: Callable[[SinkReport], Any] | None = None,
        **options: Any,
    ) -> SinkReport:
        """Store every record that survives in safetensors files `part-00000.safetensors`, ...; all else as `sink_parquet`.

        A slot of one shape is one tensor [rows, ...] of its name; a ragged one is a tensor `<slot>/<row>` per row (row with at
        least 8 digits). The metadata's `dataio` is JSON: `rows`, and `values` with the keys and all that is text or numbers,
        per field a list. A shard without a tensor holds an empty one, `_empty`.

        Raises:
            SinkError: bytes or other values that JSON lacks; a slot that some record of a shard does not have, unless it is ragged.
        """
        from .tensor_shards import save_safetensors

        return self._sink(path, ("safetensors", "safetensors", save_safetensors, True), shard_size, columns, ragged, overwrite, writers,
                          progress, options, {})  # fmt: skip

    def sink_tfrecord(
        self,
        path: str | os.PathLike[str],
        *,
        shard_size: int | str = SHARD_SIZE,
        columns: Sequence[str] = (),
        compression: str | None = None,
        overwrite: bool = False,
        writers: int = WRITERS,
        progress: Callable[[SinkReport], Any] | None = None,
        **options: Any,
    ) -> SinkReport:
        """Store every record that survives as a `tf.train.Example` in files `part-00000.tfrecord`, ...; all else as `sink_parquet`.

        Features: `key`; arrays as .npy files in a bytes list of one (`dataio`'s `decode_npy` and `numpy.load` read them); text (UTF-8)
        and bytes as such, bool and int as int64, float as a float list (32 bits), lists of these as lists. Fields that are
        None have no feature.

        Args:
            compression: None, "gzip" or "zlib", of whole files.
        """
        from .tensor_shards import save_tfrecord

        return self._sink(path, ("tfrecord", "tfrecord", save_tfrecord, False), shard_size, columns, (), overwrite, writers, progress,
                          options, {"compression": compression})  # fmt: skip

    def _sink(
        self, path: Any, kind: tuple[str, str, Any, bool], shard_size: Any, columns: Any, ragged: Any, overwrite: bool, writers: Any,
        progress: Any, options: dict[str, Any], format_options: dict[str, Any],
    ) -> SinkReport:  # fmt: skip
        from .run import Format, sink

        return sink(
            cast("BoundPipeline", self),
            path,
            Format(*kind),
            shard_size=shard_size,
            columns=columns,
            ragged=ragged,
            overwrite=overwrite,
            writers=writers,
            progress=progress,
            options=options,
            format_options=format_options,
        )
