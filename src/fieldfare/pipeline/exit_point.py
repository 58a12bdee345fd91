"""EP, the last operator of the pipeline: what was found for all spaces and batches, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fieldfare.matching.grouping import Matches, MatchLists, Pairs, group_by_subscription


@dataclass(frozen=True, slots=True)
class Found:
    """The matches of a batch of events, not yet in order.

    Attributes
    ----------
    size : int
        How many events there are.
    pairs : sequence of Pairs
        What they match; several may say the same.
    """

    size: int
    pairs: Sequence[Pairs]

    def by_event(self) -> Matches:
        """For every event the numbers of the subscriptions that it matches, ascending."""
        return Matches.from_pairs(self.size, self.pairs)

    def by_subscription(self) -> MatchLists:
        """For every subscription that matches one, its events; there may be at most 65,536 events."""
        return group_by_subscription(self.pairs)

    @property
    def most_matches(self) -> int:
        """How many matches there are, if none is said twice."""
        return sum(len(part.pairs) for part in self.pairs)


def concatenate(parts: Sequence[Found]) -> Found:
    """What was found in batches of events that follow each other, as of one batch."""
    size, pairs = 0, []
    for part in parts:
        pairs += [each.behind(size) for each in part.pairs]
        size += part.size
    return Found(size, pairs)
