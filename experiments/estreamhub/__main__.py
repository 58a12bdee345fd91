"""Every figure of Barazzutti et al. 2014, one program after the other: ``python experiments/estreamhub``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = [
    "market_day",
    "placement_decision",
    "static_throughput",
    "migration_times",
    "migration_delay",
    "synthetic_load",
    "market_load",
]


def main() -> None:
    for program in PROGRAMS:
        print(f"== {program}", flush=True)
        subprocess.run([sys.executable, str(HERE / f"{program}.py")], check=True)


if __name__ == "__main__":
    main()
