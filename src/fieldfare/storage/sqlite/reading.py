"""A reader of records that skips damage: unreadable pages, and bytes that differ from those written.

A record that cannot be read, or whose checksum is wrong, is left out as if its offset had never had a record,
and a corruption note names it (see `storage.corruption`). An offset without a record also counts as damage
unless retention removed it or ``holes`` lists it: every other offset was assigned to a record.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from struct import error as StructError
from typing import Any

from crc32c import crc32c

from fieldfare.storage.checksums import record_checksum
from fieldfare.storage.corruption import note_corruption
from fieldfare.storage.event_log import Record
from fieldfare.storage.sqlite.connections import SqliteConnections, is_damage

CHUNK_RECORDS = 1_024
STAMPS_TRIED_MAX = 100_000
"""Maximum stamps tried for a record whose checksum is wrong; the range between two rows of ``stamps`` is
larger only if one of them is corrupt. Beyond it, the record counts as corrupt."""

STAMP_AT = "coalesce((SELECT stamp FROM stamps WHERE start <= {} ORDER BY start DESC LIMIT 1), 0)"
_READ = f"""SELECT offset, space, count, appended_ms, events_end, bytes_end, {STAMP_AT.format("offset")},
    checksum, origin, payload FROM records WHERE offset >= ? AND offset < ? ORDER BY offset LIMIT ?"""
_HOLES = "SELECT start, end FROM holes WHERE end > ? AND start < ? ORDER BY start"
_STAMPS_NEAR = """SELECT
    coalesce((SELECT min(stamp) FROM (
        SELECT stamp FROM stamps WHERE start <= ?1 ORDER BY start DESC LIMIT 2)), 0),
    coalesce((SELECT stamp FROM stamps WHERE start > ?1 ORDER BY start LIMIT 1), 0)"""

_Row = tuple[Any, ...]


class RecordReader:
    """A reader of the records in one log's file.

    Parameters
    ----------
    path
        The file.
    connections
        Connections to it.
    """

    def __init__(self, path: Path, connections: SqliteConnections) -> None:
        self._path = path
        self._connections = connections

    def read(self, start: int, end: int) -> tuple[list[Record], int]:
        """Return the first records of a range, and the offset before which they are complete."""
        try:
            rows = self._rows(start, end, CHUNK_RECORDS)
            read_to = rows[-1][0] + 1 if len(rows) == CHUNK_RECORDS else end
            missing = self._missing(rows, start, read_to)
        except (sqlite3.Error, MemoryError) as error:
            if not self._is_damage(error):
                raise
            rows, read_to, missing = [], end, [(start, end)]
        records = [record for row in rows if (record := self._checked(row)) is not None]
        if not missing and len(records) == len(rows):
            return records, read_to
        reason = "it has changed on the disk"
        for first, last in missing:
            found, reached, why = self._pick(first, last)
            records += filter(None, map(self._checked, found))
            reason = why or reason
            if reached < last:
                read_to = min(read_to, reached)
        known = {each.offset: each for each in records if start <= each.offset < read_to}
        in_order = sorted(known.items())
        self._note(self._missing(in_order, start, read_to), reason)
        return [record for _, record in in_order], read_to

    def _checked(self, row: _Row) -> Record | None:
        """Return the record of a row; None if it is corrupt."""
        offset, space, count, appended_ms, events_end, bytes_end, stamp, expected, origin, payload = row
        record = Record(offset, space, count, payload, appended_ms, stamp, origin)
        if expected is None:
            return record if isinstance(payload, bytes) and isinstance(count, int) else None
        head = offset, space, count, appended_ms, events_end, bytes_end
        try:
            of_payload = crc32c(payload)
            if record_checksum(*head, stamp, of_payload, origin) == expected:
                return record
            # The record may be intact and the row of ``stamps`` that gives its stamp corrupt.
            for other in self._stamps_near(offset):
                if record_checksum(*head, other, of_payload, origin) == expected:
                    return replace(record, stamp=other)
        except (TypeError, AttributeError, StructError):
            pass  # A value has another type than the one written.
        return None

    def _rows(self, start: int, end: int, limit: int) -> list[_Row]:
        # Fetch all rows: an open statement would block WAL checkpoints while the caller works.
        return self._connections.reader().execute(_READ, (start, end, limit)).fetchall()

    def _pick(self, start: int, end: int) -> tuple[list[_Row], int, str]:
        """Read a range row by row; return the readable rows, the offset reached and the last read error."""
        rows: list[_Row] = []
        at, steps, reason = start, 0, ""
        while at < end and steps < CHUNK_RECORDS:
            steps += 1
            try:
                found = self._rows(at, end, 1)
            except (sqlite3.Error, MemoryError) as error:
                if not self._is_damage(error):
                    raise
                reason = str(error)
                at += 1
                continue
            if not found:
                return rows, end, reason
            rows += found
            at = max(at, found[0][0]) + 1
        return rows, at, reason

    def _is_damage(self, error: Exception) -> bool:
        return is_damage(error, self._path)

    def _missing(self, rows: Sequence[_Row], start: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges of offsets whose rows are missing."""
        gaps: list[tuple[int, int]] = []
        if len(rows) == end - start and (not rows or (rows[0][0] == start and rows[-1][0] == end - 1)):
            return gaps
        at = start
        for row in rows:
            if row[0] > at:
                gaps.append((at, row[0]))
            at = row[0] + 1
        if at < end:
            gaps.append((at, end))
        return list(self._without_holes(gaps)) if gaps else gaps

    def _without_holes(self, gaps: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        reader = self._connections.reader()
        kept_from = int(reader.execute("SELECT start FROM trimmed").fetchone()[0])
        for first, last in gaps:
            first = max(first, kept_from)
            for hole_start, hole_end in reader.execute(_HOLES, (first, last)).fetchall():
                if first < hole_start:
                    yield first, hole_start
                first = max(first, hole_end)
            if first < last:
                yield first, last

    def _stamps_near(self, offset: int) -> range:
        low, high = self._connections.reader().execute(_STAMPS_NEAR, (offset,)).fetchone()
        return range(low, min(max(high, low + 1_000), low + STAMPS_TRIED_MAX) + 1)

    def _note(self, ranges: list[tuple[int, int]], reason: str) -> None:
        for start, end in ranges:
            which = f"record {start}" if end == start + 1 else f"records {start} to {end - 1}"
            note_corruption(
                self._path,
                f"record-{start}",
                f"{which} cannot be read ({reason}) and its events are no longer delivered; publish them"
                " again if you have them",
                (start, end),
            )
