"""Report cards: what moving a unique subscription does to both brokers (section 5.1).

A card has five fields: the number of subscribers to offload, the resulting load difference, whether the
subscription is covered by the acceptor's CSS, the publication rate reduced at the offloading broker, and the
output bandwidth of a subscriber. `Exchange` holds the remaining choices as arrays, so that the cards of
thousands of subscriptions are computed together.

Where the text is open:

* **Rate reduced**: what the subscription matches ANDNOT the OR of what stays at the broker; nothing unless
  all its subscribers leave.
* Number of subscribers: the least with which the loads are balanced or the offloading broker's is below the
  other's; of this number and the one before it, the one with the smaller difference.
* "Should not overload": no estimated ratio of the acceptor exceeds its lower overload threshold.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fieldfare.balancing.load import Load, Metric, Resource, difference
from fieldfare.balancing.plans import Moved, scalar
from fieldfare.balancing.press import Profile, and_not, exclusive, rate
from fieldfare.balancing.settings import BalancingSettings


@dataclass(frozen=True, slots=True)
class Cards:
    """The report cards of some unique subscriptions, as arrays.

    Attributes
    ----------
    choices
        The rows of the subscriptions in the profile.
    number
        Subscribers to offload (field 1); 0 if none can.
    difference
        Resulting load difference (field 2); negative if the offloading broker becomes the less loaded one.
    is_covered
        Field 3.
    reduced_per_s, reduced_by_all_per_s
        Publication rate reduced with `number` subscribers (field 4), and if all could go.
    bytes_per_s
        Output bandwidth of each subscriber (field 5).
    added_per_s
        Publication rate added at the load-accepting broker.
    """

    choices: Any
    number: Any
    difference: Any
    is_covered: Any
    reduced_per_s: Any
    reduced_by_all_per_s: Any
    bytes_per_s: Any
    added_per_s: Any


class Exchange:
    """Two brokers' loads while subscriptions are chosen, and the choices that are left.

    Parameters
    ----------
    mine, theirs
        Loads of the offloading and of the load-accepting broker.
    profile
        The unique subscriptions with their bit vectors.
    movable, present
        By key, the number of subscribers that may move, and of all at the broker.
    covered
        Keys covered by the acceptor's CSS.
    """

    def __init__(
        self,
        mine: Load,
        theirs: Load,
        profile: Profile,
        movable: Mapping[Hashable, int],
        present: Mapping[Hashable, int],
        settings: BalancingSettings,
        covered: frozenset[Hashable] = frozenset(),
    ) -> None:
        self.mine, self.theirs, self.settings = mine, theirs, settings
        self.profile = profile
        self.moved: list[Moved] = []
        self.accepted = profile.accepted.copy()
        self.rows = {key: row for row, key in enumerate(profile.keys)}
        self._left = settings.session_moves_max or sys.maxsize
        self.movable = np.array([movable.get(key, 0) for key in profile.keys], dtype=np.int64)
        self.movable = np.minimum(self.movable, self._left)
        self.present = np.array([present.get(key, 0) for key in profile.keys], dtype=np.int64)
        self.is_covered = np.array([key in covered for key in profile.keys], dtype=bool)
        self._samples = len(profile.accepted)
        self._matched_by = profile.bits[self.present > 0].sum(axis=0)
        self.matched_per_s = self._rate(profile.bits.sum(axis=1))

    def _rate(self, bits_set: Any) -> Any:
        return rate(self.profile.input_per_s, bits_set, self._samples)

    @property
    def open_choices(self) -> Any:
        """The rows of the subscriptions that may still move."""
        return np.flatnonzero(self.movable)

    def difference(self, metric: Metric) -> float:
        """Return by how much a metric of the offloading broker exceeds the other's now."""
        return float(difference(metric, self.mine, self.theirs, self.settings.normalisation_s))

    def is_overloaded(self, resources: tuple[Resource, ...]) -> bool:
        """Return whether the offloading broker is still above a lower overload threshold."""
        return any(self.mine.ratio(each) >= self.settings.lower_overload.of(each) for each in resources)

    def reduced(self, choices: Any) -> Any:
        """Return the rate that each subscription reduces at the offloading broker if all of it leaves."""
        only = exclusive(self.profile.bits[choices], self._matched_by)
        return self._rate(only.sum(axis=1))

    def cards(self, choices: Any, metric: Metric, relieved: tuple[Resource, ...] = ()) -> Cards:
        """Return the report cards of some rows.

        Parameters
        ----------
        relieved
            Resources that are to fall below the lower overload threshold before the loads count as balanced.
        """
        by_all = self.reduced(choices)
        added = self._rate(and_not(self.profile.bits[choices], self.accepted).sum(axis=1))
        trial = _Trial(self, choices, metric, relieved, by_all, added)
        number = trial.numbers()
        return Cards(
            choices,
            number,
            trial.differences(number),
            self.is_covered[choices],
            np.where(number == self.present[choices], by_all, 0.0),
            by_all,
            self.matched_per_s[choices] * self.profile.message_bytes,
            added,
        )

    def after(self, choices: Any, number: Any, reduced: Any, added: Any) -> tuple[Load, Load]:
        """Return the estimated loads after a number of subscribers of each row have moved."""
        messages = number * self.matched_per_s[choices]
        sent = messages * self.profile.message_bytes
        all_go = number == self.present[choices]
        mine = self.mine.after(-number, -np.where(all_go, reduced, 0.0), -messages, -sent)
        theirs = self.theirs.after(number, np.where(number > 0, added, 0.0), messages, sent)
        return mine, theirs

    def take(self, cards: Cards, place: int) -> None:
        """Choose a card: update both loads and the acceptor's CSS; the subscription is no choice any more."""
        row, number = int(cards.choices[place]), int(cards.number[place])
        by_all, added = float(cards.reduced_by_all_per_s[place]), float(cards.added_per_s[place])
        choice = np.array([row])
        loads = self.after(choice, np.array([number]), np.array([by_all]), np.array([added]))
        self.mine, self.theirs = (scalar(each) for each in loads)
        self.accepted = self.accepted | self.profile.bits[row]
        self.present[row] -= number
        if number and not self.present[row]:
            self._matched_by = self._matched_by - self.profile.bits[row]
        self.movable[row] = 0
        self._left -= number
        self.movable = np.minimum(self.movable, self._left)
        self.moved.append(Moved(self.profile.keys[row], number))

    def exclude(self, row: int) -> None:
        """Consider a subscription no more."""
        self.movable[row] = 0


@dataclass(frozen=True, slots=True)
class _Trial:
    """Some choices with every number of subscribers: ratios and differences are monotone in it."""

    exchange: Exchange
    choices: Any
    metric: Metric
    relieved: tuple[Resource, ...]
    reduced: Any
    added: Any

    def _after(self, number: Any) -> tuple[Load, Load]:
        return self.exchange.after(self.choices, number, self.reduced, self.added)

    def differences(self, number: Any) -> Any:
        mine, theirs = self._after(number)
        return difference(self.metric, mine, theirs, self.exchange.settings.normalisation_s)

    def fits(self, number: Any) -> Any:
        """Whether no ratio of the acceptor exceeds its bound."""
        _, theirs = self._after(number)
        settings = self.exchange.settings
        found = np.ones(len(number), dtype=bool)
        for each in Resource:
            found &= theirs.ratio(each) <= settings.lower_overload.of(each)
        return found

    def reaches(self, number: Any) -> Any:
        """Whether the loads are balanced, or the offloading broker's is below the other's."""
        mine, theirs = self._after(number)
        settings = self.exchange.settings
        found = difference(self.metric, mine, theirs, settings.normalisation_s) <= settings.balance
        for each in self.relieved:
            found &= mine.ratio(each) < settings.lower_overload.of(each)
        return found

    def numbers(self) -> Any:
        """Return field 1 of each card."""
        most = self.exchange.movable[self.choices]
        if len(most) == 0:
            return most
        most = np.where(self.fits(most), most, _largest(self.fits, most))
        number = _smallest(self.reaches, most)
        if self.relieved:
            return number
        before = np.maximum(number - 1, np.minimum(number, 1))
        is_closer = np.abs(self.differences(before)) < np.abs(self.differences(number))
        return np.where(is_closer, before, number)


def _largest(test: Any, most: Any) -> Any:
    """Return the largest number below `most` that passes, of each; 0 if none does."""
    low, high = np.zeros_like(most), most.copy()
    while (high - low > 1).any():
        middle = (low + high) // 2
        passes, is_open = test(middle), high - low > 1
        low, high = np.where(passes & is_open, middle, low), np.where(~passes & is_open, middle, high)
    return low


def _smallest(test: Any, most: Any) -> Any:
    """Return the smallest number from 1 to `most` that passes, of each; `most` if none does."""
    low, high = np.zeros_like(most), most.copy()
    while (high - low > 1).any():
        middle = (low + high) // 2
        passes, is_open = test(middle), high - low > 1
        low, high = np.where(~passes & is_open, middle, low), np.where(passes & is_open, middle, high)
    return high
