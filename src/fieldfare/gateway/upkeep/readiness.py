"""Whether events are taken and matched. Ready means that the pipeline gets on, not that it says so.

All times here are of a clock that never goes back: the heartbeat's own time is looked at once, when the
gateway starts, and never again.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from fieldfare.model import Offsets

PIPELINE_WORKS = ("ready", "running")
"""The states in which the pipeline matches what is appended."""

DISK_FULL_BYTES = 1 << 20
"""With less a disk is full, also for those who keep no reserve."""

PROBE_S = 2.0
"""So long the log or the registry may take to answer."""


class LastBeat(msgspec.Struct):
    """What the pipeline's driver and the indexer write every second.

    ``matched`` says up to where each partition is matched for good, ``offset`` how much that is together: of
    one partition, the same.
    """

    pid: int
    state: str
    time_ms: int
    offset: int | None = None
    matched: Offsets | None = None
    snapshot_revision: int | None = None
    error: str | None = None

    def offsets(self, partitions: int) -> Offsets:
        """Up to where each of so many partitions is matched for good, as far as this says."""
        said = self.matched if self.matched is not None else (self.offset or 0,)
        return (*said, *(0 for _ in range(partitions)))[:partitions]


def read_heartbeat(path: Path) -> LastBeat:
    """The last heartbeat of a process; FileNotFoundError before the first, DecodeError if it is torn."""
    return _decode(path.read_bytes())


def _decode(text: bytes) -> LastBeat:
    try:
        return msgspec.json.decode(text, type=LastBeat)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error


class HeartbeatWatch:
    """Follows a process's heartbeat.

    Parameters
    ----------
    who
        The process, for people.
    heartbeat
        The file that it writes.
    stale_s
        Seconds without a heartbeat that are too many.
    """

    def __init__(self, who: str, heartbeat: Path, stale_s: float) -> None:
        self._who = who
        self._path = heartbeat
        self._stale_s = stale_s
        self._sign: tuple[int, bytes] | None = None
        self._beat_s: float | None = None
        self._heartbeat: LastBeat | None = None
        self._problem = f"the {who} has not started yet"

    def look(self, now_s: float, now_ms: int) -> None:
        """Take in the heartbeat; to be called a few times a second.

        Parameters
        ----------
        now_s
            A clock that never goes back.
        now_ms
            Milliseconds since 1970, for the heartbeat of a process from before the gateway's start.
        """
        try:
            # Where a beat cannot be written, the process can still change the file's time.
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
            # Nobody has seen how old it is; that it comes from the future says as little as an old one.
            age_s = (now_ms - self._heartbeat.time_ms) / 1000
            self._beat_s = now_s - (age_s if age_s >= 0 else self._stale_s + 1)
        else:
            self._beat_s = now_s
        self._sign = sign

    def state(self, now_s: float) -> str:
        """``ready``, or a sentence why the process is not."""
        heartbeat = self._heartbeat
        if heartbeat is None or self._beat_s is None:
            return self._problem
        age_s = now_s - self._beat_s
        if age_s > self._stale_s:
            return f"the {self._who}'s last heartbeat is {age_s:.0f} s old"
        if heartbeat.state not in PIPELINE_WORKS:
            return f"the {self._who} is {heartbeat.state}{f': {heartbeat.error}' if heartbeat.error else ''}"
        return "ready"


class PipelineWatch:
    """Follows the pipeline's heartbeat, and how far it has matched.

    Parameters
    ----------
    heartbeat
        The file that the pipeline's driver writes.
    stale_s
        Seconds without a heartbeat, or without progress though events wait, that are too many.
    """

    def __init__(self, heartbeat: Path, stale_s: float) -> None:
        self._life = HeartbeatWatch("pipeline", heartbeat, stale_s)
        self._stale_s = stale_s
        self._tip = -1
        self._moved_s = 0.0
        self._waiting = 0

    def look(self, tip: int, log_end: int, now_s: float, now_ms: int) -> None:
        """Take in the heartbeat, as `HeartbeatWatch` does, and how far everything is matched.

        Parameters
        ----------
        tip, log_end
            The first record that is not matched, and the end of the log.
        now_s, now_ms
            The time.
        """
        if tip != self._tip or not self._waiting:
            self._tip, self._moved_s = tip, now_s
        self._waiting = max(0, log_end - tip)
        self._life.look(now_s, now_ms)

    def state(self, now_s: float) -> str:
        """``ready``, or a sentence why the pipeline is not."""
        stalled_s = now_s - self._moved_s
        state = self._life.state(now_s)
        if state == "ready" and self._waiting and stalled_s > self._stale_s:
            return f"{self._waiting} records wait, and nothing was matched for {stalled_s:.0f} s"
        return state


class StorageProbe:
    """Asks whether something can be done: one question at a time, whoever wants to know.

    Parameters
    ----------
    problem
        What to say when it cannot, for people.
    ask
        Does nothing, in the way in which others do something.
    """

    def __init__(self, problem: str, ask: Callable[[], Awaitable[object]]) -> None:
        self._problem = problem
        self._do = ask
        self._asked: asyncio.Task[str] | None = None

    async def state(self) -> str:
        """``ready``, or why it cannot be done. Waits for `PROBE_S` at most."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_task(self._ask())
        asked = self._asked
        done, _ = await asyncio.wait([asked], timeout=PROBE_S)
        if not done:
            # It stays asked: who comes next waits for the same answer, and adds nothing to the queue.
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
    """What may still be written where the data lie."""
    return shutil.disk_usage(path).free
