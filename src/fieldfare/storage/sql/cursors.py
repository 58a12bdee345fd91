"""The registry's cursors: a row a partition; and the messages that were given up.

All in transactions of the registry's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
import sqlalchemy as sa

from fieldfare.model import OPEN_END, Cursor, DeadLetter, Position
from fieldfare.storage.sql.tables import cursors as _cursors
from fieldfare.storage.sql.tables import letters as _letters

_NUMBERS_A_QUERY = 500

Rows = Sequence[Mapping[str, Any]]

_acked_decoder = msgspec.msgpack.Decoder(list[tuple[int, ...]])
_attempts_decoder = msgspec.msgpack.Decoder(list[int])

BEGIN = sa.insert(_cursors).from_select(
    ["number", "partition", "offset", "index", "acked"],
    sa.select(
        sa.bindparam("begun", type_=sa.BigInteger),
        sa.bindparam("in_partition", type_=sa.BigInteger),
        sa.bindparam("at", type_=sa.BigInteger),
        sa.bindparam("at_index", type_=sa.BigInteger),
        sa.literal(msgspec.msgpack.encode([]), sa.LargeBinary),
    ).where(
        ~sa.exists().where(
            _cursors.c.number == sa.bindparam("begun"),
            _cursors.c.partition == sa.bindparam("in_partition"),
        )
    ),
)
"""Where delivery begins unless somebody has read already."""

_some: sa.BindParameter[Any] = sa.bindparam("some", expanding=True)
_select_cursors = (
    sa.select(*(_cursors.c[name] for name in ("number", "partition", "offset", "index", "acked", "attempts")))
    .where(_cursors.c.number.in_(_some))
    .order_by(_cursors.c.number, _cursors.c.partition)
)
_delete_cursor = sa.delete(_cursors).where(_cursors.c.number == sa.bindparam("gone"))
_delete_saved = sa.delete(_cursors).where(_cursors.c.number == sa.bindparam("saved"))

_KEY = ("number", "partition", "offset", "index")
_place = sa.tuple_(*(_letters.c[name] for name in _KEY[1:]))
_is_letter = sa.and_(*(_letters.c[name] == sa.bindparam(f"of_{name}") for name in _KEY))
_delete_letter = sa.delete(_letters).where(_is_letter)
_delete_letters_of = sa.delete(_letters).where(_letters.c.number == sa.bindparam("gone"))
_set_again = sa.update(_letters).where(_is_letter, ~_letters.c.again).values(again=True)
_letter_columns = [_letters.c[name] for name in (*_KEY[1:], "attempts", "reason", "dead_ms")]
_select_letters = (
    sa.select(*_letter_columns).where(~_letters.c.again).order_by(*(_letters.c[n] for n in _KEY[1:]))
)
_select_retried: sa.Select[Any] = sa.select(_letters.c.number, *_letter_columns[:3]).where(
    _letters.c.number.in_(_some), _letters.c.again
)
_count_letters = (
    sa.select(_letters.c.number, sa.func.count())
    .where(_letters.c.number.in_(_some), ~_letters.c.again)
    .group_by(_letters.c.number)
)


def load(connection: sa.Connection, numbers: Sequence[int]) -> dict[int, Cursor]:
    """The cursors last saved for some subscriptions' numbers; of those that have one."""
    rows = _rows_in(connection, _select_cursors, numbers)
    retried: dict[int, list[Position]] = {}
    for row in _rows_in(connection, _select_retried, numbers) if rows else []:
        retried.setdefault(row[0], []).append(Position(row[1], row[2], row[3]))
    return {
        number: _cursor_of([row[1:] for row in group], tuple(retried.get(number, ())))
        for number, group in groupby(rows, itemgetter(0))
    }


def _cursor_of(rows: Sequence[Sequence[Any]], retried: tuple[Position, ...]) -> Cursor:
    """What rows say, a partition each: its number, offset and index, what is acked, and attempts."""
    # A run of one is three numbers: so all of them were once.
    runs = (run for row in rows for run in _acked_decoder.decode(row[3]))
    given: list[Position] = []
    attempts: list[tuple[Position, int]] = []
    for row in rows:
        offset, index, *counts = _attempts_decoder.decode(row[4]) if row[4] else row[1:3]
        given.append(Position(row[0], offset, index))
        for at in range(0, len(counts), 3):
            attempts.append((Position(row[0], *counts[at : at + 2]), counts[at + 2]))
    positions = tuple(Position(*row[:3]) for row in rows)
    return Cursor(
        positions,
        tuple((Position(*run[:3]), Position(*run[-3:])) for run in runs),
        tuple(given) if tuple(given) != positions else (),
        tuple(attempts),
        retried,
    )


def _rows_in(connection: sa.Connection, query: sa.Select[Any], numbers: Sequence[int]) -> list[Any]:
    """What a query gives for some numbers, at most so many at a time as a statement may have."""
    found: list[Any] = []
    for start in range(0, len(numbers), _NUMBERS_A_QUERY):
        found += connection.execute(query, {"some": numbers[start : start + _NUMBERS_A_QUERY]})
    return found


def rows_of(cursors: Mapping[int, Cursor]) -> Rows:
    """The rows of cursors by number; ValueError for what the table's columns do not hold."""
    for number, cursor in cursors.items():
        _check_cursor(number, cursor)
    return [row for number, cursor in cursors.items() for row in _rows_of(number, cursor)]


def save(connection: sa.Connection, cursors: Mapping[int, Cursor], rows: Rows, now_ms: int) -> None:
    """Have these, and their rows, in the place of those that were there; keep what was given up."""
    connection.execute(_delete_saved, [{"saved": number} for number in cursors])
    connection.execute(sa.insert(_cursors), rows)
    letters = [
        _key_of(number, letter.position)
        | {"attempts": letter.attempts, "reason": letter.reason, "dead_ms": now_ms, "again": False}
        for number, cursor in cursors.items()
        for letter in cursor.letters
    ]
    done = [_key_of(number, place) for number, cursor in cursors.items() for place in cursor.settled]
    _delete_letters(connection, [*letters, *done])
    if letters:
        connection.execute(sa.insert(_letters), letters)


def delete(connection: sa.Connection, numbers: Sequence[int]) -> None:
    """The last of these subscriptions' history is gone."""
    if numbers:
        gone = [{"gone": number} for number in numbers]
        connection.execute(_delete_cursor, gone)
        connection.execute(_delete_letters_of, gone)


def letters(
    connection: sa.Connection, number: int, after: Position | None, limit: int
) -> Sequence[DeadLetter]:
    """The messages of a subscription that were given up, by position, behind one."""
    query = _select_letters.where(_letters.c.number == number)
    if after is not None:
        query = query.where(_place > sa.tuple_(after.partition, after.offset, after.index))
    rows = connection.execute(query.limit(limit))
    return [DeadLetter(Position(*row[:3]), *row[3:]) for row in rows]


def count_letters(connection: sa.Connection, numbers: Sequence[int]) -> dict[int, int]:
    """How many messages of some subscriptions were given up, and are not to be given again."""
    return dict(map(tuple, _rows_in(connection, _count_letters, numbers)))


def retry(connection: sa.Connection, number: int, places: Iterable[Position]) -> Sequence[Position]:
    """Remember that these are to be given all the same; those of them that there are."""
    keys = {place: _names(_key_of(number, place)) for place in places}
    return [place for place, key in keys.items() if connection.execute(_set_again, key).rowcount]


def clear(connection: sa.Connection, number: int) -> int:
    """Forget all that were given up and are not to be given again; how many those were."""
    return connection.execute(
        sa.delete(_letters).where(_letters.c.number == number, ~_letters.c.again)
    ).rowcount


def _delete_letters(connection: sa.Connection, keys: Sequence[Mapping[str, Any]]) -> None:
    if keys:
        connection.execute(_delete_letter, [_names(key) for key in keys])


def _key_of(number: int, place: Position) -> dict[str, Any]:
    return {
        "number": number,
        "partition": place.partition,
        "offset": place.offset,
        "index": place.index,
    }


def _names(key: Mapping[str, Any]) -> dict[str, Any]:
    """A key as parameters that have no column's name."""
    return {f"of_{name}": key[name] for name in _KEY}


def _rows_of(number: int, cursor: Cursor) -> Iterator[dict[str, Any]]:
    """A cursor's rows, one a partition."""
    acked: dict[int, list[tuple[int, ...]]] = {}
    for first, last in cursor.acked:
        ends = (first,) if first == last else (first, last)
        run = tuple(each for p in ends for each in (p.partition, p.offset, p.index))
        acked.setdefault(first.partition, []).append(run)
    given = {place.partition: place for place in cursor.given}
    counts: dict[int, list[int]] = {}
    for place, count in cursor.attempts:
        counts.setdefault(place.partition, []).extend((place.offset, place.index, count))
    for place in cursor.positions:
        given_to = given.get(place.partition, place)
        tried = counts.get(place.partition, [])
        attempts = [given_to.offset, given_to.index, *tried] if tried or given_to != place else None
        runs = msgspec.msgpack.encode(acked.get(place.partition, []))
        yield {
            "number": number,
            "partition": place.partition,
            "offset": place.offset,
            "index": place.index,
            "acked": runs,
            "attempts": None if attempts is None else msgspec.msgpack.encode(attempts),
        }


def _check_cursor(number: int, cursor: Cursor) -> None:
    """ValueError for what the table's columns do not hold."""
    places = (*cursor.positions, *(end for run in cursor.acked for end in run), *cursor.given)
    for position in (*places, *(letter.position for letter in cursor.letters)):
        if not all(0 <= each <= OPEN_END for each in (position.partition, position.offset, position.index)):
            raise ValueError(f"the cursor of subscription {number} cannot be stored: {position}")
