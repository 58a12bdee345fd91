"""The registry's replays: the earlier records that new subscriptions asked for.

All functions run in a transaction of the registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from fieldfare.model import positions_of
from fieldfare.storage.registry import Replay
from fieldfare.storage.sql.row_checks import intact_replays
from fieldfare.storage.sql.rows import Count, Number, Offset, Unusable
from fieldfare.storage.sql.tables import replays as _replays

_FIELDS = (
    *("number", "revision", "space", "start", "filter", "dialect", "compiled", "matched"),
    *("checksum", "compiled_checksum"),
)
_select = sa.select(*(_replays.c[name] for name in _FIELDS)).order_by(_replays.c.number)
_of = _replays.c.number == sa.bindparam("of")
DELETE = sa.delete(_replays).where(_of)
INSERT = sa.insert(_replays)
_Row = tuple[Number, Count, str, str, str, str, bytes, bool]


def listed(connection: sa.Connection, path: Path, unusable: Unusable, *, only_open: bool) -> Sequence[Replay]:
    """Return all readable replays, or only those that are not completely matched, by number."""
    query = _select.where(~_replays.c.matched) if only_open else _select
    return _replays_of(unusable, intact_replays(path, connection.execute(query)))


def get(connection: sa.Connection, path: Path, unusable: Unusable, number: int) -> Replay | None:
    """Return the replay of a subscription number; None if it has none, or it is unreadable."""
    rows = intact_replays(path, connection.execute(_select.where(_of), {"of": number}))
    return next(iter(_replays_of(unusable, rows)), None)


def count(connection: sa.Connection) -> int:
    """Return the number of replays, including unreadable ones."""
    return connection.execute(sa.select(sa.func.count()).select_from(_replays)).scalar_one()


def count_open(connection: sa.Connection, space: str) -> int:
    """Return the number of replays of a space that are not completely matched."""
    query = sa.select(sa.func.count()).where(_replays.c.space == space, ~_replays.c.matched)
    return connection.execute(query).scalar_one()


def mark(connection: sa.Connection, number: int, *, matched: bool) -> None:
    """Record that a replay is completely matched, or no longer is."""
    connection.execute(sa.update(_replays).where(_of).values(matched=matched), {"of": number})


def delete(connection: sa.Connection, number: int) -> None:
    """Delete a replay whose records retention has removed."""
    connection.execute(DELETE, {"of": number})


def _replays_of(unusable: Unusable, rows: Iterable[Sequence[Any]]) -> list[Replay]:
    found: list[Replay] = []
    for number, revision, space, start, filter, dialect, compiled, matched in unusable.usable(
        "pasts", _Row, rows
    ):
        try:
            offsets = msgspec.convert([each.offset for each in positions_of(start)], tuple[Offset, ...])
        except ValueError as error:
            unusable.report("pasts", number, error)
            continue
        found.append(Replay(number, revision, space, offsets, filter, dialect, compiled, matched))
    return found
