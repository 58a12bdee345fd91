"""Delayed records, which are appended to the log when they are due; durable before they are acknowledged.

    kept ──▶ taken, with a producer and a sequence ──▶ appended with these ──▶ done
         └─▶ cancelled

The process that takes records appends them to the log and then calls `done`. It may be killed between any two
steps: records that were taken but are not done are taken again, with the same producer and sequence, which
the log recognizes as a repeat. So every kept record is appended exactly once, to any kind of log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fieldfare.storage.event_log import NewRecord

TAKEN_MAX_RECORDS = 500
"""Maximum records that are taken but not done; a log remembers at least this many sequences of a producer."""


@dataclass(frozen=True, slots=True)
class StoredDelayed:
    """The result of keeping a record: its ID, due time and events; of a repeat, those of the first record.

    `differs` marks a repeat whose payload is not that of the first record; it is not kept.
    """

    id: int
    due_ms: int
    count: int
    duplicate: bool = False
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """A delayed record: its due time in milliseconds since 1970, its number of events and its size."""

    id: int
    due_ms: int
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DueRecord:
    """A record that is due, ready to be appended to the log."""

    id: int
    record: NewRecord


class DelayedRecords(Protocol):
    """A store of delayed records; used by one process."""

    def keep(self, records: Sequence[tuple[NewRecord, int]], now_ms: int) -> list[StoredDelayed]:
        """Keep records, each with its due time, until they are due, all or none; durable on return.

        A repeat of a (space, producer, sequence) keeps nothing, even when the first record is done or
        cancelled, until `forget` removes it.

        Raises
        ------
        ValueError
            A record exceeds a limit of the log; nothing was kept.
        """

    def take(self, now_ms: int, max_bytes: int) -> list[DueRecord]:
        """Take and return the records to append next, those of a space by due time; durable on return.

        If records are taken but not done, returns these. Otherwise takes due records: at least one, at most
        `TAKEN_MAX_RECORDS`, up to about `max_bytes`; round robin by space if more are due.
        """

    def has_kept(self, space: str, producer: str, sequence: int) -> bool:
        """Return whether a record of this producer and sequence was kept and not forgotten since."""

    def done(self, ids: Sequence[int]) -> None:
        """Remove records that were appended to the log or are no longer wanted."""

    def next_due_ms(self) -> int | None:
        """Return when the next record is due, in milliseconds since 1970; None if there is none."""

    def waiting(self, space: str, after: tuple[int, int], limit: int) -> list[Waiting]:
        """Return at most `limit` delayed records of a space, by due time and ID, after `after`."""

    def cancel(self, space: str, id: int) -> Waiting | None:
        """Remove and return a record of a space; None if there is none, or it was taken."""

    def cancel_some(self, space: str, limit: int) -> list[Waiting]:
        """Remove and return at most `limit` records of a space that are not taken."""

    def ids(self, space: str) -> tuple[int, int] | None:
        """Return the lowest and the greatest id of a space's delayed records; None if it has none.

        Records that were taken and are not done count. Ids increase in the order of `keep`.
        """

    def held(self) -> Mapping[str, tuple[int, int]]:
        """Return the number and bytes of the delayed records of each space that has any."""

    def forget(self, before_ms: int, limit: int) -> int:
        """Stop recognizing repeats of at most `limit` records; return the number of forgotten ones.

        Only records that were kept and due before a time, and are no longer delayed, are forgotten.
        """

    def close(self) -> None:
        """Close this process's connections; they are opened again when needed."""
