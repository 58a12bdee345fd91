"""The match log: what the pipeline found, a block a range of records, in as many partitions as the event log.

A block holds the matches of the records with ``start <= offset < end``; it names every offset between, holes
included. Blocks of a partition may overlap after a crash, when a batch was cut into other ranges the second
time. They agree, for matches depend on log and registry alone. So a reader steps from position to position:
it takes any block that covers its position, what that block holds from there on, and goes on at the block's
end. Whatever is merged or removed meanwhile, it misses nothing and meets nothing twice.

What lies between two blocks is not matched yet, or lost; see `MatchWriter.fill`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.grouping import MatchLists, Pairs, group_by_subscription
from fieldfare.storage.errors import BrokenBlockError
from fieldfare.storage.match_runs import MatchRuns

MAX_BLOCK_EVENTS = 65_536
MAX_BLOCK_RECORDS = 65_536
"""So far before a record may begin a block that holds it."""

GIVEN_UP = "given_up"
"""The figure in a block's ``extra`` that says how many pairs of an event and a subscription were given up as
too much work; with a number behind it, how many of that subscription."""

NO_MATCHES = MatchLists(np.zeros(0, np.uint32), np.zeros(1, np.int64), np.zeros(0, np.uint16))


@dataclass(frozen=True, slots=True)
class NewMatchBlock:
    """The matches of the records with ``start <= offset < end``, to be written.

    Parameters
    ----------
    start, end
        The range of records: 65,536 offsets at most.
    counts
        int32[end - start]: the number of events of each record, 65,536 at most. 0 where there is no record,
        or where nothing is known of it: its matches were lost.
    lists
        The events of each subscription, counted over all records of the block; of very many, runs of them.
    extra
        Figures about the making of the block (times, durations); kept until the block is compacted.
    spaces
        How many of the matches are of each space. What is missing is nobody's.
    """

    start: int
    end: int
    counts: NDArray[np.int32]
    lists: MatchLists | MatchRuns
    extra: Mapping[str, int | float] = field(default_factory=dict)
    spaces: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def gap(cls, start: int, end: int) -> Self:
        """A block that stands for matches that were lost: it says nothing about its records."""
        return cls(start, end, np.zeros(end - start, np.int32), NO_MATCHES, {"gap": 1})

    @classmethod
    def by_event(
        cls,
        start: int,
        end: int,
        counts: NDArray[np.int32],
        indptr: NDArray[np.int64],
        subscriptions: NDArray[np.uint32],
        extra: Mapping[str, int | float] | None = None,
    ) -> Self:
        """The same from matches by event (CSR).

        Event e matched ``subscriptions[indptr[e]:indptr[e + 1]]``, int64[events + 1] and uint32[m], no number
        twice; otherwise ValueError.
        """
        block = cls(start, end, counts, NO_MATCHES, extra or {})
        block.check()
        events = int(counts.sum())
        if indptr.size != events + 1 or indptr[0] != 0 or (np.diff(indptr) < 0).any():
            raise block.refusal(f"indptr must ascend from 0 and hold {events + 1} entries")
        if indptr[-1] != subscriptions.size:
            raise block.refusal("indptr must end with the number of matches")
        lists = lists_of(indptr, subscriptions)
        if lists.ordinals.size != subscriptions.size:
            raise block.refusal("an event has a number twice")
        return replace(block, lists=lists)

    def check(self) -> None:
        """Raise ValueError, naming the range, when the arrays do not fit together."""
        events = int(self.counts.sum())
        if not 0 <= self.start < self.end:
            raise self.refusal("the range is empty")
        if self.end - self.start > MAX_BLOCK_RECORDS:
            raise self.refusal(f"its records are more than {MAX_BLOCK_RECORDS}")
        if self.counts.size != self.end - self.start or (self.counts < 0).any():
            raise self.refusal("counts must hold a number for each record, 0 or more")
        if events > MAX_BLOCK_EVENTS:
            raise self.refusal(f"{events} events are more than {MAX_BLOCK_EVENTS}")
        if isinstance(self.lists, MatchLists):
            self._check_lists(self.lists, events)

    def pieces(self) -> Iterator[MatchLists]:
        """The lists by ascending number: all at once, or, of runs, some at a time."""
        if isinstance(self.lists, MatchLists):
            yield self.lists
            return
        events = int(self.counts.sum())
        for lists in self.lists.pieces():
            self._check_lists(lists, events)
            yield lists

    def _check_lists(self, lists: MatchLists, events: int) -> None:
        numbers, starts, ordinals = lists
        if starts.size != numbers.size + 1 or starts[0] != 0 or starts[-1] != ordinals.size:
            raise self.refusal("starts must begin with 0 and end with the number of matches")
        if (np.diff(starts) < 1).any():
            raise self.refusal("every number must have a match")
        if ordinals.size and int(ordinals.max()) >= events:
            raise self.refusal("a match is of an event that it does not have")

    def refusal(self, reason: str) -> ValueError:
        """The error that names this block."""
        return ValueError(f"match block {self.start}-{self.end}: {reason}")


def lists_of(indptr: NDArray[np.int64], subscriptions: NDArray[np.uint32]) -> MatchLists:
    """Matches by event (of at most 65,536 events) by subscription."""
    if not subscriptions.size:
        return NO_MATCHES
    pairs = np.empty((subscriptions.size, 2), np.int32)
    pairs[:, 0] = np.repeat(np.arange(indptr.size - 1, dtype=np.int32), np.diff(indptr))
    pairs[:, 1] = np.arange(subscriptions.size, dtype=np.int32)
    numbers = np.ascontiguousarray(subscriptions, np.uint32)
    return group_by_subscription([Pairs(pairs, 0, numbers, int(numbers.min()), int(numbers.max()))])


class BlockRange(NamedTuple):
    """The records of one block."""

    start: int
    end: int


class LostBlock(NamedTuple):
    """A block that cannot be read any more and was taken out of the log: `kept` says where it is."""

    partition: int
    start: int
    end: int
    kept: str


class MatchBlock(Protocol):
    """A block as it is read; safe for use by several threads, also after it was removed from the log.

    Attributes
    ----------
    start, end
        The range of records.
    counts
        int32[end - start]: the number of events of each record.
    events, matches
        How many there are of each.
    extra
        What the writer noted; empty when the block was made by compaction.
    spaces
        How many of the matches are of each space, as it was written; about, when it was made by compaction.
    """

    start: int
    end: int
    counts: NDArray[np.int32]
    events: int
    matches: int
    extra: Mapping[str, int | float]
    spaces: Mapping[str, int]

    def matches_of(
        self, number: int, from_offset: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Where the events stand that matched a subscription, in order.

        Parameters
        ----------
        number
            The subscription's number.
        from_offset
            Only records from this offset on. A reader that steps from position to position gives its
            position here: a block may start before it after a crash or a compaction.

        Returns
        -------
        offsets, indexes
            int64[k] and int32[k]: the record of each event, and the event's index in it.

        Raises
        ------
        MatchLogError
            The block is broken, as for all that follow.
        """
        ...

    def matches_of_each(
        self, numbers: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
        """The same for several subscriptions at once, which takes less than one by one.

        Parameters
        ----------
        numbers
            uint32[n], ascending.

        Returns
        -------
        bounds, offsets, indexes
            int64[n + 1], int64[k] and int32[k]: those of number i are at bounds[i] to bounds[i + 1].
        """
        ...

    def numbers(self) -> NDArray[np.uint32]:
        """The numbers of all subscriptions that matched something here, ascending."""
        ...

    def by_event(self) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """All matches by event (CSR), as they were given to be written, numbers ascending."""
        ...

    def check(self) -> None:
        """Read all of it; MatchLogError when something is broken."""
        ...


class MatchReader(Protocol):
    """One partition, to be read: by any number of processes."""

    def block_at(self, offset: int) -> MatchBlock | None:
        """A block that covers an offset; None when that was not matched yet, or trimmed.

        Asking for what is not there yet is cheap, so it may be asked every few ms.

        Raises
        ------
        BrokenBlockError
            The block cannot be read.
        """
        ...

    def end(self, from_offset: int = 0) -> int:
        """Up to which offset everything from ``from_offset`` on is there."""
        ...

    def next_start(self, offset: int) -> int | None:
        """Where the first block after an offset begins that does not hold it; None when there is none."""
        ...

    def greatest_end(self) -> int:
        """Behind the last record that any block holds; 0 when there is none."""
        ...


class MatchWriter(Protocol):
    """One partition, to be written: by the pipeline's tasks, several at a time, each a range of its own."""

    def write(self, block: NewMatchBlock) -> int:
        """Write a block; durable and visible on return. A block of the same range is replaced.

        Returns
        -------
        int
            How many bytes it takes.

        Raises
        ------
        ValueError
            The block's arrays do not fit together, or it has too many events.
        MatchLogError
            It could not be written.
        """
        ...

    def sync(self, from_offset: int) -> int:
        """Make sure that a power failure takes no block any more, from an offset on up to the end given.

        Only what lies before the end given may be reported as committed: the registry forgets what matching
        it again would need.

        Returns
        -------
        int
            Up to which offset everything from ``from_offset`` on is there for good.
        """
        ...

    def recover(self, from_offset: int) -> int:
        """For the pipeline when it starts: drop the torn blocks that start at an offset or after it.

        What lies there was not committed, so it can be matched again, and is: from the end given on. What
        lies before was, and cannot: see `MatchUpkeep.set_aside`.

        Returns
        -------
        int
            Up to which offset everything from ``from_offset`` on is there, whole, and for good.
        """
        ...

    def fill(self, start: int, end: int) -> Sequence[BlockRange]:
        """Write blocks that say nothing wherever no block holds a record; which ones those are."""
        ...


class MatchUpkeep(Protocol):
    """One partition, to be looked after: by one process at a time, which no one else needs to know of."""

    def compact(self, before: int, most_blocks: int = 1 << 30) -> int:
        """Merge neighbouring blocks that end at or before an offset; returns how many that saved.

        A block made so has no ``extra``: its parts' figures have no common meaning. It goes on where the last
        call ended, and looks at about ``most_blocks``. A broken block is left alone, and reported to
        `MatchLog.on_broken`. A log whose blocks need no merging does nothing.
        """
        ...

    def trim(self, before: int) -> int:
        """Remove the blocks that end at or before an offset; returns how many those were."""
        ...

    def trouble(self, block: tuple[int, int]) -> str | None:
        """What is wrong with a block, all of which is read; None when nothing is, or when it has gone."""
        ...

    def set_aside(self, block: tuple[int, int]) -> object:
        """Take a broken block out of the log, and fill the gap that it leaves; returns where it is kept.

        It can be killed between any two steps: until the broken block is gone, the next one begins again.
        """
        ...

    def forget(self, block: tuple[int, int]) -> None:
        """Read a block anew when it is needed next: it was replaced."""
        ...


class MatchPartition(MatchReader, MatchWriter, MatchUpkeep, Protocol):
    """One partition of a match log with all its faces."""


class MatchLog(Protocol):
    """A match log; one may be opened in any number of processes, and pickled."""

    on_broken: Callable[[BrokenBlockError], None] | None
    """Called with the error of a block that compaction finds broken."""

    look_every_s: float
    """Who waits for more looks no more often for it: a look may be a request that others pay for."""

    @property
    def url(self) -> str:
        """The address that opens it."""
        ...

    def partition(self, number: int) -> MatchPartition:
        """One partition; always the same object."""
        ...

    def lost(self) -> list[LostBlock]:
        """The blocks that were set aside, and are kept for a person to look at."""
        ...

    def size_bytes(self) -> int:
        """The bytes that all blocks take."""
        ...

    def sizes(self) -> Mapping[str, int]:
        """The bytes that each space's matches take: of each block its share, by matches, as far as is known.

        After a start it may take some calls until all blocks are. A log that others keep in bounds says none.
        """
        ...
