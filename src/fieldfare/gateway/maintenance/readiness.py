"""Readiness: whether events are accepted and matched, judged by progress and not only by heartbeats.

All times are of a monotonic clock: the time in a heartbeat is used once, when the gateway starts.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from fieldfare.model import Offsets

STARTING = "starting"
"""The state in which a process may send no heartbeat for minutes: it compiles kernels or starts Spark."""

PIPELINE_WORKS = ("ready", "running")
"""The states in which the pipeline matches appended events."""

DISK_FULL_BYTES = 1 << 20
"""Minimum free bytes; with less the disk counts as full, even if `disk_free_min_bytes` is lower."""

PROBE_S = 2.0
"""Maximum seconds for the log or the registry to answer; then it counts as not ready."""


class LastBeat(msgspec.Struct):
    """A heartbeat, which the pipeline's driver and the indexer write every second.

    ``matched`` has the offset up to which each partition's matches are durable, ``offset`` the sum of these.
    """

    pid: int
    state: str
    time_ms: int
    offset: int | None = None
    matched: Offsets | None = None
    snapshot_revision: int | None = None
    error: str | None = None

    def offsets(self, partitions: int) -> Offsets:
        """Return the offset up to which each partition's matches are durable; 0 where there is none."""
        said = self.matched if self.matched is not None else (self.offset or 0,)
        return (*said, *(0 for _ in range(partitions)))[:partitions]


def read_heartbeat(path: Path) -> LastBeat:
    """Read a process's last heartbeat; FileNotFoundError before the first, DecodeError if it is torn."""
    return _decode(path.read_bytes())


def _decode(text: bytes) -> LastBeat:
    try:
        return msgspec.json.decode(text, type=LastBeat)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error


class HeartbeatWatch:
    """A watch on a process's heartbeat.

    Parameters
    ----------
    who
        The name of the process in messages.
    heartbeat
        The file that the process writes.
    stale_s
        Maximum seconds without a heartbeat; after that the process counts as not ready.
    """

    def __init__(self, who: str, heartbeat: Path, stale_s: float) -> None:
        self._who = who
        self._path = heartbeat
        self._stale_s = stale_s
        self._sign: tuple[int, bytes] | None = None
        self._beat_s: float | None = None
        self._is_seen_beating = False
        self._heartbeat: LastBeat | None = None
        self._problem = f"the {who} has not started yet"

    def read_heartbeat(self, now_s: float, now_ms: int) -> None:
        """Read the heartbeat; call this a few times a second.

        Parameters
        ----------
        now_s
            The time of a monotonic clock, in seconds.
        now_ms
            Milliseconds since 1970, for the age of a heartbeat from before the gateway's start.
        """
        try:
            # Where a heartbeat cannot be written, the process can still update the file's time.
            sign = (self._path.stat().st_mtime_ns, self._path.read_bytes())
            if sign == self._sign:
                return
            self._heartbeat = _decode(sign[1])
        except FileNotFoundError:
            self._heartbeat, self._problem = None, f"the {self._who} has not started yet"
            return
        except (OSError, msgspec.DecodeError) as error:
            self._heartbeat, self._problem = None, f"the {self._who}'s heartbeat cannot be read: {error}"
            return
        if self._sign is None:
            # The first heartbeat's age is known from its own time only; one in the future counts as stale.
            age_s = (now_ms - self._heartbeat.time_ms) / 1000
            self._beat_s = now_s - (age_s if age_s >= 0 else self._stale_s + 1)
        else:
            self._beat_s = now_s
            self._is_seen_beating = True
        self._sign = sign

    def state(self, now_s: float) -> str:
        """Return ``ready``, or a sentence that says why the process is not."""
        heartbeat = self._heartbeat
        if heartbeat is None or self._beat_s is None:
            return self._problem
        age_s = now_s - self._beat_s
        if age_s > self._stale_s:
            if heartbeat.state == STARTING:
                return f"the {self._who} has been starting for {age_s:.0f} s or longer"
            if not self._is_seen_beating:
                return f"the {self._who} has not given a heartbeat since this gateway started"
            return f"the {self._who}'s last heartbeat is {age_s:.0f} s old"
        if heartbeat.state not in PIPELINE_WORKS:
            return f"the {self._who} is {heartbeat.state}{f': {heartbeat.error}' if heartbeat.error else ''}"
        return "ready"


class PipelineWatch:
    """A watch on the pipeline's heartbeat and progress.

    Parameters
    ----------
    heartbeat
        The file that the pipeline's driver writes.
    stale_s
        Maximum seconds without a heartbeat, or without progress while events wait; after that the pipeline
        counts as not ready.
    """

    def __init__(self, heartbeat: Path, stale_s: float) -> None:
        self._life = HeartbeatWatch("pipeline", heartbeat, stale_s)
        self._stale_s = stale_s
        self._tip = -1
        self._moved_s = 0.0
        self._waiting = 0

    def read_heartbeat(self, tip: int, log_end: int, now_s: float, now_ms: int) -> None:
        """Read the heartbeat, and note how far the log is matched.

        Parameters
        ----------
        tip, log_end
            The ends of the match log and of the event log, each summed over all partitions.
        now_s, now_ms
            The time: of a monotonic clock in seconds, and in milliseconds since 1970.
        """
        if tip != self._tip or not self._waiting:
            self._tip, self._moved_s = tip, now_s
        self._waiting = max(0, log_end - tip)
        self._life.read_heartbeat(now_s, now_ms)

    def state(self, now_s: float) -> str:
        """Return ``ready``, or a sentence that says why the pipeline is not."""
        stalled_s = now_s - self._moved_s
        state = self._life.state(now_s)
        if state == "ready" and self._waiting and stalled_s > self._stale_s:
            return f"{self._waiting} records wait, and nothing was matched for {stalled_s:.0f} s"
        return state


class StorageProbe:
    """A probe of a storage operation: concurrent callers share one attempt.

    Parameters
    ----------
    problem
        The message when the attempt fails.
    ask
        Attempts the operation without any effect.
    """

    def __init__(self, problem: str, ask: Callable[[], Awaitable[object]]) -> None:
        self._problem = problem
        self._do = ask
        self._asked: asyncio.Task[str] | None = None

    async def state(self) -> str:
        """Return ``ready``, or why the operation fails; wait at most `PROBE_S` seconds."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_task(self._ask())
        asked = self._asked
        done, _ = await asyncio.wait([asked], timeout=PROBE_S)
        if not done:
            # The attempt continues: the next caller waits for it, and adds nothing to the queue.
            return f"{self._problem}: no answer for {PROBE_S:g} s"
        return asked.result()

    async def _ask(self) -> str:
        try:
            await self._do()
        except Exception as error:
            return f"{self._problem}: {error or type(error).__name__}"
        finally:
            self._asked = None
        return "ready"


def disk_free_bytes(path: Path) -> int:
    """Return the free bytes of the file system that holds a path."""
    return shutil.disk_usage(path).free
