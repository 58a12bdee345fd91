"""The memory of a Python worker of the service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

from fieldfare.filters import compile_filter
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says what a process had"),
]

WORKER_MIB = 300 if sys.version_info < (3, 13) else 370

PROGRAM = """
import json, sys
from pathlib import Path
from fieldfare.runtimes.spark.worker_daemon import preload

preload()
from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part
import numpy as np

index = Index((Part.open(sys.argv[1]),))
line = json.dumps({"a": 5, "b": 7.5, "s": "abc", "time": "2024-05-06T07:08:09Z", "l": [1, 2]}).encode()
columns = decode_json_lines((line + b"\\n") * 128, 128, index.paths)
matches = index.match(columns, np.zeros(128, np.int64))
status = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(json.dumps({"matches": len(matches.subscriptions), "pandas": "pandas" in sys.modules, "peak": peak}))
"""

KINDS = (
    "a > {n} AND s LIKE '%b%'",
    "HOUR(TIMESTAMP(time)) = {n}",
    "a + b < {n}",
    "ANY x IN l SATISFIES (x > {n})",
    "FLOOR(b / {n}) = 1",
    "s IN ('abc', 'x{n}')",
)


def test_a_worker_holds_neither_pandas_nor_what_a_compiler_left(tmp_path: Path) -> None:
    """pyarrow loaded pandas, which was not used; a process that had compiled kept the compiler's memory."""
    texts = [KINDS[n % len(KINDS)].format(n=n // len(KINDS) + 1) for n in range(5_000)]
    build_part(
        IndexEntry(n, n, 0, OPEN_END, compile_filter(text).compiled, text, "sql")
        for n, text in enumerate(texts)
    ).save(tmp_path / "part")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "part")]
    subprocess.run(command, check=True, capture_output=True, timeout=290)  # compiles what was not
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=290)
    found = json.loads(done.stdout)
    assert found["matches"] > 0
    assert not found["pandas"]
    assert found["peak"] < WORKER_MIB << 10, f"{found['peak'] >> 10} MiB"


COMPILES = """
import numba
from fieldfare.runtimes.spark import warmup, worker_daemon

warmup.run_kernels_once = lambda: numba.njit(lambda: 1)()
print("loads", flush=True)
worker_daemon.preload()
print("serves")
"""


def test_a_daemon_that_had_to_compile_restarts_once() -> None:
    """Also where nothing can be kept, so that it must compile again."""
    command = [sys.executable, "-c", COMPILES]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["loads", "loads", "serves"]


FORKED = """
import json, sys
from fieldfare.runtimes.spark import worker_daemon

worker_daemon.leave_archives()
import pyspark.worker

archives = [path for path in (*sys.path, *sys.path_importer_cache) if path.endswith((".zip", ".jar"))]
print(json.dumps([[path for path in archives if "pyspark" in path], pyspark.__file__]))
"""


def test_workers_do_not_read_the_archives_of_an_installed_pyspark() -> None:
    """Each new worker read their directories again: an eighth of a second on a free core."""
    home = Path(pyspark.__file__).parent
    archives = [*(home / "python" / "lib").glob("*.zip"), *(home / "jars").glob("spark-core*.jar")]
    assert len(archives) == 3
    done = subprocess.run(
        [sys.executable, "-c", FORKED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, archives))},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert json.loads(done.stdout) == [[], str(home / "__init__.py")]


OF_A_TABLE = """
import sys
import pyarrow as pa
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part
from fieldfare.runtimes.spark.matching_rows import matching_ids

ids, events = (pa.ipc.open_stream(file).read_next_batch() for file in sys.argv[2:])
found = list(matching_ids(events, Index((Part.open(sys.argv[1]),)), ids.column(0)))
lists = [each.as_py() for part in found for each in part]
print(lists == [["0", "1", "2", "3", "4", "5"], []], "pandas" in sys.modules)
"""


def test_rows_of_a_table_are_matched_without_pandas(tmp_path: Path) -> None:
    """In a session of a user's own pyarrow loaded it for the first column of numbers: 45 MB a worker."""
    pytest.importorskip("pandas")
    texts = ["n > 5", "ok AND f < 1", "5 = ANY(l)", "HOUR(ts) = 7", "w.speed > 3", "d >= DATE '2024-01-01'"]
    build_part(
        IndexEntry(n, n, 0, OPEN_END, compile_filter(text).compiled, text, "sql")
        for n, text in enumerate(texts)
    ).save(tmp_path / "part")
    row = {"n": 7, "ok": True, "f": 0.5, "l": [4, 5], "ts": datetime(2024, 5, 6, 7, tzinfo=UTC)}
    row |= {"w": {"speed": 4}, "d": date(2024, 5, 6)}
    tables = [
        pa.table({"id": ["0", "1", "2", "3", "4", "5"]}),
        pa.Table.from_pylist([row, dict.fromkeys(row)]),
    ]
    files = [tmp_path / "ids", tmp_path / "events"]
    for file, table in zip(files, tables, strict=True):
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    arguments = [str(tmp_path / "part"), *map(str, files)]
    done = subprocess.run(
        [sys.executable, "-c", OF_A_TABLE, *arguments], capture_output=True, text=True, timeout=240
    )
    assert done.stdout.split() == ["True", "False"], done.stderr
