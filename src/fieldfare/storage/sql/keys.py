"""API keys in the SQL database of the registry: tables beside its own, made when they are not there.

``ended_spaces`` says of names when a space that had one was last deleted.
"""

from __future__ import annotations

import sqlalchemy as sa

from fieldfare.storage.keys import StoredKey
from fieldfare.storage.sql.database import SqlDatabase

_metadata = sa.MetaData()
_keys = sa.Table(
    "api_keys",
    _metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("id", sa.String, nullable=False, unique=True),
    sa.Column("digest", sa.LargeBinary, nullable=False),
    sa.Column("space", sa.String),
    sa.Column("rights", sa.String, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("created_by", sa.String, nullable=False),
    sa.Column("revoked_ms", sa.BigInteger),
)
_ended = sa.Table(
    "ended_spaces",
    _metadata,
    sa.Column("space", sa.String, primary_key=True),
    sa.Column("ended_ms", sa.BigInteger, nullable=False),
)
_FIELDS = ("id", "digest", "space", "rights", "note", "created_ms", "created_by", "revoked_ms")


def revoke_all(connection: sa.Connection, space: str, now_ms: int) -> None:
    """In a transaction of the registry's: have all keys and tokens of a space let nobody in any more."""
    inspected = sa.inspect(connection)
    if inspected.has_table(_keys.name):
        standing = sa.update(_keys).where(_keys.c.space == space, _keys.c.revoked_ms.is_(None))
        connection.execute(standing.values(revoked_ms=now_ms))
    if inspected.has_table(_ended.name):
        connection.execute(sa.delete(_ended).where(_ended.c.space == space))
        connection.execute(sa.insert(_ended), {"space": space, "ended_ms": now_ms})


class SqlKeys(SqlDatabase):
    """A `KeyStore` in a SQL database."""

    def keys(self) -> list[StoredKey]:
        query = sa.select(*(_keys.c[name] for name in _FIELDS)).order_by(_keys.c.number)
        with self._read() as connection:
            rows = [row._asdict() for row in connection.execute(query)]
        return [StoredKey(**row | {"rights": tuple(row["rights"].split())}) for row in rows]

    def add(self, key: StoredKey) -> None:
        row = {name: getattr(key, name) for name in _FIELDS} | {"rights": " ".join(key.rights)}
        with self._write() as connection:
            connection.execute(sa.insert(_keys), row)

    def revoke(self, id: str, now_ms: int) -> None:
        standing = sa.update(_keys).where(_keys.c.id == id, _keys.c.revoked_ms.is_(None))
        with self._write() as connection:
            connection.execute(standing.values(revoked_ms=now_ms))

    def ended_spaces(self) -> dict[str, int]:
        with self._read() as connection:
            return {row.space: row.ended_ms for row in connection.execute(sa.select(_ended))}

    def _prepare(self) -> None:
        with self._read() as connection:
            if set(_metadata.tables) <= set(sa.inspect(connection).get_table_names()):
                return
        with self._write() as connection:
            _metadata.create_all(connection)
