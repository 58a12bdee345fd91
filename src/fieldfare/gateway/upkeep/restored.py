"""Before anything is served: what a data directory needs whose parts are of different moments.

Somebody put a copy of one file back, or an old version was killed within its retention. Whatever refers to
offsets that the log does not have must never meet new records there; so the log goes on behind all of it.
"""

from __future__ import annotations

import logging

import msgspec

from fieldfare.gateway.settings import GatewaySettings
from fieldfare.gateway.upkeep.readiness import read_heartbeat
from fieldfare.model import Offsets
from fieldfare.storage import (
    EventLog,
    EventReader,
    LogPartition,
    MatchLog,
    MatchPartition,
    Registry,
    open_index_store,
)
from fieldfare.storage.errors import IndexStoreError, MatchLogError
from fieldfare.storage.event_log import ends_of

logger = logging.getLogger("fieldfare.gateway")


def make_consistent(
    settings: GatewaySettings, log: EventLog, registry: Registry, matches: MatchLog
) -> Offsets:
    """Put right what can be, and say so in a line each; returns the match log's ends.

    It can be killed between any two steps.
    """
    committed = committed_offsets(settings, log)
    _go_on_behind(log, matches, registry.known_ends(), committed)
    matched = pass_over_all_lost(log, matches, committed)
    set_back = registry.set_cursors_back(ends_of(log))
    if set_back:
        logger.warning("%d cursors stood behind the log's end, %s, and stand there now", set_back, _ends(log))
    for partition, (matched_end, committed_end) in enumerate(zip(matched, committed, strict=True)):
        if matched_end < committed_end:
            logger.warning(
                "matches/ ends at record %s, though %s was matched: it is an older copy; what lies between is"
                " matched again, with the subscriptions that are still known",
                _text(partition, matched_end),
                _text(partition, committed_end),
            )
    _go_on_after(registry, max(_indexed_revision(settings), *(each.last_stamp() for each in log.partitions)))
    return matched


def committed_offsets(settings: GatewaySettings, log: EventReader) -> Offsets:
    """Up to where the pipeline says that everything is matched for good; 0 where it says nothing."""
    try:
        heartbeat = read_heartbeat(settings.folder.heartbeat)
    except (OSError, msgspec.DecodeError):
        return tuple(0 for _ in log.partitions)
    return heartbeat.offsets(len(log.partitions))


def pass_over_all_lost(log: EventReader, matches: MatchLog, committed: Offsets) -> Offsets:
    """`pass_over_lost` in every partition."""
    return tuple(
        pass_over_lost(partition, matches.partition(partition.number), end)
        for partition, end in zip(log.partitions, committed, strict=True)
    )


def pass_over_lost(log: LogPartition, matches: MatchPartition, committed: int) -> int:
    """Fill the gaps of the match log that nothing will ever fill, and return its end.

    Nobody waits at a gap for what was matched once and has gone: because a file was lost, or because an old
    version was killed after its retention had trimmed the match log, and before it trimmed the event log.
    A gap that the pipeline will fill, because a batch was not finished, is another matter.
    """
    end = log.start()
    while True:
        end = matches.end(end)
        begins = matches.next_start(end)
        if begins is None or not (begins <= committed or _is_compacted(matches, begins)):
            return end
        matches.fill(end, begins)
        logger.error(
            "the matches of records %s to %s are missing; they are passed over",
            _text(log.number, end),
            _text(log.number, begins - 1),
        )


def _is_compacted(matches: MatchPartition, offset: int) -> bool:
    """Whether the block there was made by compaction: only where all before it was matched."""
    try:
        block = matches.block_at(offset)
    except MatchLogError:
        return False
    return block is not None and not block.extra


def _go_on_behind(log: EventLog, matches: MatchLog, *known: Offsets) -> None:
    ends, wanted = ends_of(log), []
    for partition, end in enumerate(ends):
        known_ends = [offsets[partition] for offsets in known if partition < len(offsets)]
        wanted.append(max(end, matches.partition(partition).greatest_end(), *known_ends))
    if tuple(wanted) == ends:
        return
    # First: killed in between, this is done again, for the log still ends where it did.
    for partition, (end, wanted_end) in enumerate(zip(ends, wanted, strict=True)):
        matches.partition(partition).fill(end, wanted_end)
    log.raise_ends(tuple(wanted))
    for partition, (end, wanted_end) in enumerate(zip(ends, wanted, strict=True)):
        if end < wanted_end:
            logger.warning(
                "log.db ends at record %s, though %s are known: it is an older copy; the records between are"
                " lost, and new ones begin at %s",
                _text(partition, end),
                _text(partition, wanted_end),
                _text(partition, wanted_end),
            )


def _text(partition: int, offset: int) -> str:
    """A record's number, with that of its partition unless it is the first."""
    return f"{partition}-{offset}" if partition else str(offset)


def _ends(log: EventReader) -> str:
    return ", ".join(_text(*place) for place in enumerate(ends_of(log)))


def _indexed_revision(settings: GatewaySettings) -> int:
    """The registry revision that the index covers."""
    try:
        newest = open_index_store(settings.folder.index_url).newest()
    except IndexStoreError:
        return 0  # The pipeline builds it anew.
    return 0 if newest is None else newest.revision


def _go_on_after(registry: Registry, known: int) -> None:
    """A new change must not have a revision that records are stamped with, or that the index has taken in."""
    revision = registry.revision()
    if known <= revision:
        return
    registry.raise_revision(known + 1)
    logger.warning(
        "registry.db is at revision %d, though %d is known: it is an older copy; subscriptions are as they"
        " were then, and the index is built anew",
        revision,
        known,
    )
