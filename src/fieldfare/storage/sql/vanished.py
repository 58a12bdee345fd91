"""Repair of vanished rows of the registry, detected by the rows that refer to them.

Each current subscription has an open version with its revision. A subscription without a version would match
nothing: its version is created again. A version without its subscription is matched for no subscriber, and
requests get 404: it is closed, as if the subscription had been removed, and noted. A missing space that has
subscriptions is created again, and the table of labels is made again if labels are missing in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa

from fieldfare.model import INTEREST, OPEN_END, space_name
from fieldfare.storage.corruption import note_corruption
from fieldfare.storage.sql import counting, searches
from fieldfare.storage.sql.row_checks import (
    SUBSCRIPTION_COLUMNS,
    destination_of,
    intact_subscriptions,
    is_whole,
    with_checksums,
)
from fieldfare.storage.sql.rows import SubscriptionRow, Unusable
from fieldfare.storage.sql.tables import REVISION, gone_spaces, spaces, subscriptions, versions

_MENDED_MAX = 10_000
"""Maximum rows of each kind that one call repairs; the next call resumes."""

_is_of_version = versions.c.revision == subscriptions.c.revision
_select_spaces = sa.select(*(spaces.c[name] for name in ("name", "key", "quotas", "encryption", "checksum")))
_subscriptions = sa.select(*(subscriptions.c[name] for name in SUBSCRIPTION_COLUMNS))
_without_space = _subscriptions.where(
    subscriptions.c.space.not_in(sa.select(sa.func.coalesce(spaces.c.key, spaces.c.name))),
    subscriptions.c.space.not_in(sa.select(gone_spaces.c.key)),
    subscriptions.c.space.not_like(f"{INTEREST}%"),  # Other brokers' filters may be for any space.
).limit(_MENDED_MAX)
_without_version = (
    _subscriptions.outerjoin_from(subscriptions, versions, _is_of_version)
    .where(sa.or_(versions.c.revision.is_(None), versions.c.closed_revision.is_not(None)))
    .limit(_MENDED_MAX)
)
_without_subscription = (
    sa.select(versions.c.revision, versions.c.space, versions.c.number, versions.c.filter)
    .where(versions.c.closed_revision.is_(None))
    .where(versions.c.revision.not_in(sa.select(subscriptions.c.revision)))
    .limit(_MENDED_MAX)
)


def has_any(connection: sa.Connection) -> bool:
    """Return whether a space, a version or a subscription has vanished, or a space is corrupt."""
    rows = connection.execute(_select_spaces).all()
    return (
        not all(is_whole(row[-1], row[:-1]) for row in rows)
        or any(
            connection.execute(query.limit(1)).first() is not None
            for query in (_without_space, _without_version, _without_subscription)
        )
        or searches.is_wrong(connection)
    )


def mend(connection: sa.Connection, path: Path) -> None:
    """Restore spaces and versions, close versions without subscription, note each; in a transaction."""
    if searches.is_wrong(connection):
        searches.rebuild(connection)
    _mend_spaces(connection, path)
    found = intact_subscriptions(path, connection.execute(_without_version).all())
    for row in Unusable(path).usable("subscriptions", SubscriptionRow, found):
        _make_version(connection, path, row)
    vanished = connection.execute(_without_subscription).all()
    if not vanished:
        return
    revision = counting.read_all(connection, Unusable(path))[REVISION]
    for row in vanished:
        revision += 1
        closed = {"closed_revision": revision, "removed": True, "valid_to": 0}
        connection.execute(sa.update(versions).where(versions.c.revision == row.revision).values(**closed))
        note_corruption(
            path,
            f"vanished-{row.revision}",
            f"a subscription of the space {row.space!r}, subscription number {row.number}, has vanished from"
            f" the disk, or cannot be read; it receives no more events. Its filter was {row.filter!r}: create"
            " it again",
        )
    counting.write(connection, {REVISION: revision})


def _mend_spaces(connection: sa.Connection, path: Path) -> None:
    """Restore spaces whose name or key is corrupt, and spaces that have vanished."""
    rows = connection.execute(_select_spaces).all()
    whole = {row.name: row.key or row.name for row in rows if is_whole(row[-1], row[:-1])}
    for name, key, _, encryption, _ in rows:
        if name in whole:
            continue
        keys = [each for each in (key, name) if each not in whole.values()]
        known = _key_in_use(connection, keys)
        if known is None or space_name(known) in whole or (name, key or name) == (space_name(known), known):
            continue
        connection.execute(sa.delete(spaces).where(spaces.c.name == name))
        _make_space(connection, path, known, encryption)
        whole[space_name(known)] = known
    found = intact_subscriptions(path, connection.execute(_without_space).all())
    for space in sorted({row[1] for row in found if isinstance(row[1], str)}):
        if space_name(space) not in whole:
            _make_space(connection, path, space, None)
            whole[space_name(space)] = space


def _key_in_use(connection: sa.Connection, keys: Sequence[object]) -> str | None:
    """Return the first of `keys` that subscriptions use; None if none is in use."""
    for key in keys:
        found = sa.select(subscriptions.c.space).where(subscriptions.c.space == key).limit(1)
        if isinstance(key, str) and connection.execute(found).first() is not None:
            return key
    return None


def _make_space(connection: sa.Connection, path: Path, key: str, encryption: object) -> None:
    connection.execute(sa.delete(spaces).where(spaces.c.name == space_name(key)))
    made = {"name": space_name(key), "key": key, "quotas": None, "encryption": encryption}
    connection.execute(sa.insert(spaces), with_checksums(spaces, [made]))
    note_corruption(
        path,
        f"space-{key}",
        f"the space {space_name(key)!r} was lost on the disk and was created again, without its quotas; if it"
        " was encrypted, delete it",
    )


def _make_version(connection: sa.Connection, path: Path, row: Sequence[object]) -> None:
    from fieldfare.matching.libraries import library_of  # Only if needed: it loads Arrow and numba.

    id, space, text, dialect, number, revision, _, valid_from, *_ = row
    assert isinstance(text, str) and isinstance(dialect, str)
    assert isinstance(space, str) and isinstance(id, str)
    said = f"the version of subscription number {number} of the space {space!r} was lost on the disk"
    try:
        compiled = library_of(dialect).compile(text, dialect)
    except ValueError as error:
        lost = f"{said} and its filter cannot be compiled again ({error}): create the subscription again"
        note_corruption(path, f"version-{revision}", lost)
        return
    connection.execute(sa.delete(versions).where(versions.c.revision == revision))
    made = {
        "revision": revision,
        "space": space,
        "number": number,
        "valid_from": valid_from,
        "valid_to": OPEN_END,
        "closed_revision": None,
        "removed": False,
        "changed_ms": 0,
        "filter": text,
        "dialect": dialect,
        "compiled": compiled,
        "destination": destination_of(space, id),
    }
    connection.execute(sa.insert(versions), with_checksums(versions, [made]))
    note_corruption(path, f"version-{revision}", f"{said} and was restored; nothing is lost")
