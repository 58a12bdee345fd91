"""What a registry needs done when it, or the log beside it, is a copy from before; each in a transaction."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

_NEWEST_PUT = sa.text("SELECT valid_from FROM versions ORDER BY revision DESC LIMIT 1")
_NEWEST_CLOSING = sa.text(
    "SELECT valid_to FROM versions WHERE closed_revision IS NOT NULL ORDER BY closed_revision DESC LIMIT 1"
)
_SET_BACK = sa.text(
    'UPDATE cursors SET "offset" = :end, "index" = 0, acked = :none'
    ' WHERE "partition" = 0 AND ("offset" > :end OR ("offset" = :end AND "index" > 0))'
)
_RAISE = sa.text("UPDATE counters SET value = :to WHERE name IN ('revision', 'purged') AND value < :to")


def greatest_offset(connection: sa.Connection) -> int:
    """The greatest end of the log that a change was written at."""
    found = (connection.execute(query).scalar() for query in (_NEWEST_PUT, _NEWEST_CLOSING))
    return max((offset for offset in found if offset is not None), default=0)


def set_cursors_back(connection: sa.Connection, end: int) -> int:
    """Set cursors that stand behind the log's end to it; returns how many those were."""
    none = msgspec.msgpack.encode([])
    return connection.execute(_SET_BACK, {"end": end, "none": none}).rowcount


def raise_revision(connection: sa.Connection, to: int) -> None:
    """Go on from a later revision, as if all history before it had been purged."""
    connection.execute(_RAISE, {"to": to})
