"""The number of pending messages of every subscription, in arrays: one row for each, ordered by number.

    number   space   pending   first_ms    letters  is_sure  cursor, by partition
    17       0       0         (none)      0        True     0-812-0
    18       0       4,031     1.7e12      2        True     0-35-3
    21       1       12        1.7e12      0        False    0-90-0

A block of the match log adds to `pending` what matches after a cursor, saved cursors take away what was
settled. Each takes time in proportion to what it changes; reading the greatest backlogs of a space takes one
pass over the rows. Nothing here reads a clock or a disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.delivery.keys import INDEX_BITS, key_at
from fieldfare.model import Offsets
from fieldfare.storage.match_log import MatchBlock

NO_TIME = np.iinfo(np.int64).max
"""`first_ms` of a subscription without pending messages."""

EARLY_MAX = 10_000
"""Maximum subscriptions whose matches are counted before they have a row; further ones are not counted."""

TIMES_MAX = 20_000
"""Maximum blocks of a partition whose times are kept; at the bound, every second one is dropped."""

_COLUMNS: dict[str, tuple[Any, Any]] = {
    "number": (np.uint32, 0),
    "space": (np.int32, -1),
    "pending": (np.int64, 0),
    "first_ms": (np.int64, NO_TIME),
    "letters": (np.int32, 0),
    "is_sure": (np.bool_, True),
}
"""The type of each column, and its value in a new row."""


class Row(NamedTuple):
    """A new row: a subscription's number, its space, its cursor's key in each partition."""

    number: int
    space: str
    cursor: tuple[int, ...]
    is_sure: bool = True
    letters: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a subscription, from its saved cursor.

    Attributes
    ----------
    number, cursor
        The subscription, and its cursor's key in each partition.
    done, is_sure
        The number of messages settled since the last one, and whether that is all.
    letters
        The number of dead letters.
    owed, read_to
        The number of messages owed, as far as the match log was read, and the offsets up to which it was.
    forgotten
        `BacklogTable.forgotten` at that time.
    """

    number: int
    cursor: tuple[int, ...]
    done: int
    is_sure: bool
    letters: int
    owed: int
    read_to: Offsets
    forgotten: int = 0


class Count(NamedTuple):
    """A count of one subscription in the match log.

    Attributes
    ----------
    number, pending, first_ms
        The subscription, its pending messages, and when the first of them was published.
    read_to
        The offsets up to which the match log was read; empty for an estimate.
    forgotten
        `BacklogTable.forgotten` before the count.
    """

    number: int
    pending: int
    first_ms: int | None
    read_to: Offsets
    forgotten: int


class Standing(NamedTuple):
    """The row of one subscription; `first_ms` is None without pending messages."""

    number: int
    space: str
    pending: int
    is_exact: bool
    first_ms: int | None
    letters: int


class Sums(NamedTuple):
    """The sums of a space: `behind` counts the subscriptions with pending messages."""

    space: str
    subscriptions: int
    behind: int
    pending: int
    is_exact: bool
    first_ms: int | None
    letters: int


class _Times:
    """The time of publishing of one partition's blocks: the first event's, by the block's end."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._times_ms: list[int] = []

    def add(self, end: int, time_ms: int) -> None:
        if self._ends and end <= self._ends[-1]:
            return
        self._ends.append(end)
        self._times_ms.append(time_ms)
        if len(self._ends) > TIMES_MAX:
            self._ends = [*self._ends[1:-1:2], self._ends[-1]]
            self._times_ms = [*self._times_ms[:-1:2], self._times_ms[-1]]

    def follow(self, before: _Times) -> None:
        """Insert the times of earlier blocks."""
        ends, times_ms = self._ends, self._times_ms
        self._ends, self._times_ms = list(before._ends), list(before._times_ms)
        for end, time_ms in zip(ends, times_ms, strict=True):
            self.add(end, time_ms)

    def at(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the time of the block that holds each record; `NO_TIME` if it is later than all."""
        places = np.searchsorted(np.array(self._ends, np.int64), offsets, side="right")
        return np.array([*self._times_ms, NO_TIME], np.int64)[places]


class _NewRows(NamedTuple):
    """Rows to insert: their columns, and their cursors' keys (int64[rows, partitions])."""

    columns: dict[str, NDArray[Any]]
    keys: NDArray[np.int64]

    def taken(self, rows: NDArray[np.int64]) -> _NewRows:
        return _NewRows({name: each[rows] for name, each in self.columns.items()}, self.keys[rows])


class BacklogTable:
    """The backlogs of all subscriptions; not safe for use by several threads.

    Parameters
    ----------
    partitions
        The number of partitions of the log.

    Attributes
    ----------
    counted_to
        The offset up to which the match log is counted, by partition; None until the rows are complete.
    is_complete
        Whether the match log is counted from all cursors on.
    forgotten
        Incremented whenever matches are taken away because retention removes their records.
    """

    def __init__(self, partitions: int) -> None:
        self._size = 0
        self._gone = 0
        self._columns: dict[str, NDArray[Any]] = {
            name: np.full(1024, first, kind) for name, (kind, first) in _COLUMNS.items()
        }
        self._cursors: list[NDArray[np.int64]] = [np.zeros(1024, np.int64) for _ in range(partitions)]
        self._bases: list[NDArray[np.int64]] = []
        """The cursors from which the match log is counted, for the rows of that time."""
        self._spaces: dict[str, int] = {}
        self._names: list[str] = []
        self._early: dict[int, int] = {}
        self._loaded: list[_NewRows] = []
        self._saved: dict[int, Progress] = {}
        """The last saved cursor of each subscription, while rows are loaded."""
        self._removed: set[int] = set()
        """Subscriptions removed while rows are loaded."""
        self._times = [_Times() for _ in range(partitions)]
        self._past_times = [_Times() for _ in range(partitions)]
        self.counted_to: list[int] | None = None
        self.is_complete = False
        self.forgotten = 0
        self._begins = [0] * partitions
        """The keys before which matches were taken away."""

    def __len__(self) -> int:
        return self._size - self._gone

    def _column(self, name: str) -> NDArray[Any]:
        return self._columns[name][: self._size]

    # Rows

    def load(self, rows: Sequence[Row]) -> None:
        """Keep rows for `begin`, in any order of their numbers."""
        self._loaded.append(self._arrays(rows))

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows; those of known subscriptions change nothing."""
        new = self._arrays(list(rows))
        numbers, first = np.unique(new.columns["number"], return_index=True)
        self._insert(new.taken(first[~self._find(numbers)[1]]))

    def _arrays(self, rows: Sequence[Row]) -> _NewRows:
        columns: dict[str, NDArray[Any]] = {
            "number": np.array([row.number for row in rows], np.uint32),
            "space": np.array([self._space(row.space) for row in rows], np.int32),
            "pending": np.array([self._early.pop(row.number, 0) for row in rows], np.int64),
            "letters": np.array([row.letters for row in rows], np.int32),
            "is_sure": np.array([row.is_sure for row in rows], np.bool_),
        }
        keys = np.array([row.cursor for row in rows], np.int64).reshape(len(rows), len(self._cursors))
        return _NewRows(columns, keys)

    def _insert(self, new: _NewRows) -> None:
        numbers, first = new.columns["number"], self._size
        if not numbers.size:
            return
        is_last = not first or numbers[0] > self._columns["number"][first - 1]
        self._grow(first + numbers.size)
        for name, values in new.columns.items():
            self._column(name)[first:] = values
        for partition, cursor in enumerate(self._cursors):
            cursor[first : self._size] = new.keys[:, partition]
        if not is_last:
            self._take(np.argsort(self._column("number"), kind="stable"))

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove subscriptions; unknown ones are ignored."""
        if self.counted_to is None:
            self._removed.update(numbers)
        self._drop(numbers)
        if self._gone > 1024 and 2 * self._gone > self._size:
            self._compact()

    def _drop(self, numbers: Sequence[int] | NDArray[np.uint32]) -> None:
        rows, is_known = self._find(np.array(numbers, np.uint32))
        rows = rows[is_known]
        self._gone += int(np.count_nonzero(self._column("space")[rows] >= 0))
        self._column("space")[rows] = -1
        self._column("pending")[rows] = 0

    def _compact(self) -> None:
        self._take(np.flatnonzero(self._column("space") >= 0))
        self._gone = 0

    def _grow(self, size: int) -> None:
        if size > len(self._columns["number"]):
            more = max(size, 2 * len(self._columns["number"]))
            for name, (kind, first) in _COLUMNS.items():
                wider = np.full(more, first, kind)
                wider[: self._size] = self._column(name)
                self._columns[name] = wider
            for partition, cursor in enumerate(self._cursors):
                self._cursors[partition] = np.zeros(more, np.int64)
                self._cursors[partition][: self._size] = cursor[: self._size]
        for name, (_, first) in _COLUMNS.items():
            self._columns[name][self._size : size] = first
        for cursor in self._cursors:
            cursor[self._size : size] = 0
        for partition, base in enumerate(self._bases):
            # New rows count only new blocks.
            self._bases[partition] = np.append(base, np.full(size - len(base), NO_TIME))
        self._size = size

    def _take(self, rows: NDArray[np.int64]) -> None:
        """Keep these rows only, in this order."""
        self._bases = [base[rows] for base in self._bases]
        for column in self._columns.values():
            column[: rows.size] = column[: self._size][rows]
        for cursor in self._cursors:
            cursor[: rows.size] = cursor[: self._size][rows]
        self._size = rows.size

    def _space(self, name: str) -> int:
        number = self._spaces.get(name)
        if number is None:
            number = self._spaces[name] = len(self._names)
            self._names.append(name)
        return number

    def _find(self, numbers: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the row of each number, and which numbers have a row."""
        known = self._column("number")
        rows = np.searchsorted(known, numbers)
        is_known = rows < known.size
        is_known[is_known] = known[rows[is_known]] == numbers[is_known]
        return rows, is_known

    # Matches

    def begin(self, ends: Offsets) -> None:
        """Begin to count: all rows are loaded, and the match log ends at these offsets."""
        self._insert_loaded()
        self._drop(sorted(self._removed))
        self._set_cursors(list(self._saved.values()))
        rows, is_known = self._find(np.array(list(self._saved), np.uint32))
        self._column("is_sure")[rows[is_known]] = False
        self._removed, self._saved, self._early = set(), {}, {}
        self._column("pending")[:] = 0
        self._bases = [cursor[: self._size].copy() for cursor in self._cursors]
        self.counted_to = list(ends)

    def _insert_loaded(self) -> None:
        if not self._loaded:
            return
        columns = {
            name: np.concatenate([each.columns[name] for each in self._loaded])
            for name in self._loaded[0].columns
        }
        loaded = _NewRows(columns, np.concatenate([each.keys for each in self._loaded]))
        self._loaded = []
        # A row that was added meanwhile, for changed settings, does not know the cursor.
        self._drop(columns["number"])
        self._compact()
        self._insert(loaded.taken(np.unique(columns["number"], return_index=True)[1]))

    def first_offset(self, partition: int) -> int:
        """Return the first record from which a cursor counts in a partition, or the end of the counted."""
        assert self.counted_to is not None
        base = self._bases[partition][self._column("space") >= 0]
        end = self.counted_to[partition]
        if not base.size:
            return end
        return min(end, (int(base.min()) - key_at(partition, 0)) >> INDEX_BITS)

    def count_before(self, partition: int, block: MatchBlock, start: int, end: int, time_ms: int) -> None:
        """Count the matches of a block from before `begin`, in the records ``start <= offset < end``."""
        rows, counts = self._matches(partition, block, start, end, self._bases[partition])
        self._column("pending")[rows] += counts
        first_ms = self._column("first_ms")
        first_ms[rows] = np.minimum(first_ms[rows], time_ms)
        self._past_times[partition].add(block.end, time_ms)

    def complete(self) -> None:
        """Note that all of the match log before `begin` is counted."""
        self._bases = []
        for times, past in zip(self._times, self._past_times, strict=True):
            times.follow(past)
        self.is_complete = True

    def count_new(self, partition: int, block: MatchBlock | None, end: int, time_ms: int) -> None:
        """Count the matches of the next block at the end of the match log; None: there are none."""
        if self.counted_to is None:
            return
        start, self.counted_to[partition] = self.counted_to[partition], max(end, self.counted_to[partition])
        if block is None or start >= end:
            return
        rows, counts = self._matches(partition, block, start, end, self._cursors[partition], is_new=True)
        pending, first_ms = self._column("pending"), self._column("first_ms")
        fresh = rows[(pending[rows] <= 0) | (first_ms[rows] == NO_TIME)]
        first_ms[fresh] = time_ms
        pending[rows] += counts
        self._times[partition].add(end, time_ms)

    def forget_block(self, partition: int, block: MatchBlock, start: int, end: int) -> None:
        """Take away the matches of a block in the records ``start <= offset < end``; see `forget_before`."""
        if self.is_complete and self.counted_to is not None:
            end = min(end, self.counted_to[partition])  # later ones are not counted yet, and never will be
            cursor = self._cursors[partition][: self._size]
            rows, counts = self._matches(partition, block, start, end, cursor)
            self._column("pending")[rows] -= counts

    def forget_before(self, partition: int, end: int, in_use: Sequence[int] = ()) -> None:
        """Note that retention removes the records before an offset; their matches were taken away.

        Where some of these were delivered, as to the subscriptions `in_use`, acks take them away, too: the
        rest is an estimate from now on.
        """
        cursor, begin = self._cursors[partition][: self._size], key_at(partition, end)
        self._begins[partition] = begin
        self.forgotten += 1
        if not self.is_complete:
            self._column("is_sure")[cursor < begin] = False
            return
        rows, is_known = self._find(np.array(in_use, np.uint32))
        self._column("is_sure")[rows[is_known]] &= cursor[rows[is_known]] >= begin
        np.maximum(cursor, begin, out=cursor)
        first_ms = self._column("first_ms")
        time_ms = self._times[partition].at(np.array([end], np.int64))
        if time_ms[0] != NO_TIME:
            np.maximum(first_ms, time_ms, out=first_ms)
        first_ms[self._column("pending") <= 0] = NO_TIME

    def _matches(
        self,
        partition: int,
        block: MatchBlock,
        start: int,
        end: int,
        cursor: NDArray[np.int64],
        *,
        is_new: bool = False,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows with matches in a range of a block from their cursor on, and their number."""
        numbers, counts = block.lengths()
        rows, is_known = self._find(numbers)
        if is_new and not is_known.all():
            self._note_early(numbers[~is_known], counts[~is_known])
        numbers, counts, rows = numbers[is_known], counts[is_known], rows[is_known]
        first = np.maximum(cursor[rows], key_at(partition, start))
        last = key_at(partition, end)
        is_all = (first <= key_at(partition, block.start)) & (last >= key_at(partition, block.end))
        partly = np.flatnonzero(~is_all & (first < last) & (first < key_at(partition, block.end)))
        counts = np.where(is_all, counts, 0)
        if partly.size:
            bounds, offsets, indexes = block.matches_of_each(numbers[partly])
            keys = (offsets << INDEX_BITS) + key_at(partition, 0) + indexes
            lengths = np.diff(bounds)
            is_counted = (keys >= np.repeat(first[partly], lengths)) & (keys < last)
            before = np.concatenate(([0], np.cumsum(is_counted)))
            counts[partly] = before[bounds[1:]] - before[bounds[:-1]]
        is_any = counts > 0
        return rows[is_any], counts[is_any]

    def _note_early(self, numbers: NDArray[np.uint32], counts: NDArray[np.int64]) -> None:
        """Keep the matches of subscriptions that are so new that they have no row yet."""
        newest = int(self._columns["number"][self._size - 1]) if self._size else 0
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            if number > newest and (number in self._early or len(self._early) < EARLY_MAX):
                self._early[number] = self._early.get(number, 0) + count

    # Cursors

    def save(self, saved: Sequence[Progress]) -> None:
        """Apply saved cursors, at most one of each subscription."""
        if self.counted_to is None:
            self._saved.update((each.number, each) for each in saved)
            return
        is_overtaken = self._are_overtaken(saved)
        rows, saved, keys = self._set_cursors(saved)
        if not saved:
            return
        pending, first_ms = self._column("pending"), self._column("first_ms")
        pending[rows] -= np.array([each.done for each in saved], np.int64)
        self._column("is_sure")[rows] &= ~is_overtaken & np.array([each.is_sure for each in saved])
        read_to = tuple(self.counted_to)
        is_read = ~is_overtaken & np.array([each.read_to == read_to for each in saved])
        self._replace(rows[is_read], [each.owed for each in compress(saved, is_read.tolist())], is_exact=True)
        earliest_ms = np.full(rows.size, NO_TIME)
        for partition, times in enumerate(self._times):
            times_ms = times.at((keys[:, partition] - key_at(partition, 0)) >> INDEX_BITS)
            earliest_ms = np.minimum(earliest_ms, times_ms)
        known_ms = first_ms[rows]
        later_ms = np.where(known_ms == NO_TIME, earliest_ms, np.maximum(known_ms, earliest_ms))
        later_ms = np.where(earliest_ms == NO_TIME, known_ms, later_ms)
        first_ms[rows] = np.where(pending[rows] > 0, later_ms, NO_TIME)

    def _set_cursors(
        self, saved: Sequence[Progress]
    ) -> tuple[NDArray[np.int64], Sequence[Progress], NDArray[np.int64]]:
        """Set the cursors of known subscriptions; return their rows, what was saved, and the keys."""
        rows, is_known = self._find(np.array([each.number for each in saved], np.uint32))
        rows, saved = rows[is_known], list(compress(saved, is_known.tolist()))
        keys = np.array([each.cursor for each in saved], np.int64).reshape(len(saved), len(self._cursors))
        self._column("letters")[rows] = np.array([each.letters for each in saved], np.int32)
        for partition, (cursor, begin) in enumerate(zip(self._cursors, self._begins, strict=True)):
            cursor[rows] = np.maximum(keys[:, partition], begin)
        return rows, saved, keys

    def _are_overtaken(self, saved: Sequence[Progress | Count]) -> NDArray[np.bool_]:
        """Return for each known subscription whether some of its messages were taken away since."""
        rows, is_known = self._find(np.array([each.number for each in saved], np.uint32))
        forgotten = np.array([each.forgotten for each in saved], np.int64)[is_known]
        was_before = np.zeros(int(is_known.sum()), np.bool_)
        for cursor, begin in zip(self._cursors, self._begins, strict=True):
            was_before |= cursor[rows[is_known]] <= begin
        was_before &= forgotten != self.forgotten
        return was_before

    def correct(self, count: Count) -> None:
        """Replace a count by one that was made in the match log, unless only the present one is exact."""
        if self.counted_to is None:
            return
        rows, is_known = self._find(np.array([count.number], np.uint32))
        rows, is_exact = rows[is_known], count.read_to == tuple(self.counted_to)
        if is_exact and self._are_overtaken([count]).any():
            is_exact = self._column("is_sure")[rows] = False
        if not is_exact:
            rows = rows[~self._column("is_sure")[rows]]
        self._replace(rows, count.pending, is_exact=is_exact)
        self._column("first_ms")[rows] = NO_TIME if count.first_ms is None else count.first_ms

    def _replace(self, rows: NDArray[np.int64], pending: int | Sequence[int], *, is_exact: bool) -> None:
        self._column("pending")[rows] = pending
        self._column("is_sure")[rows] = is_exact
        for base in self._bases:
            base[rows] = NO_TIME  # what was matched before is counted already

    # Reading

    def greatest(
        self,
        space: str | None,
        after: tuple[int, int] | None,
        limit: int,
        among: Sequence[int] | None = None,
    ) -> list[Standing]:
        """Return at most ``limit`` subscriptions by falling backlog, then by number.

        Parameters
        ----------
        space
            The space; None: of all spaces, only those with pending messages.
        after
            The pending messages and the number of the last one of the page before.
        limit
            Maximum subscriptions.
        among
            Numbers of the only subscriptions that are returned; None: any.
        """
        pending = np.maximum(self._column("pending"), 0)
        if space is None:
            is_wanted = pending > 0
        else:
            is_wanted = self._column("space") == self._spaces.get(space, -2)
        if after is not None:
            is_later = (pending == after[0]) & (self._column("number") > after[1])
            is_wanted &= (pending < after[0]) | is_later
        if among is not None:
            is_wanted &= np.isin(self._column("number"), np.array(among, np.uint32))
        rows = np.flatnonzero(is_wanted)
        if rows.size > limit:
            most = pending[rows]
            least = np.partition(most, most.size - limit)[most.size - limit]
            above = rows[most > least]
            rows = np.concatenate((above, rows[most == least][: limit - above.size]))
        order = np.lexsort((self._column("number")[rows], -pending[rows]))
        return [self._standing(row) for row in rows[order].tolist()]

    def _standing(self, row: int) -> Standing:
        columns = self._columns
        pending, first_ms = max(int(columns["pending"][row]), 0), int(columns["first_ms"][row])
        return Standing(
            int(columns["number"][row]),
            self._names[columns["space"][row]],
            pending,
            bool(columns["is_sure"][row]) and self.is_complete,
            first_ms if pending and first_ms != NO_TIME else None,
            int(columns["letters"][row]),
        )

    def estimates(self, limit: int) -> list[int]:
        """Return the numbers of the first subscriptions whose count is an estimate."""
        rows = np.flatnonzero((self._column("space") >= 0) & ~self._column("is_sure"))[:limit]
        found: list[int] = self._column("number")[rows].tolist()
        return found

    def sums(self) -> dict[str, Sums]:
        """Return the sums of each space, by its key."""
        spaces, pending = self._column("space"), np.maximum(self._column("pending"), 0)
        rows = np.flatnonzero(spaces >= 0)
        behind = np.flatnonzero((spaces >= 0) & (pending > 0))
        count = len(self._names)
        totals = np.zeros(count, np.int64)
        np.add.at(totals, spaces[behind], pending[behind])
        first_ms = np.full(count, NO_TIME)
        np.minimum.at(first_ms, spaces[behind], self._column("first_ms")[behind])
        letters = np.zeros(count, np.int64)
        with_letters = rows[self._column("letters")[rows] > 0]
        np.add.at(letters, spaces[with_letters], self._column("letters")[with_letters])
        members = np.bincount(spaces[rows], minlength=count)
        are_behind = np.bincount(spaces[behind], minlength=count)
        unsure = np.bincount(spaces[rows[~self._column("is_sure")[rows]]], minlength=count)
        return {
            name: Sums(
                name,
                int(members[at]),
                int(are_behind[at]),
                int(totals[at]),
                self.is_complete and not unsure[at],
                int(first_ms[at]) if first_ms[at] != NO_TIME else None,
                int(letters[at]),
            )
            for at, name in enumerate(self._names)
        }
