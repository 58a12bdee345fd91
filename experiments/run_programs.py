"""Runs an experiment's programs one after another, each in a separate process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


def run_programs(folder: Path, names: Iterable[str]) -> None:
    """Run each program of a folder; stop at the first that fails."""
    for name in names:
        print(f"== {name}", flush=True)
        subprocess.run([sys.executable, str(folder / f"{name}.py")], check=True)
