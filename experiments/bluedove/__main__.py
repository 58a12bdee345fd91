"""Runs the programs for all figures of Li et al. 2011 in turn: ``python experiments/bluedove``."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from run_programs import run_programs  # noqa: E402

PROGRAMS = [
    "response_time",
    "scalability",
    "policies",
    "load_balance",
    "fault_tolerance",
    "elasticity",
    "dimensions",
    "subscription_skew",
    "message_skew",
    "subscription_capacity",
    "searched",
    "on_spark",
]

if __name__ == "__main__":
    run_programs(HERE, PROGRAMS)
