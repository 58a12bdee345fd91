"""Programs in separate processes, forked from one that has storage loaded, which saves a second for each."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    ["fieldfare.storage.sqlite.log", "fieldfare.storage.sql.registry", "fieldfare.storage.files.match_log"]
)
ENDS_WITHIN_S = 60.0


def run(program: str, folder: Path) -> tuple[int, str]:
    """Run a Python program to its end: exit status and standard output."""
    output = folder / "output.txt"
    process = FORKED.Process(target=_run, args=(program, folder, output))
    process.start()
    process.join(ENDS_WITHIN_S)
    assert process.exitcode is not None, "it did not end"
    return process.exitcode, output.read_text()


def _run(program: str, folder: Path, output: Path) -> None:
    os.chdir(folder)
    with output.open("w") as sys.stdout:
        exec(program, {"__name__": "__main__"})
