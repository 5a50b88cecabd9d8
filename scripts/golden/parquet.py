"""Make the golden rows of conditions on Parquet columns: tests/golden/parquet.json.

Run it in an environment with dataio-rs 0.4.7 and pyarrow:

    python scripts/golden/parquet.py

Each condition is stored with the rows that the reference leaves of a small table (whose rows are in the file, too), and with what
`explain` says of it. NaN as a literal is left out: the reference lets it equal itself, against its own documentation.
"""

from __future__ import annotations

import decimal
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import dataio

TARGET = Path(__file__).resolve().parents[2] / "tests" / "golden" / "parquet.json"
CONDITIONS = """
c('h') != 'x' | c('h') == True | c('h') != True | c('h').not_in(['x']) | c('h') > 'x' | c('s') != 1 | c('f') > 1 | ~(c('f') > 1)
~(c('h') == 1) | ~(c('h') != 1) | ~c('h').is_in([1]) | ~c('h').not_in([1]) | ~c('h').is_in([1, None]) | c('h').not_in([1, None])
~c('s').contains('a') | ~((c('h') > 2) & c('s').contains('a')) | c('h') | ~c('h') | c('s') | c('f') | c('b') | c('d') | c('l') | c('by') | c('st')
c('d') >= '1.50' | c('d') == 1.5 | c('d') == '1.5' | c('d') > '10.00' | c('d') < '9' | c('d') != 'x' | c('d').contains('.5')
c('dt') == 1 | c('dt') > 0 | c('dt') == '1970-01-02' | c('ts') > 0 | c('ts').is_in([1, 2]) | c('ts') != 1 | c('tm') > 0
c('b') == True | c('b') == 1 | c('b') != True | c('b') < True | c('st.x') > 1 | c('st') == 1 | c('l') == 1 | c('l').is_null() | c('st').is_null()
c('l').contains(1) | c('h').contains('1') | c('by').contains(b'a') | c('by').contains('a') | c('s').contains(b'a') | c('by').starts_with(b'a')
c('s').contains(None) | c('s').starts_with(1) | c('by') > b'a' | c('h') == None | c('h') != None | c('h') < None | ~(c('h') < None)
c('h') > 1.5 | c('h').between(None, 2) | c('h').between(1, 3, closed='left') | ~c('h').between(2, 3) | c('cat') == 'a' | c('cat').contains('b')
c('h').is_in([]) | c('h').not_in([]) | c('h16') > 0.5 | c('f32') == 0.1 | c('h').is_in([1, 'a', 2.0, True]) | c('h') <= 1.5 | c('s').is_null()
(c('h') > 1) & (c('s') != 'a') | c('s').endswith('z') | c('h').is_in([1, 2]) & c('s').is_not_null() | c('mp').is_not_null()
""".replace("\n", " | ")


def table() -> pa.Table:
    n = None
    return pa.table(
        {
            "id": pa.array([0, 1, 2, 3, 4, 5]),
            "h": pa.array([1, 2, 3, n, 0, 2], pa.int64()),
            "f": pa.array([1.0, float("nan"), n, 2.5, 0.0, -1.0]),
            "s": pa.array(["a", "ba", n, "", "xyz", "a"]),
            "b": pa.array([True, False, n, True, False, True]),
            "d": pa.array([n if x is n else decimal.Decimal(x) for x in ("1.50", "0.00", n, "10.00", "-2.25", "9.00")], pa.decimal128(6, 2)),
            "l": pa.array([[1], [], n, [1, 2], [n], [3]], pa.list_(pa.int32())),
            "by": pa.array([b"a", b"", n, b"ab", b"b", b"a"]),
            "dt": pa.array([0, 1, n, 2, 3, -1], pa.int32()).cast(pa.date32()),
            "ts": pa.array([0, 1, n, 2, 3, -1], pa.int64()).cast(pa.timestamp("us")),
            "st": pa.array([{"x": 1}, {"x": 2}, n, {"x": n}, {"x": 5}, {"x": 1}], pa.struct([("x", pa.int64())])),
            "cat": pa.array(["a", "b", n, "a", "b", "c"]).dictionary_encode(),
            "h16": pa.array([0.0, 1.0, 2.0, 3.0, 0.5, 0.25], pa.float32()).cast(pa.float16()),
            "f32": pa.array([0.1, 1, n, 2, 3, 4], pa.float32()),
            "tm": pa.array([0, 1, n, 2, 3, 4], pa.int32()).cast(pa.time32("ms")),
            "mp": pa.array([[("a", 1)], [], n, [("b", n)], [("c", 3)], [("d", 4)]], pa.map_(pa.string(), pa.int32())),
        }
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/t.parquet"
        pq.write_table(table(), path, row_group_size=3)
        query, cases = dataio.scan_parquet(path), []
        for text in filter(None, map(str.strip, CONDITIONS.split(" | "))):
            made = query.filter(eval(text, {"c": dataio.parquet.col}))
            plan = made.explain()
            cases.append(
                {
                    "condition": text,
                    "rows": [row["id"] for row in made.collect()],
                    "native_filter": plan["native_filter"],
                    "filter_columns": plan["filter_columns"],
                    "candidate_row_groups": plan["candidate_row_groups"],
                }
            )
        values = dataio.read_parquet(path)
    values["f"][1] = "nan"
    values["by"] = [None if x is None else x.decode() for x in values["by"]]
    lines = ",\n  ".join(json.dumps(case) for case in cases)
    TARGET.write_text(f'{{"values": {json.dumps(values)},\n "cases": [\n  {lines}\n ]}}\n')


if __name__ == "__main__":
    main()
