"""Filters as people write them, compared with DuckDB: ``python benchmarks/people.py --json``.

There are two real tables and some 40 kinds of filters (``fieldfare_lab.workloads.people``), equally many of
each. DuckDB scans its table in memory once for each filter and returns the numbers of matching rows.
Fieldfare builds an index of all filters, reads the same table as Arrow, and returns the rows that each filter
matches. Both use one thread. The figures are processor time, starting from the table: they include the first
pass and reading Arrow; the time to build the index is reported separately. Kernels are loaded before, as in
the service's workers: other filters of the same kinds are matched first. The answers of both are compared.

speed_over_duckdb
    DuckDB's time for all filters divided by fieldfare's. Goal: 30 with 5,000 filters.
speed_over_duckdb_100000
    The same with ``--filters 100000``. Goal: 300. DuckDB is timed with at most 5,000 of them, drawn evenly;
    its time is proportional to their number.
kinds, worst_kind_over_duckdb
    The same for the filters of one kind alone. Goal for each: 5.
differences
    Pairs of a filter and a row for which the answers differ, by kind. There may be some where the definitions
    differ: fieldfare compares numbers exactly, DuckDB as DOUBLE.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldfare.cli.demo.flights import FlightsMissingError
from fieldfare.filters import compile_filter
from fieldfare.matching.events.arrow_decoder import columns_from_arrow
from fieldfare.matching.grouping import group_by_subscription
from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare_lab.workloads.people import KINDS, MACROS, Written, flights, traffic, written

SHARED = "FIELDFARE_SHARED_DATA"
DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"
TRAFFIC = "metr_la_week_lon_lat_speed.csv.gz"
BATCH_ROWS = 4096
LOADING = 20
"""Number of filters of each kind that load the kernels before the measurement; they are other filters."""
SCANNED_MAX = 5_000
"""Maximum number of filters for which DuckDB scans its table."""

Rows = NDArray[np.int64]


def tables(rows: int) -> dict[str, pa.Table]:
    """Return the tables that exist, and print which are missing."""
    found = {"flights": flights(rows)}
    file = Path(os.environ.get(SHARED, DEFAULT_FOLDER), TRAFFIC)
    if file.is_file():
        found["traffic"] = traffic(file, rows)
    else:
        print(f"without METR-LA: there is no {TRAFFIC} in the folder that ${SHARED} names", file=sys.stderr)
    return found


class FieldfareSide:
    """An index of filters, and a table that is matched with it."""

    def __init__(self, filters: Sequence[str]) -> None:
        started = time.process_time()
        entries = []
        for n, text in enumerate(filters):
            filter = compile_filter(text)
            entries.append(IndexEntry(n, n, 0, OPEN_END, filter.compiled, text, "sql"))
        self.index = Index((build_part(entries),))
        self.build_s = time.process_time() - started

    def scan(self, table: pa.Table) -> tuple[float, list[Rows]]:
        """Seconds of the processor, and the rows that each filter matches."""
        started = time.process_time()
        found = []
        for start in range(0, len(table), BATCH_ROWS):
            batch = table.slice(start, BATCH_ROWS).to_batches()[0]
            columns = columns_from_arrow(batch, self.index.paths)
            stamps = np.zeros(batch.num_rows, np.int64)
            found += [pairs.behind(start) for pairs in self.index.find(columns, stamps)]
        lists = group_by_subscription(found)
        seconds = time.process_time() - started
        rows: list[Rows] = [np.zeros(0, np.int64)] * self.index.size
        for place, n in enumerate(lists.numbers.tolist()):
            rows[n] = lists.ordinals[lists.starts[place] : lists.starts[place + 1]].astype(np.int64)
        return seconds, rows


class DuckSide:
    """DuckDB with the same table."""

    def __init__(self, table: pa.Table) -> None:
        self.connection = duckdb.connect()
        self.connection.execute("SET threads = 1")
        self.connection.execute("SET TimeZone = 'UTC'")
        self.connection.execute(MACROS)
        self.connection.register("given", table)
        times = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
        replaced = ", ".join(f"{name}::TIMESTAMP AS {name}" for name in times)
        self.connection.execute(f"CREATE TABLE events AS SELECT * REPLACE ({replaced}) FROM given")

    def scan(self, filters: Sequence[str]) -> tuple[float, list[Rows]]:
        """Seconds of the processor, and the rows that each filter matches."""
        started = time.process_time()
        rows = [
            self.connection.execute(f'SELECT "row" FROM events WHERE {text}').fetchnumpy()["row"]
            for text in filters
        ]
        return time.process_time() - started, [np.sort(found) for found in rows]


def compare(table: pa.Table, duck: DuckSide, filters: Mapping[str, Sequence[Written]]) -> dict[str, Any]:
    """Run both engines with filters of some kinds over one table."""
    mine = [text for kind in filters.values() for text, _ in kind]
    side = FieldfareSide(mine)
    seconds, rows = side.scan(table)
    again_s, _ = side.scan(table)
    scanned = np.linspace(0, len(mine) - 1, min(len(mine), SCANNED_MAX)).astype(np.int64)
    theirs = [text for kind in filters.values() for _, text in kind]
    duck_s, expected = duck.scan([theirs[n] for n in scanned])
    unlike = sum(len(np.setxor1d(rows[n], answer)) for n, answer in zip(scanned, expected, strict=True))
    return {
        "filters": len(mine),
        "matches": sum(map(len, rows)),
        "build_s": side.build_s,
        "fieldfare_s": seconds,
        "fieldfare_again_s": again_s,
        "duckdb_s": duck_s * len(mine) / len(scanned),
        "differences": unlike,
    }


def summed(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the results of both tables, and compute how much longer DuckDB takes."""
    total: dict[str, Any] = {name: sum(part[name] for part in parts) for name in parts[0]}
    total["speed_over_duckdb"] = total["duckdb_s"] / total["fieldfare_s"]
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in total.items()}


def measure(rows: int, filters: int, seed: int, *, by_kind: bool) -> dict[str, Any]:
    """All kinds together, and each alone."""
    found = tables(rows)
    drawn = written(found, filters, seed)
    table_of = {kind.name: kind.table for kind in KINDS}
    ducks = {name: DuckSide(table) for name, table in found.items()}
    for name, table in found.items():  # load numba's kernels before the measurement
        others = written(found, LOADING * len(drawn), seed + 1_000)
        FieldfareSide([text for kind in others if table_of[kind] == name for text, _ in others[kind]]).scan(
            table.slice(0, BATCH_ROWS)
        )
    together = [
        compare(table, ducks[name], {kind: texts for kind, texts in drawn.items() if table_of[kind] == name})
        for name, table in found.items()
    ]
    result = {"rows": rows, "tables": list(found), "seed": seed, **summed(together)}
    if not by_kind:
        result[f"speed_over_duckdb_{filters}"] = result.pop("speed_over_duckdb")
        return result
    kinds = {}
    for kind, texts in drawn.items():
        name = table_of[kind]
        kinds[kind] = summed([compare(found[name], ducks[name], {kind: texts})])
    worst = min(kinds, key=lambda kind: kinds[kind]["speed_over_duckdb"])
    result["kinds"] = kinds
    result["worst_kind"] = worst
    result["worst_kind_over_duckdb"] = kinds[worst]["speed_over_duckdb"]
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of each table (default: %(default)s)")
    parser.add_argument("--filters", type=int, default=5_000, help="filters in total (default: %(default)s)")
    parser.add_argument(
        "--runs", type=int, default=1, help="runs, each with other filters (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        runs = [
            measure(options.rows, options.filters, options.seed + run, by_kind=options.filters <= SCANNED_MAX)
            for run in range(options.runs)
        ]
    except FlightsMissingError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(runs[0] if len(runs) == 1 else runs))
        return 0
    for run in runs:
        speed = run.get("speed_over_duckdb") or run[f"speed_over_duckdb_{run['filters']}"]
        print(
            f"all {run['filters']} filters: {speed:.1f} times DuckDB's speed; {run['fieldfare_s']:.3f} s,"
            f" then {run['fieldfare_again_s']:.3f};"
            f" {run['matches']} matches, {run['differences']} differences"
        )
        for name, kind in sorted(run.get("kinds", {}).items(), key=lambda item: item[1]["speed_over_duckdb"]):
            print(
                f"{name:16} {kind['speed_over_duckdb']:8.1f}  fieldfare {kind['fieldfare_s']:.3f} s,"
                f" then {kind['fieldfare_again_s']:.3f}; DuckDB {kind['duckdb_s']:.3f} s;"
                f" {kind['matches']} matches, {kind['differences']} differences"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
