"""What the driver does when a query has failed: try again, with fewer records, without one, or later.

Records are to blame when matching them raised an error, or when a Python worker died and the driver did not.
They are halved until one fails alone (see `pipeline.suspects`); that one is set aside. When the driver or its
Java process ended without a word, what was tried is halved too, but a record alone is blamed for that only
after very many deaths. Everything else is nobody's fault: it is tried again after a pause that grows, and in
the end by a new process; on a full disk at short intervals, for ever, since no process would do better.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fieldfare.model import Offsets
from fieldfare.pipeline.suspects import Suspects
from fieldfare.runtimes.spark.batches import MicroBatchSettings, ends_of_batch
from fieldfare.runtimes.spark.suspects_file import SuspectsFile
from fieldfare.storage import EventReader, MatchLog, NewMatchBlock
from fieldfare.storage.errors import StorageError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.quarantine import DIED, Quarantine, SetAside

PAUSE_S = 0.5
PAUSE_MAX_S = 30.0
FULL_PAUSE_S = 2.0
FAILURES_MAX = 6
"""So many failures in a row that are no record's fault end the process: a new one may do better."""

_BLAMED = ("RecordsError: ", "Python worker exited unexpectedly")
"""What Spark's report of a failure holds when records are to blame."""

_FULL = (f"[Errno {errno.ENOSPC}]", f"[Errno {errno.EDQUOT}]", os.strerror(errno.ENOSPC))
"""What it holds when a disk is full."""

_log = logging.getLogger("fieldfare.pipeline")


class NamedRecords(NamedTuple):
    """The records that a report of a failed query names as those that cannot be matched."""

    partition: int
    start: int
    end: int


def named_records(report: str) -> NamedRecords | None:
    """Which ones, if the report names any."""
    found = re.search(r"RecordsError: records (\d+) to (\d+) of partition (\d+) cannot", report)
    return NamedRecords(int(found[3]), int(found[1]), int(found[2]) + 1) if found else None


def is_the_records_fault(report: str) -> bool:
    """Whether Spark's report of a failed query says that the records made it fail."""
    return any(mark in report for mark in _BLAMED)


class Recovery:
    """Decides how to go on after a failure.

    Parameters
    ----------
    folder : DataFolder
    log : EventReader
    match_log : MatchLog
    batches : BatchSettings
        What a batch holds at most; told anew when it is planned for another number of tasks.
    clock_ms : callable
        Milliseconds since 1970.
    """

    def __init__(
        self,
        folder: DataFolder,
        log: EventReader,
        match_log: MatchLog,
        batches: MicroBatchSettings,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._file = SuspectsFile(folder.suspects)
        self._quarantine = Quarantine(folder.quarantine)
        self._log = log
        self._match_log = match_log
        self.batches = batches
        self._clock_ms = clock_ms
        self._failures = 0

    def begin(self, *, predecessor_died: bool, told: Offsets | None) -> None:
        """A process starts.

        Parameters
        ----------
        predecessor_died : bool
            Whether the one before it ended otherwise than by being asked to.
        told : Offsets or None
            Up to where that one told others that everything is matched, for good. Broken blocks from there on
            are matched again; before, nobody knows any more what would be needed for that.
        """
        for partition, offset in zip(self._log.partitions, told or (), strict=False):
            self._match_log.partition(partition.number).recover(max(offset, partition.start()))
        suspects, trying = self._file.load()
        if suspects and trying:
            tried, *others = suspects
            self._note(tried.died(self._tip(tried.partition), DIED), others)
        elif not suspects and predecessor_died:
            # Whatever it died of, should it do so again: it is known what it was at.
            self._file.save(self._next_batch())

    def failed(self, report: str, said: str) -> float | None:
        """A query failed.

        Parameters
        ----------
        report : str
            All that Spark says about it.
        said : str
            The same in a line.

        Returns
        -------
        float or None
            Seconds to wait before the next query; None when another process should try.
        """
        suspects, _ = self._file.load()
        try:
            if is_the_records_fault(report):
                self._failures = 0
                self._blame(suspects, said, named_records(report))
                return 0.0
            self._file.save(suspects)
        except (StorageError, OSError) as error:
            _log.error("what failed could not be noted: %s", error)
        if any(mark in report for mark in _FULL):
            return FULL_PAUSE_S
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            return None
        return min(PAUSE_S * 2.0 ** (self._failures - 1), PAUSE_MAX_S)

    def _blame(self, suspects: tuple[Suspects, ...], said: str, named: NamedRecords | None) -> None:
        """Records made what was tried fail: those suspected, or some of a whole batch."""
        if not suspects:
            batch = self._next_batch()
            suspects = tuple(each for each in batch if named and each.partition == named.partition) or batch
            if len(suspects) > 1:
                # Which partition's it is, each tells when it is tried without the others.
                self._file.save(suspects)
                return
        if suspects:
            tried, *others = suspects
            its_own = named[1:] if named and named.partition == tried.partition else None
            self._note(tried.failed(self._tip(tried.partition), said, its_own), others)

    def works(self) -> None:
        """Something was matched: what failed before has passed."""
        self._failures = 0

    def stopped(self) -> None:
        """The query was stopped: that it did not finish what it tried says nothing."""
        suspects, trying = self._file.load()
        if trying:
            self._file.save(suspects)

    def _tip(self, partition: int) -> int:
        return self._match_log.partition(partition).end(self._log.partitions[partition].start())

    def _next_batch(self) -> tuple[Suspects, ...]:
        """All that a batch holds which begins where everything before is matched."""
        tips = tuple(self._tip(each.number) for each in self._log.partitions)
        ends = ends_of_batch(self._log, tips, self.batches)
        both = enumerate(zip(tips, ends, strict=True))
        return tuple(Suspects(number, tip, end, end) for number, (tip, end) in both if end > tip)

    def _note(self, found: Suspects | None, others: Sequence[Suspects]) -> None:
        """Note what a failed attempt leaves to suspect; set aside the record that it proves at fault."""
        self._save(found, others)
        if found is not None and found.is_proven(self._died_before(found.partition, found.start)):
            self._set_aside(found.partition, found.start, found.error)
            self._save(found.passed(found.start + 1), others)
        elif found is not None:
            named = found.start, found.upto - 1, found.partition
            _log.warning("records %d to %d of partition %d are tried next", *named)

    def _save(self, found: Suspects | None, others: Sequence[Suspects]) -> None:
        self._file.save((*([found] if found is not None else []), *others))

    def _died_before(self, partition: int, offset: int) -> int:
        """How many records directly before this one were set aside for deaths."""
        first = offset
        while (aside := self._quarantine.get(partition, first - 1)) and aside.error.startswith(DIED):
            first -= 1
        return offset - first

    def _set_aside(self, partition: int, offset: int, error: str) -> None:
        """Put a record on the list, and write a block without matches in its place."""
        space, events = "", 0
        try:
            for record in self._log.partitions[partition].read(offset, offset + 1):
                space, events = record.space, record.count
            if not events:
                return  # It is in a hole of the log, over which the tasks go.
        except StorageError as unreadable:
            error = f"{error}; {unreadable}"
        # In this order: killed in between, it comes here again.
        self._quarantine.add(SetAside(offset, space, events, error, self._clock_ms(), partition))
        no_matches = np.zeros(0, np.uint32)
        indptr = np.zeros(events + 1, np.int64)
        counts = np.array([events], np.int32)
        block = NewMatchBlock.by_event(offset, offset + 1, counts, indptr, no_matches, {"set_aside": 1})
        self._match_log.partition(partition).write(block)
        _log.error(
            "record %d of partition %d, of the space %r, is set aside: %s", offset, partition, space, error
        )
