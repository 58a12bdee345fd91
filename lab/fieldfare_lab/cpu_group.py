"""A group of processes with a limit on the processor's time: a control group of Linux, where one may be made.

Both versions of control groups serve. What only pins processes to a core, or stops them now and then, is no
substitute: it limits other things. Where there are no groups `why_no_groups` says so, and nobody pretends.
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
"""Shorter than the kernel's 100 ms: a group that has used its share waits less long for the next."""

_ROOT = Path("/sys/fs/cgroup")
_GONE_S = 10.0


@cache
def why_no_groups() -> str | None:
    """Why no group can be made here; None when one can."""
    try:
        CpuGroup(1.0).close()
    except OSError as error:
        return f"no control group with a CPU limit can be made here: {error}"
    return None


class CpuGroup:
    """A group, made empty; `close` kills what is left in it.

    Parameters
    ----------
    cores
        So many cores' time all its processes may take together.
    """

    def __init__(self, cores: float) -> None:
        name = f"fieldfare-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._is_v2 = (_ROOT / "cgroup.controllers").exists()
        root = _own_group() if self._is_v2 else _ROOT / "cpu"
        self._folders = [root / name]
        # One that counts the time used; not everywhere the same as the one that limits.
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
        """Let them have so much."""
        quota_us, folder = round(cores * PERIOD_US), self._folders[0]
        if self._is_v2:
            (folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(quota_us))

    def join(self) -> None:
        """Have this process be in it, with all that it starts from now on."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def used_s(self) -> float:
        """How much of the processor's time its processes took so far."""
        folder = self._folders[-1]
        if self._is_v2:
            lines = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            return int(lines["usage_usec"]) / 1e6
        return int((folder / "cpuacct.usage").read_text()) / 1e9

    def processes(self) -> list[int]:
        """Who is in it now."""
        return [int(pid) for pid in (self._folders[0] / "cgroup.procs").read_text().split()]

    def signal(self, number: int) -> None:
        """Send a signal to all."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """End all of them, as when their machine loses its power."""
        give_up_s = time.monotonic() + _GONE_S
        while self.processes() and time.monotonic() < give_up_s:
            self.signal(signal.SIGKILL)
            time.sleep(0.01)

    def close(self) -> None:
        """End all, and remove the group."""
        self.kill()
        self._remove()

    def _remove(self) -> None:
        for folder in self._folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _own_group() -> Path:
    """The group of version 2 that this process is in, in which others may be made if it is delegated."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return _ROOT / line.removeprefix("0::").lstrip("/")
    raise OSError("this process is in no control group")
