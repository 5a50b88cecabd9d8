"""A declarative data loader: lazy plans, Arrow record batches, an actor graph, DLPack tensors.

Public names are resolved on first use (PEP 562), so that `import dataio` stays light.
"""

from __future__ import annotations

import importlib as _importlib
import os as _os
from typing import Any as _Any

# From the repository's root without an installation, the sister folders engine/, io/ and formats/ belong here too.
if not _os.path.isdir(_os.path.join(__path__[0], "engine")):
    __path__.append(_os.path.dirname(__path__[0]))

__version__ = "0.1.0"

_MODULES = ("aio", "batch_transforms", "cond", "decoders", "ops", "polars", "rdma", "spark", "transforms")
_NAMES = {
    "Archive": "sources",
    "Batch": "batches",
    "BatchStage": "stages",
    "BoundPipeline": "pipelines",
    "BucketByStage": "stages",
    "CollateStage": "stages",
    "CustomOp": "engine.custom",
    "DataLoader": "loader",
    "DlpackTensor": "outputs",
    "HeadInfo": "io.stream",
    "GroupByStage": "stages",
    "PackStage": "stages",
    "Pipeline": "pipelines",
    "GroupedQuery": "query",
    "Query": "query",
    "RecordSource": "sources",
    "ShardSpec": "sharding",
    "SinkError": "sinks.manifest",
    "SinkReport": "sinks.run",
    "SlotStage": "stages",
    "Stream": "io.stream",
    "archive": "sources",
    "batch": "stages",
    "bucket_by": "stages",
    "chain": "stages",
    "collate": "stages",
    "concat": "sources",
    "custom_op": "engine.custom",
    "check": "inspect.checking",
    "clear_credentials": "io.config",
    "clear_transport_overrides": "io.config",
    "configure_credentials": "io.config",
    "configure_endpoint": "io.config",
    "configure_transport": "io.config",
    "current_config": "io.config",
    "delete": "io.verbs",
    "exists": "io.verbs",
    "fetch": "io.verbs",
    "fetch_into": "io.verbs",
    "glob": "io.verbs",
    "head": "io.verbs",
    "ls": "io.verbs",
    "lsd": "io.verbs",
    "read": "io.verbs",
    "sign": "io.verbs",
    "write": "io.verbs",
    "copy": "io.transfer",
    "sync": "io.transfer",
    "reader": "io.reader",
    "Reader": "io.reader",
    "writer": "io.writer",
    "Writer": "io.writer",
    "env_vars": "settings",
    "files": "sources",
    "from_callable": "sources",
    "from_iterable": "sources",
    "from_iterator": "sources",
    "from_sampler": "sources",
    "group_by": "stages",
    "manifest": "sources",
    "map": "stages",
    "mix": "sources",
    "pack": "stages",
    "pipeline": "pipelines",
    "records": "sources",
    "register_output_adapter": "outputs",
    "scan": "query",
    "slot": "stages",
    "slots": "stages",
    "urls": "sources",
    "scan_files": "scans",
    "scan_hf": "scans",
    "scan_safetensors": "scans",
    "scan_webdataset": "scans",
    "webdataset": "sources",
    "stream": "io.stream",
    # arrays and images
    "Hdf5Session": "formats.hdf5.session",
    "Npz": "sources",
    "npz": "sources",
    "open_hdf5": "formats.hdf5.session",
    "read_hdf5": "formats.hdf5.session",
    "read_image": "images",
    "read_numpy": "formats.numpy_files",
    "write_image": "formats.image.files",
    "write_npz": "formats.numpy_files",
    "write_numpy": "formats.numpy_files",
    # GPUs
    "GdsBuffer": "formats.gpu.gds",
    "GdsFileHandle": "formats.gpu.gds",
    "cuda_kernels_available": "formats.gpu.jpeg",
    "cuda_pinning_available": "formats.gpu.devices",
    "decode_image_batch": "image_batch",
    "gds_available": "formats.gpu.gds",
    "gds_info": "formats.gpu.gds",
    "gds_open": "formats.gpu.gds",
    "gds_read_into_tensor": "formats.gpu.gds",
    "gds_register_buffer": "formats.gpu.gds",
    "nvjpeg_available": "formats.gpu.jpeg",
    "nvjpeg_decode_batch_device": "formats.gpu.jpeg",
    "nvjpeg_decode_resize_batch_device": "formats.gpu.jpeg",
    "nvjpeg_decode_resize_normalize_chw_batch_device": "formats.gpu.jpeg",
    "nvjpeg_decode_resize_normalize_chw_stacked_device": "formats.gpu.jpeg",
    "pinned_pool_stats": "formats.gpu.devices",
    "rdma_available": "rdma:available",
    "rdma_info": "rdma:info",
    # checkpoints
    "zipnn_compress": "formats.weights.zipnn",
    "zipnn_decompress": "formats.weights.zipnn",
    "consolidate_dcp": "formats.weights.dcp",
    "read_dcp": "formats.weights.dcp",
    "read_pt": "formats.weights.checkpoints",
    # tables
    "ParquetExpr": "parquet_expr",
    "ParquetNamespace": "parquet_expr",
    "ParquetQuery": "parquet_query",
    "parquet": "parquet_expr",
    "parquet_metadata": "formats.tables.parquet",
    "read_feather": "formats.tables.feather",
    "read_parquet": "formats.tables.parquet",
    "scan_parquet": "scans",
    "scan_csv": "scans",
    "scan_feather": "scans",
    "scan_ndjson": "scans",
    "write_feather": "formats.tables.feather",
    "write_parquet": "formats.tables.parquet",
    # TFRecord
    "TFRecordError": "formats.tfrecord.framing",
    "TFRecordIndex": "formats.tfrecord.index",
    "iter_tfrecord": "formats.tfrecord.files",
    "read_tfrecord": "formats.tfrecord.files",
    "scan_tfrecord": "scans",
    "tfrecord": "sources",
    "tfrecord_index": "formats.tfrecord.index",
    "write_tfrecord": "formats.tfrecord.files",
    # image processors
    "ImageProcessor": "image_processors",
    "default_chain_builder": "processor_chains",
    "from_processor": "image_processors",
    "image_processor": "image_processors",
    "register_chain_builder": "processor_chains",
    "register_native_preprocess": "image_processors",
    # data sets
    "Description": "look.describe",
    "Finding": "inspect.report",
    "Preview": "look.preview",
    "Report": "inspect.report",
    # stores of a user's own
    "Body": "io.store",
    "ObjectInfo": "io.store",
    "Store": "io.store",
    "Upload": "io.store",
    "register_store": "io.store",
    "Cache": "io.cache",
    # safetensors
    "SafetensorsSession": "formats.weights.safetensors_session",
    "open_safetensors": "formats.weights.safetensors_session",
    "read_safetensors": "formats.weights.safetensors_session",
    "write_safetensors": "formats.weights.safetensors_write",
    # types of options and arguments
    "Concurrency": "aliases",
    "FailurePolicy": "aliases",
    "ImageMode": "aliases",
    "Interp": "aliases",
    "OnFailure": "aliases",
    "Order": "aliases",
    "Output": "aliases",
    "OutputLayout": "aliases",
    "PinMemory": "aliases",
    "RaggedPolicy": "aliases",
    "Record": "aliases",
    "ShardLike": "aliases",
    # from the engine
    "BatchTransform": "engine.calls",
    "Cond": "engine.expr",
    "ConstValue": "engine.expr",
    "DataioError": "engine.errors",
    "Decoder": "engine.calls",
    "Param": "engine.expr:Col",
    "ParamRef": "engine.expr",
    "Transform": "engine.calls",
    "col": "engine.expr:Col",
    "const": "engine.expr:ConstValue",
    "param": "engine.expr:ParamRef",
    "op_stats": "engine.stats",
    "register_check": "engine.registry",
    "register_fusion": "engine.registry",
    "register_kernel": "engine.registry",
    "register_op": "engine.registry",
    "reset_op_stats": "engine.stats",
}

__all__ = ["__version__", *sorted((*_MODULES, *_NAMES))]  # pyright: ignore


def __getattr__(name: str) -> _Any:
    if name in _MODULES:
        return _importlib.import_module(f"{__name__}.{name}")
    target = _NAMES.get(name)
    if target is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=None)
    module, _, attribute = target.partition(":")
    value = getattr(_importlib.import_module(f"{__name__}.{module}"), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
