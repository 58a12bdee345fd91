"""The evaluation of Ji et al. 2013, section IV: ``python experiments/routing``.

With ``--json`` it prints what the results say, and runs nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from run_programs import run_programs  # noqa: E402

PROGRAMS = ["general_topology", "linear_topology", "limitations", "maintenance", "list_bytes"]

if __name__ == "__main__":
    run_programs(HERE, ["routing_summary"] if "--json" in sys.argv else PROGRAMS)
