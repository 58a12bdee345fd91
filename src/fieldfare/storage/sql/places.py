"""Reads of all subscriptions of a space, page by page: where their deliveries stand.

All functions run in a transaction of the registry. Rows are not held against their checksums, which is done
when a delivery is loaded: a wrong row makes one count wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from fieldfare.model import Position
from fieldfare.storage.registry import DeliveryPlace
from fieldfare.storage.sql import cursors as stored_cursors
from fieldfare.storage.sql.rows import Index, Number, Offset, Partition, Unusable
from fieldfare.storage.sql.tables import cursors, subscriptions

_Row = tuple[str, Number, Offset, bytes | None, bool]
_Cursor = tuple[Number, Partition, Offset, Index, bool]

_further_decoder = msgspec.msgpack.Decoder(list[Offset])
_some: sa.BindParameter[int] = sa.bindparam("some", expanding=True)
_NONE_ACKED_BYTES = 1
"""Length of an empty list of acked runs."""
_select = sa.select(
    subscriptions.c.id,
    subscriptions.c.number,
    subscriptions.c.valid_from,
    subscriptions.c.further,
    subscriptions.c.start.is_not(None).label("has_start"),
).order_by(subscriptions.c.id)
_select_cursors = sa.select(
    cursors.c.number,
    cursors.c.partition,
    cursors.c.offset,
    cursors.c.index,
    (sa.func.length(cursors.c.acked) > _NONE_ACKED_BYTES).label("has_acked"),
).where(cursors.c.number.in_(_some))


def places(
    connection: sa.Connection, unusable: Unusable, space: str, after: str | None, limit: int
) -> Sequence[DeliveryPlace]:
    """Return the places of at most ``limit`` subscriptions of a space, by id, after ``after``."""
    while True:
        query = _select.where(subscriptions.c.space == space).limit(limit)
        page = connection.execute(query if after is None else query.where(subscriptions.c.id > after)).all()
        rows = unusable.usable("subscriptions", _Row, [(*row[:4], bool(row.has_start)) for row in page])
        if rows or not page:
            break
        after = page[-1].id
    numbers = [row[1] for row in rows]
    saved: dict[int, dict[int, Position]] = {}
    acked: set[int] = set()
    for number, partition, offset, index, has_acked in unusable.usable(
        "cursors", _Cursor, [(*row[:4], bool(row.has_acked)) for row in _rows_in(connection, numbers)]
    ):
        saved.setdefault(number, {})[partition] = Position(partition, offset, index)
        if has_acked:
            acked.add(number)
    letters = stored_cursors.count_letters(connection, numbers)
    return [
        DeliveryPlace(
            id,
            number,
            tuple((_begins(first, further) | saved.get(number, {})).values()),
            not has_start and number not in acked,
            letters.get(number, 0),
        )
        for id, number, first, further, has_start in rows
    ]


def _rows_in(connection: sa.Connection, numbers: Sequence[int]) -> Sequence[sa.Row[tuple[int, ...]]]:
    return connection.execute(_select_cursors, {"some": numbers}).all() if numbers else ()


def _begins(first: int, further: bytes | None) -> dict[int, Position]:
    """Return where delivery begins without a cursor, by partition."""
    offsets = [first]
    try:
        offsets += _further_decoder.decode(further) if further else ()
    except msgspec.DecodeError:
        pass  # reported when the subscription is read
    return {partition: Position(partition, offset, 0) for partition, offset in enumerate(offsets)}
