"""What the gateway does for its files every few seconds: ages, retention, compaction, what is broken."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fieldfare.gateway.delivery.match_tail import MatchTail
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.gateway.upkeep.readiness import PIPELINE_WORKS, read_heartbeat
from fieldfare.gateway.upkeep.restored import committed_offset, pass_over_lost
from fieldfare.storage.errors import StorageError
from fieldfare.storage.event_log import EventLog, RetentionPolicy
from fieldfare.storage.match_folder import range_of
from fieldfare.storage.match_log import MatchLog
from fieldfare.storage.quarantine import Quarantine
from fieldfare.storage.registry import Registry

logger = logging.getLogger("fieldfare.gateway")

PRODUCERS_KEPT_MS = 7 * 86_400_000
"""So long a producer's last sequences are remembered at least."""

AGES_NOTED = 500
"""How exact retention is: to one part in so many of its time."""

ROUND_MAX_S = 900.0
"""By more than this one round makes nothing older: the process may have been stopped for a week, or its whole
machine, and nobody could read meanwhile."""

COMPACTION_BEHIND_RECORDS = 64
"""The newest blocks stay as they are: live subscribers are reading them."""

COMPACTED_BLOCKS = 10_000
"""One round looks at about so many: more than come in its time, and a bound on the first after a start."""


@dataclass
class Maintenance:
    """Looks after the event log, the match log and the registry of one gateway.

    Its rounds run on a thread, one at a time. Each step stands alone: one that fails is tried again in the
    next round, and holds up no other.

    Parameters
    ----------
    settings
        What is kept, and for how long.
    log, registry, match_log, quarantine
        What is looked after.
    tail
        Says how far matches were taken in.
    floor
        A stamp below which no record will be appended any more.
    broken
        The files of blocks that could not be read, which others add to: `mend` looks at them.
    metrics
        Say how much was set aside.
    """

    settings: GatewaySettings
    log: EventLog
    registry: Registry
    match_log: MatchLog
    quarantine: Quarantine
    tail: MatchTail
    floor: Callable[[], int]
    broken: set[Path]
    metrics: Metrics

    def __post_init__(self) -> None:
        self._heartbeat_path = self.settings.data / "run" / "pipeline.json"
        self._lock = threading.Lock()
        self.notices: tuple[str, ...] = ()
        """What a person should know, a sentence each."""
        self._look_aside()

    @property
    def is_asked(self) -> bool:
        """Whether `mend` has something to look at."""
        return bool(self.broken) or self.tail.gap_seen

    def round(self, elapsed_s: float) -> None:
        """One round of everything.

        Parameters
        ----------
        elapsed_s
            How long the gateway has run since the last round, by a clock that nobody can set.
        """
        with self._lock:
            elapsed_ms = round(1000 * min(max(elapsed_s, 0.0), ROUND_MAX_S))
            for name, step in (
                ("telling ages", lambda: self._observe(elapsed_ms)),
                ("retention", self._retain),
                ("forgetting producers", self._forget_producers),
                ("passing over what is lost", self._pass_over),
                ("setting aside", self._set_aside),
                ("compaction", self._compact),
                ("forgetting history", self._forget_history),
                ("forgetting records set aside", self._forget_quarantine),
            ):
                self._try(name, step)
            self._look_aside()

    def mend(self) -> None:
        """Set aside what is broken, and pass over what is missing, now: somebody waits behind it."""
        with self._lock:
            self._try("passing over what is lost", self._pass_over)
            self._try("setting aside", self._set_aside)
            self._look_aside()

    def _try(self, name: str, step: Callable[[], None]) -> None:
        try:
            step()
        except (StorageError, OSError) as error:
            logger.error("%s failed, and will be tried again: %s", name, error)

    @property
    def _retention_ms(self) -> int:
        return max(1, round(self.settings.retention_s * 1000))

    def _observe(self, elapsed_ms: int) -> None:
        shortest_ms = min(self._retention_ms, PRODUCERS_KEPT_MS)
        self.log.observe(
            elapsed_ms,
            every_ms=max(1, shortest_ms // AGES_NOTED),
            keep_ms=max(self._retention_ms, PRODUCERS_KEPT_MS),
        )

    def _retain(self) -> None:
        """Remove old records, and then their matches: a match without its event does no harm."""
        # What the pipeline may still match again, or has matched and not made durable, stays.
        keep_from = min(self.tail.tip, committed_offset(self.settings))
        policy = RetentionPolicy(self._retention_ms, self.settings.retention_bytes)
        before = policy.trim_before(self.log, keep_from)
        if before is not None:
            removed = self.log.trim(before)
            logger.info("retention removed %d records, up to 0-%d-0", removed, before)
        # Also when the last round was killed before it came to this.
        self.match_log.trim(self.log.start())

    def _forget_producers(self) -> None:
        log = self.log
        log.forget_producers(log.older_than(PRODUCERS_KEPT_MS))

    def _pass_over(self) -> None:
        committed = committed_offset(self.settings)
        if self.tail.tip < committed or self.tail.gap_seen:
            self.tail.gap_seen = False
            pass_over_lost(self.log, self.match_log, committed)

    def _set_aside(self) -> None:
        """Take broken blocks out of the match log, unless the pipeline may still write them again."""
        committed = committed_offset(self.settings)
        for path in list(self.broken):
            block = range_of(path)
            trouble = None if block is None else self.match_log.trouble(block)
            if block is not None and trouble is not None:
                if block.end > committed and not self._is_pipeline_at_work():
                    continue
                kept = self.match_log.set_aside(block)
                logger.error("%s; it is set aside as %s, and what it held is passed over", trouble, kept)
            self.broken.discard(path)
            self.match_log.forget(path)

    def _is_pipeline_at_work(self) -> bool:
        """Whether the pipeline has begun to match: before, it may match anew what is torn."""
        try:
            return read_heartbeat(self._heartbeat_path).state in PIPELINE_WORKS
        except (OSError, msgspec.DecodeError):
            return False

    def _compact(self) -> None:
        self.match_log.compact(
            max(0, self.tail.tip - COMPACTION_BEHIND_RECORDS), most_blocks=COMPACTED_BLOCKS
        )

    def _forget_history(self) -> None:
        """Purge from the registry what the pipeline, however it may crash, will not ask for again.

        It asks for versions that count for the stamp of a record whose matches are not on disk for good, and
        for changes that came after the newest snapshots. It says how far either is.
        """
        try:
            heartbeat = read_heartbeat(self._heartbeat_path)
        except (OSError, msgspec.DecodeError):
            return
        if heartbeat.offset is not None and heartbeat.snapshot_revision is not None:
            # First the stamps of records to come: what is appended meanwhile, the log tells.
            before = min(self.floor(), heartbeat.snapshot_revision)
            waiting = self.log.lowest_stamp(heartbeat.offset)
            self.registry.purge(before if waiting is None else min(before, waiting))

    def _forget_quarantine(self) -> None:
        """Forget records that could not be matched when retention has removed them."""
        self.quarantine.forget_before(self.log.start())

    def _look_aside(self) -> None:
        self.notices = tuple(
            f"a block of the match log was broken and is set aside as {path}: the matches of records"
            f" {block.start} to {block.end - 1} are lost, for those who had not read them; delete the file to"
            " end this notice"
            for path in self.match_log.aside()
            if (block := range_of(path)) is not None
        )
        self.metrics.set_aside.set(len(self.notices))
        if records := len(self.quarantine.offsets()):
            self.notices += (
                f"{records} records could not be matched and are set aside: see fieldfare quarantine list",
            )
