"""Building a large part takes little more memory than its input and its output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux says what a process had"),
]

SUBSCRIPTIONS, PREDICATES = 300_000, 10
PEAK_BYTES_EACH = 130
"""Maximum bytes per predicate (currently 102, formerly 213); its part takes 60, its input 30."""

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from fieldfare_lab.workloads.columns import range_columns
from fieldfare_lab.workloads.predicate_columns import build_part_from_columns

def built(count):
    paths, predicates, _ = range_columns(count, 1)
    return build_part_from_columns(paths, [predicates.pop()], np.arange(count, dtype=np.uint32))

def kib(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])

built(1_000)
before = kib("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
built(int(sys.argv[1]))
print(1024 * (kib("VmHWM") - before))
"""


def test_a_large_part_is_built_in_little_memory() -> None:
    """Ten million filters of ten ranges took 13 GB, and the builder was killed on a machine with 16 GB."""
    command = [sys.executable, "-c", PROGRAM, str(SUBSCRIPTIONS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    peak = int(done.stdout)
    assert peak < PEAK_BYTES_EACH * SUBSCRIPTIONS * PREDICATES, f"{peak >> 20} MiB"
