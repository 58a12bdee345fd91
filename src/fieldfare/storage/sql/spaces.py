"""The registry's spaces: made, and deleted step by step; all in transactions of the registry's.

A space has a *key*, which stands for it in the log and in all other tables: its name, or, when there was a
space of that name before, one that was never used. So nothing that is left of the old one, in whatever file,
is ever taken for the new one's.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import sqlalchemy as sa

from fieldfare.model import space_key
from fieldfare.storage.errors import SpaceExistsError, UnknownSpaceError
from fieldfare.storage.registry import SpaceEncryption, StoredSpace
from fieldfare.storage.sql.keys import revoke_all
from fieldfare.storage.sql.tables import gone_spaces as _gone
from fieldfare.storage.sql.tables import spaces as _spaces

_key = sa.func.coalesce(_spaces.c.key, _spaces.c.name)


def create(connection: sa.Connection, name: str, encryption: SpaceEncryption | None) -> str:
    """Make a space; its key."""
    if name in names(connection):
        raise SpaceExistsError(name)
    before = sa.select(sa.func.count()).select_from(_gone).where(_gone.c.name == name)
    key = space_key(name, connection.execute(before).scalar_one())
    text = None if encryption is None else msgspec.json.encode(encryption).decode()
    connection.execute(sa.insert(_spaces), {"name": name, "key": key, "encryption": text})
    return key


def delete(connection: sa.Connection, name: str, now_ms: int) -> str:
    """Have a space be gone for everybody, and its API keys let nobody in; the key of what is left of it."""
    found = connection.execute(sa.select(_key).where(_spaces.c.name == name)).scalar()
    if found is None:
        raise UnknownSpaceError(name)
    connection.execute(sa.delete(_spaces).where(_spaces.c.name == name))
    connection.execute(sa.insert(_gone), {"key": found, "name": name, "finished": False})
    revoke_all(connection, name, now_ms)
    return str(found)


def stored(connection: sa.Connection) -> list[StoredSpace]:
    columns = (_spaces.c.name, _key, _spaces.c.quotas, _spaces.c.encryption)
    rows = connection.execute(sa.select(*columns).order_by(_spaces.c.name))
    return [
        StoredSpace(
            name,
            key,
            msgspec.json.decode(quotas or "{}"),
            msgspec.json.decode(encryption, type=SpaceEncryption) if encryption else None,
        )
        for name, key, quotas, encryption in rows
    ]


def names(connection: sa.Connection) -> set[str]:
    return set(connection.execute(sa.select(_spaces.c.name)).scalars())


def keys(connection: sa.Connection) -> set[str]:
    return set(connection.execute(sa.select(_key)).scalars())


def set_quotas(connection: sa.Connection, key: str, quotas: Mapping[str, float]) -> None:
    text = msgspec.json.encode(dict(quotas)).decode()
    if not connection.execute(sa.update(_spaces).where(_key == key).values(quotas=text)).rowcount:
        raise UnknownSpaceError(key)


def unfinished(connection: sa.Connection) -> list[str]:
    """The keys of those that are gone, and of which there may still be subscriptions."""
    return list(connection.execute(sa.select(_gone.c.key).where(~_gone.c.finished)).scalars())


def finish(connection: sa.Connection, key: str) -> None:
    """Nothing is left of one that is gone but its history."""
    connection.execute(sa.update(_gone).where(_gone.c.key == key).values(finished=True))
