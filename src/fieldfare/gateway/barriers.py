"""Subscriptions that are moving between brokers, or have moved: what clients may do with them here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fieldfare.gateway.problems import HttpProblem


@dataclass(frozen=True, slots=True)
class Barrier:
    """The requests that a subscription refuses.

    Attributes
    ----------
    problem
        Returns the answer to what is refused.
    is_closed
        Whether everything is refused; otherwise only what changes the filter, or removes the subscription.
    has_letters
        Whether the dead letters of a closed one may be read and cleared.
    """

    problem: Callable[[], HttpProblem]
    is_closed: bool
    has_letters: bool = False


class Barriers(dict[tuple[str, str], Barrier]):
    """The barriers, by the key of the space and the id of the subscription.

    Changed on the event loop, before a change of the registry that relies on it is submitted; also read on
    the thread of changes, so that no change that is made later slips through.
    """

    def check_use(self, space: str, id: str, *, for_letters: bool = False) -> None:
        """Raise the problem of a subscription that must not be used here, or not for its dead letters."""
        barrier = self.get((space, id))
        if barrier is not None and barrier.is_closed and not (for_letters and barrier.has_letters):
            raise barrier.problem()

    def check_change(self, space: str, id: str) -> None:
        """Raise the problem of a subscription whose filter must not be changed here."""
        barrier = self.get((space, id))
        if barrier is not None:
            raise barrier.problem()

    def holds_space(self, space: str) -> bool:
        """Return whether a subscription of a space is moving, not moved: both brokers rely on it."""
        return any(key[0] == space and not each.has_letters for key, each in self.items())
