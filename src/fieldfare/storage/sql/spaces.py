"""The registry's spaces: creation, and deletion in steps. All functions run in a transaction of the registry.

A space has a *key*, which stands for it in the log and in all other tables: its name or, if an earlier space
had that name, a key that was never used. So no remaining data of the earlier space, in any file, is ever
taken for data of the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa

from fieldfare.model import space_key, space_name
from fieldfare.storage.checksums import repaired
from fieldfare.storage.corruption import note_corruption
from fieldfare.storage.errors import SpaceExistsError, UnknownSpaceError
from fieldfare.storage.registry import SpaceEncryption, StoredSpace
from fieldfare.storage.sql.keys import revoke_all
from fieldfare.storage.sql.row_checks import is_whole, with_checksums
from fieldfare.storage.sql.rows import Unusable
from fieldfare.storage.sql.tables import gone_spaces as _gone
from fieldfare.storage.sql.tables import spaces as _spaces
from fieldfare.storage.sql.tables import subscriptions as _subscriptions

Quota = Annotated[float, msgspec.Meta(ge=0)]
_key = sa.func.coalesce(_spaces.c.key, _spaces.c.name)


def create(connection: sa.Connection, name: str, encryption: SpaceEncryption | None) -> str:
    """Create a space and return its key; SpaceExistsError if a space of that name exists."""
    if name in names(connection):
        raise SpaceExistsError(name)
    used = keys(connection).union(connection.execute(sa.select(_gone.c.key)).scalars())
    before = sa.select(sa.func.count()).select_from(_gone).where(_gone.c.name == name)
    key = next(
        key
        for times in count(connection.execute(before).scalar_one())
        if (key := space_key(name, times)) not in used
    )
    text = None if encryption is None else msgspec.json.encode(encryption).decode()
    made = {"name": name, "key": key, "quotas": None, "encryption": text}
    connection.execute(sa.insert(_spaces), with_checksums(_spaces, [made]))
    return key


def delete(connection: sa.Connection, name: str, now_ms: int) -> str:
    """Delete a space, revoke its API keys and return its key; UnknownSpaceError if there is none."""
    found = connection.execute(sa.select(_key).where(_spaces.c.name == name)).scalar()
    if found is None:
        raise UnknownSpaceError(name)
    connection.execute(sa.delete(_spaces).where(_spaces.c.name == name))
    gone = {"key": found, "name": name, "finished": False}
    connection.execute(sa.insert(_gone), with_checksums(_gone, [gone]))
    revoke_all(connection, name, now_ms)
    return str(found)


def stored(connection: sa.Connection, path: Path, unusable: Unusable) -> list[StoredSpace]:
    """Return the readable spaces by name; a space whose key or encryption is unreadable is left out."""
    columns = (_spaces.c.name, _spaces.c.key, _spaces.c.quotas, _spaces.c.encryption, _spaces.c.checksum)
    rows = _whole(path, connection.execute(sa.select(*columns).order_by(_spaces.c.name)))
    found: list[StoredSpace] = []
    for name, key, quotas, encryption in unusable.usable("spaces", tuple[str, str, Any, Any], rows):
        try:
            encrypted = msgspec.json.decode(encryption, type=SpaceEncryption) if encryption else None
        except (ValueError, TypeError, RecursionError) as error:
            unusable.report("spaces", f"{name}, encryption", error)
            continue
        found.append(StoredSpace(name, key, _quotas_of(name, quotas, unusable), encrypted))
    return found


def _whole(path: Path, rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield rows without their checksum; of a corrupt row, no quotas, and only if its name fits its key."""
    for name, key, quotas, encryption, expected in rows:
        known = name if key is None else key
        if is_whole(expected, (name, key, quotas, encryption)):
            yield name, known, quotas, encryption
            continue
        said = f"the space {name!r} (key {key!r}) has changed on the disk"
        if isinstance(known, str) and space_name(known) == name:
            note_corruption(path, f"space-{name}", f"{said}, and has no quotas of its own: set them again")
            yield name, known, None, encryption
        else:
            note_corruption(path, f"space-{name}", f"{said} and is ignored: create it again")


def _quotas_of(name: str, quotas: Any, unusable: Unusable) -> Mapping[str, float]:
    """Return the quotas set for a space; none if they cannot be read: then the service's quotas apply."""
    try:
        return msgspec.json.decode(quotas or "{}", type=dict[str, Quota])
    except (ValueError, TypeError, RecursionError) as error:
        unusable.report("spaces", f"{name}, quotas", error)
        return {}


def names(connection: sa.Connection) -> set[str]:
    return set(connection.execute(sa.select(_spaces.c.name)).scalars())


def keys(connection: sa.Connection) -> set[str]:
    return set(connection.execute(sa.select(_key)).scalars())


def set_quotas(connection: sa.Connection, key: str, quotas: Mapping[str, float]) -> None:
    text = msgspec.json.encode(dict(quotas)).decode()
    columns = (_spaces.c.name, _spaces.c.key, _spaces.c.encryption)
    found = connection.execute(sa.select(*columns).where(_key == key)).mappings().first()
    if found is None:
        raise UnknownSpaceError(key)
    [changed] = with_checksums(_spaces, [{**found, "quotas": text}])
    connection.execute(sa.update(_spaces).where(_key == key).values(**changed))


def unfinished(connection: sa.Connection) -> list[str]:
    """Return the keys of deleted spaces that may still have subscriptions."""
    found = connection.execute(sa.select(_gone.c.key).where(~_gone.c.finished)).scalars()
    return [key for key in found if isinstance(key, str)]


def finish(connection: sa.Connection, key: str) -> None:
    """Record that a deleted space has no subscriptions left; delete its unusable rows."""
    # The remaining rows are unusable ones.
    connection.execute(sa.delete(_subscriptions).where(_subscriptions.c.space == key))
    known = (
        connection.execute(sa.select(_gone.c.key, _gone.c.name).where(_gone.c.key == key)).mappings().all()
    )
    for row in with_checksums(_gone, [{**each, "finished": True} for each in known]):
        connection.execute(sa.update(_gone).where(_gone.c.key == key).values(**row))


def is_deletion_wrong(connection: sa.Connection) -> bool:
    """Return whether a row about a deleted space is corrupt."""
    return not all(is_whole(row.checksum, row[:3]) for row in connection.execute(_select_gone))


def mend_deletions(connection: sa.Connection, path: Path) -> None:
    """Repair corrupt rows about deleted spaces, and note each.

    If more than a bit has changed, all keys that the space can have had are kept from use, and the deletion
    is completed again: otherwise a new space could get data of the deleted one.
    """
    rows = connection.execute(_select_gone).all()
    whole = [row[:3] for row in rows if is_whole(row.checksum, row[:3])]
    if len(whole) == len(rows):
        return
    used = keys(connection).union(key for key, _, _ in whole)
    for *row, expected in rows:
        if tuple(row) in whole:
            continue
        known = repaired(expected, row)
        said = f"the row of the deleted space {row[1]!r} (key {row[0]!r}) had changed on the disk"
        if known is not None and known[0] not in used:
            whole.append(tuple(known))
            note_corruption(path, f"gone-{row[0]}", f"{said}; a bit was restored, and nothing is lost")
            continue
        for name in {each for each in (row[1], _name_of(row[0])) if isinstance(each, str)}:
            most = sum(name in (each.name, _name_of(each.key)) for each in rows)
            possible = {space_key(name, times) for times in range(most)}
            whole += [(key, name, False) for key in sorted(possible - used)]
            used |= possible
        note_corruption(path, f"gone-{row[0]}", f"{said}; all keys that it may have had stay reserved")
    connection.execute(sa.delete(_gone))
    found = [dict(zip(("key", "name", "finished"), row, strict=True)) for row in whole]
    connection.execute(sa.insert(_gone), with_checksums(_gone, found))


def _name_of(key: object) -> str | None:
    return space_name(key) if isinstance(key, str) else None


_select_gone = sa.select(
    _gone.c.key, _gone.c.name, sa.type_coerce(_gone.c.finished, sa.Integer), _gone.c.checksum
)
