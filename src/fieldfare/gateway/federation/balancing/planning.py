"""Which subscriptions of this broker would move: the last matches, as joint plans see them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fieldfare.balancing.advice import Advice, Peer, Share, advise, plan, spread
from fieldfare.balancing.detection import BrokerAction
from fieldfare.balancing.load import Load, Metrics
from fieldfare.balancing.messages import State
from fieldfare.balancing.plans import Plan
from fieldfare.balancing.press import Profile, aggregate
from fieldfare.balancing.settings import BalancingSettings, Triggers
from fieldfare.gateway.federation.balancing.window import Window
from fieldfare.gateway.federation.moving.book import Key, MoveParts
from fieldfare.gateway.federation.moving.sessions import Moves
from fieldfare.gateway.problems import HttpProblem
from fieldfare.model import Subscription

READ_MAX = 100_000
"""Maximum subscriptions that are looked at."""

PLANNED_MAX = 300
"""Maximum subscriptions that a plan chooses from: those with the most matches, and some that match little."""

_SILENT_MAX = 100
_PAGE = 1_000


PUBLISHERS = "publishers"
"""Key of the publishers here in a profile. Like a subscription that stays: their events are input anyway."""


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
        theirs: Load,
        targets: tuple[Metrics, Metrics],
        settings: BalancingSettings,
        resting: Collection[Key],
    ) -> tuple[Plan | None, list[Subscription]]:
        """Return what is to move for an entry of the broker-action list, and the loads after it.

        Parameters
        ----------
        targets
            The metrics that this broker and the other one are to have.
        resting
            Subscriptions that stay, because they have just come or could not move.
        """
        candidates = self._candidates(view, resting)
        profile = candidates.profile(action.broker)
        made = plan(action, (view.load, theirs), profile, candidates.movable, targets, settings)
        return made, [] if made is None else candidates.of(made)

    def advised(
        self,
        view: View,
        peers: Mapping[str, Peer],
        settings: BalancingSettings,
        triggers: Triggers,
        resting: Collection[Key],
    ) -> tuple[list[Advice], list[tuple[Subscription, str]]]:
        """Return the broker-action list with its plans, and the subscriptions to move, and where to."""
        candidates = self._candidates(view, resting)
        found = advise(view.load, peers, candidates.profile, candidates.movable, settings, triggers)
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

    def _candidates(self, view: View, resting: Collection[Key]) -> Candidates:
        by_matches = sorted(view.subscriptions, key=lambda each: (-each[1], each[0].number))
        some = by_matches[:PLANNED_MAX]
        if len(by_matches) > PLANNED_MAX:
            some = by_matches[: PLANNED_MAX - _SILENT_MAX] + by_matches[-_SILENT_MAX:]
        free = {
            each.number
            for each, _ in some
            if not each.delivery.pinned and (each.space, each.id) not in resting
        }
        return Candidates(self._parts, view, some, free)


class Candidates:
    """The subscriptions that a plan chooses from, by number, with their bit vectors.

    Attributes
    ----------
    movable
        By number, 1 for a subscription that may move.
    """

    def __init__(
        self,
        parts: MoveParts,
        view: View,
        some: Sequence[tuple[Subscription, int]],
        free: Collection[int],
    ) -> None:
        self._parts = parts
        self._view = view
        self._standing = {each.number: each for each, _ in some}
        self.movable: dict[Hashable, int] = dict.fromkeys(free, 1)
        window = view.window
        self._bits = window.bits([*([number] for number in self._standing), []])
        self._origins = window.origins(parts.log)
        self._bits[-1] = [origin is None for origin in self._origins]
        counts = [count for _, count in some]
        self._rates_per_s = np.array([*counts, 0.0]) / window.span_s

    def profile(self, broker: str) -> Profile:
        """Return what PRESS finds, for a broker that accepts load."""
        known, view = self._parts.correspondence.brokers.get(broker), self._view
        accepted = view.window.bits([[] if known is None else [known.number]])
        accepted[0] |= np.array([origin == broker for origin in self._origins], bool)
        return Profile(
            (*self._standing, PUBLISHERS),
            self._bits,
            aggregate(accepted, len(self._origins)),
            view.load.input_per_s,
            view.window.event_bytes,
            rates_per_s=self._rates_per_s,
        )

    def of(self, plan: Plan) -> list[Subscription]:
        """Return the subscriptions of a plan."""
        return [self._standing[each.key] for each in plan.moved if isinstance(each.key, int)]
