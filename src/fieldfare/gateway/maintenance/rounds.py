"""Periodic maintenance of the gateway's files: record ages, retention, compaction, corrupt blocks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from fieldfare.gateway.delivery.match_log_follower import MatchLogFollower
from fieldfare.gateway.delivery.replays import Replays
from fieldfare.gateway.federation.service import Federation
from fieldfare.gateway.maintenance.readiness import PIPELINE_WORKS, LastBeat, read_heartbeat
from fieldfare.gateway.maintenance.replays import ReplayMaintenance
from fieldfare.gateway.maintenance.restored import committed_offsets, pass_over_all_lost
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.publishing.delayed import Delayed
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.model import DEFAULT_SPACE, Offsets
from fieldfare.storage import EventLog, MatchLog, Registry
from fieldfare.storage.corruption import corruption_notices, forget_records_before
from fieldfare.storage.errors import StorageError
from fieldfare.storage.event_log import RetentionPolicy, starts_of
from fieldfare.storage.quarantine import Quarantine
from fieldfare.storage.sql.keys import KeyStore

logger = logging.getLogger("fieldfare.gateway")

PRODUCERS_KEPT_MS = 7 * 86_400_000
"""Minimum milliseconds that a producer's last sequence numbers are kept; then they may be forgotten."""

REVOKED_KEPT_MS = 90 * 86_400_000
"""Milliseconds that a revoked API key is kept; then it is forgotten."""
REVOKED_MAX = 100_000
"""Maximum revoked API keys kept; beyond it the oldest are forgotten early."""

ROUND_MAX_S = 900.0
"""Maximum seconds that one round adds to the age of records; the rest of a longer pause is ignored: the
process or its machine may have been stopped for a week, in which no subscriber could read."""

COMPACTION_BEHIND_RECORDS = 64
"""Records before the end of the durable matches that are not compacted, as live subscribers read their
blocks."""

CHECKED_BATCH_SIZE = 1_000
"""Maximum subscriptions whose checksums one round checks; the next round continues after them."""

COMPACTED_BLOCKS = 10_000
"""Maximum blocks, approximately, that one round examines for compaction; later rounds take the rest. It
exceeds the number of new blocks per round, and bounds the first round after a start."""


@dataclass
class Maintenance:
    """Maintenance of one gateway's event log, match log and registry.

    Rounds run on a thread, one at a time. The steps are independent: one that fails is retried in the next
    round, and delays no other.

    Parameters
    ----------
    settings
        The retention settings, and the data directory.
    log, registry, keys, match_log, quarantine
        The maintained stores.
    tail
        Knows up to where matches were processed.
    replays
        The replays and their match logs.
    floor
        Returns the lowest stamp that a record appended from now on can have.
    broken
        Corrupt blocks, by partition and range; readers add to them, and `mend` handles them.
    metrics
        Count the blocks set aside, and corruption.
    count_stored
        Updates the quotas with each space's bytes on disk.
    before_trim
        Called with a partition and an offset, before the matches of earlier records are removed.
    delayed
        The delayed events.
    federation
        The links to other brokers; None without any.
    """

    settings: GatewaySettings
    log: EventLog
    registry: Registry
    keys: KeyStore
    match_log: MatchLog
    quarantine: Quarantine
    tail: MatchLogFollower
    replays: Replays
    floor: Callable[[], int]
    broken: set[tuple[int, tuple[int, int]]]
    metrics: Metrics
    count_stored: Callable[[], None]
    before_trim: Callable[[int, int], None]
    delayed: Delayed
    federation: Federation | None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._replay_maintenance = ReplayMaintenance(
            self.settings.folder, self.log, self.registry, self.replays, self.floor
        )
        self._checked: tuple[str, str | None] = DEFAULT_SPACE, None
        """The space and id of the last subscription checked."""
        self._first_beat = self._read_heartbeat()
        """The pipeline's heartbeat at the start: it may be from before a power failure."""
        self.notices: tuple[str, ...] = ()
        """Problems that the operator should know, one sentence each."""
        self._update_notices()

    @property
    def is_asked(self) -> bool:
        """Whether `mend` has work to do."""
        return bool(self.broken) or self.tail.gap_seen

    def round(self, elapsed_s: float) -> None:
        """Run one round of all steps.

        Parameters
        ----------
        elapsed_s
            Seconds since the last round, by a monotonic clock.
        """
        with self._lock:
            elapsed_ms = round(1000 * min(max(elapsed_s, 0.0), ROUND_MAX_S))
            for name, step in (
                ("updating the ages of records", lambda: self._observe(elapsed_ms)),
                ("retention", self._retain),
                ("skipping lost records", self._pass_over),
                ("setting corrupt blocks aside", self._set_aside),
                ("compaction", self._compact),
                ("checking replays", self._replay_maintenance.round),
                ("counting the stored sizes of spaces", self.count_stored),
                ("purging old filter versions", self._forget_history),
                ("purging keys of delayed events", self.delayed.forget),
                ("purging quarantined records", self._forget_quarantine),
                ("purging revoked keys", self._forget_keys),
                ("checking subscriptions", self._check_subscriptions),
            ):
                self._try(name, step)
            self._update_notices()

    def mend(self) -> None:
        """Set aside corrupt blocks and skip missing ones now, as subscribers wait behind them."""
        with self._lock:
            self._try("skipping lost records", self._pass_over)
            self._try("setting corrupt blocks aside", self._set_aside)
            self._update_notices()

    def _try(self, name: str, step: Callable[[], None]) -> None:
        try:
            step()
        except (StorageError, OSError) as error:
            logger.error("maintenance: %s failed; retrying later: %s", name, error)

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
        # Records stay that the pipeline may match again, or whose matches are not durable yet.
        keep_from = tuple(map(min, self.tail.tips, self._committed()))
        if self.federation is not None:
            keep_from = tuple(map(min, keep_from, self.federation.cursors))
        self.log.retain(self._policy, keep_from)
        begins = starts_of(self.log)
        for partition, start in enumerate(begins):
            if start > self.tail.begins[partition]:
                self.before_trim(partition, start)
        self.tail.begins = begins
        for partition, start in enumerate(begins):
            if start > before[partition]:
                logger.info("retention removed the records before %d-%d-0", partition, start)
            if start > (unmatched := self.tail.tips[partition]):
                logger.error(
                    "the Kafka topic's retention removed records %d-%d to %d-%d before they were matched, so"
                    " they are not delivered. Increase the topic's retention",
                    *(partition, unmatched, partition, start - 1),
                )
            # Always, as the last round may have been killed before this step.
            self.match_log.partition(partition).trim(start)

    def _pass_over(self) -> None:
        committed = self._committed()
        if self.tail.gap_seen or any(map(int.__lt__, self.tail.tips, committed)):
            self.tail.gap_seen = False
            pass_over_all_lost(self.log, self.match_log, committed)

    def _set_aside(self) -> None:
        """Take corrupt blocks out of the match log, unless the pipeline may still rewrite them."""
        committed = self._committed()
        for partition, block in list(self.broken):
            matches = self.match_log.partition(partition)
            trouble = matches.trouble(block)
            if trouble is not None:
                if block[1] > committed[partition] and not self._is_pipeline_at_work():
                    continue
                kept = matches.set_aside(block)
                logger.error("%s; it is set aside as %s, and subscribers skip its matches", trouble, kept)
            self.broken.discard((partition, block))
            matches.forget(block)

    def _is_pipeline_at_work(self) -> bool:
        """Whether the pipeline has begun to match; before that, it may rewrite torn blocks."""
        beat = self._read_heartbeat()
        return beat is not None and beat.state in PIPELINE_WORKS and beat != self._first_beat

    def _read_heartbeat(self) -> LastBeat | None:
        with suppress(OSError, msgspec.DecodeError):
            return read_heartbeat(self.settings.folder.heartbeat)
        return None

    def _compact(self) -> None:
        # Only durable blocks: a compacted one says that nothing before it is matched again.
        for partition, end in enumerate(map(min, self.tail.tips, self._committed())):
            self.match_log.partition(partition).compact(
                max(0, end - COMPACTION_BEHIND_RECORDS), most_blocks=COMPACTED_BLOCKS
            )

    def _forget_history(self) -> None:
        """Purge registry history that the pipeline cannot need again, even after a crash.

        It needs the versions valid for the stamps of records whose matches are not durable, and the changes
        after the newest snapshots. The heartbeats of the pipeline and the indexer say how far these are.
        """
        try:
            pipeline = read_heartbeat(self.settings.folder.heartbeat)
            snapshots = read_heartbeat(self.settings.folder.heartbeat_of("indexer"))
        except (OSError, msgspec.DecodeError):
            return
        if pipeline.offset is not None and snapshots.snapshot_revision is not None:
            # The floor of future records first: records appended meanwhile are then seen in the log.
            before = min(self.floor(), snapshots.snapshot_revision)
            if self.federation is not None:
                needed = self.federation.history_floor()
                before = before if needed is None else min(before, needed)
                self._forget_runs(self.federation)
            partitions = self.log.partitions
            for partition, offset in zip(partitions, pipeline.offsets(len(partitions)), strict=True):
                waiting = partition.lowest_stamp(offset)
                before = before if waiting is None else min(before, waiting)
            self.registry.purge(before)

    def _forget_runs(self, federation: Federation) -> None:
        """Forget as of which revisions records met other brokers' filters that are forwarded already."""
        needed = federation.history_floor()
        before = self.floor() if needed is None else min(self.floor(), needed)
        for partition, cursor in zip(self.log.partitions, federation.cursors, strict=True):
            waiting = partition.lowest_stamp(cursor)
            before = before if waiting is None else min(before, waiting)
        federation.forget(before)

    def _forget_quarantine(self) -> None:
        """Forget records that could not be matched or read once retention has removed them."""
        starts = starts_of(self.log)
        self.quarantine.forget_before(starts)
        forget_records_before(self.settings.data, starts[0])

    def _forget_keys(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        forgotten = self.keys.forget_revoked(now_ms - REVOKED_KEPT_MS, REVOKED_MAX)
        if forgotten:
            logger.info("purged %d API keys that were revoked long ago", forgotten)

    def _check_subscriptions(self) -> None:
        """Read the next subscriptions, space by space, so that corruption is found even in unused ones."""
        keys = [space.key for space in self.registry.stored_spaces()]
        space, after = self._checked
        page = self.registry.list(space, after, CHECKED_BATCH_SIZE) if space in keys else []
        if page:
            self._checked = space, page[-1].id
        elif keys:
            self._checked = next((key for key in keys if key > space), keys[0]), None
            if self._checked[0] == keys[0]:
                self.registry.mend_vanished()  # after a full pass, as it checks all together

    def _update_notices(self) -> None:
        self.notices = tuple(
            f"a block of the match log was corrupt and is set aside as {block.kept}: the matches of records"
            f" {block.start} to {block.end - 1} are lost for subscribers that had not read them;"
            " delete the file to end this notice"
            for block in self.match_log.lost()
        )
        self.metrics.set_aside.set(len(self.notices))
        damage = corruption_notices(self.settings.data)
        self.metrics.corruption.set(len(damage))
        self.notices += tuple(damage)
        if records := len(self.quarantine.places()):
            self.notices += (
                f"{records} records could not be matched and are set aside: see fieldfare quarantine list",
            )
