"""How often messages were given, which of them were given up, and which of those are tried again.

    given once      nothing is remembered: that a lane has given it is enough
    given again     its count
    given up        a letter, until it is saved; the message is settled
    tried again     its count, and that it is owed though its lane is done with it

A machine without I/O, a part of `Delivery`: letters and counts are saved with its cursor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LETTERS_MAX = 10_000
"""Messages given up that are not saved yet: with more, as when the disk is full, nothing is given."""

LISTED_MAX = 100_000
"""Letters of a subscription: with more nothing is given up, and it comes again instead."""

RETRIED_MAX = 10_000
"""Messages given up that may be tried again at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Letter:
    """A message that was given up."""

    key: int
    attempts: int
    reason: str


class Tries:
    """See above.

    Attributes
    ----------
    counts
        How often messages were given that were not given just once.
    retried
        Messages that are owed though they were given up; each has a count.
    letters
        Those given up and not saved yet, by key.
    settled
        Those that need no letter any more, which is not saved yet.
    given_up
        How many were given up, for whoever counts them and sets it back.
    listed, listed_max
        How many letters there are that are saved, about, and how many there may be.
    """

    __slots__ = ("counts", "given_up", "letters", "listed", "listed_max", "retried", "settled")

    def __init__(self, counts: Iterable[tuple[int, int]] = (), retried: Iterable[int] = ()) -> None:
        self.counts: dict[int, int] = dict(counts)
        self.retried: set[int] = set(retried)
        for key in self.retried:
            self.counts.setdefault(key, 0)
        self.letters: dict[int, Letter] = {}
        self.settled: dict[int, object] = {}
        self.given_up = self.listed = 0
        self.listed_max = LISTED_MAX

    @property
    def is_full(self) -> bool:
        """Whether there are as many letters as there may be."""
        return self.listed + len(self.letters) >= self.listed_max

    def count_of(self, key: int) -> int:
        """How often a message was given that was given."""
        return self.counts.get(key, 1)

    def add(self, key: int, count: int) -> None:
        """A message is given once more (1), or was not given after all (-1)."""
        count += self.counts.get(key, 1)
        if count == 1 and key not in self.retried:
            self.counts.pop(key, None)
        else:
            self.counts[key] = count

    def settle(self, keys: Iterable[int]) -> None:
        """Nothing needs to be remembered of these any more."""
        for key in keys:
            self.counts.pop(key, None)

    def settle_retried(self, key: int) -> None:
        """A message that was tried again is dealt with."""
        self.counts.pop(key, None)
        self.drop_letter(key)

    def drop_letter(self, key: int) -> None:
        """A message needs no letter: it is owed by its lane, or dealt with."""
        self.retried.discard(key)
        self.settled[key] = object()

    def give_up(self, key: int, reason: str, *, is_kept: bool) -> None:
        """A message is not given any more; ``is_kept`` says whether there is to be a letter."""
        attempts = self.counts.pop(key, 1)
        self.given_up += 1
        was_retried = key in self.retried
        self.retried.discard(key)
        if is_kept:
            self.settled.pop(key, None)
            self.letters[key] = Letter(key, attempts, reason)
        elif was_retried:
            self.settled[key] = object()

    def retry(self, key: int) -> None:
        """A message that was given up is owed again, as if it had never been given."""
        self.retried.add(key)
        self.counts[key] = 0

    def saved(self, letters: Sequence[Letter], settled: Sequence[tuple[int, object]]) -> None:
        """These are durable, unless something newer is known of the same message."""
        for letter in letters:
            if self.letters.get(letter.key) is letter:
                del self.letters[letter.key]
                self.listed += 1
        for key, mark in settled:
            if self.settled.get(key) is mark:
                del self.settled[key]
