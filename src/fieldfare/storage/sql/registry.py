"""The registry in a SQL database, through SQLAlchemy Core; its tables are in `tables`."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import sqlalchemy as sa

from fieldfare.model import (
    COST_MAX,
    INTEREST,
    OPEN_END,
    Change,
    Cursor,
    DeadLetter,
    Offsets,
    Position,
    Subscription,
    positions_text,
)
from fieldfare.storage.changes import ChangeBatch
from fieldfare.storage.errors import FormatError, RegistryError, UnknownSpaceError
from fieldfare.storage.registry import (
    Configure,
    Conflict,
    Criteria,
    DeliveryPlace,
    Put,
    Remove,
    Replay,
    SpaceEncryption,
    SpaceUsage,
    StoredSpace,
)
from fieldfare.storage.sql import by_setting, counting, restored, searches, tables, vanished
from fieldfare.storage.sql import cursors as stored_cursors
from fieldfare.storage.sql import places as stored_places
from fieldfare.storage.sql import replays as stored_replays
from fieldfare.storage.sql import spaces as stored_spaces
from fieldfare.storage.sql.database import SqlDatabase
from fieldfare.storage.sql.row_checks import (
    SUBSCRIPTION_COLUMNS,
    add_checksums,
    intact_subscriptions,
    intact_versions,
    with_checksums,
)
from fieldfare.storage.sql.rows import Count, Number, labels_text
from fieldfare.storage.sql.tables import NUMBER, PURGED, REVISION
from fieldfare.storage.sql.tables import counters as _counters
from fieldfare.storage.sql.tables import subscriptions as _subscriptions
from fieldfare.storage.sql.tables import versions as _versions

_PAGE_ROWS = 10_000
_IDS_A_QUERY = 1_000
_PURGED_BATCH_SIZE = 1_000

_PutRow = tuple[Count, str, Number, str, str, bytes, Number | None]
_RemovalRow = tuple[Count, str, Number]
_VersionRow = tuple[Count, str, Number, str, str, bytes, Number | None, Count]


class SqlRegistry(SqlDatabase):
    """A `Registry` in a SQL database; missing tables are created.

    Parameters
    ----------
    url
        ``sqlite:///PATH`` with the literal, unquoted path; or the URL of another database for SQLAlchemy.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._copied: dict[int, stored_cursors.Offsets] = {}
        """The copies of cursors that this process has stored, by subscription number."""

    def _subscriptions_of(self, rows: Iterable[Any]) -> list[Subscription]:
        return self._unusable.subscriptions(intact_subscriptions(self._path, rows))

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
            return sorted(name for name in stored_spaces.names(connection) if isinstance(name, str))

    def has_space(self, name: str) -> bool:
        return name in self.spaces()

    def key_of_space(self, name: str) -> str:
        for space in self.stored_spaces():
            if space.name == name:
                return space.key
        raise UnknownSpaceError(name)

    def stored_spaces(self) -> list[StoredSpace]:
        with self._read() as connection:
            return stored_spaces.stored(connection, self._path, self._unusable)

    def set_quotas(self, key: str, quotas: Mapping[str, float]) -> None:
        with self._write() as connection:
            stored_spaces.set_quotas(connection, key, quotas)

    def apply(
        self, changes: Sequence[Put | Configure | Remove], ends: Offsets, now_ms: int
    ) -> list[Subscription | Conflict | None]:
        with self._write() as connection:
            return self.apply_in(connection, changes, ends, now_ms)

    def apply_in(
        self,
        connection: sa.Connection,
        changes: Sequence[Put | Configure | Remove],
        ends: Offsets,
        now_ms: int,
    ) -> list[Subscription | Conflict | None]:
        """Apply changes in the caller's transaction: see `Registry.apply`."""
        counters = counting.read_all(connection, self._unusable)
        standing = self.standing(connection, changes)
        batch = ChangeBatch(ends, now_ms, standing, counters[REVISION], counters[NUMBER])
        spaces = stored_spaces.keys(connection)
        results = []
        for change in changes:
            if isinstance(change, Put) and change.space not in spaces:
                raise UnknownSpaceError(change.space)
            results.append(batch.apply(change))
        if batch.touched:
            write_batch(connection, batch, counters)
        return results

    def get(self, space: str, id: str) -> Subscription | None:
        table = _subscriptions.c
        with self._read() as connection:
            row = connection.execute(
                _select_subscriptions.where(table.space == space, table.id == id)
            ).first()
        whole = next(intact_subscriptions(self._path, [] if row is None else [row]), None)
        return None if whole is None else self._unusable.subscription(whole)

    def list(self, space: str, after: str | None = None, limit: int = 100) -> list[Subscription]:
        table = _subscriptions.c
        query = _select_subscriptions.where(table.space == space).order_by(table.id).limit(limit)
        while True:
            with self._read() as connection:
                page = query if after is None else query.where(table.id > after)
                rows = connection.execute(page).all()
            found = self._subscriptions_of(rows)
            if found or not rows:
                return found
            after = rows[-1].id

    def search(
        self, space: str, after: str | None, criteria: Criteria, searched: int, limit: int
    ) -> tuple[Sequence[Subscription], str | None]:
        table = _subscriptions.c
        with self._read() as connection:
            ids, last = searches.search(connection, space, after, criteria, searched, limit)
            rows = _rows_with(connection, table.id, ids, table.space == space)
        found = sorted(self._subscriptions_of(rows), key=attrgetter("id"))
        return [each for each in found if criteria.has_labels(each)], last

    def labelled(
        self, space: str, criteria: Criteria, limit: int, among: Sequence[int] | None = None
    ) -> Sequence[int] | None:
        with self._read() as connection:
            return searches.labelled(connection, space, criteria, limit, among)

    def places(self, space: str, after: str | None = None, limit: int = 100) -> Sequence[DeliveryPlace]:
        with self._read() as connection:
            return stored_places.places(connection, self._unusable, space, after, limit)

    def by_number(self, numbers: Sequence[int]) -> Mapping[int, Subscription]:
        with self._read() as connection:
            rows = _rows_with(connection, _subscriptions.c.number, numbers)
        return {each.number: each for each in self._subscriptions_of(rows)}

    def pushed(self, after: tuple[str, str] = ("", ""), limit: int = 1000) -> Sequence[Subscription]:
        while True:
            with self._read() as connection:
                query = by_setting.with_setting(_select_subscriptions, "push", after, limit)
                rows = connection.execute(query).all()
            found = [each for each in self._subscriptions_of(rows) if each.delivery.push is not None]
            if found or not rows:
                return found
            after = rows[-1].space, rows[-1].id

    def expiring(
        self, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> Sequence[tuple[Subscription, int]]:
        with_notes = _select_subscriptions.add_columns(by_setting.UNUSED)
        while True:
            with self._read() as connection:
                query = by_setting.with_setting(with_notes, "expires_unused_s", after, limit)
                rows = connection.execute(query).all()
            noted = {(row.space, row.id): row.unused_s for row in rows}
            subscriptions = self._subscriptions_of(row[:-1] for row in rows)
            found = [
                (each, by_setting.noted_s(noted[each.space, each.id]))
                for each in subscriptions
                if each.delivery.expires_unused_s is not None
            ]
            if found or not rows:
                return found
            after = rows[-1].space, rows[-1].id

    def note_unused(self, notes: Sequence[tuple[Subscription, int]]) -> None:
        with self._write() as connection:
            by_setting.note_unused(connection, notes)

    def count(self, space: str | None = None) -> int:
        table = _subscriptions.c
        is_wanted = table.space.not_like(f"{INTEREST}%") if space is None else table.space == space
        query = sa.select(sa.func.count()).select_from(_subscriptions).where(is_wanted)
        with self._read() as connection:
            return connection.execute(query).scalar_one()

    def held(self) -> Mapping[str, SpaceUsage]:
        table = _subscriptions.c
        query = sa.select(table.space, sa.func.count(), sa.func.sum(_cost)).group_by(table.space)
        with self._read() as connection:
            rows = self._unusable.usable("subscriptions", tuple[str, int, int], connection.execute(query))
            return {space: SpaceUsage(count, cost) for space, count, cost in rows}

    def costs(self, space: str, ids: Sequence[str]) -> Mapping[str, int]:
        table, found = _subscriptions.c, dict[str, int]()
        with self._read() as connection:
            for first in range(0, len(ids), _IDS_A_QUERY):
                some = table.id.in_(ids[first : first + _IDS_A_QUERY])
                rows = connection.execute(sa.select(table.id, _cost).where(table.space == space, some))
                found.update((id, cost) for id, cost in rows)
        return found

    def revision(self) -> int:
        with self._read() as connection:
            return self._counter(connection, REVISION)

    def changes(self, after: int, to: int) -> Iterator[Change]:
        while after < to:
            page = min(after + _PAGE_ROWS, to)
            with self._read() as connection:
                self._check_kept(connection, after)
                between = {"after": after, "to": page}
                put_rows = intact_versions(self._path, connection, connection.execute(_select_puts, between))
                puts = [_version(row) for row in self._unusable.usable("versions", _PutRow, put_rows)]
                removal_rows = connection.execute(_select_removals, between)
                removals = [
                    Change(revision, space, number, None)
                    for revision, space, number in self._unusable.usable(
                        "versions", _RemovalRow, removal_rows
                    )
                ]
                after = page
                if not puts and not removals and page >= self._counter(connection, REVISION):
                    return
            yield from heapq.merge(puts, removals, key=attrgetter("revision"))

    def versions(self, revision: int, floor: int) -> Iterator[Change]:
        after = 0
        while True:
            values = {"revision": revision, "floor": floor, "after": after}
            with self._read() as connection:
                self._check_kept(connection, revision)
                rows = connection.execute(_select_versions, values).all()
                whole = list(intact_versions(self._path, connection, rows))
            for row in self._unusable.usable("versions", _VersionRow, whole):
                yield _version(row, row[7])
            if len(rows) < _PAGE_ROWS:
                return
            after = rows[-1].revision

    def purge(self, before: int) -> int:
        with self._read() as connection:
            before = min(before, self._counter(connection, REVISION))
            purged = self._counter(connection, PURGED)
        if before > purged:
            # First: from now on, reads of older history are refused.
            with self._write() as connection:
                counting.write(connection, {PURGED: before})
        removed = 0
        while True:
            with self._read() as connection:
                gone = connection.execute(_select_purgeable, {"before": before}).all()
            if gone:
                # In short transactions: concurrent subscribes and acks wait for each of them.
                with self._write() as connection:
                    connection.execute(_delete_version, [{"gone": row.revision} for row in gone])
                    stored_cursors.delete(connection, [row.number for row in gone if row.removed])
            removed += len(gone)
            if len(gone) < _PURGED_BATCH_SIZE:
                return removed

    def replays(self, *, only_open: bool = False) -> Sequence[Replay]:
        with self._read() as connection:
            return stored_replays.listed(connection, self._path, self._unusable, only_open=only_open)

    def replay(self, number: int) -> Replay | None:
        with self._read() as connection:
            return stored_replays.get(connection, self._path, self._unusable, number)

    def count_replays(self) -> int:
        with self._read() as connection:
            return stored_replays.count(connection)

    def count_open_replays(self, space: str) -> int:
        with self._read() as connection:
            return stored_replays.count_open(connection, space)

    def mark_replay(self, number: int, *, matched: bool) -> None:
        with self._write() as connection:
            stored_replays.mark(connection, number, matched=matched)

    def forget_replay(self, number: int) -> None:
        with self._write() as connection:
            stored_replays.delete(connection, number)

    def load_cursors(self, numbers: Sequence[int]) -> Mapping[int, Cursor]:
        with self._read() as connection:
            return stored_cursors.load(connection, self._path, self._unusable, numbers)

    def save_cursors(self, cursors: Sequence[tuple[int, Cursor]], now_ms: int = 0) -> None:
        latest = dict(cursors)
        if not latest:
            return
        rows = stored_cursors.rows_of(latest)
        uncopied: dict[int, stored_cursors.Offsets] = {}
        for number, cursor in latest.items():
            if not self._is_copied(number, cursor):
                uncopied[number] = {place.partition: place.offset for place in cursor.positions}
        with self._write() as connection:
            stored_cursors.save(connection, latest, rows, now_ms)
            if uncopied:
                stored_cursors.save_copies(connection, uncopied)
        self._copied.update(uncopied)

    def _is_copied(self, number: int, cursor: Cursor) -> bool:
        """Return whether the copy of a cursor that this process has stored is not after the cursor."""
        copied, places = self._copied.get(number), cursor.positions
        return (
            copied is not None
            and copied.keys() == {place.partition for place in places}
            and all(place.offset >= copied[place.partition] for place in places)
        )

    def letters(self, number: int, after: Position | None = None, limit: int = 100) -> Sequence[DeadLetter]:
        with self._read() as connection:
            return stored_cursors.letters(connection, self._path, self._unusable, number, after, limit)

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
        with self._write() as connection:
            return _known_ends(counting.read_all(connection, self._unusable))

    def set_cursors_back(self, ends: Offsets) -> int:
        with self._write() as connection:
            return restored.set_cursors_back(connection, ends)

    def has_vanished(self) -> bool:
        with self._read() as connection:
            return vanished.has_any(connection)

    def mend_vanished(self) -> None:
        if not self.has_vanished():
            return
        with self._write() as connection:
            vanished.mend(connection, self._path)

    def raise_revision(self, to: int) -> None:
        with self._write() as connection:
            counters = counting.read_all(connection, self._unusable)
            counting.write(connection, {name: max(counters[name], to) for name in (REVISION, PURGED)})

    def _prepare(self) -> None:
        """Create, upgrade or repair the tables if needed; FormatError if the file is not a registry."""
        with self._read() as connection:
            is_right = self._format(connection) == tables.FORMAT and not counting.is_wrong(connection)
            if (
                is_right
                and tables.has_numbers(connection)
                and not stored_spaces.is_deletion_wrong(connection)
            ):
                return
        with self._write() as connection:
            format = self._format(connection)
            if format is None:
                tables.create(connection)
            elif format < tables.FORMAT:
                tables.upgrade(connection, format)
            tables.NUMBERS.create(connection, checkfirst=True)
            if format != tables.FORMAT:
                add_checksums(connection, _counters)
                add_checksums(connection, tables.gone_spaces)
            counting.mend(connection, self._unusable)
            stored_spaces.mend_deletions(connection, self._path)

    def _format(self, connection: sa.Connection) -> int | None:
        """Return the format of the existing tables; None if there are no tables."""
        present = sa.inspect(connection).get_table_names()
        if not present:
            return None
        if _counters.name not in present:
            raise FormatError(
                f"{self._url} is not a registry: it holds the tables of another program; use another path"
            )
        format = counting.format_of(connection)
        if format is None or not 1 <= format <= tables.FORMAT:
            raise FormatError(
                f"{self._url} is not a registry of formats 1 to {tables.FORMAT}, but of format {format!r}:"
                " restore the file, or start the fieldfare that wrote it"
            )
        return format

    def standing(
        self, connection: sa.Connection, changes: Sequence[Put | Configure | Remove]
    ) -> dict[tuple[str, str], Subscription]:
        """Return the current subscriptions that the changes name, in a transaction.

        Deletes an unusable row that is to be replaced or removed.
        """
        ids_of: dict[str, set[str]] = {}
        for change in changes:
            ids_of.setdefault(change.space, set()).add(change.id)
        rows: list[Any] = []
        for space, ids in ids_of.items():
            rows += _rows_with(connection, _subscriptions.c.id, sorted(ids), _subscriptions.c.space == space)
        standing = {(each.space, each.id): each for each in self._subscriptions_of(rows)}
        replaced = {(each.space, each.id) for each in changes if not isinstance(each, Configure)}
        unusable = replaced.intersection((row.space, row.id) for row in rows) - standing.keys()
        if unusable:
            gone = [{"in_space": space, "with_id": id} for space, id in sorted(unusable)]
            connection.execute(_delete_subscription, gone)
        return standing

    def _counter(self, connection: sa.Connection, name: str) -> int:
        """Return a counter, after repairs if it is corrupt."""
        found = counting.read(connection, name)
        if found is not None:
            return found
        with self._write() as writing:
            return counting.read_all(writing, self._unusable)[name]

    def _check_kept(self, connection: sa.Connection, revision: int) -> None:
        purged = self._counter(connection, PURGED)
        if revision < purged:
            raise RegistryError(f"{self._url} keeps the history from revision {purged} on, not {revision}")


def _rows_with(
    connection: sa.Connection, column: sa.Column[Any], values: Sequence[Any], *conditions: Any
) -> list[Any]:
    """Return the rows of subscriptions with one of `values` in a column."""
    return [
        row
        for first in range(0, len(values), _IDS_A_QUERY)
        for row in connection.execute(
            _select_subscriptions.where(*conditions, column.in_(values[first : first + _IDS_A_QUERY]))
        )
    ]


def write_batch(connection: sa.Connection, batch: ChangeBatch, counters: Mapping[str, int]) -> None:
    """Write the rows of a batch of changes, and the counters, in a transaction."""
    gone = [{"in_space": space, "with_id": id} for (space, id), stood in batch.touched.items() if stood]
    rows = [_row_of(batch.standing[key]) for key in batch.touched if key in batch.standing]
    searches.write(
        connection,
        batch.touched.values(),
        [batch.standing[key] for key in batch.touched if key in batch.standing],
    )
    begins = [
        stored_cursors.begin(number, at) for number, positions in batch.begun.items() for at in positions
    ]
    for statement, values in (
        (_delete_subscription, gone),
        (sa.insert(_subscriptions), with_checksums(_subscriptions, rows)),
        (_close_version, batch.closings),
        (sa.insert(_versions), with_checksums(_versions, batch.versions.values())),
        (stored_cursors.BEGIN, begins),
        (stored_replays.INSERT, with_checksums(tables.replays, batch.replays.values())),
        (stored_replays.DELETE, [{"of": number} for number in batch.ended_replays]),
    ):
        if values:
            connection.execute(statement, values)
    changed = {REVISION: batch.revision, NUMBER: batch.number}
    for partition, end in enumerate(batch.ends):
        name = tables.end_counter(partition)
        if end > counters.get(name, -1):
            changed[name] = end
    counting.write(connection, changed, new=changed.keys() - counters.keys())


_SUBSCRIPTION_FIELDS = ("id", "space", "filter", "dialect", "number", "revision", "cost")
# Rows of versions without a bound on costs may have any cost.
_cost = sa.case(
    (_subscriptions.c.cost > COST_MAX, COST_MAX), (_subscriptions.c.cost < 1, 1), else_=_subscriptions.c.cost
).label("cost")
_select_subscriptions = sa.select(
    *(_cost if name == "cost" else _subscriptions.c[name] for name in SUBSCRIPTION_COLUMNS)
)
_delete_subscription = sa.delete(_subscriptions).where(
    _subscriptions.c.space == sa.bindparam("in_space"),
    _subscriptions.c.id == sa.bindparam("with_id"),
)
_close_version = sa.update(_versions).where(_versions.c.revision == sa.bindparam("ended"))
_VERSION_FIELDS = ("revision", "space", "number", "filter", "dialect", "compiled", "destination")
_after, _to = sa.bindparam("after", type_=sa.BigInteger), sa.bindparam("to", type_=sa.BigInteger)
_select_puts = (
    sa.select(
        *(_versions.c[name] for name in _VERSION_FIELDS),
        *(_versions.c.checksum, _versions.c.compiled_checksum),
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
        *(_versions.c[name] for name in _VERSION_FIELDS),
        *(_known_end, _versions.c.checksum, _versions.c.compiled_checksum),
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
    .limit(_PURGED_BATCH_SIZE)
)
_delete_version = sa.delete(_versions).where(_versions.c.revision == sa.bindparam("gone"))


def _version(row: Sequence[Any], closed_by: int = OPEN_END) -> Change:
    """Return the version in a row that begins with `_VERSION_FIELDS`."""
    revision, space, number, text, dialect, compiled, destination = row[:7]
    return Change(revision, space, number, text, dialect, compiled, closed_by, destination)


def _row_of(subscription: Subscription) -> dict[str, Any]:
    first, *further = subscription.valid_from
    row = {name: getattr(subscription, name) for name in _SUBSCRIPTION_FIELDS}
    delivery = subscription.delivery.changed()
    return row | {
        "valid_from": first,
        "further": msgspec.msgpack.encode(further) if further else None,
        "delivery": msgspec.json.encode(delivery).decode() if delivery else None,
        "start": positions_text(subscription.start) if subscription.start else None,
        "owner": subscription.owner or None,
        "labels": labels_text(subscription.labels),
    }


def _known_ends(counters: Mapping[str, int]) -> Offsets:
    ends: list[int] = []
    while (name := tables.end_counter(len(ends))) in counters:
        ends.append(counters[name])
    return tuple(ends)
