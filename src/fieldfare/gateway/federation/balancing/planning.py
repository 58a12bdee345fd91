"""Which subscriptions of this broker would move: the last matches, as the algorithms of PADRES see them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fieldfare.balancing.advice import Advice, Peer, Share, advise, mean_ratio, plan, spread
from fieldfare.balancing.detection import BrokerAction
from fieldfare.balancing.load import Load
from fieldfare.balancing.messages import State
from fieldfare.balancing.offload import Plan
from fieldfare.balancing.poset import Poset
from fieldfare.balancing.press import Profile, aggregate
from fieldfare.balancing.settings import BalancingSettings
from fieldfare.filters import FilterError, compile_filter
from fieldfare.filters.covering import FilterRegion, region_of
from fieldfare.gateway.federation.balancing.window import Window
from fieldfare.gateway.federation.moving.book import Key, MoveParts
from fieldfare.gateway.federation.moving.sessions import Moves
from fieldfare.gateway.problems import HttpProblem
from fieldfare.model import Subscription, interest_key

READ_MAX = 100_000
"""Maximum subscriptions that are looked at."""

PLANNED_MAX = 300
"""Maximum subscriptions that a plan chooses from: those with the most matches, and some that match little."""

_SILENT_MAX = 100
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class SpaceRegion:
    """A filter in its space, as a poset sees it: it covers filters of the same space only."""

    space: str
    region: FilterRegion

    @property
    def key(self) -> Hashable:
        """The space, and the key of the filter."""
        return self.space, self.region.key

    def covers(self, other: Any, /) -> bool:
        """Return True only if every event that the other filter matches also matches this one."""
        return (
            isinstance(other, SpaceRegion) and self.space == other.space and self.region.covers(other.region)
        )


class Publishers:
    """The publishers here, as a subscription that stays: what they publish is input in any case."""

    key = "publishers"

    def covers(self, other: Any, /) -> bool:
        """Return False: it stands beside all filters."""
        return False


PUBLISHERS = Publishers()


@dataclass(frozen=True, slots=True)
class View:
    """This broker at one moment: its load, the last matches, and its subscriptions with their matches."""

    load: Load
    window: Window
    subscriptions: Sequence[tuple[Subscription, int]]

    @property
    def pinned(self) -> int:
        """Number of subscriptions that stay in any case."""
        return sum(each.delivery.pinned for each, _ in self.subscriptions)


class Planner:
    """Chooses among the subscriptions of one broker. It reads files and computes: call it on threads."""

    def __init__(self, parts: MoveParts, moves: Moves) -> None:
        self._parts = parts
        self._moves = moves

    def view(self, load: Load, window: Window) -> View:
        """Return this broker's subscriptions that may move, or are pinned, with their matches."""
        numbers, counts = window.matches()
        matches = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        found = [(each, matches.get(each.number, 0)) for each in self._subscriptions()]
        return View(load, window, found)

    def _subscriptions(self) -> Iterator[Subscription]:
        registry, read = self._parts.registry, 0
        for space in registry.stored_spaces():
            after: str | None = None
            while space.encryption is None and read < READ_MAX:
                page = registry.list(space.key, after, _PAGE)
                read += len(page)
                yield from (each for each in page if self._moves.may_move(each.space, each.id))
                if len(page) < _PAGE:
                    break
                after = page[-1].id

    def choose(
        self,
        view: View,
        action: BrokerAction,
        peer: Peer,
        settings: BalancingSettings,
        resting: Collection[Key],
        others: Sequence[Load],
    ) -> tuple[Plan | None, list[Subscription]]:
        """Return what is to move for an entry of the broker-action list, and the loads after it.

        If possible, the other broker gets no more than its share of what it and `others` could have: it
        would only pass that on.
        """
        candidates = self._candidates(view, lambda each: (each.space, each.id) not in resting)
        peer = replace(peer, css=tuple(self._css(action.broker)))
        share = mean_ratio(action.metric, (view.load, peer.load, *others))
        for ceiling in (share, math.inf):
            made = plan(
                action,
                view.load,
                peer,
                candidates.poset,
                candidates.profile(action.broker),
                candidates.movable,
                settings,
                ceiling,
            )
            if made is not None:
                return made, list(candidates.of(made))
        return None, []

    def advised(
        self, view: View, takers: Mapping[str, Peer], settings: BalancingSettings
    ) -> tuple[list[Advice], list[tuple[Subscription, str]]]:
        """Return the broker-action list with its plans, and the subscriptions to move, and where to."""
        candidates = self._candidates(view, lambda each: True)
        # The algorithms ask for the filters of the broker that accepts load: those known here are enough.
        takers = {name: replace(peer, css=tuple(self._css(name))) for name, peer in takers.items()}
        found = advise(view.load, takers, candidates.poset, candidates.profile, candidates.movable, settings)
        chosen = [
            (subscription, advice.action.broker)
            for advice in found
            if advice.plan is not None
            for subscription in candidates.of(advice.plan)
        ]
        return found, chosen

    def drained(self, view: View, takers: Mapping[str, Peer]) -> list[tuple[Subscription, str]]:
        """Return another broker for each subscription that is not pinned. Raise HttpProblem without one."""
        loads = {name: each.load for name, each in takers.items() if each.state is not State.NOT_AVAILABLE}
        if not loads:
            detail = "No other broker can take the subscriptions: none is known, or all are overloaded."
            raise HttpProblem(409, "no-room", detail)
        leaving = {each.number: each for each, _ in view.subscriptions if not each.delivery.pinned}
        window = view.window
        shares = [
            Share(number, count / window.span_s, count / window.span_s * window.event_bytes)
            for number, count in ((each.number, count) for each, count in view.subscriptions)
            if number in leaving
        ]
        return [(leaving[int(str(number))], to) for number, to in spread(shares, loads).items()]

    def _candidates(self, view: View, is_free: Callable[[Subscription], bool]) -> Candidates:
        by_matches = sorted(view.subscriptions, key=lambda each: (-each[1], each[0].number))
        some = by_matches[:PLANNED_MAX]
        if len(by_matches) > PLANNED_MAX:
            some = by_matches[: PLANNED_MAX - _SILENT_MAX] + by_matches[-_SILENT_MAX:]
        standing, poset, free = dict[str, Subscription](), Poset(), set[str]()
        for subscription, _ in some:
            region = _region(subscription, subscription.space)
            if region is not None:
                name = str(subscription.number)
                standing[name] = subscription
                poset.add(name, region)
                if not subscription.delivery.pinned and is_free(subscription):
                    free.add(name)
        return Candidates(self._parts, view, standing, poset, free)

    def _css(self, broker: str) -> Iterator[SpaceRegion]:
        """Yield filters of another broker's subscriptions, at most `PLANNED_MAX` of each space."""
        known, registry = self._parts.correspondence.brokers.get(broker), self._parts.registry
        if known is None:
            return
        first, last = f"{known.number}/", f"{known.number}0"
        for space in registry.stored_spaces():
            for each in registry.list(interest_key(space.key), first, PLANNED_MAX):
                region = None if each.id >= last else _region(each, space.key)
                if region is not None:
                    yield region


class Candidates:
    """The subscriptions that a plan chooses from, with their bit vectors.

    Attributes
    ----------
    movable
        By key of the poset, the number of subscriptions that may move.
    """

    def __init__(
        self,
        parts: MoveParts,
        view: View,
        standing: Mapping[str, Subscription],
        poset: Poset,
        free: Collection[str],
    ) -> None:
        self._parts = parts
        self._view = view
        self._standing, self._free = standing, free
        self.poset = poset
        self._keys = (*poset.nodes, PUBLISHERS.key)
        self.movable: dict[Hashable, int] = {
            key: sum(id in free for id in node.ids) for key, node in poset.nodes.items()
        }
        self._bits = view.window.bits(
            [*([int(id) for id in poset.nodes[key].ids] for key in self._keys[:-1]), []]
        )
        self._origins = view.window.origins(parts.log)
        self._bits[-1] = [origin is None for origin in self._origins]
        poset.add(PUBLISHERS.key, PUBLISHERS)

    def profile(self, broker: str) -> Profile:
        """Return what PRESS finds, for a broker that accepts load."""
        known, view = self._parts.correspondence.brokers.get(broker), self._view
        accepted = view.window.bits([[] if known is None else [known.number]])
        accepted[0] |= np.array([origin == broker for origin in self._origins], bool)
        return Profile(
            self._keys,
            self._bits,
            aggregate(accepted, len(self._origins)),
            view.load.input_per_s,
            view.window.event_bytes,
        )

    def of(self, plan: Plan) -> Iterator[Subscription]:
        """Yield the subscriptions of a plan."""
        for each in plan.moved:
            free = [self._standing[id] for id in self.poset.nodes[each.key].ids if id in self._free]
            yield from free[: each.number]


def _region(subscription: Subscription, space: str) -> SpaceRegion | None:
    with suppress(FilterError, RecursionError):
        filter = compile_filter(subscription.filter, subscription.dialect)
        return SpaceRegion(space, region_of(filter))
    return None
