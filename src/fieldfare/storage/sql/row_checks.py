"""The checksums of the registry's rows: computed when a row is inserted, checked when it is read.

A corrupt compiled filter is compiled again from its text. A version whose text is corrupt is restored from
the current subscription with its revision, if that is intact. All other corrupt rows are left out and noted
(see `storage.corruption`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from fieldfare.model import INTEREST
from fieldfare.storage.checksums import checksum
from fieldfare.storage.corruption import note_corruption
from fieldfare.storage.sql.tables import (
    counters,
    cursor_copies,
    cursors,
    gone_spaces,
    letters,
    replays,
    spaces,
    subscriptions,
    versions,
)

KEYS, ENDED, BROKERS, RUNS, MOVES = "api_keys", "ended_spaces", "brokers", "broker_runs", "moves"
_COVERED: Mapping[str, tuple[str, ...]] = {
    versions.name: ("revision", "space", "number", "filter", "dialect"),
    replays.name: ("number", "revision", "space", "start", "filter", "dialect"),
    subscriptions.name: (
        *("id", "space", "filter", "dialect", "number", "revision", "cost"),
        *("valid_from", "further", "delivery", "start"),
    ),
    spaces.name: ("name", "key", "quotas", "encryption"),
    letters.name: ("number", "partition", "offset", "index", "attempts", "reason", "dead_ms"),
    KEYS: ("id", "digest", "space", "rights", "note", "created_ms", "created_by", "revoked_ms"),
    counters.name: ("name", "value"),
    gone_spaces.name: ("key", "name", "finished"),
    ENDED: ("space", "ended_ms"),
    BROKERS: ("name", "number", "sequence"),
    RUNS: ("number", "revision", "theirs"),
    MOVES: ("space", "id", "move"),
    cursor_copies.name: ("number", "partition", "offset"),
    cursors.name: ("number", "partition", "offset", "index", "acked", "attempts"),
}
"""Columns that the checksum of a table's rows covers, in this order."""

_COVERED_IF_SET: Mapping[str, tuple[str, ...]] = {
    versions.name: ("destination",),
    subscriptions.name: ("owner", "labels"),
}
"""Columns that it covers, too, unless all of them are NULL: older formats do not have them."""

SUBSCRIPTION_COLUMNS = (*_COVERED[subscriptions.name], *_COVERED_IF_SET[subscriptions.name], "checksum")
"""Columns of the rows that `intact_subscriptions` takes."""


def with_checksums(table: sa.Table, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows to insert, with their checksums."""
    covered = _COVERED[table.name]
    found = []
    for row in rows:
        further = [row.get(name) for name in _COVERED_IF_SET.get(table.name, ())]
        values = _covered_values([row[name] for name in covered], further)
        checked = {**row, "checksum": checksum(*values)}
        if "compiled" in row:
            checked["compiled_checksum"] = checksum(row["compiled"])
        found.append(checked)
    return found


def add_checksums(connection: sa.Connection, table: sa.Table) -> None:
    """Compute the missing checksums of a table's rows, in a transaction."""
    columns = [table.c[name] for name in _COVERED[table.name]]
    for row in connection.execute(sa.select(*columns).where(table.c.checksum.is_(None))).mappings().all():
        with suppress(TypeError, AttributeError):  # a value of an impossible type
            [checked] = with_checksums(table, [dict(row)])
            is_row = sa.and_(*(key == row[key.name] for key in table.primary_key))
            connection.execute(sa.update(table).where(is_row).values(checksum=checked["checksum"]))


def _covered_values(values: Sequence[Any], further: Sequence[Any]) -> list[Any]:
    return [*values, *(further if any(each is not None for each in further) else ())]


def _is_subscription_whole(expected: int | None, row: Sequence[Any]) -> bool:
    count = len(_COVERED[subscriptions.name])
    return is_whole(expected, _covered_values(row[:count], row[count:]))


def is_whole(expected: int | None, values: Sequence[Any]) -> bool:
    """Return whether a row's covered values match its checksum; True without a checksum."""
    try:
        return expected is None or checksum(*values) == expected
    except (TypeError, AttributeError):
        return False


def intact_subscriptions(path: Path, rows: Iterable[Any]) -> Iterator[Any]:
    """Yield the intact rows of `SUBSCRIPTION_COLUMNS` without their checksum; note corrupt ones."""
    for *row, expected in rows:
        if _is_subscription_whole(expected, row):
            yield row
        else:
            note_corruption(
                path,
                f"subscription-{row[1]}-{row[0]}",
                f"the subscription {row[0]!r} of the space {row[1]!r} has changed on the disk (subscription"
                f" number {row[4]}) and receives no events; create it again",
            )


def intact_versions(path: Path, connection: sa.Connection, rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield rows of versions, repaired where possible, without their checksums; note corrupt ones.

    A row has the columns revision, space, number, filter, dialect, compiled, destination, any others and both
    checksums.
    """
    for *row, expected, expected_compiled in rows:
        revision, space, number, text, dialect, compiled, destination, *others = row
        further = () if destination is None else (destination,)
        if not is_whole(expected, (revision, space, number, text, dialect, *further)):
            standing = _standing_with(connection, revision)
            if standing is None:
                note_corruption(
                    path,
                    f"version-{revision}",
                    f"the filter of subscription number {number} of the space {space!r} has changed on the"
                    f" disk and matches no events (revision {revision}); create the subscription again",
                )
                continue
            space, number, text, dialect, id = standing
            destination = destination_of(space, id)
            expected_compiled = -1
        if not is_whole(expected_compiled, (compiled,)):
            compiled = _compiled_again(path, revision, text, dialect)
            if compiled is None:
                continue
        yield [revision, space, number, text, dialect, compiled, destination, *others]


def intact_replays(path: Path, rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield rows of replays, repaired where possible, without their checksums; note corrupt ones.

    A row has the columns that the checksum covers, then compiled, matched and both checksums.
    """
    for *covered, compiled, matched, expected, expected_compiled in rows:
        if not is_whole(expected, covered):
            note_corruption(
                path,
                f"past-{covered[0]}",
                f"the replay of subscription number {covered[0]} has changed on the disk and is not matched;"
                " create the subscription again",
            )
            continue
        if not is_whole(expected_compiled, (compiled,)):
            compiled = _compiled_again(path, covered[1], covered[4], covered[5])
            if compiled is None:
                continue
        yield [*covered, compiled, matched]


def destination_of(space: str, id: str) -> int | None:
    """Return the destination number in the id of another broker's filter; None for a subscription."""
    return int(id.partition("/")[0]) if space.startswith(INTEREST) else None


def _standing_with(connection: sa.Connection, revision: int) -> tuple[str, int, str, str, str] | None:
    """Return space, number, filter, dialect and id of the current subscription with a revision, if intact."""
    columns = [subscriptions.c[name] for name in SUBSCRIPTION_COLUMNS]
    found = connection.execute(sa.select(*columns).where(subscriptions.c.revision == revision)).first()
    if found is None or found.checksum is None or not _is_subscription_whole(found.checksum, found[:-1]):
        return None
    return found.space, found.number, found.filter, found.dialect, found.id


def _compiled_again(path: Path, revision: int, text: str, dialect: str) -> Any:
    said = f"the compiled filter of revision {revision} has changed on the disk"
    try:
        from fieldfare.matching.libraries import library_of  # Only if needed: it loads Arrow and numba.

        compiled = library_of(dialect).compile(text, dialect)
    except ValueError as error:
        note_corruption(path, f"compiled-{revision}", f"{said} and cannot be compiled again: {error}")
        return None
    note_corruption(path, f"compiled-{revision}", f"{said}; it was compiled again, and nothing is lost")
    return compiled
