"""How much of a machine's processors this process may use, by the control groups of Linux that it is in.

An executor in a container, or in a group with a limit, runs as many tasks at once as it was told to, and may
get less of a processor than that. By its tasks alone its host looks half idle when it has no more to give.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from pathlib import Path, PurePosixPath

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def processors_here(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> float:
    """So many processors' time all of this process's group may take; infinite where nothing limits it.

    Parameters
    ----------
    groups
        Where control groups are mounted, of version 1, 2 or both.
    membership
        Which of them this process is in. A container may see its own as the root: then the paths named there
        lead nowhere, and the root says what holds.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return inf
    least = inf
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = groups / "cpu" if controllers else groups
        group = PurePosixPath(path.lstrip("/"))
        for each in (group, *group.parents):  # a group may have no more than those that it is in
            least = min(least, _limit_of(root / each))
    return least


def _limit_of(group: Path) -> float:
    """What one group may take, by version 2 or 1; what cannot be read limits nothing."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (group / "cpu.max").read_text().split()
        return int(quota) / int(period)  # "max" is no number
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota_us = int((group / "cpu.cfs_quota_us").read_text())
        if quota_us > 0:
            return quota_us / int((group / "cpu.cfs_period_us").read_text())
    return inf
