"""Repair, before serving, of a data directory whose parts are from different times.

A copy of one file was restored, or an old version was killed during its retention. Data that refers to
offsets beyond the log's end must never meet new records there, so the log continues after the highest known
offset.
"""

from __future__ import annotations

import logging

import msgspec

from fieldfare.gateway.maintenance.readiness import read_heartbeat
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.model import Offsets
from fieldfare.storage import (
    EventLog,
    EventReader,
    LogPartition,
    MatchLog,
    MatchPartition,
    open_index_store,
)
from fieldfare.storage.errors import IndexStoreError, MatchLogError
from fieldfare.storage.event_log import ends_of
from fieldfare.storage.registry import Registry, SubscriptionHistory

logger = logging.getLogger("fieldfare.gateway")


def make_consistent(
    settings: GatewaySettings, log: EventLog, registry: Registry, matches: MatchLog
) -> Offsets:
    """Repair inconsistencies, logging a line for each; return the end offsets of the match log.

    It can be killed between any two steps, and run again.
    """
    committed = committed_offsets(settings, log)
    _restore_log_ends(log, matches, registry.known_ends(), committed)
    matched = pass_over_all_lost(log, matches, committed)
    set_back = registry.set_cursors_back(ends_of(log))
    if set_back:
        logger.warning(
            "%d cursors were past the log's end, %s, and were moved back to it", set_back, _ends(log)
        )
    for partition, (matched_end, committed_end) in enumerate(zip(matched, committed, strict=True)):
        if matched_end < committed_end:
            logger.warning(
                "matches/ ends at record %s, although records up to %s were matched: it is an older copy;"
                " the records between are matched again, with the subscriptions that are still known",
                _text(partition, matched_end),
                _text(partition, committed_end),
            )
    _restore_revision(
        registry, max(_indexed_revision(settings), *(each.last_stamp() for each in log.partitions))
    )
    return matched


def committed_offsets(settings: GatewaySettings, log: EventReader) -> Offsets:
    """Return up to where each partition's matches are durable, by the pipeline's heartbeat; else 0."""
    try:
        heartbeat = read_heartbeat(settings.folder.heartbeat)
    except (OSError, msgspec.DecodeError):
        return tuple(0 for _ in log.partitions)
    return heartbeat.offsets(len(log.partitions))


def pass_over_all_lost(log: EventReader, matches: MatchLog, committed: Offsets) -> Offsets:
    """Call `pass_over_lost` for every partition; return the ends of the match log."""
    return tuple(
        pass_over_lost(partition, matches.partition(partition.number), end)
        for partition, end in zip(log.partitions, committed, strict=True)
    )


def pass_over_lost(log: LogPartition, matches: MatchPartition, committed: int) -> int:
    """Mark permanent gaps of the match log as empty, and return its end.

    In a permanent gap, matches existed once and are lost: a file was lost, or an old version was killed after
    its retention trimmed the match log and before it trimmed the event log. Subscribers must not wait there.
    A gap from an unfinished batch stays, for the pipeline fills it.
    """
    end = log.start()
    while True:
        end = matches.end(end)
        begins = matches.next_start(end)
        if begins is None or not (begins <= committed or _is_compacted(matches, begins)):
            return end
        matches.fill(end, begins)
        logger.error(
            "the matches of records %s to %s are missing; subscribers skip these records",
            _text(log.number, end),
            _text(log.number, begins - 1),
        )


def _is_compacted(matches: MatchPartition, offset: int) -> bool:
    """Whether the block at an offset was compacted: if so, everything before it was matched."""
    try:
        block = matches.block_at(offset)
    except MatchLogError:
        return False
    return block is not None and not block.extra


def _restore_log_ends(log: EventLog, matches: MatchLog, *known: Offsets) -> None:
    ends, wanted = ends_of(log), []
    for partition, end in enumerate(ends):
        known_ends = [offsets[partition] for offsets in known if partition < len(offsets)]
        wanted.append(max(end, matches.partition(partition).greatest_end(), *known_ends))
    if tuple(wanted) == ends:
        return
    # Fill first: after a kill in between, all of this is repeated, as the log's ends are unchanged.
    for partition, (end, wanted_end) in enumerate(zip(ends, wanted, strict=True)):
        matches.partition(partition).fill(end, wanted_end)
    log.raise_ends(tuple(wanted))
    for partition, (end, wanted_end) in enumerate(zip(ends, wanted, strict=True)):
        if end < wanted_end:
            logger.warning(
                "log.db ends at record %s, although records up to %s existed: it is an older copy; the"
                " records between are lost, and new records begin at %s",
                _text(partition, end),
                _text(partition, wanted_end),
                _text(partition, wanted_end),
            )


def _text(partition: int, offset: int) -> str:
    """Return a record's offset as text, with its partition's number unless that is 0."""
    return f"{partition}-{offset}" if partition else str(offset)


def _ends(log: EventReader) -> str:
    return ", ".join(_text(*place) for place in enumerate(ends_of(log)))


def _indexed_revision(settings: GatewaySettings) -> int:
    """Return the registry revision that the index covers; 0 without an index."""
    try:
        newest = open_index_store(settings.folder.index_url).newest()
    except IndexStoreError:
        return 0  # The pipeline rebuilds it.
    return 0 if newest is None else newest.revision


def _restore_revision(registry: SubscriptionHistory, known: int) -> None:
    """Raise the registry's revision over any that records are stamped with or the index covers."""
    revision = registry.revision()
    if known <= revision:
        return
    registry.raise_revision(known + 1)
    logger.warning(
        "registry.db is at revision %d, although revision %d existed: it is an older copy; later changes of"
        " subscriptions are lost, and the index is rebuilt",
        revision,
        known,
    )
