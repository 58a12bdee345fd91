"""What a Python worker of the service holds in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fieldfare.filters import compile_filter
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says what a process had"),
]

WORKER_MIB = 300

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
    """pyarrow loaded pandas, which nobody used; who had compiled kept the compiler until the next start."""
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


def test_a_daemon_that_had_to_compile_begins_anew_once() -> None:
    """Also where nothing can be kept, so that it must compile again."""
    command = [sys.executable, "-c", COMPILES]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["loads", "loads", "serves"]
