"""Delivery attempts: their counts, the dead letters, and the dead letters that are retried.

    delivered once    nothing is stored: its `PartitionDelivery` knows that it was delivered
    redelivered       its count
    given up          a dead letter, until it is saved; the message is settled
    retried           its count, and that it is owed although its `PartitionDelivery` is done with it

A state machine without I/O, a part of `Delivery`: letters and counts are saved with its cursor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from fieldfare.delivery.keys import PARTITION_SHIFT

LETTERS_MAX = 10_000
"""Maximum dead letters not saved yet; at the bound, as when the disk is full, delivery stops."""

LISTED_MAX = 100_000
"""Maximum dead letters of a subscription; at the bound, messages are redelivered instead of given up."""

LATE, UNSETTLED = "not acked in time", "delivered the maximum number of times"
UNREFUSED = frozenset({LATE, UNSETTLED, "given as often as it may be"})
"""Reasons of dead letters that no consumer has refused: a late ack of them is still expected.

The last one is that of letters from versions before `UNSETTLED` had its text.
"""

RETRIED_MAX = 10_000
"""Maximum dead letters retried at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Letter:
    """A dead letter: a message that was given up."""

    key: int
    attempts: int
    reason: str


class Attempts:
    """The delivery attempts of a subscription's messages.

    Attributes
    ----------
    counts
        The number of attempts of each message for which it is not 1.
    retried
        Messages that are owed although they were given up; each has a count.
    letters
        The dead letters not saved yet, by key.
    settled
        Messages that need no letter any more, where that is not saved yet.
    given_up
        The number of messages given up since the owner last reset it.
    done, is_done_exact
        The number of messages settled since `take_done`, less those retried; whether that is all.
    listed, listed_max
        The number of saved letters, as an upper bound, and the maximum.
    unheard
        The keys of letters, saved or not, that no consumer has refused; some letters may be removed already.
    """

    __slots__ = (
        *("counts", "done", "given_up", "is_done_exact", "letters", "listed", "listed_max"),
        *("retried", "settled", "unheard"),
    )

    def __init__(self, counts: Iterable[tuple[int, int]] = (), retried: Iterable[int] = ()) -> None:
        self.counts: dict[int, int] = dict(counts)
        self.retried: set[int] = set(retried)
        for key in self.retried:
            self.counts.setdefault(key, 0)
        self.letters: dict[int, Letter] = {}
        self.settled: dict[int, object] = {}
        self.unheard: set[int] = set()
        self.given_up = self.listed = self.done = 0
        self.is_done_exact = True
        self.listed_max = LISTED_MAX

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of letters is reached."""
        return self.listed + len(self.letters) >= self.listed_max

    def count_of(self, key: int) -> int:
        """Return the number of attempts of a message that was delivered."""
        return self.counts.get(key, 1)

    def add(self, key: int, count: int) -> None:
        """Count one more attempt of a message (1), or cancel one that did not happen (-1)."""
        count += self.counts.get(key, 1)
        if count == 1 and key not in self.retried:
            self.counts.pop(key, None)
        else:
            self.counts[key] = count

    def settle(self, keys: Iterable[int]) -> None:
        """Forget the counts of settled messages."""
        for key in keys:
            self.counts.pop(key, None)

    def settle_retried(self, key: int) -> None:
        """Settle a message that was retried."""
        self.counts.pop(key, None)
        self.drop_letter(key)

    def drop_letter(self, key: int) -> None:
        """Remove a message's letter: its `PartitionDelivery` owes the message, or it is settled."""
        self.retried.discard(key)
        self.unheard.discard(key)
        self.letters.pop(key, None)
        self.settled[key] = object()

    def drop_letters(self, keys: Collection[int]) -> bool:
        """Remove the letters of acked messages; return whether ``keys`` holds any."""
        for key in keys:
            self.drop_letter(key)
        return bool(keys)

    def give_up(self, key: int, reason: str, *, is_kept: bool) -> None:
        """Stop delivering a message; ``is_kept`` says whether a letter is kept."""
        attempts = self.counts.pop(key, 1)
        self.given_up += 1
        self.done += 1
        was_retried = key in self.retried
        self.retried.discard(key)
        if is_kept:
            self.settled.pop(key, None)
            self.letters[key] = Letter(key, attempts, reason)
            (self.unheard.add if reason in UNREFUSED else self.unheard.discard)(key)
        elif was_retried:
            self.settled[key] = object()

    def retry(self, key: int) -> None:
        """Retry a message that was given up, as if it had never been delivered."""
        self.retried.add(key)
        self.unheard.discard(key)
        self.counts[key] = 0
        self.done -= 1

    def count_done(self, count: int) -> int:
        """Add a number of settled messages to `done`, and return it."""
        self.done += count
        return count

    def take_done(self) -> tuple[int, bool]:
        """Return `done` and `is_done_exact`, and count from 0 again."""
        taken = self.done, self.is_done_exact
        self.done, self.is_done_exact = 0, True
        return taken

    def unheard_up_to(self, key: int) -> list[int]:
        """Return the `unheard` keys up to and including ``key``, in its partition."""
        return [each for each in self.unheard if key >> PARTITION_SHIFT << PARTITION_SHIFT <= each <= key]

    def saved(self, letters: Sequence[Letter], settled: Sequence[tuple[int, object]]) -> None:
        """Record that these are durable, unless a message has a newer state than the saved one."""
        for letter in letters:
            if self.letters.get(letter.key) is letter:
                del self.letters[letter.key]
                self.listed += 1
        for key, mark in settled:
            if self.settled.get(key) is mark:
                del self.settled[key]
