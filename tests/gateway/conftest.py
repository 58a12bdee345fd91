"""Test modules of one folder here use helpers of others: all folders are importable."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), *(str(folder) for folder in sorted(HERE.iterdir()) if folder.is_dir())]
