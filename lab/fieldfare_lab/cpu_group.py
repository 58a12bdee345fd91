"""A group of processes with a limit on CPU time: a Linux control group, where one may be created.

Versions 1 and 2 of control groups are supported. Pinning processes to a core, or stopping them repeatedly, is
no substitute, because it limits other things. Without control groups `why_no_groups` returns the reason.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from functools import cache
from pathlib import Path

PERIOD_US = 20_000
"""Shorter than the kernel's 100 ms, so a group that has used its share waits less."""

_ROOT = Path("/sys/fs/cgroup")
_GONE_S = 10.0


@cache
def why_no_groups() -> str | None:
    """Return why no group can be created here; None if one can."""
    try:
        CpuGroup(1.0).close()
    except OSError as error:
        return f"no control group with a CPU limit can be made here: {error}"
    return None


class CpuGroup:
    """A group, empty at first; `close` kills the processes in it.

    Parameters
    ----------
    cores
        CPU time, in cores, that all its processes may use together.
    """

    def __init__(self, cores: float) -> None:
        name = f"fieldfare-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._is_v2 = (_ROOT / "cgroup.controllers").exists()
        root = _own_group() if self._is_v2 else _ROOT / "cpu"
        self._folders = [root / name]
        # The group that counts the used time; it may differ from the one that limits it.
        if not self._is_v2 and (_ROOT / "cpuacct").resolve() != root.resolve():
            self._folders.append(_ROOT / "cpuacct" / name)
        try:
            for folder in self._folders:
                folder.mkdir()
            self.limit(cores)
        except OSError:
            self._remove()
            raise

    def limit(self, cores: float) -> None:
        """Set the limit, in cores."""
        quota_us, folder = round(cores * PERIOD_US), self._folders[0]
        if self._is_v2:
            (folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(quota_us))

    def join(self) -> None:
        """Move this process into the group, with all processes that it starts from now on."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def used_s(self) -> float:
        """Return the CPU time, in seconds, that the group's processes have used."""
        folder = self._folders[-1]
        if self._is_v2:
            lines = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            return int(lines["usage_usec"]) / 1e6
        return int((folder / "cpuacct.usage").read_text()) / 1e9

    def processes(self) -> list[int]:
        """Return the ids of the processes in the group."""
        return [int(pid) for pid in (self._folders[0] / "cgroup.procs").read_text().split()]

    def signal(self, number: int) -> None:
        """Send a signal to all processes."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill all processes, like a power failure of their machine."""
        give_up_s = time.monotonic() + _GONE_S
        while self.processes() and time.monotonic() < give_up_s:
            self.signal(signal.SIGKILL)
            time.sleep(0.01)

    def close(self) -> None:
        """Kill all processes, and remove the group."""
        self.kill()
        self._remove()

    def _remove(self) -> None:
        for folder in self._folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _own_group() -> Path:
    """Return this process's group of version 2, in which others may be created if it is delegated."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return _ROOT / line.removeprefix("0::").lstrip("/")
    raise OSError("this process is in no control group")
