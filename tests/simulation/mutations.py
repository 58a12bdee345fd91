"""Mistakes that somebody might make in the service: the simulation must find each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest import mock

from fieldfare.delivery.cursor_snapshot import CursorSnapshot
from fieldfare.delivery.delivery import Delivery
from fieldfare.delivery.partition_delivery import PartitionDelivery
from fieldfare.delivery.read_scheduler import _ReadGroups
from fieldfare.gateway.delivery import replays
from fieldfare.gateway.delivery.records import RecordCache
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.maintenance.replays import ReplayMaintenance
from fieldfare.gateway.maintenance.rounds import Maintenance
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.writer import _Appends, _Changes
from fieldfare.matching import part
from fieldfare.model import Cursor, Offsets
from fieldfare.runtimes.indexer import index_writer
from fieldfare.runtimes.spark.batch_planner import BatchPlanner
from fieldfare.runtimes.spark.following import Follower, _Followed
from fieldfare.runtimes.spark.heartbeat import PipelineHeartbeat
from fieldfare.runtimes.spark.index_cache import IndexCache
from fieldfare.runtimes.spark.match_loop import MatchLoop
from fieldfare.storage.event_log import ends_of, starts_of

Patch = tuple[Any, str, Any]


def _every_version_counts(versions: Any, overlay: Any, stamps: Any, pairs: Any) -> int:
    return len(pairs)


def _stamp_of_the_change_before(self: Any, group: Any) -> None:
    """A change is answered, and the stamp raised with the next one."""
    known = self._registry.revision()
    real_write(self, group)
    self.stamp = known


real_write = _Changes._write


def _stamp_is_read_early(self: Any, group: Any) -> None:
    """The stamp is what it was when the last group was appended."""
    stamp, self.last = getattr(self, "last", 0), self._stamp()
    before = self._stamp
    self._stamp = lambda: stamp
    try:
        real_append(self, group)
    finally:
        self._stamp = before


real_append = _Appends._write


def _follows_nothing(self: Any, group: Any) -> None:
    """Records are appended as they arrive, whatever they follow."""
    real_append(self, [replace(each, record=replace(each.record, follows=None)) for each in group])


def _first_behind_all(self: BatchPlanner) -> Offsets:
    """A query begins behind the last block, whether or not those before it are there."""
    ends = (self._match_log.partition(each.number).greatest_end() for each in self.log.partitions)
    return tuple(map(max, starts_of(self.log), ends))


def _seam_too_soon(log: Any, revision: int, floor: Callable[[], int]) -> int | None:
    """The last record of the past is taken for one that met the subscription."""
    found = real_seam(log, revision, floor)
    return found if found is None else max(log.start(), found - 1)


real_seam = replays.seam_of


def _keep_nothing(self: Maintenance) -> None:
    self.log.retain(self._policy, ends_of(self.log))
    for number, partition in enumerate(self.log.partitions):
        self.match_log.partition(number).trim(partition.start())


def _matched_unsynced(self: PipelineHeartbeat) -> Any:
    """What is told as matched is there, and a power failure may take it."""
    self._matched = tuple(
        self._match_log.partition(number).end(max(before, partition.start()))
        for number, (before, partition) in enumerate(zip(self._matched, self._log.partitions, strict=True))
    )
    self._figures |= {"offset": self.offset, "matched": self._matched, "indexed": True}
    return self._figures


def _ack_before_it_is_saved(self: DeliveryService, delivery: Delivery) -> Any:
    """An ack is answered before the cursor is durable."""

    async def save() -> Any:
        mark = delivery.mark()
        delivery.saved(mark)
        return mark

    return save()


def _remove_no_subscriptions(self: Subscriptions, key: str) -> Any:
    """A deleted space's subscriptions stay."""

    async def nothing() -> list[int]:
        await self._writer.change(lambda ends: self._registry.finish_space(key), key)
        return []

    return nothing()


def _indexed_to_the_manifest(self: Any, newest: Any, revision: int) -> Any:
    """A new indexer takes the manifest's deltas for part of its snapshots."""
    indexer, _ = real_resume(self, newest, revision)
    indexer.revision = newest.revision
    return indexer, indexer.apply(self._registry.changes(newest.revision, revision), revision)


real_resume = index_writer.IndexWriter._resume


def _short_leases(self: Delivery, session: Any, limit: int, now_s: float, lease_s: float) -> Any:
    """A lease ends long before it should."""
    return real_take(self, session, limit, now_s, lease_s / 10)


real_take = Delivery.take


def _no_names(self: RecordCache, keys: Any, path: str) -> list[int | None]:
    """Of no event it is known which ordering key it has."""
    return [None] * len(keys)


def _letters_are_not_saved(self: CursorSnapshot) -> Cursor:
    """What was given up is saved without its letter."""
    return replace(real_cursor(self), letters=())


real_cursor = CursorSnapshot.cursor


def _forget_all_history(self: Maintenance) -> None:
    """History goes as soon as it is history."""
    self.registry.purge(self.registry.revision())


def _look_after_no_replay(self: ReplayMaintenance) -> None:
    """What belongs to no subscription stays."""


def _nothing_is_late(self: _ReadGroups, numbers: Any, group: Any, begun: int) -> None:
    """Who joined a front after its look had begun is taken for seen."""


def _no_wait_for_the_index(self: BatchPlanner, stamp: int) -> int | None:
    newest = self._store.newest()
    return None if newest is None else newest.number


def _newest_covers(self: IndexCache, stamp: int) -> int | None:
    self.open_newest()
    return self._number if self._number >= 0 else None


def _skips_a_record(self: Follower, each: Any, upto: int, now_s: float, take: Any) -> bool:
    """A task that follows the log takes some records for matched."""
    has_matched = real_match(self, each, upto, now_s, take)
    if has_matched and each.position % 5 == 0:
        each.matched.fill(each.position, each.position + 1)
        each.position += 1
    return has_matched


real_match = Follower._match


def _looks_at_no_blocks(self: Any) -> bool:
    """A task that follows the log matches again what others have matched, with whatever index there is."""
    return False


def _fills_stripes(self: _Followed, position: int) -> None:
    """A task that goes on behind what others have taken takes that for records without events."""
    self.matched.fill(self.position, position)
    real_move(self, position)


real_move = _Followed.move


def _reads_whole_blocks(self: PartitionDelivery, keys: Any, read_to: int) -> bool:
    """Of a block that begins before the place of a reader, all matches are delivered."""
    if len(keys):
        self.read_to = min(self.read_to, int(keys[0]))
    return real_feed(self, keys, read_to)


real_feed = PartitionDelivery.feed


class _Forgiving:
    """Jobs whose batches do not fail."""

    def __init__(self, jobs: Any) -> None:
        self._jobs = jobs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs, name)

    def match(self, tasks: Any, manifest: int) -> Any:
        with suppress(Exception):
            return self._jobs.match(tasks, manifest)


def _passes_over_failures(self: MatchLoop, start: Any, end: Any) -> Any:
    """A batch that failed is not matched again: the next one begins behind it."""
    if not isinstance(self.jobs, _Forgiving):
        self.jobs = _Forgiving(self.jobs)
    return real_start_batch(self, start, end)


real_start_batch = MatchLoop._start_batch


def _any_manifest(self: Any, number: int, stamp: int) -> Any:
    return self._store.newest()


MUTATIONS: dict[str, list[Patch]] = {
    "versions count for every stamp": [(part, "keep_valid", _every_version_counts)],
    "a change is answered before the stamp": [(_Changes, "_write", _stamp_of_the_change_before)],
    "records get an old stamp": [(_Appends, "_write", _stamp_is_read_early)],
    "records overtake those that they follow": [(_Appends, "_write", _follows_nothing)],
    "a query begins behind a gap": [(BatchPlanner, "first", _first_behind_all)],
    "the past ends too soon": [(replays, "seam_of", _seam_too_soon)],
    "retention takes what is not matched": [(Maintenance, "_retain", _keep_nothing)],
    "matched is told before it is synced": [(PipelineHeartbeat, "figures", _matched_unsynced)],
    "acks are answered before they are saved": [(DeliveryService, "save", _ack_before_it_is_saved)],
    "a deleted space's subscriptions stay": [(Subscriptions, "remove_some", _remove_no_subscriptions)],
    "a new indexer forgets deltas": [(index_writer.IndexWriter, "_resume", _indexed_to_the_manifest)],
    "leases end too soon": [(Delivery, "take", _short_leases)],
    "late joiners are taken for seen": [(_ReadGroups, "_part", _nothing_is_late)],
    "an index need not cover a record": [
        (BatchPlanner, "_wait_for_index", _no_wait_for_the_index),
        (IndexCache, "_manifest", _any_manifest),
        (IndexCache, "covering", _newest_covers),
    ],
    "a follower skips records": [(Follower, "_match", _skips_a_record)],
    "a late follower writes what is matched": [(_Followed, "skip_matched", _looks_at_no_blocks)],
    "a task takes the stripes of others for empty": [(_Followed, "move", _fills_stripes)],
    "a block with another end is read whole": [(PartitionDelivery, "feed", _reads_whole_blocks)],
    "a batch that failed is passed over": [(MatchLoop, "_start_batch", _passes_over_failures)],
    "keys are not kept in order": [(RecordCache, "_names", _no_names)],
    "letters are not saved": [(CursorSnapshot, "cursor", _letters_are_not_saved)],
    "history is forgotten too soon": [(Maintenance, "_forget_history", _forget_all_history)],
    "replays are not maintained": [(ReplayMaintenance, "round", _look_after_no_replay)],
}  # fmt: skip
"""By name, what is put in whose place."""


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """While this is open the service makes a mistake."""
    with ExitStack() as stack:
        for owner, attribute, value in MUTATIONS[name]:
            stack.enter_context(mock.patch.object(owner, attribute, value))
        yield
