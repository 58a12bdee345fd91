"""The state of a delivery at one moment: as it is saved, and as it is restored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fieldfare.delivery.attempts import Attempts, Letter
from fieldfare.delivery.keys import PARTITION_SHIFT, key_of, keys_at, position_of
from fieldfare.delivery.partition_delivery import Run, united
from fieldfare.model import Cursor, DeadLetter, Offsets, Position


@dataclass(frozen=True, slots=True)
class CursorSnapshot:
    """The state of a delivery at one moment: cheap to take; the `Cursor` is computed from it later."""

    version: int
    cursor_keys: tuple[int, ...]
    runs: tuple[Run, ...]
    given_to: tuple[int, ...]
    counts: tuple[tuple[int, int], ...]
    letters: tuple[Letter, ...]
    settled: tuple[tuple[int, object], ...]

    def cursor(self) -> Cursor:
        """Return the cursor to save: no acked message is redelivered, and none exceeds its attempts."""
        cursors = {key >> PARTITION_SHIFT: key for key in self.cursor_keys}
        runs = united(run for run in self.runs if run[1] >= cursors[run[1] >> PARTITION_SHIFT])
        given_to = self.given_to if self.given_to != self.cursor_keys else ()
        return Cursor(
            tuple(map(position_of, self.cursor_keys)),
            tuple((position_of(first), position_of(last)) for first, last in runs),
            tuple(map(position_of, given_to)),
            tuple((position_of(key), count) for key, count in sorted(self.counts)),
            letters=tuple(DeadLetter(position_of(e.key), e.attempts, e.reason) for e in self.letters),
            settled=tuple(position_of(key) for key, _ in self.settled),
        )


def with_start(cursor: Cursor | None, start: Sequence[Position]) -> Cursor | None:
    """Return a saved cursor that begins at ``start`` in the partitions in which it has no position."""
    known = {place.partition for place in cursor.positions} if cursor is not None else set[int]()
    missing = [place for place in start if place.partition not in known]
    if not missing:
        return cursor
    cursor = cursor or Cursor(())
    return replace(cursor, positions=tuple(sorted((*cursor.positions, *missing))))


def restored(
    cursor: Cursor | None, begins: Offsets
) -> tuple[Iterable[int], Iterable[Run], Iterable[int], Attempts | None]:
    """Return the arguments for a `Delivery` that resumes from a saved cursor.

    Without a cursor, or in a partition without a position in it, delivery begins with the record ``begins``.
    """
    keys = dict(enumerate(keys_at(begins)))
    if cursor is None:
        return keys.values(), (), (), None
    keys |= {place.partition: key_of(place) for place in cursor.positions if place.partition in keys}
    runs = [(key_of(first), key_of(last)) for first, last in cursor.acked]
    tries = Attempts(
        ((key_of(place), count) for place, count in cursor.attempts), map(key_of, cursor.retried)
    )
    return keys.values(), runs, map(key_of, cursor.given), tries
