"""The match log: the pipeline's matches, one block per range of records, with the event log's partitions.

A block holds the matches of the records with ``start <= offset < end``; it covers every offset in between,
including holes. Blocks of a partition may overlap after a crash, if a batch was split differently the second
time. They agree, because matches depend only on the log and the registry. So a reader moves from position to
position: it reads any block that covers its position, from that position on, and continues at the block's
end. Whatever is merged or removed meanwhile, the reader misses no match and sees none twice.

Offsets between two blocks are not matched yet, or their matches are lost: see `MatchWriter.fill`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.pairs import LIST_EVENTS_MAX, NO_MATCHES, MatchLists, keys_of, lists_of_keys
from fieldfare.storage.bell import Waiter
from fieldfare.storage.errors import CorruptBlockError
from fieldfare.storage.match_runs import MatchRuns

BLOCK_EVENTS_MAX = LIST_EVENTS_MAX
"""Maximum events of a block, which numbers them with 16 bits; a block with more is refused."""
BLOCK_RECORDS_MAX = LIST_EVENTS_MAX
"""Maximum offsets of a block: a block that covers an offset starts at most this far before it."""

OPEN_BLOCKS_MAX = 16
"""Maximum open blocks that a reader keeps; beyond it, the least recently used one is dropped."""

GIVEN_UP = "given_up"
"""Name of the figure in a block's ``extra`` that counts the pairs of an event and a subscription that were
given up because they took too much work; followed by a subscription number, those of that subscription."""

SPENT_MS = "spent_ms"
"""Prefix of the figures in a block's ``extra``, followed by a blank and a space, for the milliseconds of
processor time that matching that space's records took."""


def spent_by_space(extra: Mapping[str, int | float]) -> dict[str, float]:
    """Return the milliseconds of processor time that matching took per space, from a block's ``extra``."""
    prefix = f"{SPENT_MS} "
    return {name.removeprefix(prefix): ms for name, ms in extra.items() if name.startswith(prefix)}


@dataclass(frozen=True, slots=True)
class NewMatchBlock:
    """The matches of the records with ``start <= offset < end``, to be written.

    Parameters
    ----------
    start, end
        The range of records: at most 65,536 offsets.
    counts
        int32[end - start]: the number of events of each record, at most 65,536 in all. 0 for an offset
        without a record, or for a record whose matches were lost.
    lists
        The matched events of each subscription, numbered over all records of the block; runs if there are
        too many for memory.
    extra
        Figures about the creation of the block (times, durations); kept until the block is compacted.
    spaces
        Number of matches of each space; matches that are missing here belong to no space.
    """

    start: int
    end: int
    counts: NDArray[np.int32]
    lists: MatchLists | MatchRuns
    extra: Mapping[str, int | float] = field(default_factory=dict)
    spaces: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def gap(cls, start: int, end: int) -> Self:
        """Return a block in place of lost matches: it has no information about its records."""
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
        """Create a block from matches by event (CSR).

        Event e matched ``subscriptions[indptr[e]:indptr[e + 1]]``, where `indptr` is int64[events + 1] and
        `subscriptions` uint32[m]. ValueError if the arrays are inconsistent, or an event has a number twice.
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
        """Raise ValueError, which names the range, if the arrays are inconsistent or too large."""
        events = int(self.counts.sum())
        if not 0 <= self.start < self.end:
            raise self.refusal("the range is empty")
        if self.end - self.start > BLOCK_RECORDS_MAX:
            raise self.refusal(f"its records are more than {BLOCK_RECORDS_MAX}")
        if self.counts.size != self.end - self.start or (self.counts < 0).any():
            raise self.refusal("counts must hold a number for each record, 0 or more")
        if events > BLOCK_EVENTS_MAX:
            raise self.refusal(f"{events} events are more than {BLOCK_EVENTS_MAX}")
        if isinstance(self.lists, MatchLists):
            self._check_lists(self.lists, events)

    def pieces(self) -> Iterator[MatchLists]:
        """Yield the lists by ascending number: all at once or, if they are runs, some at a time."""
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
        """Return a ValueError that names this block."""
        return ValueError(f"match block {self.start}-{self.end}: {reason}")


def lists_of(indptr: NDArray[np.int64], subscriptions: NDArray[np.uint32]) -> MatchLists:
    """Convert matches by event (CSR, at most 65,536 events) to lists by subscription."""
    return lists_of_keys(keys_of(subscriptions, np.arange(indptr.size - 1).repeat(np.diff(indptr))))


class BlockRange(NamedTuple):
    """The range of records of one block: ``start <= offset < end``."""

    start: int
    end: int


class LostBlock(NamedTuple):
    """An unreadable block that was removed from the log; `kept` is the place where it is stored."""

    partition: int
    start: int
    end: int
    kept: str


class MatchBlock(Protocol):
    """A readable block; safe for use by several threads, even after its removal from the log.

    Attributes
    ----------
    start, end
        The range of records.
    counts
        int32[end - start]: the number of events of each record.
    events, matches
        The number of events and of matches.
    extra
        The writer's figures; empty for a block that compaction created.
    spaces
        The number of matches of each space, as written; approximate for a block that compaction created.
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
        """Return the places of the events that matched a subscription, in order.

        Parameters
        ----------
        number
            The subscription's number.
        from_offset
            Return only records from this offset on. A reader that moves from position to position passes its
            position here: after a crash or a compaction, a block may start before it.

        Returns
        -------
        offsets, indexes
            int64[k] and int32[k]: the record of each event, and the event's index in it.

        Raises
        ------
        MatchLogError
            The block is corrupt; so do the other methods.
        """

    def matches_of_each(
        self, numbers: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
        """Like `matches_of`, for several subscriptions in one call, which is faster than one by one.

        Parameters
        ----------
        numbers
            uint32[n], ascending.

        Returns
        -------
        bounds, offsets, indexes
            int64[n + 1], int64[k] and int32[k]: those of ``numbers[i]`` are at ``bounds[i]:bounds[i + 1]``.
        """

    def numbers(self) -> NDArray[np.uint32]:
        """Return the numbers of all subscriptions with a match in the block, ascending."""

    def lengths(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the `numbers`, and how many matches each has in the block; no match is decoded."""

    def by_event(self) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return all matches by event (CSR) like `NewMatchBlock.by_event` takes them, numbers ascending."""

    def check(self) -> None:
        """Read the complete block; MatchLogError if it is corrupt."""


class MatchReader(Protocol):
    """One partition of a match log, for reading by any number of processes."""

    def block_at(self, offset: int) -> MatchBlock | None:
        """Return a block that covers an offset; None if the offset is not matched yet, or was trimmed.

        A call for a block that does not exist yet is cheap, so a waiter may poll every few milliseconds.

        Raises
        ------
        BrokenBlockError
            The block cannot be read.
        """

    def end(self, from_offset: int = 0) -> int:
        """Return the end of the gapless range of blocks from `from_offset` on."""

    def next_start(self, offset: int) -> int | None:
        """Return the lowest start of a block after an offset; None if there is none."""

    def greatest_end(self) -> int:
        """Return the greatest end of any block; 0 if there is none."""


class MatchWriter(Protocol):
    """One partition of a match log, for writing by concurrent pipeline tasks, each with its own range."""

    def write(self, block: NewMatchBlock, *, synced: bool = True) -> int:
        """Write a block; visible on return. It replaces a block with the same range.

        Parameters
        ----------
        synced
            Whether the block must be durable on return; otherwise it may be so only after `sync`.

        Returns
        -------
        int
            Size of the stored block in bytes.

        Raises
        ------
        ValueError
            The block's arrays are inconsistent, or it has too many events.
        MatchLogError
            The block could not be written.
        """

    def sync(self, from_offset: int) -> int:
        """Make the blocks from an offset up to the returned end safe from a power failure.

        It may return before all blocks are safe, after about half a second; the next call goes on.

        Only offsets before the returned end may be reported as committed: the registry then removes the
        history that matching them again would need.

        Returns
        -------
        int
            End of the gapless range of durable blocks from `from_offset` on.
        """

    def recover(self, from_offset: int) -> int:
        """Remove the torn blocks that end after an offset; for the start of the pipeline.

        These blocks were not committed, so the pipeline matches their records again, from the returned end
        on. Earlier blocks were committed and cannot be matched again: see `MatchMaintenance.set_aside`.

        Returns
        -------
        int
            End of the gapless range of complete, durable blocks from `from_offset` on.
        """

    def fill(self, start: int, end: int) -> Sequence[BlockRange]:
        """Write empty blocks wherever no block covers an offset of a range; return their ranges."""


class MatchMaintenance(Protocol):
    """One partition of a match log, for maintenance by one process at a time; readers need not know of it."""

    def compact(self, before: int, most_blocks: int = 1 << 30) -> int:
        """Merge adjacent blocks that end at or before an offset; return the number of blocks saved.

        A merged block has no ``extra``, since the figures of its parts cannot be combined. A call resumes
        where the last one ended and examines about `most_blocks`. A corrupt block is left alone and reported
        to `MatchLog.on_broken`. A log whose blocks need no merging does nothing.
        """

    def trim(self, before: int) -> int:
        """Remove the blocks that end at or before an offset; return their number."""

    def trouble(self, block: tuple[int, int]) -> str | None:
        """Read a complete block and return what is wrong with it; None if it is intact or was removed."""

    def set_aside(self, block: tuple[int, int]) -> object:
        """Move a corrupt block out of the log and fill the gap; return the place where it is stored.

        The process may be killed between any two steps: a later call starts again until the corrupt block is
        out of the log.
        """

    def forget(self, block: tuple[int, int]) -> None:
        """Drop cached data of a block that was replaced, so that the next access reads it again."""


class MatchPartition(MatchReader, MatchWriter, MatchMaintenance, Protocol):
    """One partition of a match log: reader, writer and maintenance."""


class MatchLog(Protocol):
    """A match log; it can be opened by any number of processes, and pickled."""

    on_broken: Callable[[CorruptBlockError], None] | None
    """Called with the error of each corrupt block that compaction finds; None ignores them."""

    look_every_s: float
    """Minimum seconds between two checks of a waiter for new blocks: a check may be a request to a broker."""

    def listen(self, partition: int) -> Waiter:
        """Return a waiter, which the caller closes, that is woken when a block of a partition was written.

        It may be woken by blocks of other partitions, too.
        """

    @property
    def url(self) -> str:
        """The address that opens this log."""

    def partition(self, number: int) -> MatchPartition:
        """Return a partition; always the same object for a number."""

    def lost(self) -> list[LostBlock]:
        """Return the blocks that were set aside and are stored for inspection."""

    def size_bytes(self) -> int:
        """Return the bytes of all blocks."""

    def sizes(self) -> Mapping[str, int]:
        """Return the bytes of each space's matches: its share of each known block, by number of matches.

        After a start it may take several calls until all blocks are known. Empty for a log in Kafka.
        """
