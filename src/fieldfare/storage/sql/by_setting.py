"""Subscriptions by a setting of theirs, and what is noted of those that expire when nobody uses them."""

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


def with_setting(query: sa.Select[Any], name: str, after: tuple[str, str], limit: int) -> sa.Select[Any]:
    """Those of a query that may have a setting: a look at each row, a second for a million.

    Once in a gateway's life.
    """
    table = _subscriptions.c
    return (
        query.where(sa.tuple_(table.space, table.id) > after)
        .where(table.delivery.like(f'%"{name}":%'))
        .order_by(table.space, table.id)
        .limit(limit)
    )


def note_unused(connection: sa.Connection, notes: Sequence[tuple[Subscription, int]]) -> None:
    """Note for how many seconds nobody has used subscriptions; of those that are not there, nothing."""
    rows = [
        {"in_space": each.space, "with_id": each.id, "of": each.number, "seconds": seconds}
        for each, seconds in notes
    ]
    if rows:
        connection.execute(_note, rows)
