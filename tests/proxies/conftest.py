"""The proxies' tests need a gateway in a process of its own, certificates, and a browser."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), *(str(HERE.parent / name) for name in ("client", "console"))]
