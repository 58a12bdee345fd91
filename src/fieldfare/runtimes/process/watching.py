"""Do the children live, and do they get anywhere? The files that they touch tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fieldfare.runtimes.process.heartbeat import decode_beat

LOOK_EVERY_S = 1.0
LOOK_COUNTS_S = 3.0
"""What passed since the last look counts for at most so long."""
START_FACTOR = 5.0
"""So much longer than in its work a process may be silent while it starts: it may build a whole index."""
START_FACTOR_MAX = 8 * START_FACTOR
"""Twice as long after each start that was ended for its silence, up to so long: on a machine that does much
else a start may need longer than it was given, and would need as long the next time."""


class WatchedTime:
    """Seconds in which somebody watched.

    When the whole machine stood still (a laptop's lid, ``docker pause``), those who are watched did nothing,
    and could not: of the time between two looks that lie far apart, nearly nothing counts against them.
    """

    def __init__(self) -> None:
        self._looked_s: float | None = None
        self.now_s = 0.0

    def look(self, now_s: float) -> bool:
        """Take in the time of a clock that never goes back; whether it is time to look again."""
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
    """Tells a process that hangs from one that works or has nothing to do, by a file that it touches.

    That is its heartbeat, or any file whose time it changes every second. A heartbeat may say `offset` and
    `log_end`: then progress counts too, which is a record matched, not the end of a batch, for that may take
    long. While the index does not cover what waits, there is nothing to do. Times are those of a clock that
    never goes back; what a heartbeat says of the time is not looked at.

    Parameters
    ----------
    sign
        The file.
    stall_s
        Seconds without progress, though events wait, or without a sign of life, after which it hangs.
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
        """In a word how the process hangs; empty when it does not."""
        if pid != self._pid:
            self._start(pid)
        if not self._time.look(now_s):
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
            return f"gave no sign of life for {now_s - self._alive_s:.0f} s"
        if now_s - self._moved_s > patience_s:
            return f"matched nothing for {now_s - self._moved_s:.0f} s, though events wait"
        return ""

    def _read(self, now_s: float) -> None:
        try:
            # Where a beat cannot be written, the file's time can still be changed.
            sign = (self._path.stat().st_mtime_ns, self._path.read_bytes())
        except OSError:
            return
        before, self._sign = self._sign, sign
        beat = decode_beat(sign[1])
        if sign == before or beat.get("pid", self._pid) != self._pid or (before is None and not beat):
            return  # Nothing new; or what another process left.
        beat = {"state": "running", **beat}
        waiting = (beat.get("log_end") or 0) > (beat.get("offset") or 0) and beat.get("indexed", True)
        moved = any(beat.get(name) != self._beat.get(name) for name in ("state", "offset"))
        if moved or not waiting or beat["state"] == "recovering":
            self._moved_s = now_s
        self._alive_s, self._beat = now_s, beat
