"""The registry's counters: checked when they are read, and repaired if they are missing or corrupt.

All functions run in a transaction of the registry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from fieldfare.model import OFFSET_MAX
from fieldfare.storage.changes import NUMBER_MAX
from fieldfare.storage.checksums import repaired
from fieldfare.storage.sql.row_checks import is_whole, with_checksums
from fieldfare.storage.sql.rows import Unusable
from fieldfare.storage.sql.tables import (
    FORMAT,
    FORMAT_COUNTER,
    NUMBER,
    PURGED,
    REVISION,
    columns_of,
    counters,
    cursors,
    is_end_counter,
    letters,
    replays,
    subscriptions,
    versions,
)

REVISION_MAX = 1 << 62
"""Greatest plausible revision, far below the greatest number of a database; greater ones count as corrupt."""

SKIPPED = 1 << 20
"""Numbers that a counter skips when it is counted again; later numbers than these are taken for unused."""

_BOUNDS = {REVISION: REVISION_MAX, NUMBER: NUMBER_MAX, PURGED: REVISION_MAX, FORMAT_COUNTER: FORMAT}
_COUNTED = {
    REVISION: (subscriptions.c.revision, versions.c.revision, versions.c.closed_revision),
    NUMBER: (
        *(subscriptions.c.number, versions.c.number, versions.c.destination),
        *(cursors.c.number, replays.c.number),
    ),
}


def format_of(connection: sa.Connection) -> int | None:
    """Return the format that the counters name; None if it is none.

    Without an intact counter, the columns of tables whose counters have checksums tell it.
    """
    if "checksum" not in columns_of(connection, counters.name):
        query = sa.select(counters.c.value).where(counters.c.name == FORMAT_COUNTER)
        found = connection.execute(query).scalar()
        if isinstance(found, int):
            return found
        return 8 if "checksum" in columns_of(connection, letters.name) else None
    row = connection.execute(_select_one, {"counter": FORMAT_COUNTER}).first()
    if row is None or not isinstance(row.value, int) or not is_whole(row.checksum, row[:2]):
        if "labels" in columns_of(connection, subscriptions.name):
            return FORMAT
        return 10 if "destination" in columns_of(connection, versions.name) else 9
    return row.value


def read(connection: sa.Connection, name: str) -> int | None:
    """Return a counter; None if it is missing, or does not match its checksum."""
    row = connection.execute(_select_one, {"counter": name}).first()
    return row.value if row is not None and _is_right(*row) else None


def read_all(connection: sa.Connection, unusable: Unusable) -> dict[str, int]:
    """Return all counters in a writing transaction, after repairs.

    In databases with row locks they stay locked until the transaction ends.
    """
    rows = connection.execute(_select_all.with_for_update()).all()
    if _are_wrong(rows):
        mend(connection, unusable)
        rows = connection.execute(_select_all).all()
    return {row.name: row.value for row in rows}


def write(connection: sa.Connection, values: Mapping[str, int], new: Collection[str] = ()) -> None:
    """Store counters, in a transaction; `new` are the names of those that have no row yet."""
    rows = with_checksums(counters, [{"name": name, "value": value} for name, value in values.items()])
    if added := [row for row in rows if row["name"] in new]:
        connection.execute(sa.insert(counters), added)
    changed = [
        {"counter": row["name"], "new_value": row["value"], "new_checksum": row["checksum"]}
        for row in rows
        if row["name"] not in new
    ]
    if changed:
        connection.execute(_update, changed)


def is_wrong(connection: sa.Connection) -> bool:
    """Return whether a counter is missing, out of range, or does not match its checksum."""
    return _are_wrong(connection.execute(_select_all).all())


def mend(connection: sa.Connection, unusable: Unusable) -> None:
    """Repair wrong counters and note each.

    One with a single flipped bit gets its value back. Others are computed again, so that no number is
    assigned twice; a known end of a partition is only deleted.
    """
    rows = connection.execute(_select_all).all()
    right = {name: value for name, value, expected in rows if _is_right(name, value, expected)}
    wrong = [row for row in rows if row.name not in right]
    restored: dict[str, int] = {}
    for row in wrong:
        name, value = repaired(row.checksum, row[:2]) or (None, None)
        is_usable = isinstance(name, str) and _is_possible(name, value)
        if is_usable and name not in right:
            restored[str(name)] = int(str(value))
    for name in restored:
        unusable.report("counters", name, "it had changed on the disk", "a bit was restored; nothing is lost")
    known = right | restored
    lost = _BOUNDS.keys() - known.keys()
    for name in (*lost, *(row.name for row in wrong if is_end_counter(row.name) and row.name not in known)):
        unusable.report(
            "counters", name, "it was missing, or had changed on the disk", "it was counted again"
        )
    known |= _computed(connection, lost, known)
    connection.execute(sa.delete(counters))
    write(connection, known, new=known)


def _computed(connection: sa.Connection, lost: Collection[str], known: dict[str, int]) -> dict[str, int]:
    """Compute counters from the rows that were numbered with them.

    The rows with the greatest numbers may be deleted, while records and matches still have these numbers: so
    some are skipped.
    """
    found: dict[str, int] = {}
    for name in [each for each in _COUNTED if each in lost]:
        greatest = max(_greatest(connection, column, _BOUNDS[name]) for column in _COUNTED[name])
        found[name] = min(greatest + SKIPPED, _BOUNDS[name])
    if PURGED in lost:
        # As if all history had been purged: readers of changes start again.
        found[PURGED] = (known | found)[REVISION]
    if FORMAT_COUNTER in lost:
        found[FORMAT_COUNTER] = FORMAT
    return found


def _is_possible(name: object, value: object) -> bool:
    most = OFFSET_MAX if is_end_counter(name) else _BOUNDS.get(str(name), -1)
    return isinstance(value, int) and 0 <= value <= most


def _is_right(name: object, value: object, expected: object) -> bool:
    """Return whether a row is possible and has its checksum: all rows have one."""
    return isinstance(expected, int) and _is_possible(name, value) and is_whole(expected, (name, value))


def _are_wrong(rows: Sequence[Any]) -> bool:
    return not (_BOUNDS.keys() <= {row.name for row in rows} and all(_is_right(*row) for row in rows))


_select_all = sa.select(counters.c.name, counters.c.value, counters.c.checksum)
_select_one = _select_all.where(counters.c.name == sa.bindparam("counter"))
_update = (
    sa.update(counters)
    .where(counters.c.name == sa.bindparam("counter"))
    .values(value=sa.bindparam("new_value"), checksum=sa.bindparam("new_checksum"))
)


def _greatest(connection: sa.Connection, column: sa.Column[int], most: int) -> int:
    # In SQLite, any text is greater than any number.
    found = connection.execute(sa.select(sa.func.max(column)).where(column.between(0, most))).scalar()
    return found if isinstance(found, int) else 0
