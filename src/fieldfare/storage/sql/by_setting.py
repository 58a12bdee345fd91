"""Queries of subscriptions by a delivery setting, and the unused time of those that expire when unused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from fieldfare.model import Subscription
from fieldfare.storage.sql.tables import subscriptions as _subscriptions

UNUSED = _subscriptions.c.unused_s

_note = (
    sa.update(_subscriptions)
    .where(
        _subscriptions.c.space == sa.bindparam("in_space"),
        _subscriptions.c.id == sa.bindparam("with_id"),
        _subscriptions.c.number == sa.bindparam("of"),
    )
    .values(unused_s=sa.bindparam("seconds"))
)


def noted_s(stored: object) -> int:
    """Return the stored seconds for which a subscription has been unused; 0 if the value is invalid."""
    return stored if isinstance(stored, int) and stored > 0 else 0


def with_setting(query: sa.Select[Any], name: str, after: tuple[str, str], limit: int) -> sa.Select[Any]:
    """Restrict a query to subscriptions that may have a setting, by space and id, after `after`.

    The query scans all rows, about 1 s for a million; a gateway runs it once, when it starts.
    """
    table = _subscriptions.c
    return (
        query.where(sa.tuple_(table.space, table.id) > after)
        .where(table.delivery.like(f'%"{name}":%'))
        .order_by(table.space, table.id)
        .limit(limit)
    )


def note_unused(connection: sa.Connection, notes: Sequence[tuple[Subscription, int]]) -> None:
    """Store for how many seconds subscriptions have been unused; removed subscriptions are ignored."""
    rows = [
        {"in_space": each.space, "with_id": each.id, "of": each.number, "seconds": seconds}
        for each, seconds in notes
    ]
    if rows:
        connection.execute(_note, rows)
