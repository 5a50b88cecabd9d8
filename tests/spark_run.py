"""The script of `test_spark.py`: bulk runs on one engine, in an environment that has it.

    python tests/spark_run.py ENGINE FOLDER

ENGINE: sail (Spark Connect to Sail, in this process, no JVM); spark (PySpark with two threads of a JVM, which also serves a Spark Connect client in a process
of its own); or the address of a Spark Connect server, sc://HOST:PORT, where only the first job is run.
FOLDER: has `in/*.parquet`; gets Parquet folders, `local.npz` and `report.json`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.dataset import dataset

import dataio
from dataio.spark import map_in_arrow


@contextmanager
def sail() -> Iterator[Any]:
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    host, port = server.listening_address
    session = SparkSession.builder.remote(f"sc://{host}:{port}").getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        server.stop()


@contextmanager
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.local.dir": os.getcwd(),
        "spark.sql.warehouse.dir": os.getcwd(),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "8",
        "spark.executorEnv.DATAIO_CPU_WORKERS": "1",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(PORT),
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def connect(address: str) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote(address).getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


PORT = free_port()
PIPELINE = dataio.pipeline(dataio.slot("image").decode_image().resize(h=24, w=32), dataio.slot("label").passthrough())


def tensors(session: Any, folder: Path, name: str = "tensors") -> str:
    """JPEGs become tensors in `folder / name`; the result's columns."""
    done = map_in_arrow(session.read.parquet(str(folder / "in")), PIPELINE)
    done.write.parquet(str(folder / name))
    return str(done.schema.simpleString())


def local_images(records: Any) -> dict[str, np.ndarray]:
    """What the pipeline gives without an engine, by id; here, since `resize` rounds otherwise where torch is installed."""
    found: dict[str, np.ndarray] = {}
    with dataio.pipeline(*PIPELINE.slots, dataio.batch(16)).bind(records).run("numpy", on_failure=0) as loader:
        for batch in loader:
            found |= zip(map(str, batch.keys), batch["image"])
    return found


def jobs(session: Any, folder: Path) -> dict[str, Any]:
    """What was found, as JSON values; Parquet goes to `folder`."""
    rows = session.read.parquet(str(folder / "in"))
    report: dict[str, Any] = {"version": session.version, "schema": tensors(session, folder)}

    # Elements as arrays, unsigned numbers, rows of several shapes, names that need quotes, a function of this script, an op that workers never heard of.
    @dataio.register_op("darker_here", infer=lambda given, **_: given)
    def darker_here(image: np.ndarray, *, by: int) -> np.ndarray:
        return image // by

    mean = dataio.custom_op(lambda image: np.asarray(image.mean(axis=(0, 1)), np.float16), name="mean-colour")
    several = dataio.pipeline(
        dataio.map(lambda row: {**row, "colour": row["image"], "edge": row["image"], "small": row["label"], "mask": row["image"]}),
        dataio.slot("colour").decode_image().custom(mean),
        dataio.slot("edge").decode_image().darker_here(by=2).resize_short(size=8),  # type: ignore[attr-defined]
        dataio.slot("small").decode_array(dtype="uint8"),
        dataio.slot("mask").decode_image().resize(h=2, w=2).cast(dtype="bool"),
    )
    types = {"small": pa.uint8(), "colour": pa.fixed_shape_tensor(pa.float16(), [3])}
    made = map_in_arrow(rows, several, columns=["id", "a note`s.name"], errors="why", arrays=["colour", "mask"], types=types, batch_rows=3)
    report["several_schema"] = made.schema.simpleString()
    made.write.parquet(str(folder / "several"))

    # Relational work on both sides of the pipeline, as a part of one Spark job.
    counts = map_in_arrow(rows.filter("label < 2"), PIPELINE, columns=["id"]).groupBy("label").count().collect()
    report["counts"] = sorted([row["label"], row["count"]] for row in counts if row["label"] is not None)
    report["empty"] = map_in_arrow(rows.filter("id < 0"), PIPELINE).count()
    report["limited"] = len(map_in_arrow(rows, PIPELINE).limit(3).collect())
    report["plan_columns"] = map_in_arrow(rows, PIPELINE, columns=[], errors=None).columns

    try:
        map_in_arrow(rows, PIPELINE, errors=None).count()
    except Exception as error:
        report["raised"] = str(error)
    for name, wrong in WRONG.items():
        try:
            wrong(rows)
        except (TypeError, ValueError) as error:
            report[name] = f"{type(error).__name__}: {error}"
    return report


WRONG: dict[str, Callable[[Any], Any]] = {
    "no_column": lambda rows: map_in_arrow(rows.drop("image"), PIPELINE),
    "no_pipeline": lambda rows: map_in_arrow(rows, PIPELINE.bind([])),  # type: ignore[arg-type]
    "no_frame": lambda rows: map_in_arrow([], PIPELINE),
    "no_slot": lambda rows: map_in_arrow(rows, PIPELINE, arrays=["imgae"]),
    "no_tensor": lambda rows: map_in_arrow(rows, PIPELINE, arrays=["label"]),
    "twice": lambda rows: map_in_arrow(rows, PIPELINE, errors="id"),
}


def main() -> None:
    engine, folder = sys.argv[1], Path(sys.argv[2])
    if engine.startswith("sc://"):
        with connect(engine) as session:
            tensors(session, folder, "connect")
        return
    with sail() if engine == "sail" else spark() as session:
        report = jobs(session, folder)
        if engine == "spark":
            clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
            subprocess.run([sys.executable, __file__, f"sc://127.0.0.1:{PORT}", str(folder)], env=clean, check=True, timeout=120)
    np.savez(folder / "local.npz", **local_images(dataset(folder / "in")))
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
