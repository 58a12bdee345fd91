"""The registry's pasts: what subscriptions that began before their filter is still to be matched with.

All in transactions of the registry's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from fieldfare.model import positions_of
from fieldfare.storage.registry import Past
from fieldfare.storage.sql.tables import pasts as _pasts

_FIELDS = ("number", "revision", "space", "start", "filter", "dialect", "compiled", "matched")
_select = sa.select(*(_pasts.c[name] for name in _FIELDS)).order_by(_pasts.c.number)
_of = _pasts.c.number == sa.bindparam("of")
DELETE = sa.delete(_pasts).where(_of)
INSERT = sa.insert(_pasts)


def listed(connection: sa.Connection, *, only_open: bool) -> Sequence[Past]:
    """All of them, or those that are not matched as far as they go."""
    query = _select.where(~_pasts.c.matched) if only_open else _select
    return [_past_of(row) for row in connection.execute(query)]


def get(connection: sa.Connection, number: int) -> Past | None:
    """The past of a subscription's number, or None."""
    row = connection.execute(_select.where(_of), {"of": number}).first()
    return None if row is None else _past_of(row)


def count_open(connection: sa.Connection, space: str) -> int:
    """How many of a space are not matched as far as they go."""
    query = sa.select(sa.func.count()).where(_pasts.c.space == space, ~_pasts.c.matched)
    return connection.execute(query).scalar_one()


def mark(connection: sa.Connection, number: int, *, matched: bool) -> None:
    """Note that one is matched as far as it goes, or is not any more."""
    connection.execute(sa.update(_pasts).where(_of).values(matched=matched), {"of": number})


def delete(connection: sa.Connection, number: int) -> None:
    """Nothing of it is kept in the log any more."""
    connection.execute(DELETE, {"of": number})


def _past_of(row: Any) -> Past:
    number, revision, space, start, filter, dialect, compiled, matched = row
    offsets = tuple(position.offset for position in positions_of(start))
    return Past(number, revision, space, offsets, filter, dialect, compiled, matched)
