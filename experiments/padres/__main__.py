"""The evaluation of Cheung and Jacobsen 2006, section 6: ``python experiments/padres``.

With ``--json`` it prints what the results say, and runs nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from run_programs import run_programs  # noqa: E402

PROGRAMS = ["local_balancing", "global_balancing", "scalability", "estimation_samples", "disturbances"]

if __name__ == "__main__":
    run_programs(HERE, ["balancing_summary"] if "--json" in sys.argv else PROGRAMS)
