"""Plan how spaces are to be cut, from samples of registry and log; runs in the snapshot builder's process.

Subscriptions and events are sampled, so a plan takes seconds, however many there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from random import Random

from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.index import entry_of
from fieldfare.matching.libraries import PLAIN, library_of
from fieldfare.model import Change, Path
from fieldfare.partitioning import Partitioning
from fieldfare.partitioning.placing import read_extents
from fieldfare.pipeline.access_point import SpaceEvents, by_space, decode, record_batch
from fieldfare.planning.choosing import choose_anew
from fieldfare.planning.cuts import Cut
from fieldfare.storage import EventReader
from fieldfare.storage.errors import StorageError
from fieldfare.storage.event_log import LogPartition, Record
from fieldfare.storage.quarantine import Quarantine
from fieldfare.storage.registry import SubscriptionHistory

SUBSCRIPTIONS_MAX = 50_000
EVENTS_MAX = 4_096
"""Maximum subscriptions (`SUBSCRIPTIONS_MAX`) and events of a space that are sampled."""
LOOKED_BYTES_MAX = 64 << 20
LOOKED_RECORDS_MAX = 20_000
"""Maximum records, and bytes (`LOOKED_BYTES_MAX`), of each partition that are searched for events."""
LOOKED_FIRST = 64

_log = logging.getLogger("fieldfare.indexer")


def plan_cuts(
    registry: SubscriptionHistory,
    log: EventReader,
    quarantine: Quarantine,
    revision: int,
    floor: int,
    wanted: Mapping[str, Cut],
    current: Callable[[str], Partitioning],
) -> dict[str, Partitioning]:
    """Plan the cut of each wanted space, from its subscriptions at a revision and its latest events.

    Parameters
    ----------
    current : callable
        Returns a space's present cut.
    """
    to_plan = {name for name, cut in wanted.items() if cut.kind != "hash"}
    samples = _sampled(registry.versions(revision, floor) if to_plan else iter(()), to_plan, revision)
    found = {}
    for name, cut in wanted.items():
        versions, count = samples.get(name, ([], 0))
        # The extents of encrypted subscriptions are unknown here; they are cut by hash.
        extents = read_extents([entry_of(each) for each in versions if library_of(each.dialect) is PLAIN])
        events = latest_events(log, quarantine, name, tuple(extents.attributes)) if name in to_plan else None
        found[name] = choose_anew(
            cut.kind,
            cut.matchers,
            current(name),
            extents,
            events if events is not None else ColumnBatch(0, {}),
            share=len(versions) / max(1, count),
            copies_max=cut.copies_max,
        )
    return found


def _sampled(versions: Iterator[Change], wanted: set[str], seed: int) -> dict[str, tuple[list[Change], int]]:
    """Return, for each space, a uniform sample of its versions, and their total number."""
    random = Random(seed)
    kept: dict[str, list[Change]] = {name: [] for name in wanted}
    counts = dict.fromkeys(wanted, 0)
    for version in versions:
        if version.space not in wanted:
            continue
        counts[version.space] += 1
        sample = kept[version.space]
        if len(sample) < SUBSCRIPTIONS_MAX:
            sample.append(version)
        elif (place := random.randrange(counts[version.space])) < SUBSCRIPTIONS_MAX:
            sample[place] = version
    return {name: (kept[name], counts[name]) for name in wanted}


def latest_events(
    log: EventReader, quarantine: Quarantine, space: str, paths: tuple[Path, ...]
) -> ColumnBatch | None:
    """Return up to `EVENTS_MAX` of a space's latest events as columns; None if none can be read."""
    records: list[Record] = []
    share = max(1, EVENTS_MAX // len(log.partitions))
    try:
        for partition in log.partitions:
            aside = set(quarantine.offsets(partition.number))
            records += _latest_records(partition, space, aside, share)
        groups = [] if not records else list(by_space(record_batch(records)))
        largest: SpaceEvents | None = max(groups, key=lambda group: group.size, default=None)
        if largest is None:
            return None
        return decode(next(largest.cut(EVENTS_MAX)), paths)
    except (StorageError, ValueError) as error:
        # Records that cannot be read, or are trimmed meanwhile, are no reason to fail.
        _log.warning("the events of %s could not be sampled: %s", space, error)
        return None


def _latest_records(partition: LogPartition, space: str, aside: set[int], events: int) -> list[Record]:
    start, at, step = partition.start(), partition.end(), LOOKED_FIRST
    found: list[Record] = []
    looked = size_bytes = count = 0
    while at > start and count < events and looked < LOOKED_RECORDS_MAX and size_bytes < LOOKED_BYTES_MAX:
        first, mine = max(start, at - step), []
        for record in partition.read(first, at):
            size_bytes += len(record.payload)
            if record.space == space and record.offset not in aside:
                mine.append(record)
                count += record.count
            if size_bytes >= LOOKED_BYTES_MAX:
                break
        looked += at - first
        found = mine + found
        at, step = first, 2 * step
    # One read may return far more and older records than needed.
    oldest = 0
    while found and count - found[oldest].count >= events:
        count -= found[oldest].count
        oldest += 1
    return found[oldest:]
