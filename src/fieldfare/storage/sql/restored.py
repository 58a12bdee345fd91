"""What a registry needs done when it, or the log beside it, is a copy from before; each in a transaction."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from fieldfare.model import Offsets

_SET_BACK = sa.text(
    'UPDATE cursors SET "offset" = :end, "index" = 0, acked = :none, attempts = NULL'
    ' WHERE "partition" = :partition AND ("offset" > :end OR ("offset" = :end AND "index" > 0))'
)
_RAISE = sa.text("UPDATE counters SET value = :to WHERE name IN ('revision', 'purged') AND value < :to")


def set_cursors_back(connection: sa.Connection, ends: Offsets) -> int:
    """Set places that lie behind their partition's end to it; returns how many those were."""
    none = msgspec.msgpack.encode([])
    places = ({"partition": partition, "end": end, "none": none} for partition, end in enumerate(ends))
    return sum(connection.execute(_SET_BACK, place).rowcount for place in places)


def raise_revision(connection: sa.Connection, to: int) -> None:
    """Go on from a later revision, as if all history before it had been purged."""
    connection.execute(_RAISE, {"to": to})
