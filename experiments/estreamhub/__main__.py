"""Runs the programs for all figures of Barazzutti et al. 2014 in turn: ``python experiments/estreamhub``."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from run_programs import run_programs  # noqa: E402

PROGRAMS = [
    "market_day",
    "placement_decision",
    "static_throughput",
    "migration_times",
    "migration_delay",
    "synthetic_load",
    "market_load",
]

if __name__ == "__main__":
    run_programs(HERE, PROGRAMS)
