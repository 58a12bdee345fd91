"""Every figure of Li et al. 2011, one program after the other: ``python experiments/bluedove``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
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


def main() -> None:
    for program in PROGRAMS:
        print(f"== {program}", flush=True)
        subprocess.run([sys.executable, str(HERE / f"{program}.py")], check=True)


if __name__ == "__main__":
    main()
