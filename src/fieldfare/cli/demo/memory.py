"""The memory of a tree of processes, from Linux's /proc."""

from __future__ import annotations

import threading
import time
from pathlib import Path

SAMPLE_EVERY_S = 2.0
SAMPLE_SHARE = 0.05
"""Minimum seconds between two samples, and the maximum share of the time that samples take, since for them
the kernel looks at each page of each process."""


class MemoryMeter:
    """Measures the peak memory of a process and its descendants, in a background thread.

    A page that several processes share (an index file, a library) counts once in the sum, as the figure is
    the proportional set size. If the kernel does not report that, it is the resident set size, where a shared
    page counts in each process.
    """

    def __init__(self, root_pid: int) -> None:
        self._root_pid = root_pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self.peak_bytes = 0

    def __enter__(self) -> MemoryMeter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            began_s = time.monotonic()
            self.peak_bytes = max(self.peak_bytes, tree_memory_bytes(self._root_pid))
            self._stop.wait(max(SAMPLE_EVERY_S, (time.monotonic() - began_s) / SAMPLE_SHARE))


def tree_memory_bytes(root_pid: int) -> int:
    """Return the current memory of a process and its descendants, in bytes; 0 without /proc."""
    return sum(map(memory_bytes, process_tree(root_pid)))


def process_tree(root_pid: int) -> list[int]:
    """Return the ids of a process and its descendants; only its own without /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "stat").read_text()
        except OSError:
            continue  # It has ended meanwhile.
        # The name in parentheses may hold anything; after it come the state and the parent.
        parent = int(status.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(entry.name))
    found, new = [], [root_pid]
    while new:
        pid = new.pop()
        found.append(pid)
        new.extend(children.get(pid, ()))
    return found


def memory_bytes(pid: int) -> int:
    """Return the current memory of a process, in bytes; 0 if it has ended, or without /proc."""
    for name, key in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        try:
            lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    return 0
