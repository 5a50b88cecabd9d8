"""dataio-rs, the Rust peer, any version: the same DSL under the same module name."""

from __future__ import annotations

import os
import time

import harness


def main() -> None:
    args = harness.arguments()
    os.environ["DATAIO_CPU_WORKERS"] = str(args.workers)
    started = time.perf_counter()
    import dataio

    import_s = time.perf_counter() - started
    import pipelines

    records = harness.load_records(args)
    harness.measure(args, records, lambda: pipelines.opened(dataio, args, records, {}, {}), import_s)


if __name__ == "__main__":
    main()
