"""The registry's cursors, one row per partition, and the dead letters.

All functions run in a transaction of the registry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from fieldfare.model import OPEN_END, Cursor, DeadLetter, Position
from fieldfare.storage.checksums import checksum
from fieldfare.storage.corruption import note_corruption
from fieldfare.storage.sql.row_checks import is_whole, with_checksums
from fieldfare.storage.sql.rows import Count, Index, Number, Offset, Partition, Unusable
from fieldfare.storage.sql.tables import cursor_copies as _copies
from fieldfare.storage.sql.tables import cursors as _cursors
from fieldfare.storage.sql.tables import letters as _letters

_NUMBERS_A_QUERY = 500
_LOOKED_UP_MIN = 50
"""Minimum number of acked positions for which it pays to look up first which of them are dead letters."""

Rows = Sequence[Mapping[str, Any]]
Offsets = Mapping[int, int]
"""An offset by partition."""
_Readable = tuple[int, int, int, list[tuple[int, ...]], list[int]]

_acked_decoder = msgspec.msgpack.Decoder(list[tuple[Count, ...]])
_attempts_decoder = msgspec.msgpack.Decoder(list[Count])
_Row = tuple[Number, Partition, Offset, Index, Any, Any]
_RetriedRow = tuple[Number, Partition, Offset, Index]
_LetterRow = tuple[Partition, Offset, Index, Count, str, Count]
_Place = tuple[Partition, Offset, Index]

_NONE_ACKED = msgspec.msgpack.encode([])
BEGIN = sa.insert(_cursors).from_select(
    ["number", "partition", "offset", "index", "acked", "checksum"],
    sa.select(
        sa.bindparam("begun", type_=sa.BigInteger),
        sa.bindparam("in_partition", type_=sa.BigInteger),
        sa.bindparam("at", type_=sa.BigInteger),
        sa.bindparam("at_index", type_=sa.BigInteger),
        sa.literal(_NONE_ACKED, sa.LargeBinary),
        sa.bindparam("begun_checksum", type_=sa.BigInteger),
    ).where(
        ~sa.exists().where(
            _cursors.c.number == sa.bindparam("begun"),
            _cursors.c.partition == sa.bindparam("in_partition"),
        )
    ),
)
"""Statement that inserts a start position unless the subscription has a cursor; see `begin`."""


def begin(number: int, at: Position) -> dict[str, int]:
    """Return the parameters of `BEGIN` for a subscription number and a start position."""
    place = {"begun": number, "in_partition": at.partition, "at": at.offset, "at_index": at.index}
    return place | {"begun_checksum": checksum(*place.values(), _NONE_ACKED, None)}


_some: sa.BindParameter[Any] = sa.bindparam("some", expanding=True)
_select_cursors = (
    sa.select(
        *(_cursors.c[name] for name in ("number", "partition", "offset", "index", "acked", "attempts")),
        _cursors.c.checksum,
    )
    .where(_cursors.c.number.in_(_some))
    .order_by(_cursors.c.number, _cursors.c.partition)
)
_select_copies = (
    sa.select(*(_copies.c[name] for name in ("number", "partition", "offset", "checksum")))
    .where(_copies.c.number.in_(_some))
    .order_by(_copies.c.number, _copies.c.partition)
)
_delete_copies = sa.delete(_copies).where(_copies.c.number == sa.bindparam("gone"))
_delete_cursor = sa.delete(_cursors).where(_cursors.c.number == sa.bindparam("gone"))
_delete_saved = sa.delete(_cursors).where(_cursors.c.number == sa.bindparam("saved"))

_KEY = ("number", "partition", "offset", "index")
_place = sa.tuple_(*(_letters.c[name] for name in _KEY[1:]))
_is_letter = sa.and_(*(_letters.c[name] == sa.bindparam(f"of_{name}") for name in _KEY))
_delete_letter = sa.delete(_letters).where(_is_letter)
_delete_letters_of = sa.delete(_letters).where(_letters.c.number == sa.bindparam("gone"))
_set_again = sa.update(_letters).where(_is_letter, ~_letters.c.again).values(again=True)
_letter_columns = [_letters.c[name] for name in (*_KEY[1:], "attempts", "reason", "dead_ms")]
_key_in_order = attrgetter(*_KEY[1:])
_select_places = sa.select(*(_letters.c[name] for name in _KEY[1:]))
_select_letters = (
    sa.select(_letters.c.number, *_letter_columns, _letters.c.checksum)
    .where(~_letters.c.again)
    .order_by(*(_letters.c[n] for n in _KEY[1:]))
)
_select_retried: sa.Select[Any] = sa.select(_letters.c.number, *_letter_columns, _letters.c.checksum).where(
    _letters.c.number.in_(_some), _letters.c.again
)
_count_letters = (
    sa.select(_letters.c.number, sa.func.count())
    .where(_letters.c.number.in_(_some), ~_letters.c.again)
    .group_by(_letters.c.number)
)


def load(
    connection: sa.Connection, path: Path, unusable: Unusable, numbers: Sequence[int]
) -> dict[int, Cursor]:
    """Return the last saved cursors by subscription number; numbers without a cursor are missing.

    Unreadable parts of a cursor are left out: their messages are redelivered, and none is lost. If a row is
    corrupt or has vanished, its partition is delivered again from the copy of an earlier offset.
    """
    whole = _whole(path, _rows_in(connection, _select_cursors, numbers))
    rows = unusable.usable("cursors", _Row, whole)
    lost = list(_lost_rows(connection, path, numbers, {row[:2] for row in rows}))
    rows = sorted([*rows, *unusable.usable("cursor_copies", _Row, lost)], key=itemgetter(0, 1))
    retried: dict[int, list[Position]] = {}
    retried_rows = _rows_in(connection, _select_retried, numbers) if rows else []
    whole_letters = [row[:4] for row in _intact_letters(path, retried_rows)]
    for row in unusable.usable("letters", _RetriedRow, whole_letters):
        retried.setdefault(row[0], []).append(Position(row[1], row[2], row[3]))
    return {
        number: _cursor_of([_readable(row, unusable) for row in group], tuple(retried.get(number, ())))
        for number, group in groupby(rows, itemgetter(0))
    }


def _whole(path: Path, rows: Iterable[Any]) -> Iterator[Any]:
    """Yield the intact rows of cursors without their checksum; note corrupt ones."""
    for *row, expected in rows:
        if is_whole(expected, row):
            yield row
            continue
        note_corruption(
            path,
            f"cursor-{row[0]}-{row[1]}",
            f"the cursor of subscription number {row[0]} in partition {row[1]} has changed on the disk;"
            " delivery resumes from an earlier position, so messages may be redelivered",
        )


def _lost_rows(
    connection: sa.Connection, path: Path, numbers: Sequence[int], found: set[tuple[int, int]]
) -> Iterator[tuple[Any, ...]]:
    """Yield rows of cursors that have copies but no intact row; note each."""
    for *row, expected in _rows_in(connection, _select_copies, numbers):
        number, partition, offset = row
        if (number, partition) in found or not is_whole(expected, row):
            continue
        note_corruption(
            path,
            f"cursor-{number}-{partition}",
            f"the cursor of subscription number {number} in partition {partition} has vanished from the disk;"
            " delivery resumes from an earlier position, so messages may be redelivered",
        )
        yield number, partition, offset, 0, _NONE_ACKED, None


def _intact_letters(path: Path, rows: Iterable[Any]) -> Iterator[Any]:
    """Yield the intact rows of dead letters without their checksum; note corrupt ones."""
    for *row, expected in rows:
        if is_whole(expected, row):
            yield row
            continue
        note_corruption(
            path,
            "letter-" + "-".join(map(str, row[:4])),
            f"the dead letter {row[1]}-{row[2]}-{row[3]} of subscription number {row[0]} has changed on the"
            " disk and is removed from the list; publish its event again if you have it",
        )


def _readable(row: _Row, unusable: Unusable) -> _Readable:
    """Return a row without its number; acked runs and attempts are empty if they cannot be read."""
    number, partition, offset, index, acked, tried = row
    runs: list[tuple[int, ...]] = []
    attempts: list[int] = []
    try:
        runs = _acked_decoder.decode(acked)
        attempts = _attempts_decoder.decode(tried) if tried else []
        ends = msgspec.convert(
            [run[at : at + 3] for run in runs for at in range(0, len(run), 3)], list[_Place]
        )
        if any(len(run) not in (3, 6) for run in runs) or any(end[0] != partition for end in ends):
            raise ValueError("its acked ranges are in another partition")
        counted = zip(*[iter((*attempts[:2], 1, *attempts[2:]) if attempts else ())] * 3, strict=True)
        msgspec.convert(list(counted), list[tuple[Offset, Index, Count]])
    except (ValueError, TypeError, RecursionError) as error:
        unusable.report("cursors", f"{number}, partition {partition}", error)
        runs, attempts = [], []
    return partition, offset, index, runs, attempts


def _cursor_of(rows: Sequence[_Readable], retried: tuple[Position, ...]) -> Cursor:
    """Return the cursor of rows, one per partition: its number, offset, index, acked runs and attempts."""
    # A run of one message has three numbers, like all runs of an older format.
    runs = (run for row in rows for run in row[3])
    given: list[Position] = []
    attempts: list[tuple[Position, int]] = []
    for row in rows:
        offset, index, *counts = row[4] or row[1:3]
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
    """Return a query's rows for some numbers; it runs once for every `_NUMBERS_A_QUERY` numbers."""
    found: list[Any] = []
    for start in range(0, len(numbers), _NUMBERS_A_QUERY):
        found += connection.execute(query, {"some": numbers[start : start + _NUMBERS_A_QUERY]})
    return found


def rows_of(cursors: Mapping[int, Cursor]) -> Rows:
    """Return the rows of cursors, given by number; ValueError for values out of the columns' range."""
    for number, cursor in cursors.items():
        _check_cursor(number, cursor)
    return [row for number, cursor in cursors.items() for row in _rows_of(number, cursor)]


def save(connection: sa.Connection, cursors: Mapping[int, Cursor], rows: Rows, now_ms: int) -> None:
    """Replace the stored cursors by these and their rows; store new dead letters, delete settled ones."""
    connection.execute(_delete_saved, [{"saved": number} for number in cursors])
    connection.execute(sa.insert(_cursors), with_checksums(_cursors, rows))
    letters = [
        _key_of(number, letter.position)
        | {"attempts": letter.attempts, "reason": letter.reason, "dead_ms": now_ms, "again": False}
        for number, cursor in cursors.items()
        for letter in cursor.letters
    ]
    done = [
        _key_of(number, place)
        for number, cursor in cursors.items()
        for place in _stored(connection, number, cursor.settled)
    ]
    _delete_letters(connection, [*letters, *done])
    if letters:
        connection.execute(sa.insert(_letters), with_checksums(_letters, letters))


def _stored(connection: sa.Connection, number: int, places: Collection[Position]) -> Collection[Position]:
    """Return the places, or those of them that are dead letters of a subscription.

    Acks of thousands of old positions, few of which are dead letters, cost one query instead of a statement
    each: meanwhile no other space's cursor is saved.
    """
    if len(places) < _LOOKED_UP_MIN:
        return places
    by_key = {_key_in_order(place): place for place in places}
    first, last = (sa.tuple_(*each(by_key)) for each in (min, max))
    query = _select_places.where(_letters.c.number == number, _place >= first, _place <= last)
    rows = connection.execute(query.limit(len(places) + 1)).all()
    return places if len(rows) > len(places) else [by_key[key] for key in map(tuple, rows) if key in by_key]


def save_copies(connection: sa.Connection, offsets: Mapping[int, Offsets]) -> None:
    """Replace the copies of cursors, given by number: offsets at or before those of all later cursors."""
    connection.execute(_delete_copies, [{"gone": number} for number in offsets])
    rows = [
        {"number": number, "partition": partition, "offset": offset}
        for number, each in offsets.items()
        for partition, offset in each.items()
    ]
    connection.execute(sa.insert(_copies), with_checksums(_copies, rows))


def delete(connection: sa.Connection, numbers: Sequence[int]) -> None:
    """Delete the cursors and dead letters of subscriptions whose history was removed."""
    if numbers:
        gone = [{"gone": number} for number in numbers]
        connection.execute(_delete_cursor, gone)
        connection.execute(_delete_copies, gone)
        connection.execute(_delete_letters_of, gone)


def letters(
    connection: sa.Connection,
    path: Path,
    unusable: Unusable,
    number: int,
    after: Position | None,
    limit: int,
) -> Sequence[DeadLetter]:
    """Return at most `limit` dead letters of a subscription, by position, after `after`."""
    query = _select_letters.where(_letters.c.number == number)
    if after is not None:
        query = query.where(_place > sa.tuple_(after.partition, after.offset, after.index))
    whole = [row[1:] for row in _intact_letters(path, connection.execute(query.limit(limit)))]
    rows = unusable.usable("letters", _LetterRow, whole)
    return [DeadLetter(Position(*row[:3]), *row[3:]) for row in rows]


def count_letters(connection: sa.Connection, numbers: Sequence[int]) -> dict[int, int]:
    """Return the number of dead letters of each subscription that has any, without retried ones."""
    return dict(map(tuple, _rows_in(connection, _count_letters, numbers)))


def retry(connection: sa.Connection, number: int, places: Iterable[Position]) -> Sequence[Position]:
    """Mark dead letters for redelivery; return the places that are dead letters of the subscription."""
    keys = {place: _names(_key_of(number, place)) for place in places}
    return [place for place, key in keys.items() if connection.execute(_set_again, key).rowcount]


def clear(connection: sa.Connection, number: int) -> int:
    """Delete the dead letters of a subscription, except those being retried; return their number."""
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
    """Return a key as statement parameters, whose names must differ from the columns' names."""
    return {f"of_{name}": key[name] for name in _KEY}


def _rows_of(number: int, cursor: Cursor) -> Iterator[dict[str, Any]]:
    """Yield a cursor's rows, one per partition."""
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
    """Raise ValueError if a cursor has a value out of the columns' range."""
    places = (*cursor.positions, *(end for run in cursor.acked for end in run), *cursor.given)
    for position in (*places, *(letter.position for letter in cursor.letters)):
        if not all(0 <= each <= OPEN_END for each in (position.partition, position.offset, position.index)):
            raise ValueError(f"the cursor of subscription {number} cannot be stored: {position}")
