"""Recovery of the driver after a failure: retry with fewer records, without a record, or later.

Records are blamed if matching them raised an error, or if a Python worker died and the driver did not. They
are halved until one fails alone (see `pipeline.suspects`); that record is set aside. If the driver or its
Java process died without a report, the attempted records are halved too, but a single record is blamed only
after very many deaths. Any other failure is retried after an increasing pause, and finally by a new process;
on a full disk at short intervals without limit, because a new process could do no better.
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
from fieldfare.storage.quarantine import DIED, Quarantine, QuarantinedRecord

PAUSE_S = 0.5
PAUSE_MAX_S = 30.0
FULL_PAUSE_S = 2.0
FAILURES_MAX = 6
"""Consecutive failures not caused by records after which the process exits; a new one may succeed."""

_BLAMED = ("RecordsError: ", "Python worker exited unexpectedly")
"""Texts in Spark's report of a failure that blame records."""

_FULL = (f"[Errno {errno.ENOSPC}]", f"[Errno {errno.EDQUOT}]", os.strerror(errno.ENOSPC))
"""Texts in Spark's report of a failure that mean a full disk."""

_log = logging.getLogger("fieldfare.pipeline")


class NamedRecords(NamedTuple):
    """The records that a failure's report names as unmatchable."""

    partition: int
    start: int
    end: int


def named_records(report: str) -> NamedRecords | None:
    """Return the records that a report names, or None."""
    found = re.search(r"RecordsError: records (\d+) to (\d+) of partition (\d+) cannot", report)
    return NamedRecords(int(found[3]), int(found[1]), int(found[2]) + 1) if found else None


def is_the_records_fault(report: str) -> bool:
    """Return whether Spark's report of a failure blames the records."""
    return any(mark in report for mark in _BLAMED)


class Recovery:
    """Decides how to continue after a failure.

    Parameters
    ----------
    batches : MicroBatchSettings
        The bounds of a batch; replaced when batches are planned for another number of tasks.
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

    @property
    def partitions(self) -> int:
        """Number of partitions of the log."""
        return len(self._log.partitions)

    def start(self, *, predecessor_died: bool, told: Offsets | None) -> None:
        """Handle the start of a process: recover the match log, and find suspects if its predecessor died.

        Parameters
        ----------
        predecessor_died : bool
            Whether the previous process ended without being stopped.
        told : Offsets or None
            Up to where the previous process reported everything as matched and durable. Corrupt blocks from
            there on are matched again; for earlier ones, versions that matching needs may have been removed.
        """
        for partition, offset in zip(self._log.partitions, told or (), strict=False):
            self._match_log.partition(partition.number).recover(max(offset, partition.start()))
        suspects, trying = self._file.load()
        if suspects and trying:
            tried, *others = suspects
            self._save_or_set_aside(tried.died(self._tip(tried.partition), DIED), others)
        elif not suspects and predecessor_died:
            # If it dies of the same cause again, its records at the time are known.
            self._file.save(self._next_batch())

    def failed(self, report: str, said: str) -> float | None:
        """Handle a failure.

        Parameters
        ----------
        report : str
            Spark's full report.
        said : str
            The report in one line.

        Returns
        -------
        float or None
            Seconds to wait before the next attempt; None if another process should try.
        """
        suspects, _ = self._file.load()
        try:
            if is_the_records_fault(report):
                self._failures = 0
                self._blame(suspects, said, named_records(report))
                return 0.0
            self._file.save(suspects)
        except (StorageError, OSError) as error:
            _log.error("the suspected records could not be saved: %s", error)
        if any(mark in report for mark in _FULL):
            return FULL_PAUSE_S
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            return None
        return min(PAUSE_S * 2.0 ** (self._failures - 1), PAUSE_MAX_S)

    def _blame(self, suspects: tuple[Suspects, ...], said: str, named: NamedRecords | None) -> None:
        """Handle a failure caused by records: the suspects, or else some record of the last batch."""
        if not suspects:
            batch = self._next_batch()
            suspects = tuple(each for each in batch if named and each.partition == named.partition) or batch
            if len(suspects) > 1:
                # Trying the partitions one after the other shows whose record fails.
                self._file.save(suspects)
                return
        if suspects:
            tried, *others = suspects
            its_own = named[1:] if named and named.partition == tried.partition else None
            self._save_or_set_aside(tried.failed(self._tip(tried.partition), said, its_own), others)

    def works(self) -> None:
        """Note that something was matched: earlier failures no longer count."""
        self._failures = 0

    def stopped(self) -> None:
        """Note that matching was stopped: its unfinished attempt proves nothing."""
        suspects, trying = self._file.load()
        if trying:
            self._file.save(suspects)

    def _tip(self, partition: int) -> int:
        return self._match_log.partition(partition).end(self._log.partitions[partition].start())

    def _next_batch(self) -> tuple[Suspects, ...]:
        """Return everything in a batch that begins where all earlier records are matched."""
        tips = tuple(self._tip(each.number) for each in self._log.partitions)
        ends = ends_of_batch(self._log, tips, self.batches)
        both = enumerate(zip(tips, ends, strict=True))
        return tuple(Suspects(number, tip, end, end) for number, (tip, end) in both if end > tip)

    def _save_or_set_aside(self, found: Suspects | None, others: Sequence[Suspects]) -> None:
        """Save the suspects that a failed attempt leaves; set aside a record that is proven at fault."""
        self._save(found, others)
        if found is not None and found.is_proven(self._died_before(found.partition, found.start)):
            self._set_aside(found.partition, found.start, found.error)
            self._save(found.passed(found.start + 1), others)
        elif found is not None:
            named = found.start, found.upto - 1, found.partition
            _log.warning("matching failed; records %d to %d of partition %d are matched alone next", *named)

    def _save(self, found: Suspects | None, others: Sequence[Suspects]) -> None:
        self._file.save((*([found] if found is not None else []), *others))

    def _died_before(self, partition: int, offset: int) -> int:
        """Return the number of records directly before this one that were set aside for deaths."""
        first = offset
        while (aside := self._quarantine.get(partition, first - 1)) and aside.error.startswith(DIED):
            first -= 1
        return offset - first

    def _set_aside(self, partition: int, offset: int, error: str) -> None:
        """Add a record to the quarantine, and write a block without matches in its place."""
        space, events = "", 0
        try:
            for record in self._log.partitions[partition].read(offset, offset + 1):
                space, events = record.space, record.count
            if not events:
                return  # It is in a hole of the log, which the tasks skip.
        except StorageError as unreadable:
            error = f"{error}; {unreadable}"
        # In this order: after a kill in between, this runs again.
        self._quarantine.add(QuarantinedRecord(offset, space, events, error, self._clock_ms(), partition))
        no_matches = np.zeros(0, np.uint32)
        indptr = np.zeros(events + 1, np.int64)
        counts = np.array([events], np.int32)
        block = NewMatchBlock.by_event(offset, offset + 1, counts, indptr, no_matches, {"set_aside": 1})
        self._match_log.partition(partition).write(block)
        _log.error(
            "record %d of partition %d, of the space %r, is set aside: %s", offset, partition, space, error
        )
