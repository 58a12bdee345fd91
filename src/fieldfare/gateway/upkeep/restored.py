"""Before anything is served: what a data directory needs whose parts are of different moments.

Somebody put a copy of one file back, or an old version was killed within its retention. Whatever refers to
offsets that the log does not have must never meet new records there; so the log goes on behind all of it.
"""

from __future__ import annotations

import logging

import msgspec

from fieldfare.gateway.settings import GatewaySettings
from fieldfare.gateway.upkeep.readiness import read_heartbeat
from fieldfare.storage.errors import IndexStoreError, MatchLogError
from fieldfare.storage.event_log import EventLog
from fieldfare.storage.index_store import IndexStore
from fieldfare.storage.match_log import MatchLog
from fieldfare.storage.registry import Registry

logger = logging.getLogger("fieldfare.gateway")


def make_consistent(settings: GatewaySettings, log: EventLog, registry: Registry, matches: MatchLog) -> int:
    """Put right what can be, and say so in a line each; returns the match log's end.

    It can be killed between any two steps.
    """
    committed = committed_offset(settings)
    _go_on_behind(log, matches, max(matches.greatest_end(), registry.greatest_offset(), committed))
    matched = pass_over_lost(log, matches, committed)
    set_back = registry.set_cursors_back(log.end())
    if set_back:
        logger.warning("%d cursors stood behind the log's end, %d, and stand there now", set_back, log.end())
    if matched < committed:
        logger.warning(
            "matches/ ends at record %d, though %d was matched: it is an older copy; what lies between is"
            " matched again, with the subscriptions that are still known",
            matched,
            committed,
        )
    _go_on_after(registry, max(log.last_stamp(), _indexed_revision(settings)))
    return matched


def committed_offset(settings: GatewaySettings) -> int:
    """Up to where the pipeline says that everything is matched for good; 0 when it says nothing."""
    try:
        return read_heartbeat(settings.data / "run" / "pipeline.json").offset or 0
    except (OSError, msgspec.DecodeError):
        return 0


def pass_over_lost(log: EventLog, matches: MatchLog, committed: int) -> int:
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
        logger.error("the matches of records %d to %d are missing; they are passed over", end, begins - 1)


def _is_compacted(matches: MatchLog, offset: int) -> bool:
    """Whether the block there was made by compaction: only where all before it was matched."""
    try:
        block = matches.block_at(offset)
    except MatchLogError:
        return False
    return block is not None and not block.extra


def _go_on_behind(log: EventLog, matches: MatchLog, known: int) -> None:
    end = log.end()
    if known <= end:
        return
    # First: killed in between, this is done again, for the log still ends where it did.
    matches.fill(end, known)
    log.raise_end(known)
    logger.warning(
        "log.db ends at record %d, though %d are known: it is an older copy; the records between are lost,"
        " and new ones begin at %d",
        end,
        known,
        known,
    )


def _indexed_revision(settings: GatewaySettings) -> int:
    """The registry revision that the index covers."""
    try:
        newest = IndexStore(settings.data / "index").newest()
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
