"""Metrics of a loader for Prometheus and OpenTelemetry.

Prometheus asks when it wants to know, so a collector reads `loader.stats()` at each scrape. OpenTelemetry is told: the
loader's metrics hook adds each batch to its counters, and what is in flight is observed at each export.

    pip install prometheus-client opentelemetry-sdk
    python examples/metrics_export.py
"""

from __future__ import annotations

import io
import re
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricReader
from PIL import Image
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import dataio


class LoaderCollector(Collector):
    """The counters of one loader as Prometheus metrics; none once it is closed."""

    def __init__(self, loader: dataio.DataLoader) -> None:
        self.loader = loader

    def collect(self) -> Iterator[Metric]:
        try:
            stats = self.loader.stats()
        except RuntimeError:  # closed
            return
        records = CounterMetricFamily("dataio_records", "Records of delivered and failed rows.", labels=["outcome"])
        records.add_metric(["delivered"], stats["samples_delivered"])
        records.add_metric(["failed"], stats["samples_failed"])
        yield records
        yield CounterMetricFamily("dataio_batches", "Batches delivered.", value=stats["batches_delivered"])
        yield CounterMetricFamily("dataio_read_bytes", "Bytes read.", value=stats["bytes_read"])
        seconds = CounterMetricFamily("dataio_op_seconds", "Workers' time in each op.", labels=["stage", "op"])
        for op, spent in stats["ops"].items():
            seconds.add_metric([spent["stage"], op], spent["total_ns"] / 1e9)
        yield seconds
        stalls = CounterMetricFamily("dataio_stall_seconds", "Time at work and waiting, by actor.", labels=["what"])
        for what, nanoseconds in stats["stalls_ns"].items():
            stalls.add_metric([what], nanoseconds / 1e9)
        yield stalls
        yield GaugeMetricFamily("dataio_inflight_records", "Records being worked on.", value=stats["inflight"])


def serve_prometheus(loader: dataio.DataLoader, port: int = 0) -> tuple[int, Any, Any]:
    """Serve the loader's metrics over HTTP; (port, server, thread). Port 0 takes a free one."""
    registry = CollectorRegistry()
    registry.register(LoaderCollector(loader))
    server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    return server.server_port, server, thread


def export_to_opentelemetry(loader: dataio.DataLoader, reader: MetricReader) -> MeterProvider:
    """Count the loader's records with OpenTelemetry.

    In production the reader is `PeriodicExportingMetricReader(OTLPMetricExporter())`.
    """
    provider = MeterProvider(metric_readers=[reader])
    meter = provider.get_meter("dataio", dataio.__version__)
    records = meter.create_counter("dataio.records", unit="{record}", description="Records by outcome")
    batches = meter.create_counter("dataio.batches", unit="{batch}", description="Batches delivered")

    def count(batch: dict[str, int]) -> None:
        batches.add(1)
        records.add(batch["n_samples"], {"outcome": "delivered"})
        records.add(batch["n_errors"], {"outcome": "failed"})

    def most_in_flight(_: CallbackOptions) -> Iterable[Observation]:
        found = loader.diagnostics()
        yield Observation(found["inflight_records_max"], {"unit": "records"})
        yield Observation(found["inflight_batches_max"], {"unit": "batches"})

    meter.create_observable_gauge("dataio.inflight.max", [most_in_flight], description="Most in flight at a time")
    loader.set_metrics_hook(count)
    return provider


def points(reader: InMemoryMetricReader) -> dict[str, float]:
    """What the reader collects now: `name{attributes}` and value."""
    found = {}
    data = reader.get_metrics_data()
    assert data is not None
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    labels = ",".join(f"{k}={v}" for k, v in (point.attributes or {}).items())
                    found[f"{metric.name}{{{labels}}}"] = point.value  # type: ignore[union-attr]
    return found


def png(shade: int) -> bytes:
    """A small grey picture."""
    file = io.BytesIO()
    Image.fromarray(np.full((32, 32, 3), shade, np.uint8)).save(file, "PNG")
    return file.getvalue()


def main() -> None:
    records = [{"picture": png(i)} for i in range(60)]
    records[7] = {"picture": b"no picture"}
    chain = dataio.slot("picture").decode_image(mode="rgb").normalize("imagenet")
    with dataio.pipeline(chain, dataio.batch(16)).bind(records).run("numpy") as loader:
        port, server, thread = serve_prometheus(loader)
        reader = InMemoryMetricReader()
        provider = export_to_opentelemetry(loader, reader)
        for _ in loader:
            pass
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            text = page.read().decode()
        print("Prometheus scrapes:")
        print("\n".join(line for line in text.splitlines() if re.match(r"dataio_\w+_total", line)))
        print("OpenTelemetry collects:")
        print("\n".join(f"{name} {value}" for name, value in points(reader).items()))
        provider.shutdown()
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    main()
