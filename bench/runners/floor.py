"""The floor: as many threads as workers run simplejpeg (or only read the file) and do nothing else.

No resize, no layout, no batch; a result is dropped as soon as it is there. Chunks of records keep the cost of the
thread pool itself out of the figure. A loader that also resizes can't be faster, unless it decodes less.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import harness


def main() -> None:
    args = harness.arguments()
    started = time.perf_counter()
    import simplejpeg

    import_s = time.perf_counter() - started
    records = harness.load_records(args)
    chunks = [records[start : start + 16] for start in range(0, len(records), 16)]
    if args.workload in ("int", "npy"):
        raise SystemExit(f"there is no floor for {args.workload}")

    def decode(chunk: list[harness.Record]) -> int:
        for record in chunk:
            with open(record["data" if args.workload == "files" else "image"], "rb") as file:
                data = file.read()
            if args.workload != "files":
                simplejpeg.decode_jpeg(data, colorspace="RGB")
        return len(chunk)

    @contextmanager
    def opened() -> Iterator[harness.Epoch]:
        with ThreadPoolExecutor(args.workers) as pool:

            def epoch() -> Iterable[int]:
                """As the loaders do, it stays some batches ahead; the busy workload counts batches of 32."""
                waiting: deque[Future[int]] = deque()
                done = 0
                for chunk in [*chunks, None]:
                    if chunk is not None:
                        waiting.append(pool.submit(decode, chunk))
                    while len(waiting) > (8 + args.workers if chunk is not None else 0):
                        done += waiting.popleft().result()
                        if done >= 32:
                            yield done
                            done = 0
                if done:
                    yield done

            yield epoch

    harness.measure(args, records, opened, import_s)


if __name__ == "__main__":
    main()
