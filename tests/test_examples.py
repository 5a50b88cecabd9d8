"""The scripts in `examples/` run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

EXPECTED = {  # script: patterns of lines of its output
    "multi_slot_pipeline.py": [
        r"\(8, 3, 64, 64\) torch.float32, labels \[0, 1, 2, 0, 1, 2, 0, 1\], first caption 'picture 0: red'",
        r"\(7, 3, 64, 64\) torch.float32, labels \[2, 0, 1, 2, 0, 2, 0\], first caption 'picture 8: blue'",
        r"left out row-13: .*",
        r"39 of 39 pictures recognised",
    ],
    "image_augmentation.py": [
        r"\(16, 3, 128, 128\) \(16, 10\) 0 errors",
        r"threads and processes give the same pictures: True",
    ],
    "safetensors_checkpoints.py": [
        r"tensors: \['embed', 'norm'\] \{'step': '100'\}",
        r"array: bfloat16",
        r"error: no tensor 'nrom' \(did you mean 'norm'\?\); .*",
        r"shards: 2 .*",
        r"same: True",
        r"batch: \(4, 4, 16, 16\)",
    ],
    "checkpoints.py": [
        r"tensors: \['0.weight', '0.bias', '2.weight', '2.bias'\]",
        r"first layer: \{'model.0.bias': \(32,\), 'model.0.weight': \(32, 64\)\}",
        r"consolidated: \{'tensors': 4, 'bytes': 4688, 'skipped_byte_io': 0\}",
        r"types: \{torch.bfloat16\}",
        r"torn: /torn.pt: .*",
        r"packed: \d+%, the same again: True",
    ],
    "arrays_and_images.py": [
        r"members: 8 \(3, 100\)",
        r"batch: \(4, 3, 100\)",
        r"png exact: True",
        r"too large: picture.tif: a tiff of 160x120 pixels exceeds max_pixels=10000; .*",
    ],
    "hdf5_selections.py": [
        r"keys: \['/labels', '/camera/frames', '/camera/times'\]",
        r"crop: \(10, 32, 32\)",
        r"late frames: torch.Size\(\[19, 48, 64\]\)",
        r"threads agree: True",
        r"again: frame 199",
    ],
    "tfrecord.py": [
        r"first: \['box', 'image', 'label'\] \[1\] True",
        r"batch: \(8, 32, 32, 3\) 8",
        r"index: 20 records, the last at byte \d+",
        r"label 2: 13 rows",
        r"behind damage: 19 of 20",
    ],
    "image_processor.py": [
        r"ops: \['resize_short', 'center_crop', 'normalize_chw_from_hwc_u8'\]",
        r"pixel_values: \(8, 3, 48, 48\) float32",
        r"own: \(16, 16, 3\)",
        r"its own: \(1, 3, 32, 32\)",
        r"as a chain: \['resize_short', 'center_crop'\]",
    ],
    "conditional_pipeline.py": [
        r"\{'image': \(12, 224, 224, 3\), 'mask': \(12, 224, 224, 1\)\}, 0 errors",
        r"\{'image': \(12, 224, 224, 3\)\}, 0 errors",
        r"masks read: 12",
    ],
    "text_pipeline.py": [r"left out latin-1.txt: .*", r"\d+ files, 1 left out", r"texts unchanged: True"],
    "audio_pipeline.py": [
        r"left out voice-3-ah.flac: damaged or truncated FLAC: flac decoder lost sync",
        r"\(9, 96, 80\) torch.float32, .*",
        r"18 of 18 vowels of new voices recognised",
    ],
    "detection_pipeline.py": [],
    "preprocess_to_shards.py": [
        r"parquet: \(.*part-00002.parquet'\) 19 rows, 1 failed",
        r"from parquet: \(8, 32, 32, 3\)",
        r"again: True True",
        r"from tars: \(19, 32, 32, 3\)",
        r"part-00000.arrow and so on: \d+ shards, 19 rows",
    ],
    "direct_io.py": [
        r"ls: \['s3://bucket/prefix/model.safetensors'\]",
        r"gone: s3://bucket/out.bin: no such object",
        r"from the shard: True",
        r"again: \{'copied': 0, 'deleted': 0\}",
        r"batch: \(8, 3, 32, 32\) float32",
    ],
    "tables.py": [
        r"10000 rows in 10 row groups",
        r"two rows: \{'id': \[5000, 5001\], 'label': \['class 2', 'class 3'\]\}",
        r"row groups read: \[0, 1\]",
        r"\d+ rows, the first: \[\{'id': \d+, 'height': 20\d\d\}\]",
        r"batches: \[4, .*\]",
        r"as Feather: True",
    ],
    "distributed_training.py": [
        r"rank 0: 13 steps, stopped, 17 steps; as without the stop: True",
        r"rank 1: 13 steps, stopped, 17 steps; as without the stop: True",
        r"the same weights: True",
        r"100 % of the last batch right",
    ],
    "lightning_datamodule.py": [
        r"17 steps, stopped, 31 steps",
        r"the same pictures as without the stop: True",
        r"the same weights: True",
        r"100 % of the last epoch right",
    ],
    "check_a_data_set.py": [
        r"warning: wrong_extension in cover.png",
        r"error: truncated in train-1.tar 05.jpg",
        r"warning: missing_member in train-1.tar 03",
        r"warning: schema_drift in scores-1.parquet",
        r"files: 5 records: 21 fit for training: False",
        r"exit status: 0",
        r"  samples: 8",
        r"8 records, 8 pictures: .*sheet.png",
        r"sheet: \(\d+, \d+\)",
    ],
    "webdataset_training.py": [
        r"forwards: 24 samples",
        r"indexed: 24 samples, the first batch comes out of [23] shards",
        r"merged: \[\('024', \['cls', 'jpg'\]\), \('025', \['cls', 'jpg'\]\)\]",
        r"skipped damage: 11 samples",
        r"archive: \['train/024.JPG', 'train/025.JPG', 'train/024.cls', 'train/025.cls'\]",
    ],
    "record_sources.py": [
        r"by number: \[\[\d+\], \[\d+\], \[\d+\], \[\d+\]\]",
        r"streamed: \[\[0\], \[1\], \[2\], \[3\]\]",
        r"an iterator as a reader: b'one' b'two'",
        r"a sampler's batches: \[\[3, 1\], \[2\], \[5, 8\]\]",
        r"a manifest: \[\[0\], \[10\], \[20\]\]",
        r"URIs: \[\[20\], \[0\]\]",
        r"batches: \[\(\[1, 2, 3\], \[10, 20, 30\]\), \(\[4\], \[40\]\)\]",
    ],
    "gpu_reads.py": [
        r"GPUDirect: (True|False) nvJPEG: (True|False)",
        r"tensors: (cpu|cuda) 523776.0",
        r"raw bytes: (not here: .+|512 \[0, 1, 2\])",
        r"pictures: \[(None|\(48, 64, 3\)), None, (None|\(48, 64, 3\))\] True",
    ],
    "scans.py": [
        r"tables: \[3, 3, 3\]",
        r"files: \[\{'width': 60, 'height': 20, 'format': 'png'\}, \{'width': 90, 'height': 20, 'format': 'png'\}\]",
        r"labels: \[b'0', b'1', b'0', b'1'\]",
        r"tensors: \[\{'name': 'embed', 'dtype': 'float32', 'bytes': 3200\}, \{'name': 'norm', 'dtype': 'float16', 'bytes': 16\}\]",
    ],
    "question_to_training.py": [
        r"rows: 48 columns: \['id', 'image', 'label', 'source'\]",
        r"by source: \[\{'source': 'scan', 'n': 16\}, \{'source': 'web', 'n': 32\}\]",
        r"shown: True damaged: 1",
        r"bright: 39",
        r"epochs: 39 39 another order: True resumed: True",
        r"in bulk: 48 rows, 1 with an error",
    ],
    "metrics_export.py": [
        r'dataio_records_total\{outcome="delivered"\} 59.0',
        r'dataio_records_total\{outcome="failed"\} 1.0',
        r"dataio_batches_total 4.0",
        r'dataio_op_seconds_total\{op="image",stage="decode"\} [\d.e-]+',
        r'dataio_stall_seconds_total\{what="consumer_waits_for_batch"\} [\d.e-]+',
        r"dataio.records\{outcome=delivered\} 59",
        r"dataio.records\{outcome=failed\} 1",
        r"dataio.batches\{\} 4",
        r"dataio.inflight.max\{unit=batches\} [1-4]",
    ],
}
NEEDS = {"lightning_datamodule.py": ("lightning",), "image_processor.py": ("transformers",)}  # beside what the tests themselves need


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_prints_what_it_says(name: str) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [p for p in EXPECTED[name] if not any(re.fullmatch(p, line) for line in lines)] == [], done.stdout
