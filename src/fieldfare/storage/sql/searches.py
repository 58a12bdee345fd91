"""Searches in the subscriptions of a space, by text and by labels, and the table ``labels`` that they use.

All functions run in a transaction of the registry. Each reads a bounded number of rows. Rows are not held
against their checksums here, but when the found subscriptions are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from fieldfare.model import Subscription
from fieldfare.storage.changes import NUMBER_MAX
from fieldfare.storage.registry import OWNER_KEY, Criteria, labels_of
from fieldfare.storage.sql.rows import read_labels
from fieldfare.storage.sql.tables import labels, subscriptions

_ESCAPED = str.maketrans({each: f"\\{each}" for each in "\\%_"})
_REBUILT_BATCH_SIZE = 10_000
_NUMBERS_A_QUERY = 1_000
_some: sa.BindParameter[int] = sa.bindparam("some", expanding=True)
_Wanted = tuple[str, str | None]

_delete = sa.delete(labels).where(
    labels.c.space == sa.bindparam("in_space"),
    labels.c.key == sa.bindparam("with_key"),
    labels.c.id == sa.bindparam("with_id"),
)
_insert = sa.insert(labels).prefix_with("OR REPLACE", dialect="sqlite")
# A row that should not be there must not make the insertion fail.


def write(
    connection: sa.Connection, before: Iterable[Subscription | None], after: Iterable[Subscription]
) -> None:
    """Replace the rows of changed subscriptions."""
    gone = sorted((each.space, key, each.id) for each in before if each for key, _ in labels_of(each))
    if gone:
        columns = ("in_space", "with_key", "with_id")
        connection.execute(_delete, [dict(zip(columns, row, strict=True)) for row in gone])
    rows = sorted(
        (each.space, key, each.id, value, each.number) for each in after for key, value in labels_of(each)
    )
    if rows:
        names = ("space", "key", "id", "value", "number")
        connection.execute(_insert, [dict(zip(names, row, strict=True)) for row in rows])


def search(
    connection: sa.Connection, space: str, after: str | None, criteria: Criteria, searched: int, limit: int
) -> tuple[Sequence[str], str | None]:
    """Return ids and the last id read, as `Registry.search` does with their subscriptions."""
    wanted = _rarest_first(connection, space, after, criteria.labels, searched)
    source = labels.alias("first") if wanted else subscriptions
    is_here = _has(source, space, wanted[0]) if wanted else source.c.space == space
    if after is not None:
        is_here = sa.and_(is_here, source.c.id > after)
    last = connection.execute(
        sa.select(source.c.id).where(is_here).order_by(source.c.id).offset(searched - 1).limit(1)
    ).scalar()
    if last is not None:
        is_here = sa.and_(is_here, source.c.id <= last)
    conditions = [is_here, *_have(source, space, wanted[1:])]
    if criteria.text is not None:
        conditions.append(_with_text(source, space, criteria.text))
    found = sa.select(source.c.id).where(*conditions).order_by(source.c.id).limit(limit)
    ids = connection.execute(found).scalars().all()
    if len(ids) == limit:
        last = ids[-1]
    return ids, last if isinstance(last, str) else None


def labelled(
    connection: sa.Connection, space: str, criteria: Criteria, limit: int, among: Sequence[int] | None
) -> Sequence[int] | None:
    """Return numbers as `Registry.labelled` does."""
    if among is not None:
        return _labelled_among(connection, space, criteria, among)
    wanted = _rarest_first(connection, space, None, criteria.labels, limit + 1)
    first = labels.alias("first")
    is_here = _has(first, space, wanted[0])
    if len(connection.execute(sa.select(first.c.id).where(is_here).offset(limit).limit(1)).all()):
        return None
    found = sa.select(first.c.number).where(is_here, *_have(first, space, wanted[1:]))
    numbers = connection.execute(found).scalars()
    return [each for each in numbers if isinstance(each, int) and 0 < each <= NUMBER_MAX]


def _labelled_among(
    connection: sa.Connection, space: str, criteria: Criteria, among: Sequence[int]
) -> Sequence[int]:
    table = subscriptions.c
    query = sa.select(table.number).where(
        table.number.in_(_some), table.space == space, *_have(subscriptions, space, criteria.labels)
    )
    return [
        number
        for first in range(0, len(among), _NUMBERS_A_QUERY)
        for number in connection.execute(query, {"some": among[first : first + _NUMBERS_A_QUERY]}).scalars()
    ]


def _rarest_first(
    connection: sa.Connection, space: str, after: str | None, wanted: Sequence[_Wanted], most: int
) -> Sequence[_Wanted]:
    """Sort wanted labels, so that the one that the fewest subscriptions have is first."""
    if len(wanted) < 2:
        return wanted

    def count(each: _Wanted) -> int:
        is_here = _has(labels, space, each)
        if after is not None:
            is_here = sa.and_(is_here, labels.c.id > after)
        some = sa.select(labels.c.id).where(is_here).limit(most).subquery()
        return connection.execute(sa.select(sa.func.count()).select_from(some)).scalar_one()

    return sorted(wanted, key=count)


def _has(table: Any, space: str, wanted: _Wanted) -> sa.ColumnElement[bool]:
    key, value = wanted
    is_key = sa.and_(table.c.space == space, table.c.key == key)
    return is_key if value is None else sa.and_(is_key, table.c.value == value)


def _have(source: Any, space: str, wanted: Sequence[_Wanted]) -> list[sa.ColumnElement[bool]]:
    """Return conditions that rows with an id have labels: each is one look-up by the primary key."""
    found: list[sa.ColumnElement[bool]] = []
    for at, each in enumerate(wanted):
        other = labels.alias(f"other_{at}")
        found.append(sa.exists().where(_has(other, space, each), other.c.id == source.c.id))
    return found


def _with_text(source: Any, space: str, text: str) -> sa.ColumnElement[bool]:
    pattern = f"%{text.translate(_ESCAPED)}%"
    table = subscriptions if source is subscriptions else subscriptions.alias("of")
    searched = (table.c.id, table.c.filter, table.c.owner, table.c.labels)
    has_text = sa.or_(*(column.ilike(pattern, escape="\\") for column in searched))
    if table is subscriptions:
        return has_text
    return sa.exists().where(table.c.space == space, table.c.id == source.c.id, has_text)


_lines = sa.func.length(subscriptions.c.labels) - sa.func.length(
    sa.func.replace(subscriptions.c.labels, "\n", "")
)
_select_counts = sa.select(
    (
        sa.select(sa.func.coalesce(sa.func.sum(_lines + 1), 0))
        .where(subscriptions.c.labels.is_not(None))
        .scalar_subquery()
        + sa.select(sa.func.count(subscriptions.c.owner)).scalar_subquery()
    ).label("wanted"),
    sa.select(sa.func.count()).select_from(labels).scalar_subquery().label("present"),
)


def is_wrong(connection: sa.Connection) -> bool:
    """Return whether ``labels`` has another number of rows than ``subscriptions`` has labels and owners."""
    wanted, present = connection.execute(_select_counts).one()
    return bool(wanted != present)


def rebuild(connection: sa.Connection) -> None:
    """Make ``labels`` again from ``subscriptions``."""
    connection.execute(sa.delete(labels))
    table = subscriptions.c
    query = sa.select(table.space, table.id, table.number, table.owner, table.labels)
    query = query.where(sa.or_(table.owner.is_not(None), table.labels.is_not(None)))
    query = query.order_by(table.space, table.id).limit(_REBUILT_BATCH_SIZE)
    after = ("", "")
    while rows := connection.execute(query.where(sa.tuple_(table.space, table.id) > after)).all():
        after = rows[-1].space, rows[-1].id
        made: dict[tuple[object, ...], dict[str, object]] = {}
        for space, id, number, owner, text in rows:
            found = (((OWNER_KEY, owner),) if owner is not None else ()) + _labels(text)
            for key, value in found:
                row = {"space": space, "key": key, "id": id, "value": value, "number": number}
                made[space, key, id] = row
        connection.execute(sa.insert(labels), list(made.values()))


def _labels(text: object) -> tuple[tuple[str, str], ...]:
    return read_labels(text) if isinstance(text, str) else ()
