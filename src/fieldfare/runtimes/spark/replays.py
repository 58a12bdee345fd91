"""The driver's second thread: it matches replays, for subscriptions with a `start` in the past.

It runs rounds of Spark jobs beside live matching, in the same Spark application. While events arrive, a round
is small and leaves one core free (if there are several); and no round begins while new records wait, unless
they have waited as long as the last round took. So live records go first, and replays still progress.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from pyspark import SparkContext

from fieldfare.model import Offsets
from fieldfare.runtimes.spark.failures import reason
from fieldfare.runtimes.spark.recovery import FULL_PAUSE_S, is_the_records_fault
from fieldfare.runtimes.spark.replay_planner import ReplayPlanner
from fieldfare.runtimes.spark.replay_task import match_pieces
from fieldfare.storage import open_event_log, open_match_log
from fieldfare.storage.errors import StorageError
from fieldfare.storage.event_log import ends_of
from fieldfare.storage.folder import DataFolder

LOOK_S = 0.2
"""Polling interval for new replays, in seconds."""

GIVE_WAY_S = 0.01
QUIET_S = 2.0
"""Seconds without new events after which a round uses all cores."""

LIVE_SHARE = 8
"""Divisor for the size of a piece while events arrive: about 0.1 s of work."""

END_WAIT_S = 10.0

_log = logging.getLogger("fieldfare.pipeline")


class ReplayRunner:
    """Runs replays in a thread, from `start` to `close`, while Spark runs.

    Parameters
    ----------
    cores : int
        Number of tasks that Spark runs at once.
    room : callable, optional
        Returns a context in which the tasks of a round have a slot, see `MatchLoop.room`.
    """

    def __init__(
        self,
        context: SparkContext,
        folder: DataFolder,
        cores: int,
        room: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._context = context
        self._room = room
        self._folder = folder
        self._cores = cores
        self._planner = ReplayPlanner(folder)
        self._log = open_event_log(folder.log_url)
        self._matches = open_match_log(folder.matches_url)
        self._tips = [0] * len(self._log.partitions)
        self._ends: Offsets | None = None
        self._moved_s = -QUIET_S
        self._said = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fieldfare-pasts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop after the current round; wait at most `END_WAIT_S` seconds for it."""
        self._stop.set()
        self._thread.join(END_WAIT_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                pause_s = self._round()
                self._said = ""
            except Exception as error:
                # A full disk or an unreadable file may recover, and live matching continues.
                pause_s = FULL_PAUSE_S
                if not self._stop.is_set() and str(error) != self._said:
                    self._said = str(error)
                    _log.error("replays could not be matched and will be retried: %s", reason(error))
            self._stop.wait(pause_s)
        self._planner.close()

    def _round(self) -> float:
        """Match one round of pieces; return the seconds to wait before the next."""
        started_s = time.monotonic()
        ends = ends_of(self._log)
        if ends != self._ends:
            self._ends, self._moved_s = ends, started_s if self._ends else self._moved_s
        is_quiet = started_s - self._moved_s >= QUIET_S
        tasks, share = (self._cores, 1) if is_quiet else (max(1, self._cores - 1), LIVE_SHARE)
        pieces = self._planner.next_round(tasks, share)
        if not pieces:
            return LOOK_S
        try:
            with self._room():
                match_pieces(self._context, self._folder, pieces)
        except Exception as error:
            if not is_the_records_fault(str(error)):
                raise
            self._planner.failed(pieces, str(error), reason(error))
        self._give_way(time.monotonic() - started_s)
        return 0.0

    def _give_way(self, most_s: float) -> None:
        """Let live matching catch up first, for at most `most_s` seconds."""
        until_s = time.monotonic() + most_s
        while self._is_behind() and time.monotonic() < until_s:
            self._stop.wait(GIVE_WAY_S)

    def _is_behind(self) -> bool:
        try:
            for each in self._log.partitions:
                tip = max(self._tips[each.number], each.start())
                self._tips[each.number] = self._matches.partition(each.number).end(tip)
        except StorageError:
            return False
        return any(map(int.__lt__, self._tips, ends_of(self._log)))
