"""EP, the last operator of the pipeline: merges the matches found for the same events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fieldfare.matching.compiled import compiled
from fieldfare.matching.grouping import Matches, group_by_subscription, settle_lists
from fieldfare.matching.pairs import LIST_EVENTS_MAX, MatchLists, Pairs


@dataclass(frozen=True, slots=True)
class Found:
    """The matches of a batch of events, unordered.

    Attributes
    ----------
    size : int
        The number of events.
    pairs : sequence of Pairs
        The matches; may contain duplicates.
    """

    size: int
    pairs: Sequence[Pairs]

    def by_event(self) -> Matches:
        """Return for every event the numbers of the matching subscriptions, ascending."""
        return Matches.from_pairs(self.size, self.pairs)

    def by_subscription(self) -> MatchLists:
        """Return the events of every matching subscription; requires at most 65,536 events."""
        return group_by_subscription(self.pairs)


def merge_lists(parts: Sequence[MatchLists]) -> MatchLists:
    """Merge several results into one: the lists of the same subscription are united."""
    parts = [part for part in parts if len(part.numbers)]
    if len(parts) < 2:
        return parts[0] if parts else group_by_subscription([])
    numbers = np.concatenate([part.numbers for part in parts])
    order = np.argsort(numbers, kind="stable")
    before = np.cumsum([0, *(len(part.ordinals) for part in parts)])
    first = np.concatenate([part.starts[:-1] + at for part, at in zip(parts, before[:-1], strict=True)])[
        order
    ]
    lengths = np.concatenate([np.diff(part.starts) for part in parts])[order]
    ordinals = np.empty(int(before[-1]), np.uint16)
    copy_lists(np.concatenate([part.ordinals for part in parts]), first, lengths, ordinals)
    numbers = numbers[order]
    heads = np.flatnonzero(np.diff(numbers, prepend=np.uint32(numbers[0] ^ np.uint32(1))))
    starts = np.append((np.cumsum(lengths) - lengths)[heads], before[-1]).astype(np.int64)
    seen, words = np.zeros(LIST_EVENTS_MAX >> 6, np.uint64), np.zeros(LIST_EVENTS_MAX >> 12, np.uint64)
    kept = settle_lists(starts, ordinals, seen, words)
    return MatchLists(numbers[heads], starts, ordinals[:kept])


@compiled
def copy_lists(ordinals: Any, first: Any, lengths: Any, copied: Any) -> None:
    """Concatenate the lists that begin at `first` into `copied`."""
    end: Any = np.int64(0)
    for n in range(len(first)):
        for i in range(lengths[n]):
            copied[end + i] = ordinals[first[n] + i]
        end += lengths[n]
