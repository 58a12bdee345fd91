"""Detection of children that hang, by the files that they touch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fieldfare.runtimes.process.heartbeat import decode_beat

LOOK_EVERY_S = 1.0
LOOK_COUNTS_S = 3.0
"""Maximum seconds counted between two looks, however long the machine stood still."""
START_FACTOR = 5.0
"""Factor for the allowed silence of a starting process, which may have to build a whole index."""
START_FACTOR_MAX = 8 * START_FACTOR
"""Maximum of the factor, which doubles after each start that was killed for its silence.

On a busy machine a start may need longer than it was allowed, and would need as long the next time.
"""


class WatchedTime:
    """Seconds during which the watching process itself was running.

    When the whole machine stood still (a laptop's lid, ``docker pause``), the watched processes could do
    nothing: of the time between two distant looks, at most `LOOK_COUNTS_S` counts against them.
    """

    def __init__(self) -> None:
        self._looked_s: float | None = None
        self.now_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Add the time of a monotonic clock; return whether it is time to look again."""
        if self._looked_s is None:
            self._looked_s = now_s
            return True
        passed_s = now_s - self._looked_s
        if passed_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        self.now_s += min(passed_s, LOOK_COUNTS_S)
        return True


class HangWatch:
    """Distinguishes a process that hangs from one that works or is idle, by a file that it touches.

    The file is its heartbeat, or any file whose modification time it changes every second. If a heartbeat has
    `offset` and `log_end`, progress is required, too: a matched record, not the end of a batch, which may
    take long. While the index does not cover the waiting records, none is required. Times are those of a
    monotonic clock; the time in a heartbeat is ignored.

    Parameters
    ----------
    sign
        The file.
    stall_s
        Seconds without progress while events wait, or without a sign of life, after which it hangs.
    """

    def __init__(self, sign: Path, stall_s: float) -> None:
        self._path = sign
        self._stall_s = stall_s
        self._start_factor = START_FACTOR
        self._start(0)

    def _start(self, pid: int) -> None:
        self._pid = pid
        self._time = WatchedTime()
        self._alive_s = self._moved_s = 0.0
        self._sign: tuple[int, bytes] | None = None
        self._beat: dict[str, Any] = {"state": "starting"}

    def __call__(self, pid: int, now_s: float) -> str:
        """Return how the process hangs, in a few words; empty if it does not."""
        if pid != self._pid:
            self._start(pid)
        if not self._time.is_due(now_s):
            return ""
        now_s = self._time.now_s
        self._read(now_s)
        is_starting = self._beat["state"] != "running"
        if not is_starting:
            self._start_factor = START_FACTOR
        said = self._find_hang(now_s, self._stall_s * (self._start_factor if is_starting else 1.0))
        if said and is_starting:
            self._start_factor = min(2 * self._start_factor, START_FACTOR_MAX)
        return said

    def _find_hang(self, now_s: float, patience_s: float) -> str:
        if now_s - self._alive_s > patience_s:
            return f"sent no heartbeat for {now_s - self._alive_s:.0f} s"
        if now_s - self._moved_s > patience_s:
            return f"matched nothing for {now_s - self._moved_s:.0f} s, though events wait"
        return ""

    def _read(self, now_s: float) -> None:
        try:
            # If a beat cannot be written, the file's modification time can still be changed.
            sign = (self._path.stat().st_mtime_ns, self._path.read_bytes())
        except OSError:
            return
        before, self._sign = self._sign, sign
        beat = decode_beat(sign[1])
        if sign == before or beat.get("pid", self._pid) != self._pid or (before is None and not beat):
            return  # Nothing new, or another process's file.
        beat = {"state": "running", **beat}
        waiting = (beat.get("log_end") or 0) > (beat.get("offset") or 0) and beat.get("indexed", True)
        moved = any(beat.get(name) != self._beat.get(name) for name in ("state", "offset"))
        if moved or not waiting or beat["state"] == "recovering":
            self._moved_s = now_s
        self._alive_s, self._beat = now_s, beat
