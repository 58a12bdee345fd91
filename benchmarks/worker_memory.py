"""Memory of a Python worker: ``python benchmarks/worker_memory.py --json``.

Filters as people write them (``fieldfare_lab.workloads.people``) over real tables go through
``fieldfare.spark.match``, with a saved index, in a session of one core. Meanwhile the kernel's figures for
the Python processes below it are read repeatedly. Linux only.

worker_peak_rss_bytes
    Peak resident memory of one worker (``VmHWM``): libraries and the index count, though workers share
    them. Goal: 300 MB with 5,000 filters.
worker_private_bytes
    Peak of the part that is not file pages (``RssAnon``); memory that was forked and not written since is
    still shared.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
from people import tables
from pyspark.sql import SparkSession

from fieldfare.spark import match, save_index
from fieldfare_lab.workloads.people import KINDS, written

EVERY_S = 0.05
WORKER = b"pyspark.worker"


class Watch:
    """Reads the memory of the Python workers below this process, until it is left."""

    def __init__(self) -> None:
        self.peak_rss = self.private = 0
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._left.wait(EVERY_S):
            for process in below(os.getpid()):
                try:
                    if WORKER not in (process / "cmdline").read_bytes().split(b"\0"):
                        continue
                    status = (process / "status").read_text()
                except OSError:  # it has ended
                    continue
                self.peak_rss = max(self.peak_rss, bytes_of(status, "VmHWM"))
                self.private = max(self.private, bytes_of(status, "RssAnon"))


def bytes_of(status: str, name: str) -> int:
    """A figure of /proc/PID/status; 0 if the process is ending."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def below(root: int) -> list[Path]:
    """The descendants of a process."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(after_name[1])
    found, left = [], [root]
    while left:
        parent = left.pop()
        children = [pid for pid, of in parents.items() if of == parent]
        found += children
        left += children
    return [Path("/proc", str(pid)) for pid in found]


def measure(rows: int, filters: int, seed: int, *, service: bool) -> dict[str, int | str]:
    """Figures of one session, which matches every table."""
    found = tables(rows)
    drawn = written(found, filters, seed)
    table_of = {kind.name: kind.table for kind in KINDS}
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    if service:
        builder = builder.config("spark.python.daemon.module", "fieldfare.runtimes.spark.worker_daemon")
    session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    with TemporaryDirectory() as folder, Watch() as watch:
        for name, table in found.items():
            texts = [text for kind, each in drawn.items() if table_of[kind] == name for text, _ in each]
            match_table(session, Path(folder, name), table, dict(enumerate(texts)))
    session.stop()
    return {
        "workers": "service" if service else "plain",
        "filters": filters,
        "rows": rows,
        "worker_peak_rss_bytes": watch.peak_rss,
        "worker_private_bytes": watch.private,
        "seed": seed,
    }


def match_table(session: SparkSession, folder: Path, table: pa.Table, filters: Mapping[int, str]) -> None:
    """Match a table, and discard the matches."""
    save_index([(str(number), text) for number, text in filters.items()], folder / "index")
    pq.write_table(table, folder / "events.parquet", coerce_timestamps="us")
    events = session.read.parquet(str(folder / "events.parquet"))
    found = match(events, folder / "index", keep=["row"])
    found.write.format("noop").mode("overwrite").save()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of each table (default: %(default)s)")
    parser.add_argument("--filters", type=int, default=5_000, help="filters in total (default: %(default)s)")
    parser.add_argument("--service", action="store_true", help="fork workers as the service does")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not Path("/proc/self/status").exists():
        sys.exit("skipped: only Linux reports the peak memory of a process")
    figures = measure(options.rows, options.filters, options.seed, service=options.service)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:>22}  {value}")


if __name__ == "__main__":
    main()
