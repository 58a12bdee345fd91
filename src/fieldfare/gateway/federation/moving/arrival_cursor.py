"""The cursor of a subscription that has arrived: what the broker that it left has delivered is settled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from fieldfare.delivery.keys import key_at, position_of
from fieldfare.gateway.federation.origins import Origin
from fieldfare.model import Cursor, Offsets, Position
from fieldfare.storage.errors import MatchLogError
from fieldfare.storage.event_log import EventReader, LogPartition, Record
from fieldfare.storage.match_log import MatchLog
from fieldfare.storage.moves import Move


def arrival_cursor(log: EventReader, match_log: MatchLog, move: Move, broker: str, ends: Offsets) -> Cursor:
    """Return the cursor from which a subscription is delivered; it reads both logs.

    Parameters
    ----------
    move
        The move, with the beginning of the matches and the switch places.
    broker
        The name of this broker, the origin of records without one.
    ends
        Ends of the log's partitions, up to which it is matched, and beyond all records before the switch
        places.
    """
    positions: list[Position] = []
    settled: list[tuple[Position, Position]] = []
    for number, end in enumerate(ends):
        partition = log.partitions[number]
        begin = max(move.begins[number] if number < len(move.begins) else 0, partition.start())
        positions.append(Position(number, begin, 0))
        marked = _marked(partition, match_log, move, broker, begin, end)
        for is_settled, some in groupby(marked, lambda each: each[1]):
            if is_settled:
                keys = [key for key, _ in some]
                settled.append((position_of(keys[0]), position_of(keys[-1])))
    return Cursor(tuple(positions), tuple(settled))


def _marked(
    partition: LogPartition, match_log: MatchLog, move: Move, broker: str, begin: int, end: int
) -> Iterator[tuple[int, bool]]:
    """Yield the keys of a partition's matches, in order, and whether each is before its switch place."""
    number, offset = partition.number, begin
    while offset < end:
        block = match_log.partition(number).block_at(offset)
        if block is None:
            raise MatchLogError(f"the match log ends at {number}-{offset}, before {end}")
        offsets, indexes = block.matches_of(move.number, offset)
        if offsets.size:
            wanted = set(offsets.tolist())
            earlier = {
                record.offset
                for record in partition.read(min(wanted), max(wanted) + 1)
                if record.offset in wanted and is_earlier(record, broker, move.bounds)
            }
            for at, index in zip(offsets.tolist(), indexes.tolist(), strict=True):
                yield key_at(number, at) | index, at in earlier
        offset = block.end


def is_earlier(record: Record, broker: str, bounds: Mapping[str, int]) -> bool:
    """Return whether a record is before the switch place of its origin."""
    if record.origin is None:
        return record.stamp <= bounds.get(broker, -1)
    origin, _, place = Origin.parsed(record.origin).place.partition("/")
    return int(place.rpartition("/")[2]) <= bounds.get(origin, -1)
