"""What each process of a service and its clients uses, from Linux's /proc.

A process is known by its command line. `PUBLISHER` is the program that measures, and `SUBSCRIBERS` are the
processes that it has started with ``multiprocessing``.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from fieldfare.cli.demo.memory import memory_bytes, process_tree

PUBLISHER, SUBSCRIBERS = "publisher", "subscribers"
ROLES: Mapping[bytes, str] = {
    b"/java\0": "java",
    b"fieldfare.gateway": "gateway",
    b"fieldfare.runtimes.indexer": "indexer",
    b"fieldfare.runtimes.spark.driver": "driver",
    b"worker_daemon": "workers",
    b"multiprocessing": SUBSCRIBERS,
    b"\0serve\0": "supervisor",
}
"""The roles of processes, by a part of their command lines; one that has none of them is the publisher."""


def processor_s() -> dict[str, float]:
    """Return the seconds of processor time that this process and its descendants have used, by role.

    Subscribers that have ended count as such; other processes that have ended, for their parents.
    """
    ended = os.times()
    found = _by_role(_processor_s)
    found[PUBLISHER] -= ended.children_user + ended.children_system
    found[SUBSCRIBERS] += ended.children_user + ended.children_system
    return found


def resident_bytes() -> dict[str, float]:
    """Return the memory of this process and its descendants, by role; shared pages count once in the sum."""
    return _by_role(memory_bytes)


def of_the_service(by_role: Mapping[str, float]) -> float:
    """Return the sum without the clients."""
    return sum(used for role, used in by_role.items() if role not in (PUBLISHER, SUBSCRIBERS))


def _by_role(measure: Callable[[int], float]) -> dict[str, float]:
    found = defaultdict[str, float](float)
    for pid in process_tree(os.getpid()):
        try:
            command, used = Path(f"/proc/{pid}/cmdline").read_bytes(), measure(pid)
        except OSError:
            continue  # It has ended meanwhile.
        found[next((role for part, role in ROLES.items() if part in command), PUBLISHER)] += used
    return found


def _processor_s(pid: int) -> float:
    # The name in parentheses may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
