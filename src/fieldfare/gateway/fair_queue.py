"""Fair queue and fair sharing of capacity between spaces: round robin, one item per space per turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

NO_SPACE = ""
"""Owner of items that belong to no space."""
NO_NAME = (NO_SPACE, "")
"""Space and id of a subscription that is not known any more."""


class FairQueue(Generic[T]):
    """A round-robin queue across owners: one item per owner per turn; each owner's items stay in order."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}
        """Queues of the owners that have turns, in the order of their next turns."""
        self._held: dict[str, deque[T]] = {}
        """Queues of the owners that are held, and have no turn until they are released."""

    def __bool__(self) -> bool:
        """Whether any owner has a turn."""
        return bool(self._waiting)

    def add(self, whose: str, item: T) -> None:
        """Append an item to its owner's queue."""
        mine = self._queue(whose)
        if mine is None:
            mine = self._waiting[whose] = deque()
        mine.append(item)

    def count(self, whose: str) -> int:
        """Return the number of an owner's items, held or not."""
        mine = self._queue(whose)
        return 0 if mine is None else len(mine)

    @property
    def first(self) -> T:
        """The next item; the queue must not be empty."""
        return next(iter(self._waiting.values()))[0]

    def next(self) -> T:
        """Remove and return the next item; the queue must not be empty."""
        whose = next(iter(self._waiting))
        mine = self._waiting.pop(whose)
        item = mine.popleft()
        if mine:
            self._waiting[whose] = mine
        return item

    def suspend(self, whose: str) -> None:
        """Give an owner, which must have items, no turn until `release`, whatever is added."""
        self._held[whose] = self._waiting.pop(whose)

    def release(self, whose: str) -> bool:
        """Give a held owner turns again, after all others; return whether it was held."""
        mine = self._held.pop(whose, None)
        if mine is not None:
            self._waiting[whose] = mine
        return mine is not None

    def sift(self, whose: str, is_kept: Callable[[T], bool]) -> None:
        """Keep only those of an owner's items for which ``is_kept`` is true."""
        queues = self._held if whose in self._held else self._waiting
        mine = deque(filter(is_kept, queues.get(whose, ())))
        if mine:
            queues[whose] = mine
        else:
            queues.pop(whose, None)

    def _queue(self, whose: str) -> deque[T] | None:
        mine = self._waiting.get(whose)
        return self._held.get(whose) if mine is None and self._held else mine


class SharedCapacity:
    """A shared capacity with a guaranteed fair share for each owner.

    Parameters
    ----------
    most : int
        The capacity; owners below their fair share may exceed it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[str, int] = {}
        self.total = 0

    def fits(self, whose: str, amount: int) -> bool:
        """Whether an owner may take an amount: it is free, or the owner stays within its fair share.

        `NO_SPACE` has no share.
        """
        if self.total + amount <= self._most:
            return True
        own = self._held.get(whose, 0)
        return whose != NO_SPACE and own + amount <= self._most // (len(self._held) + (own == 0))

    def take(self, whose: str, amount: int) -> None:
        """Take an amount for an owner; it need not fit."""
        self._change(whose, amount)

    def give_back(self, whose: str, amount: int) -> None:
        """Return an amount that an owner took."""
        self._change(whose, -amount)

    def _change(self, whose: str, amount: int) -> None:
        self.total += amount
        has = self._held.get(whose, 0) + amount
        if has:
            self._held[whose] = has
        else:
            self._held.pop(whose, None)
