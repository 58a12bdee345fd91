"""A matcher's membership: joining, leaving, taking over from the dead (Li et al. 2011, section III.C).

    JOINING ──HandOver──▶ UP ──all handed over──▶ LEFT ──lingered──▶ stopped
       └─ JoinRequest ─▶ dispatcher ─ Split ─▶ the heaviest matcher ─ HandOver of half of each span ─▶ here

All hand-overs have the same steps: the giver sends spans with their subscriptions, the receiver stores them
and owns them from then on, and only then the giver releases them. In between both own them, which is harmless
(see ``table``); the giver accepts no subscription of such a span, and the dispatcher retries it. A giver
keeps the given subscriptions for as long as dispatchers may still forward by an old table.

* Join: half of the heaviest matcher's span on each dimension; half by its subscriptions (section IV.E).
* Leave: each span goes to the neighbour below, or above if there is none.
* Crash: the matcher that would inherit the span takes it over after ``dead_after_s`` of silence, with the
  subscriptions of the snapshot. The snapshot is read once more when every dispatcher must have learned of it:
  a matcher that was only slow may have continued to store new ones. Such a matcher leaves when it notices; if
  two halves of a partitioned network took over from each other, one of the matchers leaves.

Deviations: the paper moves subscriptions but does not describe arrivals meanwhile; and a crashed matcher's
subscriptions survive only in their other copies there, whereas here the snapshot has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from fieldfare.effects import Ask, Effect, Send, Stop, Timer, source
from fieldfare.partitioning.axis import AXIS_END, AXIS_START
from fieldfare_lab.membership.gossip import Gossip, NewerRows
from fieldfare_lab.membership.holdings import Holdings
from fieldfare_lab.membership.messages import (
    Beat,
    HandOver,
    HandOverDone,
    JoinRequest,
    Leave,
    LoadMessage,
    Restore,
    Restored,
    Split,
    Subscribe,
    SubscribeDone,
)
from fieldfare_lab.membership.table import (
    MatcherRow,
    MatcherTable,
    Span,
    State,
    contains,
    hull,
    overlap,
    touch,
    uncovered,
)
from fieldfare_lab.membership.transitions import HandOverProgress, MembershipSettings, Rereadings, Restoring


class MatcherMember:
    """One matcher's membership: a machine without I/O.

    Parameters
    ----------
    name
        Its address; never used by a matcher before.
    dimension_count
        k.
    dispatchers
        Dispatchers that it may ask to join, and that it reports its load to.
    founding
        The first matcher owns every dimension from the start.
    """

    def __init__(
        self,
        name: str,
        dimension_count: int,
        dispatchers: Sequence[str],
        rng: Random,
        settings: MembershipSettings | None = None,
        founding: bool = False,
    ) -> None:
        self.name = name
        self.settings = settings or MembershipSettings()
        self.table = MatcherTable()
        self.holdings = Holdings(dimension_count)
        everything: Span = (AXIS_START, AXIS_END)
        spans = (everything if founding else None,) * dimension_count
        self.row = MatcherRow(name, 0, State.UP if founding else State.JOINING, spans)
        self.stopped = False
        self._dispatchers = tuple(dispatchers)
        self._rng = rng
        self._gossip = Gossip(name, self.table, rng, self.settings.dead_after_s)
        self._giving: HandOverProgress | None = None
        self._given = 0
        self._received: dict[str, int] = {}
        self._restoring: dict[int, Restoring] = {}
        self._again = Rereadings(self.settings.linger_s)
        self._beaten_s = 0.0
        self._taken_over: frozenset[tuple[str, int, int]] = frozenset()
        self._let_go_s: float | None = None
        self._wants_to_leave = False
        self._load: float | None = None
        self._told_load = (-1.0, 0.0)
        self._handlers: dict[type, Any] = {
            Beat: self._beat,
            Leave: self._leave,
            Split: self._split,
            HandOver: self._receive,
            HandOverDone: self._handed_over,
            Subscribe: self._subscribe,
            Restored: self._restored,
            LoadMessage: self._measured,
        }

    def start(self, now: float) -> list[Effect]:
        """Begin to beat."""
        self._beaten_s = now
        self.table.merge([self.row], now)
        return self._beat(self.name, Beat(), now)

    def handle(self, message: object, now: float) -> list[Effect]:
        """Process a message or an input; see ``messages``."""
        if self.stopped:
            return []
        sender, message = source(self.name, message)
        handler = self._handlers.get(type(message))
        if handler is None:
            return self._gossip.handle(sender, message, now)
        effects: list[Effect] = handler(sender, message, now)
        return effects

    def _publish(self, now: float, **changes: Any) -> None:
        self.row = replace(self.row, version=self.row.version + 1, **changes)
        self.table.merge([self.row], now)

    def _is_live(self, name: str, now: float) -> bool:
        return name == self.name or self.table.silent_s(name, now) < self.settings.dead_after_s

    @property
    def _is_busy(self) -> bool:
        """Whether it must not begin to give: it may not have every subscription of its spans yet."""
        return self._giving is not None or bool(self._restoring or self._again)

    # The beat

    def _beat(self, sender: str, message: Beat, now: float) -> list[Effect]:
        effects: list[Effect] = [Timer(now + self.settings.beat_s, Beat())]
        if now - self._beaten_s > self.settings.dead_after_s / 2:
            self._wake(now)
        self._beaten_s = now
        if self.row.state is State.LEFT:
            if self._let_go_s is not None and now >= self._let_go_s:
                self.stopped = True
                return [Stop()]
            return effects + self._gossip.round(now)
        self._publish(now)
        if self.row.state is State.JOINING:
            effects.append(Send(self._rng.choice(self._dispatchers), JoinRequest(self.name)))
        else:
            self._notice(now)
            effects += self._report_load(now)
            effects += self._advance_hand_over(now)
            effects += self._take_over(now)
            effects += self._again.due(now)
            self._let_go(now)
        return effects + self._gossip.round(now)

    def _wake(self, now: float) -> None:
        """Handle a pause of this process: the others were not silent, and much may have been missed."""
        self.table.forgive(now)
        self._read_again(now)

    def _notice(self, now: float) -> None:
        """Read snapshots again after a take-over: the new owner has stored subscriptions of its spans too."""
        taken_over = self.table.taken_over_from(self.name)
        if taken_over - self._taken_over:
            self._read_again(now)
        self._taken_over = taken_over

    def _read_again(self, now: float) -> None:
        for dimension, span in enumerate(self.row.spans):
            if span:
                self._again.add(dimension, span, now)

    def _report_load(self, now: float) -> list[Effect]:
        """Push the load to each dispatcher if it changed by more than 10% (section IV.C).

        An unchanged load is repeated from time to time, so that a dispatcher that knows no live matcher
        learns of one.
        """
        load = float(self.holdings.size) if self._load is None else self._load
        told, told_s = self._told_load
        if now - told_s < self.settings.dead_after_s and abs(load - told) <= 0.1 * max(load, told):
            return []
        self._told_load = (load, now)
        return [Send(dispatcher, LoadMessage(load)) for dispatcher in self._dispatchers]

    def _measured(self, sender: str, message: LoadMessage, now: float) -> list[Effect]:
        self._load = message.load
        return []

    def _let_go(self, now: float) -> None:
        if self._let_go_s is not None and now >= self._let_go_s and not (self._giving or self._restoring):
            self._let_go_s = None
            for dimension, span in enumerate(self.row.spans):
                self.holdings.keep_within(dimension, span)

    # Giving

    def _split(self, sender: str, message: Split, now: float) -> list[Effect]:
        """Give half of every span to a joining matcher."""
        if self._is_busy or self.row.state is not State.UP:
            return []
        spans = {
            dimension: (middle, span[1])
            for dimension, span in enumerate(self.row.spans)
            if span and (middle := self.holdings.middle(dimension, span))
        }
        if not spans:
            return []
        self._giving = HandOverProgress(spans, now, message.joining)
        return self._send_spans(self._giving, now)

    def _leave(self, sender: str, message: Leave, now: float) -> list[Effect]:
        self._wants_to_leave = True
        return self._advance_hand_over(now)

    def _advance_hand_over(self, now: float) -> list[Effect]:
        """Begin to leave when nothing else is in progress; repeat unanswered messages; give up."""
        wants_to_leave = self._wants_to_leave or self.table.is_outlived(
            self.name, lambda other: self._outlives(other, now)
        )
        has_neighbours = all(
            self._neighbour(dimension, span, now) for dimension, span in enumerate(self.row.spans) if span
        )
        if wants_to_leave and has_neighbours and not self._is_busy and self.row.state is State.UP:
            self._start_leaving(now)
        giving = self._giving
        if giving is None:
            return []
        is_hopeless = not (has_neighbours if giving.receiver is None else self._has_taken(giving))
        if is_hopeless:
            # A subscription of the span is stored here only when no message sent before can still arrive.
            waited_s = now - giving.since_s
            if waited_s > 2 * self.settings.dead_after_s:
                self._giving = None
            if waited_s > self.settings.dead_after_s:
                return []
        elif giving.receiver is not None and not self._is_live(giving.receiver, now):
            self._finish_giving(giving, now)  # it took the spans and died: its heir restores them
            return []
        return [] if self._again else self._send_spans(giving, now)

    def _outlives(self, other: str, now: float) -> bool:
        """Return whether one that took over from this matcher may: not if it was taken over itself."""
        is_outlived = self.table.is_outlived(other, lambda name: self._is_live(name, now))
        return self._is_live(other, now) and (not is_outlived or other < self.name)

    def _has_taken(self, giving: HandOverProgress) -> bool:
        """Return whether the receiver of a split is known to own what it was sent."""
        known = self.table.rows.get(giving.receiver or "")
        return known is not None and all(
            contains(known.spans[dimension], span) for dimension, span in giving.spans.items()
        )

    def _start_leaving(self, now: float) -> None:
        self._giving = HandOverProgress({i: span for i, span in enumerate(self.row.spans) if span}, now)

    def _send_spans(self, giving: HandOverProgress, now: float) -> list[Effect]:
        to: dict[str, set[int]] = {}
        for dimension in giving.left:
            receiver = giving.receiver or self._neighbour(dimension, giving.spans[dimension], now)
            if receiver is not None:
                to.setdefault(receiver, set()).add(dimension)
        effects: list[Effect] = []
        for receiver, dimensions in sorted(to.items()):
            number, asked = giving.asked.get(receiver, (0, frozenset[int]()))
            if asked != dimensions:
                self._given += 1
                number = self._given
            giving.asked[receiver] = (number, frozenset(dimensions))
            spans = tuple(giving.spans[i] if i in dimensions else None for i in range(len(self.row.spans)))
            subscriptions = tuple(
                self.holdings.within(i, span) if span else () for i, span in enumerate(spans)
            )
            message = HandOver(number, spans, subscriptions, tuple(self.table.rows.values()))
            effects.append(Send(receiver, message))
        if not giving.left:
            self._finish_giving(giving, now)
        return effects

    def _neighbour(self, dimension: int, span: Span, now: float) -> str | None:
        return self.table.heir(dimension, span, lambda name: name != self.name and self._is_live(name, now))

    def _handed_over(self, sender: str, message: HandOverDone, now: float) -> list[Effect]:
        self.table.merge(message.rows, now)
        giving = self._giving
        if giving is None:
            return []
        number, dimensions = giving.asked.get(sender, (0, frozenset[int]()))
        if message.number == number:
            giving.done |= dimensions
            if not giving.left:
                self._finish_giving(giving, now)
        return []

    def _finish_giving(self, giving: HandOverProgress, now: float) -> None:
        spans = list(self.row.spans)
        for dimension, (low, _) in giving.spans.items():
            span = spans[dimension]
            spans[dimension] = None if giving.receiver is None or span is None else (span[0], low)
        self._giving = None
        self._restoring.clear()
        self._let_go_s = now + self.settings.linger_s
        state = State.LEFT if giving.receiver is None else State.UP
        self._publish(now, spans=tuple(spans), state=state)

    # Receiving

    def _receive(self, sender: str, message: HandOver, now: float) -> list[Effect]:
        """Own the spans from now on, unless something else is in progress: then the giver retries."""
        last = self._received.get(sender, 0)
        if message.number == last:
            return [Send(sender, HandOverDone(last, tuple(self.table.rows.values())))]
        if message.number < last or not self._can_receive(sender, message):
            return []
        self._received[sender] = message.number
        self.table.merge(message.rows, now)
        spans = list(self.row.spans)
        for dimension, span in enumerate(message.spans):
            if span is not None:
                self.holdings.store(dimension, message.subscriptions[dimension])
                spans[dimension] = hull(spans[dimension], span)
        self._publish(now, spans=tuple(spans), state=State.UP)
        if self._giving is not None:
            self._start_leaving(now)  # including the spans just received
        return [Send(sender, HandOverDone(message.number, tuple(self.table.rows.values())))]

    def _can_receive(self, sender: str, message: HandOver) -> bool:
        """Return whether to accept a hand-over; of two leaving neighbours the greater name inherits."""
        giving = self._giving
        if self.row.state is State.LEFT or self._restoring:
            return False
        if giving is not None and (giving.receiver is not None or sender > self.name):
            return False
        return all(touch(own, span) for own, span in zip(self.row.spans, message.spans, strict=True) if span)

    # Taking over

    def _take_over(self, now: float) -> list[Effect]:
        """Request the subscriptions of silent matchers whose heir this one is."""
        effects: list[Effect] = []
        if self._giving is not None and self._giving.receiver is not None:
            return effects
        for dimension, restoring in self._restoring.items():
            if now - restoring.asked_s > self.settings.linger_s:
                restoring.asked_s = now
                effects.append(Ask(Restore(dimension, restoring.asked)))
        for dimension, own in enumerate(self.row.spans):
            silent = [
                (name, span) for name, span in self.table.owned(dimension) if not self._is_live(name, now)
            ]
            if dimension in self._restoring or not silent:
                continue
            mine = [(name, span) for name, span in silent if self._inherits(dimension, span, now)]
            wanted = own
            for _, span in mine:
                wanted = hull(wanted, span)
            if wanted is None or not mine:
                continue
            missing = list(uncovered(wanted, [own] if own else []))
            asked = (missing[0][0], missing[-1][1]) if missing else wanted
            self._restoring[dimension] = Restoring(wanted, {name for name, _ in mine}, asked, now)
            if missing:
                effects.append(Ask(Restore(dimension, asked)))
            else:
                self._absorb(dimension, now)
        return effects

    def _inherits(self, dimension: int, span: Span, now: float) -> bool:
        return self.table.heir(dimension, span, lambda name: self._is_live(name, now)) == self.name

    def _restored(self, sender: str, message: Restored, now: float) -> list[Effect]:
        self.holdings.store(message.dimension, message.subscriptions)
        restoring = self._restoring.get(message.dimension)
        if restoring is not None and restoring.asked == message.span:
            self._absorb(message.dimension, now)
            self._again.add(message.dimension, message.span, now)
        else:
            self._again.answered(message.dimension, message.span)
        return []

    def _absorb(self, dimension: int, now: float) -> None:
        """Own the restored spans of matchers that are still silent; their rows are ignored from now on."""
        restoring = self._restoring.pop(dimension)
        spans = list(self.row.spans)
        owned = spans[dimension]
        absorbed = set(self.row.absorbed)
        for name in sorted(restoring.names):
            row = self.table.rows[name]
            span = row.spans[dimension]
            if not self._is_live(name, now) and span is not None and contains(restoring.wanted, span):
                owned = hull(owned, span)
                absorbed.add((name, dimension, row.version))
        spans[dimension] = owned
        self._publish(now, spans=tuple(spans), absorbed=frozenset(absorbed))
        if self._giving is not None:
            self._start_leaving(now)  # including the spans just taken over

    # Subscribing

    def _subscribe(self, sender: str, message: Subscribe, now: float) -> list[Effect]:
        """Store a subscription and confirm the span; do not answer if that span is being given away."""
        dimension, stored = message.dimension, message.subscription
        own = self.row.spans[dimension]
        if own is None or not any(overlap(span, own) for span in stored.spans[dimension]):
            return [Send(sender, NewerRows(tuple(self.table.rows.values())))]
        given = self._giving.spans.get(dimension) if self._giving is not None else None
        if given is not None and any(overlap(span, given) for span in stored.spans[dimension]):
            return []
        self.holdings.store(dimension, [stored])
        return [Send(sender, SubscribeDone(dimension, stored.number, own))]
