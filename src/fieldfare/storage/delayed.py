"""Records that wait for their time before they are appended to the log: durable before they are acknowledged.

    kept ──▶ taken, with a producer and a sequence ──▶ appended with these ──▶ done
         └─▶ cancelled

Whoever takes records appends them to the log and says that it is done. Between any two of these steps it may
be killed: what was taken and is not done is taken again, with the same producer and sequence, which the log
takes for the repeat that it is. So a record that was kept is in the log once, whatever log that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fieldfare.storage.event_log import NewRecord

TAKEN_MAX_RECORDS = 500
"""Records that are taken and not done, at most: a log remembers that many sequences of a producer."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of a record that was to be kept: its own, or the first one's where it is a repeat.

    One that `differs` has another payload than the first one; it is not kept.
    """

    id: int
    due_ms: int
    count: int
    duplicate: bool = False
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """A record that waits: when it is due, in milliseconds since 1970, and how large it is."""

    id: int
    due_ms: int
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Taken:
    """A record whose time has come, as it is to be appended."""

    id: int
    record: NewRecord


class DelayedRecords(Protocol):
    """Records that wait for their time. One process uses it."""

    def keep(self, records: Sequence[tuple[NewRecord, int]], now_ms: int) -> list[Kept]:
        """Keep records until they are due, all or none; durable on return.

        A repeat of a (space, producer, sequence) keeps nothing, also when the first one is done or cancelled,
        as long as `forget` leaves it.

        Raises
        ------
        ValueError
            A record breaks a limit of the log's; nothing was kept.
        """
        ...

    def take(self, now_ms: int, max_bytes: int) -> list[Taken]:
        """The records to append next, a space's in the order of their times; durable on return.

        First those that were taken and are not done; else those that are due, one at least, and no more than
        `TAKEN_MAX_RECORDS` and these bytes allow: when that is not all, each space's in its turn.
        """
        ...

    def has_kept(self, space: str, producer: str, sequence: int) -> bool:
        """Whether a record of this number was kept, as far as `forget` leaves it."""
        ...

    def done(self, ids: Sequence[int]) -> None:
        """These are in the log, or nobody wants them any more."""
        ...

    def next_due_ms(self) -> int | None:
        """When the next one is due; None when none waits."""
        ...

    def waiting(self, space: str, after: tuple[int, int], limit: int) -> list[Waiting]:
        """Up to ``limit`` records of a space that wait, by time and id, behind these."""
        ...

    def cancel(self, space: str, id: int) -> Waiting | None:
        """Forget a record of a space; None when there is none, or it was taken."""
        ...

    def cancel_some(self, space: str, limit: int) -> list[Waiting]:
        """Forget up to ``limit`` records of a space that are not taken; those that were."""
        ...

    def held(self) -> Mapping[str, tuple[int, int]]:
        """How many records each space has that wait, and how many bytes; one without any is not named."""
        ...

    def forget(self, before_ms: int, limit: int) -> int:
        """Forget up to ``limit`` repeats' marks of what was kept and due before a time, and waits no more."""
        ...

    def close(self) -> None:
        """Let go of connections; they are opened again when needed."""
        ...
