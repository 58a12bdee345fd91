"""The filters of other brokers, in the registry's SQL database.

``brokers`` has a row per broker, and ``broker_runs`` its runs; their tables are created if they do not exist.
The filters themselves are subscriptions whose space is an interest key, with the id ``DESTINATION/NUMBER``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import sqlalchemy as sa

from fieldfare.model import OPEN_END, Offsets, interest_key
from fieldfare.storage.brokers import RemoteFilter, Run, StoredBroker
from fieldfare.storage.changes import NUMBER_MAX, ChangeBatch
from fieldfare.storage.errors import RegistryError
from fieldfare.storage.registry import Put, Remove
from fieldfare.storage.sql import counting
from fieldfare.storage.sql.registry import SqlRegistry, write_batch
from fieldfare.storage.sql.row_checks import BROKERS, RUNS, is_whole, with_checksums
from fieldfare.storage.sql.rows import Count, Number
from fieldfare.storage.sql.tables import NUMBER, REVISION
from fieldfare.storage.sql.tables import subscriptions as _subscriptions

_metadata = sa.MetaData()
_brokers = sa.Table(
    BROKERS,
    _metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False, unique=True),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("checksum", sa.BigInteger),
)
_runs = sa.Table(
    RUNS,
    _metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("revision", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("theirs", sa.BigInteger, nullable=False),
    sa.Column("checksum", sa.BigInteger),
)
_BrokerRow = tuple[str, Number, Count]
_RunRow = tuple[Number, Annotated[int, msgspec.Meta(ge=0, le=OPEN_END)], Count]
_FIRST, _LAST = "/", "0"
"""The characters before and after which the numbers of filters stand in ids: ``DESTINATION/NUMBER``."""

_REMOVED_MAX = 1_000
"""Maximum filters that are removed with one statement when brokers are forgotten."""


class BrokerStore(SqlRegistry):
    """The filters of other brokers; changed by the process that changes the registry."""

    def _prepare(self) -> None:
        super()._prepare()
        self._create_missing(_metadata)

    def brokers(self) -> list[StoredBroker]:
        """Return all brokers that have sent filters, by name."""
        with self._read() as connection:
            return self._brokers_in(connection)

    def _brokers_in(self, connection: sa.Connection) -> list[StoredBroker]:
        query = sa.select(_brokers.c.name, _brokers.c.number, _brokers.c.sequence, _brokers.c.checksum)
        found = []
        for *row, expected in connection.execute(query.order_by(_brokers.c.name)):
            if not is_whole(expected, row):
                raise RegistryError(f"{self._path}: the row of the broker {row[0]!r} has changed on the disk")
            found.append(tuple(row))
        return [StoredBroker(*row) for row in self._unusable.usable(BROKERS, _BrokerRow, found)]

    def runs(self) -> list[Run]:
        """Return all runs, by destination number and revision."""
        query = sa.select(_runs.c.number, _runs.c.revision, _runs.c.theirs, _runs.c.checksum)
        with self._read() as connection:
            rows = connection.execute(query.order_by(_runs.c.number, _runs.c.revision)).all()
        whole = [tuple(row[:-1]) for row in rows if is_whole(row[-1], row[:-1])]
        return [Run(*row) for row in self._unusable.usable(RUNS, _RunRow, whole)]

    def count_filters(self) -> Mapping[int, int]:
        """Return the number of filters of each broker that has any, by the broker's number."""
        # All brokers in one pass: each of them by itself takes one.
        of_broker = sa.func.rtrim(_subscriptions.c.id, "0123456789")
        query = sa.select(of_broker, sa.func.count()).where(_is_interest()).group_by(of_broker)
        with self._read() as connection:
            found = {prefix.removesuffix(_FIRST): count for prefix, count in connection.execute(query)}
        return {int(number): count for number, count in found.items() if number.isdecimal()}

    def apply_filters(
        self,
        name: str,
        sequence: int,
        filters: Sequence[RemoteFilter],
        theirs: int | None,
        ends: Offsets,
        now_ms: int,
        *,
        is_all: bool = False,
    ) -> int:
        """Apply a broker's message in one transaction; durable on return. Return the registry's revision.

        A message that was applied before changes nothing. With `theirs` it begins a run. With `is_all`, the
        broker's earlier filters are removed.

        Raises
        ------
        RegistryError
            An earlier message of the broker is missing.
        """
        with self._write() as connection:
            counters = counting.read_all(connection, self._unusable)
            number = counters[NUMBER]
            broker = next((each for each in self._brokers_in(connection) if each.name == name), None)
            if broker is None:
                if number >= NUMBER_MAX:
                    raise RegistryError("all subscription numbers are used: no broker can be added")
                number += 1
                broker = StoredBroker(name, number, 0)
            if sequence <= broker.sequence:
                return counters[REVISION]
            if sequence != broker.sequence + 1:
                raise RegistryError(f"message {broker.sequence + 1} of the broker {name!r} is missing")
            if is_all:
                self._remove_filters(connection, _is_of(broker.number), ends, now_ms)
                counters = counting.read_all(connection, self._unusable)
            changes = [_change(broker.number, each) for each in filters]
            batch = ChangeBatch(ends, now_ms, self.standing(connection, changes), counters[REVISION], number)
            for change in changes:
                known = batch.standing.get((change.space, change.id))
                # One that is sent again for an advertisement keeps its version.
                if not (
                    isinstance(change, Put)
                    and known is not None
                    and (known.filter, known.dialect) == (change.filter, change.dialect)
                ):
                    batch.apply(change)
            write_batch(connection, batch, counters)
            connection.execute(sa.delete(_brokers).where(_brokers.c.name == name))
            row = {"name": name, "number": broker.number, "sequence": sequence}
            connection.execute(sa.insert(_brokers), with_checksums(_brokers, [row]))
            if theirs is not None:
                is_run = (_runs.c.number == broker.number) & (_runs.c.revision == batch.revision)
                connection.execute(sa.delete(_runs).where(is_run))
                run = {"number": broker.number, "revision": batch.revision, "theirs": theirs}
                connection.execute(sa.insert(_runs), with_checksums(_runs, [run]))
        return batch.revision

    def next_revision(self, nothing: RemoteFilter, ends: Offsets, now_ms: int) -> int:
        """Give the registry a new revision without an effect, and return it.

        `nothing` is a filter that matches nothing: it is stored and removed in one transaction.
        """
        put = _change(0, nothing)
        with self._write() as connection:
            counters = counting.read_all(connection, self._unusable)
            batch = ChangeBatch(ends, now_ms, {}, counters[REVISION], counters[NUMBER])
            batch.apply(put)
            batch.apply(Remove(put.space, put.id))
            write_batch(connection, batch, counters)
        return batch.revision

    def forget_broker(self, name: str, ends: Offsets, now_ms: int) -> int:
        """Remove a broker and its filters in one transaction; return the registry's revision."""
        with self._write() as connection:
            found = [each for each in self._brokers_in(connection) if each.name == name]
            for broker in found:
                self._remove_filters(connection, _is_of(broker.number), ends, now_ms)
                connection.execute(sa.delete(_runs).where(_runs.c.number == broker.number))
                connection.execute(sa.delete(_brokers).where(_brokers.c.number == broker.number))
            return int(counting.read_all(connection, self._unusable)[REVISION])

    def forget_brokers(self, ends: Offsets, now_ms: int) -> None:
        """Remove all brokers and their filters in one transaction.

        `ends` are those of the log's partitions. It is for a new file of links: the messages of each broker
        begin again at its first.
        """
        with self._write() as connection:
            self._remove_filters(connection, _is_interest(), ends, now_ms)
            connection.execute(sa.delete(_runs))
            connection.execute(sa.delete(_brokers))

    def _remove_filters(
        self, connection: sa.Connection, condition: sa.ColumnElement[bool], ends: Offsets, now_ms: int
    ) -> None:
        page = sa.select(_subscriptions.c.space, _subscriptions.c.id).where(condition).limit(_REMOVED_MAX)
        while found := connection.execute(page).all():
            counters = counting.read_all(connection, self._unusable)
            changes = [Remove(*row) for row in found]
            standing = self.standing(connection, changes)
            batch = ChangeBatch(ends, now_ms, standing, counters[REVISION], counters[NUMBER])
            for change in changes:
                batch.apply(change)
            write_batch(connection, batch, counters)

    def forget_runs(self, before: int) -> None:
        """Delete the runs that no record with a stamp of at least `before` needs."""
        later = _runs.alias()
        is_replaced = (
            sa.select(later.c.revision)
            .where(
                later.c.number == _runs.c.number,
                later.c.revision > _runs.c.revision,
                later.c.revision <= before,
            )
            .exists()
        )
        with self._write() as connection:
            connection.execute(sa.delete(_runs).where(is_replaced))


def _is_interest() -> sa.ColumnElement[bool]:
    return _subscriptions.c.space.like(f"{interest_key('')}%")


def _is_of(number: int) -> sa.ColumnElement[bool]:
    is_of_broker = _subscriptions.c.id.between(f"{number}{_FIRST}", f"{number}{_LAST}")
    return sa.and_(_is_interest(), is_of_broker)


def _change(destination: int, remote: RemoteFilter) -> Put | Remove:
    space, id = interest_key(remote.space), f"{destination}{_FIRST}{remote.number}"
    if remote.filter is None:
        return Remove(space, id)
    return Put(
        space,
        id,
        remote.filter,
        remote.dialect,
        remote.compiled,
        cost=remote.cost,
        destination=destination,
    )
