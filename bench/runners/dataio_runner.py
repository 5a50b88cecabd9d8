"""dataio, this project. Variants: `thread` (default), `process`, `auto`; `dct` decodes at reduced scale."""

from __future__ import annotations

import os
import time
from typing import Any

import harness


def main() -> None:
    args = harness.arguments()
    os.environ["DATAIO_CPU_WORKERS"] = str(args.workers)
    started = time.perf_counter()
    import dataio

    import_s = time.perf_counter() - started
    import pipelines

    records = harness.load_records(args)
    decode: dict[str, Any] = {"dct_scale": True} if args.variant == "dct" else {}
    workers = args.variant if args.variant in ("process", "auto") else "thread"
    harness.measure(
        args, records, lambda: pipelines.opened(dataio, args, records, decode, {"workers": workers}), import_s
    )


if __name__ == "__main__":
    main()
