"""A dispatcher's one-hop table: pulled from matchers, used for everything (Li et al. 2011, section III.C).

It stores subscriptions with every matcher that its table lists as an owner of a part of their spans, and
repeats that until it is done everywhere; selects the heaviest matcher for one that joins; and tells which
matchers it considers dead, so that forwarding avoids them before their segments are taken over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from fieldfare.effects import Effect, Send, Tell, Timer, source
from fieldfare.model import Path
from fieldfare.partitioning.attribute_space import AttributeSpace
from fieldfare_lab.membership.gossip import Gossip, Greeting, Reply
from fieldfare_lab.membership.messages import (
    Beat,
    Confirmed,
    JoinRequest,
    LoadMessage,
    Split,
    StoredSubscription,
    Subscribe,
    SubscribeDone,
    Unreachable,
)
from fieldfare_lab.membership.table import (
    MatcherRow,
    MatcherTable,
    Span,
    State,
    attribute_space,
    contains,
    overlap,
    uncovered,
)


@dataclass(frozen=True, slots=True)
class DispatcherSettings:
    """The intervals of a dispatcher, in seconds.

    Parameters
    ----------
    beat_s
        Interval at which unfinished subscriptions are sent again.
    pull_s
        Interval at which the table is pulled (the paper: 10). Shorter: a more recent table; longer: fewer
        messages.
    dead_after_s
        The silence after which a matcher is avoided. Must exceed `pull_s` by the time that gossip takes. An
        `Unreachable` has the same effect immediately.
    """

    beat_s: float = 1.0
    pull_s: float = 10.0
    dead_after_s: float = 17.5


@dataclass(slots=True)
class _Storing:
    stored: StoredSubscription
    done: dict[int, dict[str, Span]] = field(default_factory=dict)
    """For each dimension the matchers that stored it, and their spans when they did."""


class Dispatcher:
    """One dispatcher: a machine without I/O.

    Parameters
    ----------
    rows
        The initial table, such as the founding matcher's row.
    """

    def __init__(
        self,
        name: str,
        rows: Iterable[MatcherRow],
        rng: Random,
        settings: DispatcherSettings | None = None,
        now: float = 0.0,
    ) -> None:
        self.settings = settings or DispatcherSettings()
        self.table = MatcherTable()
        self.table.merge(rows, now)
        self.loads: dict[str, float] = {}
        self._rng = rng
        self._gossip = Gossip(name, self.table, rng, self.settings.dead_after_s)
        self._unreachable: dict[str, int] = {}
        self._storing: dict[int, _Storing] = {}
        self._pull_at_s = now

    def start(self, now: float) -> list[Effect]:
        """Begin to beat."""
        return self._beat(now)

    def live(self, now: float) -> frozenset[str]:
        """Return the matchers that are up, as far as is known."""
        return frozenset(
            name
            for name, row in self.table.rows.items()
            if row.state is State.UP
            and self._unreachable.get(name, -1) < row.version
            and self.table.silent_s(name, now) < self.settings.dead_after_s
        )

    def partitioning(self, paths: Iterable[Path], matchers: Mapping[str, int], now: float) -> AttributeSpace:
        """Return the partitioning that the table describes; `live` tells whose slices are usable.

        It has no spares: an event whose candidates are all one dead matcher waits until its spans are taken
        over.
        """
        return attribute_space(self.table, paths, matchers, self.live(now))

    def subscribe(self, stored: StoredSubscription, now: float) -> list[Effect]:
        """Store a subscription, which is in the registry already, with its matchers."""
        storing = self._storing[stored.number] = _Storing(stored)
        return self._send_on(storing, now)

    def handle(self, message: object, now: float) -> list[Effect]:
        """Process a message or an input; see ``messages``."""
        sender, message = source(self._gossip.me, message)
        if isinstance(message, Beat):
            return self._beat(now)
        if isinstance(message, SubscribeDone):
            return self._stored(sender, message, now)
        if isinstance(message, LoadMessage):
            self.loads[sender] = message.load
            # it is live: the table is stale, perhaps for lack of a live partner
            if sender not in self.live(now):
                return [Send(sender, Greeting(self.table.digest()))]
        elif isinstance(message, JoinRequest):
            return self._join(message, now)
        elif isinstance(message, Reply):
            # until one has answered, another is asked at each beat
            self._pull_at_s = now + self.settings.pull_s
            return self._gossip.handle(sender, message, now)
        elif isinstance(message, Unreachable):
            if row := self.table.rows.get(message.matcher):
                self._unreachable[message.matcher] = row.version
        else:
            return self._gossip.handle(sender, message, now)
        return []

    def _beat(self, now: float) -> list[Effect]:
        effects: list[Effect] = [Timer(now + self.settings.beat_s, Beat())]
        if now >= self._pull_at_s:
            live = sorted(self.live(now)) or sorted(self.table.rows)
            effects.append(Send(self._rng.choice(live), Greeting(self.table.digest())))
        for storing in list(self._storing.values()):
            effects += self._send_on(storing, now)
        return effects

    def _join(self, message: JoinRequest, now: float) -> list[Effect]:
        """Section III.C: "the dispatcher chooses a heavily loaded matcher", here the heaviest."""
        known = self.table.rows.get(message.matcher)
        live = self.live(now) - {message.matcher}
        if not live or (known is not None and known.state is not State.JOINING):
            return []
        heaviest = max(sorted(live), key=lambda name: self.loads.get(name, 0.0))
        self.loads[heaviest] = self.loads.get(heaviest, 0.0) / 2  # so that the next one joins another
        return [Send(heaviest, Split(message.matcher))]

    def _stored(self, sender: str, message: SubscribeDone, now: float) -> list[Effect]:
        storing = self._storing.get(message.number)
        if storing is None:
            return []
        storing.done.setdefault(message.dimension, {})[sender] = message.span
        if self._missing(storing, now):
            known = self.table.rows.get(sender)
            is_news = known is None or known.spans[message.dimension] != message.span
            return [Send(sender, Greeting(self.table.digest()))] if is_news else []
        del self._storing[message.number]
        return [Tell(Confirmed(message.number))]

    def _send_on(self, storing: _Storing, now: float) -> list[Effect]:
        missing = self._missing(storing, now)
        if not missing:
            self._storing.pop(storing.stored.number, None)
            return [Tell(Confirmed(storing.stored.number))]
        return [Send(name, Subscribe(dimension, storing.stored)) for dimension, name in missing if name]

    def _missing(self, storing: _Storing, now: float) -> list[tuple[int, str | None]]:
        """Return (dimension, matcher) pairs that still lack the subscription; None: the owner is unknown.

        Every known live owner must have it, for its full span, and together they must cover its spans.
        """
        live = self.live(now)
        missing: list[tuple[int, str | None]] = []
        for dimension, spans in enumerate(storing.stored.spans):
            done = storing.done.get(dimension, {})
            missing += [
                (dimension, name)
                for name, owned in self.table.owned(dimension)
                if name in live
                and not contains(done.get(name), owned)
                and any(overlap(span, owned) for span in spans)
            ]
            if any(True for span in spans for _ in uncovered(span, done.values())):
                missing.append((dimension, None))
        return missing
