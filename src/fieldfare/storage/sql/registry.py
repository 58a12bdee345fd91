"""The registry in a SQL database, through SQLAlchemy Core; its tables are in `tables`."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import sqlalchemy as sa

from fieldfare.model import (
    OPEN_END,
    Change,
    Cursor,
    DeadLetter,
    DeliverySettings,
    Offsets,
    Position,
    Subscription,
    positions_of,
    positions_text,
)
from fieldfare.storage.changes import ChangeBatch
from fieldfare.storage.errors import FormatError, RegistryError, UnknownSpaceError
from fieldfare.storage.registry import (
    Configure,
    Conflict,
    Held,
    Past,
    Put,
    Remove,
    SpaceEncryption,
    StoredSpace,
    Version,
)
from fieldfare.storage.sql import by_setting, restored, tables
from fieldfare.storage.sql import cursors as stored_cursors
from fieldfare.storage.sql import pasts as stored_pasts
from fieldfare.storage.sql import spaces as stored_spaces
from fieldfare.storage.sql.database import SqlDatabase
from fieldfare.storage.sql.tables import NUMBER, PURGED, REVISION
from fieldfare.storage.sql.tables import counters as _counters
from fieldfare.storage.sql.tables import subscriptions as _subscriptions
from fieldfare.storage.sql.tables import versions as _versions

_PAGE_ROWS = 10_000
_IDS_A_QUERY = 1_000
_PURGED_AT_ONCE = 1_000

_further_decoder = msgspec.msgpack.Decoder(list[int])
_delivery_decoder = msgspec.json.Decoder(DeliverySettings)
_NO_SETTINGS = DeliverySettings()


class SqlRegistry(SqlDatabase):
    """A `Registry` in a SQL database; the tables are created when they are not there.

    Parameters
    ----------
    url
        The database as SQLAlchemy writes it, e.g. ``sqlite:///path``.
    """

    def create_space(self, name: str, encryption: SpaceEncryption | None = None) -> str:
        with self._write() as connection:
            return stored_spaces.create(connection, name, encryption)

    def delete_space(self, name: str, now_ms: int) -> str:
        with self._write() as connection:
            return stored_spaces.delete(connection, name, now_ms)

    def unfinished_spaces(self) -> list[str]:
        with self._read() as connection:
            return stored_spaces.unfinished(connection)

    def finish_space(self, key: str) -> None:
        with self._write() as connection:
            stored_spaces.finish(connection, key)

    def spaces(self) -> list[str]:
        with self._read() as connection:
            return sorted(stored_spaces.names(connection))

    def has_space(self, name: str) -> bool:
        return name in self.spaces()

    def key_of_space(self, name: str) -> str:
        for space in self.stored_spaces():
            if space.name == name:
                return space.key
        raise UnknownSpaceError(name)

    def stored_spaces(self) -> list[StoredSpace]:
        with self._read() as connection:
            return stored_spaces.stored(connection)

    def set_quotas(self, key: str, quotas: Mapping[str, float]) -> None:
        with self._write() as connection:
            stored_spaces.set_quotas(connection, key, quotas)

    def apply(
        self, changes: Sequence[Put | Configure | Remove], ends: Offsets, now_ms: int
    ) -> list[Subscription | Conflict | None]:
        with self._write() as connection:
            counters = _read_counters(connection)
            standing = _standing(connection, changes)
            batch = ChangeBatch(ends, now_ms, standing, counters[REVISION], counters[NUMBER])
            spaces = stored_spaces.keys(connection)
            results = []
            for change in changes:
                if isinstance(change, Put) and change.space not in spaces:
                    raise UnknownSpaceError(change.space)
                results.append(batch.apply(change))
            if batch.touched:
                _write_batch(connection, batch, counters)
        return results

    def get(self, space: str, id: str) -> Subscription | None:
        table = _subscriptions.c
        with self._read() as connection:
            row = connection.execute(
                _select_subscriptions.where(table.space == space, table.id == id)
            ).first()
        return None if row is None else _subscription_of(row)

    def list(self, space: str, after: str | None = None, limit: int = 100) -> list[Subscription]:
        table = _subscriptions.c
        query = _select_subscriptions.where(table.space == space).order_by(table.id).limit(limit)
        if after is not None:
            query = query.where(table.id > after)
        with self._read() as connection:
            return [_subscription_of(row) for row in connection.execute(query)]

    def pushed(self, after: tuple[str, str] = ("", ""), limit: int = 1000) -> Sequence[Subscription]:
        query = by_setting.with_setting(_select_subscriptions, "push", after, limit)
        with self._read() as connection:
            found = map(_subscription_of, connection.execute(query))
            return [each for each in found if each.delivery.push is not None]

    def expiring(
        self, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> Sequence[tuple[Subscription, int]]:
        query = by_setting.with_setting(
            _select_subscriptions.add_columns(by_setting.UNUSED), "expires_unused_s", after, limit
        )
        with self._read() as connection:
            found = [(_subscription_of(row[:-1]), row[-1] or 0) for row in connection.execute(query)]
            return [each for each in found if each[0].delivery.expires_unused_s is not None]

    def note_unused(self, notes: Sequence[tuple[Subscription, int]]) -> None:
        with self._write() as connection:
            by_setting.note_unused(connection, notes)

    def count(self, space: str | None = None) -> int:
        query = sa.select(sa.func.count()).select_from(_subscriptions)
        if space is not None:
            query = query.where(_subscriptions.c.space == space)
        with self._read() as connection:
            return connection.execute(query).scalar_one()

    def held(self) -> Mapping[str, Held]:
        table = _subscriptions.c
        query = sa.select(table.space, sa.func.count(), sa.func.sum(table.cost)).group_by(table.space)
        with self._read() as connection:
            return {space: Held(count, int(cost)) for space, count, cost in connection.execute(query)}

    def costs(self, space: str, ids: Sequence[str]) -> Mapping[str, int]:
        table, found = _subscriptions.c, dict[str, int]()
        with self._read() as connection:
            for first in range(0, len(ids), _IDS_A_QUERY):
                some = table.id.in_(ids[first : first + _IDS_A_QUERY])
                rows = connection.execute(sa.select(table.id, table.cost).where(table.space == space, some))
                found.update((id, cost) for id, cost in rows)
        return found

    def revision(self) -> int:
        with self._read() as connection:
            return _counter(connection, REVISION)

    def changes(self, after: int, to: int) -> Iterator[Change]:
        while after < to:
            page = min(after + _PAGE_ROWS, to)
            with self._read() as connection:
                self._check_kept(connection, after)
                puts = [
                    Change(*row) for row in connection.execute(_select_puts, {"after": after, "to": page})
                ]
                removals = [
                    Change(*row, None, None, None)
                    for row in connection.execute(_select_removals, {"after": after, "to": page})
                ]
                after = page
                if not puts and not removals and page >= _counter(connection, REVISION):
                    return
            yield from heapq.merge(puts, removals, key=attrgetter("revision"))

    def versions(self, revision: int, floor: int) -> Iterator[Version]:
        after = 0
        while True:
            values = {"revision": revision, "floor": floor, "after": after}
            with self._read() as connection:
                self._check_kept(connection, revision)
                page = [Version(*row) for row in connection.execute(_select_versions, values)]
            yield from page
            if len(page) < _PAGE_ROWS:
                return
            after = page[-1].revision

    def purge(self, before: int) -> int:
        with self._read() as connection:
            before = min(before, _counter(connection, REVISION))
            purged = _counter(connection, PURGED)
        if before > purged:
            # First: whoever asks for older history from now on is told that it is gone.
            with self._write() as connection:
                _write_counters(connection, {PURGED: before})
        removed = 0
        while True:
            with self._read() as connection:
                gone = connection.execute(_select_purgeable, {"before": before}).all()
            if gone:
                # In short transactions, for those who subscribe and ack meanwhile wait for each.
                with self._write() as connection:
                    connection.execute(_delete_version, [{"gone": row.revision} for row in gone])
                    stored_cursors.delete(connection, [row.number for row in gone if row.removed])
            removed += len(gone)
            if len(gone) < _PURGED_AT_ONCE:
                return removed

    def pasts(self, *, only_open: bool = False) -> Sequence[Past]:
        with self._read() as connection:
            return stored_pasts.listed(connection, only_open=only_open)

    def past(self, number: int) -> Past | None:
        with self._read() as connection:
            return stored_pasts.get(connection, number)

    def count_open_pasts(self, space: str) -> int:
        with self._read() as connection:
            return stored_pasts.count_open(connection, space)

    def mark_past(self, number: int, *, matched: bool) -> None:
        with self._write() as connection:
            stored_pasts.mark(connection, number, matched=matched)

    def forget_past(self, number: int) -> None:
        with self._write() as connection:
            stored_pasts.delete(connection, number)

    def load_cursors(self, numbers: Sequence[int]) -> Mapping[int, Cursor]:
        with self._read() as connection:
            return stored_cursors.load(connection, numbers)

    def save_cursors(self, cursors: Sequence[tuple[int, Cursor]], now_ms: int = 0) -> None:
        latest = dict(cursors)
        if not latest:
            return
        rows = stored_cursors.rows_of(latest)
        with self._write() as connection:
            stored_cursors.save(connection, latest, rows, now_ms)

    def letters(self, number: int, after: Position | None = None, limit: int = 100) -> Sequence[DeadLetter]:
        with self._read() as connection:
            return stored_cursors.letters(connection, number, after, limit)

    def count_letters(self, numbers: Sequence[int]) -> Mapping[int, int]:
        with self._read() as connection:
            return stored_cursors.count_letters(connection, numbers)

    def retry_letters(self, number: int, places: Sequence[Position]) -> Sequence[Position]:
        with self._write() as connection:
            return stored_cursors.retry(connection, number, places)

    def clear_letters(self, number: int) -> int:
        with self._write() as connection:
            return stored_cursors.clear(connection, number)

    def known_ends(self) -> Offsets:
        with self._read() as connection:
            return _known_ends(_read_counters(connection))

    def set_cursors_back(self, ends: Offsets) -> int:
        with self._write() as connection:
            return restored.set_cursors_back(connection, ends)

    def raise_revision(self, to: int) -> None:
        with self._write() as connection:
            restored.raise_revision(connection, to)

    def _prepare(self) -> None:
        """Create or upgrade the tables unless they are as they should be; refuse what is no registry."""
        with self._read() as connection:
            if self._format(connection) == tables.FORMAT:
                return
        with self._write() as connection:
            format = self._format(connection)
            if format is None:
                tables.create(connection)
            elif format < tables.FORMAT:
                tables.upgrade(connection, format)

    def _format(self, connection: sa.Connection) -> int | None:
        """The format of the tables that are there, if there are any."""
        present = sa.inspect(connection).get_table_names()
        if not present:
            return None
        if _counters.name not in present:
            raise FormatError(f"{self._url} is not a registry")
        format = _counter(connection, tables.FORMAT_COUNTER)
        if not 1 <= format <= tables.FORMAT:
            raise FormatError(f"{self._url} is not a registry of format {tables.FORMAT}")
        return format

    def _check_kept(self, connection: sa.Connection, revision: int) -> None:
        purged = _counter(connection, PURGED)
        if revision < purged:
            raise RegistryError(f"{self._url} keeps the history from revision {purged} on, not {revision}")


def _write_batch(connection: sa.Connection, batch: ChangeBatch, counters: Mapping[str, int]) -> None:
    gone = [{"in_space": space, "with_id": id} for (space, id), stood in batch.touched.items() if stood]
    rows = [_row_of(batch.standing[key]) for key in batch.touched if key in batch.standing]
    begins = [
        {"begun": number, "in_partition": at.partition, "at": at.offset, "at_index": at.index}
        for number, positions in batch.begun.items()
        for at in positions
    ]
    for statement, values in (
        (_delete_subscription, gone),
        (sa.insert(_subscriptions), rows),
        (_close_version, batch.closings),
        (sa.insert(_versions), list(batch.versions.values())),
        (stored_cursors.BEGIN, begins),
        (stored_pasts.INSERT, list(batch.pasts.values())),
        (stored_pasts.DELETE, [{"of": number} for number in batch.ended_pasts]),
    ):
        if values:
            connection.execute(statement, values)
    changed = {REVISION: batch.revision, NUMBER: batch.number}
    for partition, end in enumerate(batch.ends):
        name = tables.end_counter(partition)
        if end > counters.get(name, -1):
            changed[name] = end
    _write_counters(connection, changed, counters)


_SUBSCRIPTION_FIELDS = ("id", "space", "filter", "dialect", "number", "revision", "cost")
_DELIVERY_FIELDS = ("valid_from", "further", "delivery", "start")
_select_subscriptions = sa.select(
    *(_subscriptions.c[name] for name in (*_SUBSCRIPTION_FIELDS, *_DELIVERY_FIELDS))
)
_delete_subscription = sa.delete(_subscriptions).where(
    _subscriptions.c.space == sa.bindparam("in_space"),
    _subscriptions.c.id == sa.bindparam("with_id"),
)
_close_version = sa.update(_versions).where(_versions.c.revision == sa.bindparam("ended"))
_after, _to = sa.bindparam("after", type_=sa.BigInteger), sa.bindparam("to", type_=sa.BigInteger)
_select_puts = (
    sa.select(
        *(_versions.c[name] for name in ("revision", "space", "number", "filter", "dialect", "compiled"))
    )
    .where(_versions.c.revision > _after, _versions.c.revision <= _to)
    .order_by(_versions.c.revision)
)
_select_removals = (
    sa.select(_versions.c.closed_revision, _versions.c.space, _versions.c.number)
    .where(
        _versions.c.removed,
        _versions.c.closed_revision > _after,
        _versions.c.closed_revision <= _to,
    )
    .order_by(_versions.c.closed_revision)
)
_known_end = sa.case(
    (_versions.c.closed_revision <= sa.bindparam("revision"), _versions.c.closed_revision),
    else_=OPEN_END,
)
_select_versions = (
    sa.select(
        _versions.c.revision,
        _versions.c.space,
        _versions.c.number,
        _known_end,
        _versions.c.filter,
        _versions.c.dialect,
        _versions.c.compiled,
    )
    .where(
        _versions.c.revision > _after,
        _versions.c.revision <= sa.bindparam("revision"),
        _known_end > sa.bindparam("floor"),
    )
    .order_by(_versions.c.revision)
    .limit(_PAGE_ROWS)
)
_select_purgeable = (
    sa.select(_versions.c.revision, _versions.c.number, _versions.c.removed)
    .where(_versions.c.closed_revision <= sa.bindparam("before"))
    .limit(_PURGED_AT_ONCE)
)
_delete_version = sa.delete(_versions).where(_versions.c.revision == sa.bindparam("gone"))
_select_counter = sa.select(_counters.c.value).where(_counters.c.name == sa.bindparam("counter"))
_update_counter = (
    sa.update(_counters)
    .where(_counters.c.name == sa.bindparam("counter"))
    .values(value=sa.bindparam("new_value"))
)


def _subscription_of(row: Any) -> Subscription:
    *fields, first, further, delivery, start = row
    valid_from = (first, *(_further_decoder.decode(further) if further else ()))
    return Subscription(
        **dict(zip(_SUBSCRIPTION_FIELDS, fields, strict=True)),
        valid_from=valid_from,
        delivery=_delivery_decoder.decode(delivery) if delivery else _NO_SETTINGS,
        start=positions_of(start) if start else None,
    )


def _row_of(subscription: Subscription) -> dict[str, Any]:
    first, *further = subscription.valid_from
    row = {name: getattr(subscription, name) for name in _SUBSCRIPTION_FIELDS}
    delivery = subscription.delivery.changed()
    return row | {
        "valid_from": first,
        "further": msgspec.msgpack.encode(further) if further else None,
        "delivery": msgspec.json.encode(delivery).decode() if delivery else None,
        "start": positions_text(subscription.start) if subscription.start else None,
    }


def _counter(connection: sa.Connection, name: str) -> int:
    value: int = connection.execute(_select_counter, {"counter": name}).scalar_one()
    return value


def _read_counters(connection: sa.Connection) -> dict[str, int]:
    """The counters, locked until the transaction ends where the database locks rows."""
    rows = connection.execute(sa.select(_counters.c.name, _counters.c.value).with_for_update())
    return {row.name: row.value for row in rows}


def _write_counters(
    connection: sa.Connection, values: dict[str, int], known: Mapping[str, int] | None = None
) -> None:
    new = [] if known is None else [name for name in values if name not in known]
    if new:
        connection.execute(sa.insert(_counters), [{"name": name, "value": values[name]} for name in new])
    connection.execute(
        _update_counter,
        [{"counter": name, "new_value": value} for name, value in values.items() if name not in new],
    )


def _known_ends(counters: Mapping[str, int]) -> Offsets:
    ends: list[int] = []
    while (name := tables.end_counter(len(ends))) in counters:
        ends.append(counters[name])
    return tuple(ends)


def _standing(
    connection: sa.Connection, changes: Sequence[Put | Configure | Remove]
) -> dict[tuple[str, str], Subscription]:
    """The subscriptions that the changes name, as they stand."""
    ids_of: dict[str, set[str]] = {}
    for change in changes:
        ids_of.setdefault(change.space, set()).add(change.id)
    standing = {}
    for space, ids in ids_of.items():
        in_order = sorted(ids)
        for first in range(0, len(in_order), _IDS_A_QUERY):
            some = in_order[first : first + _IDS_A_QUERY]
            query = _select_subscriptions.where(
                _subscriptions.c.space == space, _subscriptions.c.id.in_(some)
            )
            for row in connection.execute(query):
                standing[space, row.id] = _subscription_of(row)
    return standing
