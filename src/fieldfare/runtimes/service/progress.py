"""Do the children live, and does the pipeline get anywhere? The files that they touch tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LOOK_EVERY_S = 1.0
LOOK_COUNTS_S = 3.0
"""What passed since the last look counts for at most so long."""
START_FACTOR = 5.0
"""So much longer than in its work a pipeline may be silent while it starts: it may build a whole index."""


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


class ProgressWatch:
    """Tells a pipeline that hangs from one that works or has nothing to do.

    Progress is a record matched, or an index file written, not the end of a batch: a batch may take long.
    Times are those of a clock that never goes back; what the heartbeat says of the time is not looked at.

    Parameters
    ----------
    heartbeat
        The file that the pipeline writes.
    stall_s
        Seconds without progress, though events wait, or without a sign of life, after which it hangs.
    """

    def __init__(self, heartbeat: Path, stall_s: float) -> None:
        self._heartbeat = heartbeat
        self._stall_s = stall_s
        self._pid = 0
        self._time = WatchedTime()
        self._alive_s = self._moved_s = 0.0
        self._sign: tuple[int, bytes] | None = None
        self._beat: dict[str, Any] = {}

    def __call__(self, pid: int, now_s: float) -> str:
        """In a word how the process hangs; empty when it does not."""
        if pid != self._pid:
            self._pid, self._beat, self._sign, self._time = pid, {}, None, WatchedTime()
            self._alive_s = self._moved_s = 0.0
        if not self._time.look(now_s):
            return ""
        now_s = self._time.now_s
        self._read(now_s)
        state = self._beat.get("state")
        patience_s = self._stall_s if state == "running" else START_FACTOR * self._stall_s
        if now_s - self._alive_s > patience_s:
            return f"gave no sign of life for {now_s - self._alive_s:.0f} s"
        if now_s - self._moved_s > patience_s:
            return f"matched nothing for {now_s - self._moved_s:.0f} s, though events wait"
        return ""

    def _read(self, now_s: float) -> None:
        try:
            # Where a beat cannot be written, the file's time can still be changed.
            sign = (self._heartbeat.stat().st_mtime_ns, self._heartbeat.read_bytes())
            beat = json.loads(sign[1])
            if sign == self._sign or beat["pid"] != self._pid:
                return
            waiting = (beat.get("log_end") or 0) > (beat.get("offset") or 0)
        except (OSError, ValueError, KeyError, TypeError):
            return
        moved = any(beat.get(name) != self._beat.get(name) for name in ("state", "offset", "newest_manifest"))
        if moved or not waiting or beat["state"] == "recovering":
            self._moved_s = now_s
        self._alive_s, self._sign, self._beat = now_s, sign, beat


class LifeWatch:
    """Tells a process that hangs from one that lives, by a file whose time it changes every second.

    Parameters
    ----------
    sign
        The file.
    stall_s
        Seconds without a sign of life after which the process hangs.
    """

    def __init__(self, sign: Path, stall_s: float) -> None:
        self._sign = sign
        self._stall_s = stall_s
        self._pid = 0
        self._time = WatchedTime()
        self._alive_s = 0.0
        self._time_ns = 0
        self._works = False

    def __call__(self, pid: int, now_s: float) -> str:
        """In a word how the process hangs; empty when it does not."""
        starts = pid != self._pid
        if starts:
            self._time = WatchedTime()
        if not self._time.look(now_s):
            return ""
        now_s = self._time.now_s
        try:
            time_ns = self._sign.stat().st_mtime_ns
        except OSError:
            time_ns = self._time_ns
        if starts:
            self._pid, self._alive_s, self._works = pid, now_s, False
        elif time_ns != self._time_ns:
            self._alive_s, self._works = now_s, True
        self._time_ns = time_ns
        silent_s = now_s - self._alive_s
        patience_s = self._stall_s if self._works else START_FACTOR * self._stall_s
        return f"gave no sign of life for {silent_s:.0f} s" if silent_s > patience_s else ""
