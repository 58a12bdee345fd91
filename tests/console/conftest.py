"""The console's tests need the gateway's helpers, and a browser."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "gateway")]
