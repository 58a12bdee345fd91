"""The moves of subscriptions between brokers, in the registry's SQL database.

``moves`` has a row per subscription that has moved or is moving; it is created if it does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec
import sqlalchemy as sa

from fieldfare.model import Cursor, Offsets
from fieldfare.storage.errors import RegistryError
from fieldfare.storage.moves import Move, Results
from fieldfare.storage.registry import Configure, Put, Remove
from fieldfare.storage.sql import cursors as stored_cursors
from fieldfare.storage.sql.registry import SqlRegistry
from fieldfare.storage.sql.row_checks import MOVES, is_whole, with_checksums
from fieldfare.storage.sql.tables import StoredBytes

_metadata = sa.MetaData()
_moves = sa.Table(
    MOVES,
    _metadata,
    sa.Column("space", sa.String, primary_key=True),
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("move", StoredBytes, nullable=False),
    sa.Column("checksum", sa.BigInteger),
)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Move)


class MoveStore(SqlRegistry):
    """The moves of one broker; changed by the process that changes the registry."""

    def _prepare(self) -> None:
        super()._prepare()
        self._create_missing(_metadata)

    def moves(self) -> list[Move]:
        """Return all moves. RegistryError if the row of one is corrupt: events would be lost or doubled."""
        query = sa.select(_moves.c.space, _moves.c.id, _moves.c.move, _moves.c.checksum)
        found = []
        with self._read() as connection:
            for *row, expected in connection.execute(query.order_by(_moves.c.space, _moves.c.id)):
                try:
                    if not is_whole(expected, row):
                        raise ValueError("it has changed on the disk")
                    found.append(_decoder.decode(row[2]))
                except (ValueError, TypeError) as error:
                    raise RegistryError(f"{self._path}: the move of {row[1]!r}: {error}") from None
        return found

    def step(
        self,
        key: tuple[str, str],
        move: Callable[[Results], Move | None],
        changes: Sequence[Put | Configure | Remove],
        ends: Offsets,
        now_ms: int,
        cursor: Cursor | None = None,
    ) -> Move | None:
        """Apply changes of the registry and a step of a move in one transaction, durable on return.

        Parameters
        ----------
        key
            The key of the space, and the id.
        move
            Returns the move from the results of the changes; None removes it. If it raises, nothing changes.
        changes, ends, now_ms
            See `Registry.apply`.
        cursor
            The subscription's cursor, to be saved.
        """
        space, id = key
        with self._write() as connection:
            made = move(self.apply_in(connection, changes, ends, now_ms))
            connection.execute(sa.delete(_moves).where(_moves.c.space == space, _moves.c.id == id))
            if made is not None:
                row = {"space": space, "id": id, "move": _encoder.encode(made)}
                connection.execute(sa.insert(_moves), with_checksums(_moves, [row]))
            if made is not None and cursor is not None:
                cursors = {made.number: cursor}
                rows = stored_cursors.rows_of(cursors)
                stored_cursors.save(connection, cursors, rows, now_ms)
                copies = {made.number: {place.partition: place.offset for place in cursor.positions}}
                stored_cursors.save_copies(connection, copies)
        return made

    def forget_space(self, space: str, but: Collection[str]) -> None:
        """Remove the moves of a deleted space, but for those of some ids; durable on return."""
        with self._write() as connection:
            there = connection.scalars(sa.select(_moves.c.id).where(_moves.c.space == space)).all()
            for id in set(there) - set(but):
                connection.execute(sa.delete(_moves).where(_moves.c.space == space, _moves.c.id == id))
