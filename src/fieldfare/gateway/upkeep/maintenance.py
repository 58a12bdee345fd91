"""What the gateway does for its files every few seconds: ages, retention, compaction, what is broken."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from fieldfare.gateway.delivery.match_tail import MatchTail
from fieldfare.gateway.delivery.pasts import Pasts
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.publishing.delayed import Delayed
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.gateway.upkeep.pasts import PastUpkeep
from fieldfare.gateway.upkeep.readiness import PIPELINE_WORKS, read_heartbeat
from fieldfare.gateway.upkeep.restored import committed_offsets, pass_over_all_lost
from fieldfare.model import Offsets
from fieldfare.storage import EventLog, MatchLog, Registry
from fieldfare.storage.errors import StorageError
from fieldfare.storage.event_log import RetentionPolicy, starts_of
from fieldfare.storage.quarantine import Quarantine

logger = logging.getLogger("fieldfare.gateway")

PRODUCERS_KEPT_MS = 7 * 86_400_000
"""So long a producer's last sequences are remembered at least."""

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
    pasts
        Knows the logs of those that began in the past.
    floor
        A stamp below which no record will be appended any more.
    broken
        Blocks that could not be read, by partition and range; others add to them, and `mend` looks.
    metrics
        Say how much was set aside.
    count_stored
        Tells the quotas what each space has on disk.
    delayed
        What waits for its time.
    """

    settings: GatewaySettings
    log: EventLog
    registry: Registry
    match_log: MatchLog
    quarantine: Quarantine
    tail: MatchTail
    pasts: Pasts
    floor: Callable[[], int]
    broken: set[tuple[int, tuple[int, int]]]
    metrics: Metrics
    count_stored: Callable[[], None]
    delayed: Delayed

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._past_upkeep = PastUpkeep(self.settings.folder, self.log, self.registry, self.pasts, self.floor)
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
                ("passing over what is lost", self._pass_over),
                ("setting aside", self._set_aside),
                ("compaction", self._compact),
                ("looking after the past", self._past_upkeep.round),
                ("counting what spaces keep", self.count_stored),
                ("forgetting history", self._forget_history),
                ("forgetting repeats of what was delayed", self.delayed.forget),
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
    def _policy(self) -> RetentionPolicy:
        settings = self.settings
        return RetentionPolicy(
            max(1, round(settings.retention_s * 1000)), settings.retention_bytes, PRODUCERS_KEPT_MS
        )

    def _committed(self) -> Offsets:
        return committed_offsets(self.settings, self.log)

    def _observe(self, elapsed_ms: int) -> None:
        self.log.grow_older(elapsed_ms, self._policy)

    def _retain(self) -> None:
        """Remove old records, and then their matches: a match without its event does no harm."""
        before = starts_of(self.log)
        # What the pipeline may still match again, or has matched and not made durable, stays.
        keep_from = tuple(map(min, self.tail.tips, self._committed()))
        self.log.retain(self._policy, keep_from)
        self.tail.begins = starts_of(self.log)
        for partition, start in enumerate(self.tail.begins):
            if start > before[partition]:
                logger.info("retention removed the records before %d-%d-0", partition, start)
            if start > (unmatched := self.tail.tips[partition]):
                logger.error(
                    "the log's own retention took records %d-%d to %d-%d before they were matched: nobody is"
                    " given them. Give the topic more time",
                    *(partition, unmatched, partition, start - 1),
                )
            # Also when the last round was killed before it came to this.
            self.match_log.partition(partition).trim(start)

    def _pass_over(self) -> None:
        committed = self._committed()
        if self.tail.gap_seen or any(map(int.__lt__, self.tail.tips, committed)):
            self.tail.gap_seen = False
            pass_over_all_lost(self.log, self.match_log, committed)

    def _set_aside(self) -> None:
        """Take broken blocks out of the match log, unless the pipeline may still write them again."""
        committed = self._committed()
        for partition, block in list(self.broken):
            matches = self.match_log.partition(partition)
            trouble = matches.trouble(block)
            if trouble is not None:
                if block[1] > committed[partition] and not self._is_pipeline_at_work():
                    continue
                kept = matches.set_aside(block)
                logger.error("%s; it is set aside as %s, and what it held is passed over", trouble, kept)
            self.broken.discard((partition, block))
            matches.forget(block)

    def _is_pipeline_at_work(self) -> bool:
        """Whether the pipeline has begun to match: before, it may match anew what is torn."""
        try:
            return read_heartbeat(self.settings.folder.heartbeat).state in PIPELINE_WORKS
        except (OSError, msgspec.DecodeError):
            return False

    def _compact(self) -> None:
        for partition, tip in enumerate(self.tail.tips):
            self.match_log.partition(partition).compact(
                max(0, tip - COMPACTION_BEHIND_RECORDS), most_blocks=COMPACTED_BLOCKS
            )

    def _forget_history(self) -> None:
        """Purge from the registry what the pipeline, however it may crash, will not ask for again.

        It asks for versions that count for the stamp of a record whose matches are not on disk for good, and
        for changes that came after the newest snapshots. It and the indexer say how far either is.
        """
        try:
            pipeline = read_heartbeat(self.settings.folder.heartbeat)
            snapshots = read_heartbeat(self.settings.folder.heartbeat_of("indexer"))
        except (OSError, msgspec.DecodeError):
            return
        if pipeline.offset is not None and snapshots.snapshot_revision is not None:
            # First the stamps of records to come: what is appended meanwhile, the log tells.
            before = min(self.floor(), snapshots.snapshot_revision)
            partitions = self.log.partitions
            for partition, offset in zip(partitions, pipeline.offsets(len(partitions)), strict=True):
                waiting = partition.lowest_stamp(offset)
                before = before if waiting is None else min(before, waiting)
            self.registry.purge(before)

    def _forget_quarantine(self) -> None:
        """Forget records that could not be matched when retention has removed them."""
        self.quarantine.forget_before(starts_of(self.log))

    def _look_aside(self) -> None:
        self.notices = tuple(
            f"a block of the match log was broken and is set aside as {block.kept}: the matches of records"
            f" {block.start} to {block.end - 1} are lost, for those who had not read them; delete the file to"
            " end this notice"
            for block in self.match_log.lost()
        )
        self.metrics.set_aside.set(len(self.notices))
        if records := len(self.quarantine.places()):
            self.notices += (
                f"{records} records could not be matched and are set aside: see fieldfare quarantine list",
            )
