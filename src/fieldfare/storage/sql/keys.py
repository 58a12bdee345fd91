"""API keys in tables of the registry's SQL database, created if they do not exist.

``ended_spaces`` holds, by name, the time at which a space of that name was last deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa

from fieldfare.model import OPEN_END
from fieldfare.storage.checksums import repaired
from fieldfare.storage.corruption import note_corruption
from fieldfare.storage.keys import StoredKey
from fieldfare.storage.sql.database import SqlDatabase
from fieldfare.storage.sql.row_checks import ENDED, KEYS, add_checksums, is_whole, with_checksums
from fieldfare.storage.sql.rows import Count
from fieldfare.storage.sql.tables import StoredBytes, columns_of
from fieldfare.storage.sql.tables import gone_spaces as _gone

_metadata = sa.MetaData()
_keys = sa.Table(
    KEYS,
    _metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("id", sa.String, nullable=False, unique=True),
    sa.Column("digest", StoredBytes, nullable=False),
    sa.Column("space", sa.String),
    sa.Column("rights", sa.String, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("created_by", sa.String, nullable=False),
    sa.Column("revoked_ms", sa.BigInteger),
    sa.Column("checksum", sa.BigInteger),
)
_ended = sa.Table(
    ENDED,
    _metadata,
    sa.Column("space", sa.String, primary_key=True),
    sa.Column("ended_ms", sa.BigInteger, nullable=False),
    sa.Column("checksum", sa.BigInteger),
)
_valid = sa.Index(
    "valid_api_keys",
    _keys.c.number,
    sqlite_where=_keys.c.revoked_ms.is_(None),
    postgresql_where=_keys.c.revoked_ms.is_(None),
)
_PAGE_ROWS = 1_000
_FORGOTTEN_BATCH_SIZE = 1_000
_Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Row = tuple[str, _Digest, str | None, str, str, Count, str, None, int]
_FIELDS = ("id", "digest", "space", "rights", "note", "created_ms", "created_by", "revoked_ms")


def revoke_all(connection: sa.Connection, space: str, now_ms: int) -> None:
    """Revoke all keys and tokens of a space, in a transaction of the registry."""
    inspected = sa.inspect(connection)
    if inspected.has_table(_keys.name):
        _revoke(connection, _keys.c.space == space, now_ms)
    if inspected.has_table(_ended.name):
        connection.execute(sa.delete(_ended).where(_ended.c.space == space))
        ended = with_checksums(_ended, [{"space": space, "ended_ms": now_ms}])
        connection.execute(sa.insert(_ended), ended)


def _revoke(connection: sa.Connection, which: sa.ColumnElement[bool], now_ms: int) -> None:
    columns = [_keys.c[name] for name in (*_FIELDS, "number")]
    standing = connection.execute(sa.select(*columns).where(which, _keys.c.revoked_ms.is_(None))).mappings()
    for row in with_checksums(_keys, [{**each, "revoked_ms": now_ms} for each in standing]):
        changed = {name: row[name] for name in ("revoked_ms", "checksum")}
        connection.execute(sa.update(_keys).where(_keys.c.number == row["number"]).values(**changed))


class KeyStore(SqlDatabase):
    """A store of API keys; one process changes it."""

    def keys(self) -> list[StoredKey]:
        """Return the keys that are not revoked, in order of creation."""
        query = (
            sa.select(*(_keys.c[name] for name in (*_FIELDS, "checksum", "number")))
            .where(_keys.c.revoked_ms.is_(None), _keys.c.number > sa.bindparam("after"))
            .order_by(_keys.c.number)
            .limit(_PAGE_ROWS)
        )
        found: list[StoredKey] = []
        after = -1
        while True:
            with self._read() as connection:
                rows = connection.execute(query, {"after": after}).all()
            for id, digest, space, rights, *others in self._unusable.usable(KEYS, _Row, self._whole(rows)):
                found.append(StoredKey(id, digest, space, tuple(rights.split()), *others[:-1]))
            if len(rows) < _PAGE_ROWS:
                return found
            after = rows[-1].number

    def _whole(self, rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        """Yield the intact rows without their checksum; note corrupt ones."""
        for *row, expected, number in rows:
            if is_whole(expected, row):
                yield *row, number
            else:
                said = f"the API key {row[0]!r} has changed on the disk and cannot be used; create another"
                note_corruption(self._path, f"key-{row[0]}", said)

    def has_any(self) -> bool:
        """Return whether a key was ever created."""
        with self._read() as connection:
            return connection.execute(sa.select(_keys.c.number).limit(1)).first() is not None

    def forget_revoked(self, before_ms: int, most: int) -> int:
        """Remove the keys revoked before a time, and all but the newest `most` revoked keys.

        Returns the number of removed keys. The newest key is never removed: it shows that keys are required.
        """
        newest = sa.select(sa.func.max(_keys.c.number)).scalar_subquery()
        with self._read() as connection:
            kept_from = connection.execute(
                sa.select(_keys.c.number)
                .where(_keys.c.revoked_ms.is_not(None))
                .order_by(_keys.c.number.desc())
                .offset(most)
                .limit(1)
            ).scalar()
        old = _keys.c.revoked_ms < before_ms
        if kept_from is not None:
            old |= _keys.c.revoked_ms.is_not(None) & (_keys.c.number <= kept_from)
        some = sa.select(_keys.c.number).where(old, _keys.c.number < newest).limit(_FORGOTTEN_BATCH_SIZE)
        forgotten = 0
        while True:
            with self._write() as connection:  # Short: subscription changes wait for it.
                removed = connection.execute(sa.delete(_keys).where(_keys.c.number.in_(some))).rowcount
            forgotten += removed
            if removed < _FORGOTTEN_BATCH_SIZE:
                return forgotten

    def add(self, key: StoredKey) -> None:
        """Add a key; durable on return."""
        row = {name: getattr(key, name) for name in _FIELDS} | {"rights": " ".join(key.rights)}
        with self._write() as connection:
            connection.execute(sa.insert(_keys), with_checksums(_keys, [row]))

    def revoke(self, id: str, now_ms: int) -> None:
        """Revoke a key unless it is revoked already; durable on return."""
        with self._write() as connection:
            _revoke(connection, _keys.c.id == id, now_ms)

    def ended_spaces(self) -> dict[str, int]:
        """Return when a space of each name was last deleted, in milliseconds since 1970.

        Tokens that were signed before, which are not stored, have no rights in a later space of that name.
        """
        with self._read() as connection:
            rows = connection.execute(sa.select(_ended.c.space, _ended.c.ended_ms, _ended.c.checksum)).all()
            has_deleted = sa.inspect(connection).has_table(_gone.name)
            deleted = set(connection.execute(sa.select(_gone.c.name)).scalars()) if has_deleted else set()
        right: list[Sequence[Any]] = [row[:2] for row in rows if is_whole(row.checksum, row[:2])]
        is_lost = False
        for row in rows:
            if row[:2] in right:
                continue
            known = repaired(row.checksum, row[:2])
            outcome = "a bit was restored; nothing is lost" if known else "older tokens are refused"
            self._unusable.report(ENDED, row.space, "it had changed on the disk", outcome)
            right.append(known or (row.space, None))
            is_lost = is_lost or known is None
        found: dict[str, int] = {}
        for space, ended_ms in self._unusable.usable(ENDED, tuple[str, Any], right):
            if ended_ms is not None and not isinstance(ended_ms, int):
                self._unusable.report(ENDED, space, "it is not a time", "older tokens are refused")
            # Without the time, tokens of an earlier space cannot be told: refuse all.
            found[space] = ended_ms if isinstance(ended_ms, int) else OPEN_END
        # A corrupt row may be that of any space that was deleted.
        return dict.fromkeys(deleted, OPEN_END) | found if is_lost else found

    def _prepare(self) -> None:
        with self._read() as connection:
            inspected = sa.inspect(connection)
            present = set(_metadata.tables) <= set(inspected.get_table_names())
            has_checksums = present and all(
                "checksum" in columns_of(connection, each) for each in (KEYS, ENDED)
            )
            if has_checksums and any(
                each["name"] == _valid.name for each in inspected.get_indexes(_keys.name)
            ):
                return
        with self._write() as connection:
            _metadata.create_all(connection)
            for name in (KEYS, ENDED):
                if "checksum" not in columns_of(connection, name):  # A table of an older version.
                    connection.execute(sa.text(f"ALTER TABLE {name} ADD COLUMN checksum BIGINT"))
            add_checksums(connection, _ended)
            _valid.create(connection, checkfirst=True)
