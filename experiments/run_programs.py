"""An experiment's programs, one after the other, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


def run_programs(folder: Path, names: Iterable[str]) -> None:
    """Run each program of a folder; ends with the first that fails."""
    for name in names:
        print(f"== {name}", flush=True)
        subprocess.run([sys.executable, str(folder / f"{name}.py")], check=True)
