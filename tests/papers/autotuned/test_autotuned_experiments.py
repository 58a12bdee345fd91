"""The programs of experiments/autotuned start; what they find is in docs/papers/autotuned.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_trace_experiment_says_so_where_its_trace_is_missing(tmp_path: Path) -> None:
    settings = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'lab'}",
        "FIELDFARE_SHARED_DATA": str(tmp_path),
    }
    program = ROOT / "experiments" / "autotuned" / "lookup_service.py"
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=True, env=settings
    )
    assert done.stdout.startswith("skipped: sls_write_times_2018-05-22.csv.gz is not there")
