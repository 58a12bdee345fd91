"""What the scenarios share with the pipeline's tests: random events, filters and their evaluation."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "pipeline"))
