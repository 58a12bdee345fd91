"""Adjustments of cursors after a restore of an older log, in a transaction of the registry."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from fieldfare.model import Offsets

_SET_BACK = sa.text(
    'UPDATE cursors SET "offset" = :end, "index" = 0, acked = :none, attempts = NULL, checksum = NULL'
    ' WHERE "partition" = :partition AND ("offset" > :end OR ("offset" = :end AND "index" > 0))'
)
_SET_COPIES_BACK = sa.text(
    'UPDATE cursor_copies SET "offset" = :end, checksum = NULL'
    ' WHERE "partition" = :partition AND "offset" > :end'
)


def set_cursors_back(connection: sa.Connection, ends: Offsets) -> int:
    """Move cursor positions after their partition's end back to it; return the number of moved ones."""
    none = msgspec.msgpack.encode([])
    places = [{"partition": partition, "end": end, "none": none} for partition, end in enumerate(ends)]
    for place in places:
        connection.execute(_SET_COPIES_BACK, {name: place[name] for name in ("partition", "end")})
    return sum(connection.execute(_SET_BACK, place).rowcount for place in places)
