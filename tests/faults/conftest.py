"""What the tests of faults share with the scenarios: a running service and the naive replay."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("pipeline", "scenarios"):
    sys.path.append(str(Path(__file__).parent.parent / folder))
