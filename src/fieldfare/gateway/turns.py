"""Who waits has his turn: of each space one thing, then of the next, however much the others have waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

NOBODY = ""
"""Whose it is what is no space's."""


class Turns(Generic[T]):
    """What waits, by whose it is; what is of one comes out in the order in which it came in."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}
        """In the order of their next turns."""
        self._held: dict[str, deque[T]] = {}
        """Of those who have no turn until they are released."""

    def __bool__(self) -> bool:
        """Whether somebody has a turn."""
        return bool(self._waiting)

    def add(self, whose: str, item: T) -> None:
        """Something more waits."""
        mine = self._queue(whose)
        if mine is None:
            mine = self._waiting[whose] = deque()
        mine.append(item)

    def count(self, whose: str) -> int:
        """How much of one waits, whether or not he has turns."""
        mine = self._queue(whose)
        return 0 if mine is None else len(mine)

    @property
    def first(self) -> T:
        """What is next; there is something."""
        return next(iter(self._waiting.values()))[0]

    def next(self) -> T:
        """The same, which waits no longer."""
        whose = next(iter(self._waiting))
        mine = self._waiting.pop(whose)
        item = mine.popleft()
        if mine:
            self._waiting[whose] = mine
        return item

    def hold(self, whose: str) -> None:
        """One of whom something waits has no turn until `release`, whatever is added."""
        self._held[whose] = self._waiting.pop(whose)

    def release(self, whose: str) -> bool:
        """He has his turns again, after all others; whether he was held."""
        mine = self._held.pop(whose, None)
        if mine is not None:
            self._waiting[whose] = mine
        return mine is not None

    def sift(self, whose: str, is_kept: Callable[[T], bool]) -> None:
        """Of what waits of one only some go on waiting."""
        queues = self._held if whose in self._held else self._waiting
        mine = deque(filter(is_kept, queues.get(whose, ())))
        if mine:
            queues[whose] = mine
        else:
            queues.pop(whose, None)

    def _queue(self, whose: str) -> deque[T] | None:
        mine = self._waiting.get(whose)
        return self._held.get(whose) if mine is None and self._held else mine


class SharedRoom:
    """Of something that all use together, how much each has: who has less than his share may have more of it.

    Parameters
    ----------
    most : int
        How much there is, while all have no more than their shares.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[str, int] = {}
        self.total = 0

    def fits(self, whose: str, amount: int) -> bool:
        """Whether somebody may have so much more: there is, or he would not have more than his share.

        What is nobody's has no share.
        """
        if self.total + amount <= self._most:
            return True
        own = self._held.get(whose, 0)
        return whose != NOBODY and own + amount <= self._most // (len(self._held) + (own == 0))

    def take(self, whose: str, amount: int) -> None:
        """Somebody has so much more."""
        self._change(whose, amount)

    def give_back(self, whose: str, amount: int) -> None:
        """Somebody has so much less."""
        self._change(whose, -amount)

    def _change(self, whose: str, amount: int) -> None:
        self.total += amount
        has = self._held.get(whose, 0) + amount
        if has:
            self._held[whose] = has
        else:
            self._held.pop(whose, None)
