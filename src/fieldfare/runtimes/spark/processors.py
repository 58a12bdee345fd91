"""How many CPUs this process may use, according to its Linux control groups.

An executor in a container, or in a group with a limit, runs as many tasks at once as it was told to, and may
get less CPU time than that. Its tasks' CPU time alone would make its host look half idle when it is
exhausted.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from pathlib import Path, PurePosixPath

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def processors_here(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> float:
    """Return the number of CPUs that this process's group may use; infinite without a limit.

    Parameters
    ----------
    groups
        Mount point of control groups of version 1, 2 or both.
    membership
        File with the groups of this process. A container may see its own group as the root: then the paths in
        the file do not exist, and the root has the limit.
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
        for each in (group, *group.parents):  # a group may use no more than the groups that contain it
            least = min(least, _limit_of(root / each))
    return least


def _limit_of(group: Path) -> float:
    """Return the limit of one group, of version 2 or 1; infinite if it cannot be read."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (group / "cpu.max").read_text().split()
        return int(quota) / int(period)  # "max" is no number
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota_us = int((group / "cpu.cfs_quota_us").read_text())
        if quota_us > 0:
            return quota_us / int((group / "cpu.cfs_period_us").read_text())
    return inf
