"""Delayed records in memory: a naive implementation, which tests open repeatedly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fieldfare.storage.delayed import TAKEN_MAX_RECORDS, DueRecord, StoredDelayed, Waiting
from fieldfare.storage.event_log import NewRecord


@dataclass
class Row:
    id: int
    due_ms: int
    record: NewRecord
    taken: tuple[str, int] | None = None


@dataclass
class Disk:
    """The data that is left when a process ends."""

    rows: dict[int, Row] = field(default_factory=dict)
    seen: dict[tuple[str, str, int], tuple[StoredDelayed, bytes, int]] = field(default_factory=dict)
    last_id: int = 0
    opened: int = 0


class MemoryDelayed:
    """See `DelayedRecords`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        disk.opened += 1
        self._name, self._turn, self._space = f"memory {disk.opened}", 0, ""

    def keep(self, records: Sequence[tuple[NewRecord, int]], now_ms: int) -> list[StoredDelayed]:
        for record, _ in records:
            record.check()
        return [self._keep(record, due_ms, now_ms) for record, due_ms in records]

    def _keep(self, record: NewRecord, due_ms: int, now_ms: int) -> StoredDelayed:
        disk = self._disk
        key = None
        if record.producer is not None and record.sequence is not None:
            key = (record.space, record.producer, record.sequence)
            if key in disk.seen:
                first, payload, _ = disk.seen[key]
                differs = payload != record.payload
                return StoredDelayed(first.id, first.due_ms, first.count, duplicate=True, differs=differs)
        disk.last_id += 1
        disk.rows[disk.last_id] = Row(disk.last_id, due_ms, record)
        kept = StoredDelayed(disk.last_id, due_ms, record.count)
        if key is not None:
            disk.seen[key] = (kept, record.payload, max(now_ms, due_ms))
        return kept

    def _free(self) -> list[Row]:
        rows = [row for row in self._disk.rows.values() if row.taken is None]
        return sorted(rows, key=lambda row: (row.due_ms, row.id))

    def _due(self, now_ms: int, max_bytes: int) -> list[Row]:
        rows = [row for row in self._free() if row.due_ms <= now_ms]
        if len(rows) < TAKEN_MAX_RECORDS and sum(len(row.record.payload) for row in rows) <= max_bytes:
            return rows
        found: list[Row] = []
        space = self._space
        while rows:
            spaces = sorted({row.record.space for row in rows})
            space = next((each for each in spaces if each > space), spaces[0])
            found.append(next(row for row in rows if row.record.space == space))
            rows.remove(found[-1])
        return found

    def take(self, now_ms: int, max_bytes: int) -> list[DueRecord]:
        if all(row.taken is None for row in self._disk.rows.values()):
            for row in self._due(now_ms, max_bytes)[:TAKEN_MAX_RECORDS]:
                self._turn, self._space = self._turn + 1, row.record.space
                row.taken = (self._name, self._turn)
                max_bytes -= len(row.record.payload)
                if max_bytes <= 0:
                    break
        taken = [(row.taken[1], row) for row in self._disk.rows.values() if row.taken is not None]
        return [
            DueRecord(row.id, NewRecord(row.record.space, row.record.payload, row.record.count, *row.taken))
            for _, row in sorted(taken, key=lambda each: each[0])
            if row.taken is not None
        ]

    def has_kept(self, space: str, producer: str, sequence: int) -> bool:
        return (space, producer, sequence) in self._disk.seen

    def done(self, ids: Sequence[int]) -> None:
        for id in ids:
            self._disk.rows.pop(id, None)

    def next_due_ms(self) -> int | None:
        if any(row.taken is not None for row in self._disk.rows.values()):
            return 0
        return min((row.due_ms for row in self._disk.rows.values()), default=None)

    def waiting(self, space: str, after: tuple[int, int], limit: int) -> list[Waiting]:
        rows = sorted(self._disk.rows.values(), key=lambda row: (row.due_ms, row.id))
        mine = [row for row in rows if row.record.space == space and (row.due_ms, row.id) > after]
        return [_told(row) for row in mine[:limit]]

    def cancel(self, space: str, id: int) -> Waiting | None:
        row = self._disk.rows.get(id)
        if row is None or row.taken is not None or row.record.space != space:
            return None
        return _told(self._disk.rows.pop(id))

    def cancel_some(self, space: str, limit: int) -> list[Waiting]:
        mine = [row for row in self._free() if row.record.space == space][:limit]
        return [_told(self._disk.rows.pop(row.id)) for row in mine]

    def ids(self, space: str) -> tuple[int, int] | None:
        found = [id for id, row in self._disk.rows.items() if row.record.space == space]
        return (min(found), max(found)) if found else None

    def held(self) -> dict[str, tuple[int, int]]:
        held: dict[str, tuple[int, int]] = {}
        for row in self._disk.rows.values():
            records, size_bytes = held.get(row.record.space, (0, 0))
            held[row.record.space] = (records + 1, size_bytes + len(row.record.payload))
        return held

    def forget(self, before_ms: int, limit: int) -> int:
        seen = self._disk.seen
        old = [
            key
            for key, (kept, _, at_ms) in seen.items()
            if at_ms < before_ms and kept.id not in self._disk.rows
        ]
        for key in old[:limit]:
            del seen[key]
        return len(old[:limit])

    def close(self) -> None:
        pass


def _told(row: Row) -> Waiting:
    return Waiting(row.id, row.due_ms, row.record.count, len(row.record.payload))
