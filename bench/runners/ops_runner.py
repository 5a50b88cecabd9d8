"""Measures single ops in the DSL that dataio and dataio-rs share; `bench/ops.py` drives one per peer by lines of JSON.

Request: {"case", "input", "baseline", "seconds"}; "close": true ends what the case held. Answer: {"records", "seconds",
"shape", "dtype"}, or {"error"}.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import op_cases


class Opened:
    """One loader over the records of a case, read epoch by epoch."""

    def __init__(self, dataio: Any, case: op_cases.Case, input_name: str, baseline: bool, held: ExitStack) -> None:
        slot = dataio.slot("x")
        chain = slot.decode(case.decoder(dataio.decoders)) if case.decoder else slot.decode_npy()
        edge = op_cases.INPUTS[input_name].edge
        if transforms := case.transforms(dataio.transforms, edge, baseline=baseline):
            chain = chain.apply(*transforms)
        self.records = [{"x": file} for file in op_cases.files(case, input_name)]
        bound = dataio.pipeline(chain, dataio.batch(op_cases.BATCH, prefetch=4)).bind(self.records)
        self.loader = held.enter_context(bound.run("numpy"))
        self.epoch()  # warm-up

    def epoch(self) -> tuple[float, str, list[int]]:
        """One pass: its seconds, and the dtype and shape of a row."""
        delivered, dtype, shape = 0, "", [0]
        started = time.perf_counter()
        for batch in self.loader:
            assert not batch.errors, batch.errors[0]
            value = batch["x"]
            delivered += len(value)
            dtype, shape = str(value[0].dtype), list(value[0].shape)
        seconds = time.perf_counter() - started
        assert delivered == len(self.records), f"{delivered} of {len(self.records)} records were delivered"
        return seconds, dtype, shape


def main() -> None:
    import dataio

    opened: dict[tuple[str, str, bool], Opened] = {}
    held = ExitStack()
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("close"):
            held.close()
            opened.clear()
            answer: dict[str, Any] = {}
        else:
            key = (request["case"], request["input"], request["baseline"])
            try:
                if key not in opened:
                    opened[key] = Opened(dataio, op_cases.BY_NAME[key[0]], key[1], key[2], held)
                epochs, row = [], ("", [0])
                while not epochs or sum(epochs) < request["seconds"]:
                    seconds, *row = opened[key].epoch()  # type: ignore[assignment]
                    epochs.append(seconds)
                answer = {
                    "records": len(epochs) * len(opened[key].records),
                    "seconds": sum(epochs),
                    "dtype": row[0],
                    "shape": row[1],
                }
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)
    held.close()


if __name__ == "__main__":
    main()
