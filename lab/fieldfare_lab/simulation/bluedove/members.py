"""The service with matchers that join, leave and crash: `membership`'s machines in simulated time.

Every matcher has a `MatcherMember`, every dispatcher a `membership.Dispatcher`; messages between them take
the network's delay, timers are the simulation's, and a snapshot of a span is read in `restore_s`. A
dispatcher forwards by the partitioning in its own table, and only to matchers that it considers live. A
matcher searches what its member holds, which for some time after a hand-over is more than it owns.

The paper's dispatchers learn of a crash from their table; messages that they send to a dead matcher until
then are lost. With ``connections_fail`` sending to a dead matcher fails, the dispatcher avoids it
immediately, and forwards the returned messages again. Messages in the queues of a crashed matcher are lost
either way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import simpy

from fieldfare.partitioning import AttributeSpace
from fieldfare.partitioning.axis import AXIS_END, AXIS_START
from fieldfare_lab.membership import Dispatcher as TableKeeper
from fieldfare_lab.membership import (
    DispatcherSettings,
    MatcherMember,
    MatcherRow,
    MembershipSettings,
    State,
    stored_of,
)
from fieldfare_lab.membership.messages import (
    Leave,
    LoadMessage,
    Restore,
    Restored,
    StoredSubscription,
    Unreachable,
)
from fieldfare_lab.membership.table import Span, overlap
from fieldfare_lab.simulation.bluedove.dispatcher import View
from fieldfare_lab.simulation.bluedove.matcher import Matcher
from fieldfare_lab.simulation.bluedove.model import ServiceModel, Trace
from fieldfare_lab.simulation.bluedove.system import PolicyFactory, Process, Service, search_boxes
from fieldfare_lab.simulation.bluedove.workload import PATHS, Boxes
from fieldfare_lab.simulation.network import Network

LOOK_S = 0.1
"""Interval at which a dispatcher rebuilds its view from its table, in seconds."""


@dataclass(frozen=True, slots=True)
class MembersModel:
    """Parameters of the members.

    Parameters
    ----------
    matchers, dispatchers
        The settings of the machines.
    restore_s
        Seconds to read the subscriptions of a span from the snapshot.
    connections_fail
        See the module's text.
    """

    matchers: MembershipSettings = field(default_factory=MembershipSettings)
    dispatchers: DispatcherSettings = field(default_factory=DispatcherSettings)
    restore_s: float = 1.0
    connections_fail: bool = False


@dataclass(frozen=True, eq=False)
class MemberStore:
    """A member's subscriptions."""

    member: MatcherMember
    boxes: Boxes
    trace: Trace

    def sizes(self) -> dict[int, int]:
        return {dimension: len(held) for dimension, held in enumerate(self.member.holdings.sets)}

    def search(self, key: int, message: int) -> list[int]:
        numbers = np.array(sorted(self.member.holdings.sets[key]), np.int64)
        return search_boxes(self.boxes, numbers, self.trace.values[message])


class _TableView:
    """A dispatcher's view, rebuilt when its table has changed."""

    def __init__(self, keeper: TableKeeper, numbers: dict[str, int]) -> None:
        self._keeper = keeper
        self._numbers = numbers
        self._look_at_s = 0.0
        self._seen: object = None
        self._view: View | None = None

    def __call__(self, now: float) -> View:
        if self._view is None or now >= self._look_at_s:
            self._look_at_s = now + LOOK_S
            live = self._keeper.live(now)
            rows = self._keeper.table.rows.values()
            seen = (live, [(row.name, row.state, row.spans, row.absorbed) for row in rows])
            if seen != self._seen:
                self._seen = seen
                self._view = self._look(live, now)
        assert self._view is not None
        return self._view

    def _look(self, live: frozenset[str], now: float) -> View:
        space = self._keeper.partitioning(PATHS, self._numbers, now)
        sets = tuple((part.matcher, part.dimension or 0) for part in space.slices)
        up = {self._numbers[name] for name in live}
        return View(space, sets, np.array([matcher in up for matcher, _ in sets], np.bool_))


class ElasticService(Service):
    """A service whose matchers join and leave.

    Parameters
    ----------
    space
        The founding matchers and their spans: one segment on each attribute.
    boxes
        The subscriptions; all are in the snapshot from the start.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        space: AttributeSpace,
        boxes: Boxes,
        model: ServiceModel,
        members: MembersModel,
        trace: Trace,
        policy: PolicyFactory,
        seed: int,
        searches: bool = False,
    ) -> None:
        self.boxes = boxes
        self.members: dict[str, MatcherMember] = {}
        self._members_model = members
        self._seed = seed
        self._numbers: dict[str, int] = {}
        self._registry = [stored_of(i, form, PATHS) for i, form in enumerate(boxes.normal_forms())]
        rows = [_row(number, space) for number in sorted({one for owners in space.owners for one in owners})]
        self.keepers = {
            f"d{i}": TableKeeper(f"d{i}", rows, Random(f"d{i} {seed}"), members.dispatchers)
            for i in range(model.dispatchers)
        }
        views = [_TableView(keeper, self._numbers) for keeper in self.keepers.values()]
        super().__init__(environment, model, trace, policy, views, seed, searches)
        founded = AttributeSpace(space.axes, space.owners, space.hash_owners, space.wide_share)  # no spares
        placed = founded.place(boxes.extents)
        self.network = Network(environment, self, self.delay_s, Random(f"loss {seed}"))
        for row in rows:
            member = self._new_member(row.name, len(PATHS))
            member.row = row
            member.table.merge(rows, environment.now)
        for i, part in enumerate(founded.slices):
            held = [self._registry[number] for number in placed.of(i).tolist()]
            self.members[_name(part.matcher)].holdings.store(part.dimension or 0, held)
        for name, member in self.members.items():
            self._begin(name, member)
        for name, keeper in self.keepers.items():
            self.network.add(name, keeper)

    def _new_member(self, name: str, dimensions: int) -> MatcherMember:
        member = MatcherMember(
            name,
            dimensions,
            tuple(self.keepers),
            Random(f"{name} {self._seed}"),
            self._members_model.matchers,
        )
        self.members[name] = member
        self._numbers[name] = len(self._numbers)
        return member

    def _begin(self, name: str, member: MatcherMember) -> None:
        store = MemberStore(member, self.boxes, self.trace)
        number = self._numbers[name]
        matcher = Matcher(self.environment, number, store, self.model, self.trace, self.searches)
        self.start(matcher)
        self.network.add(name, member)
        self.environment.process(self._report_load(name, matcher))

    # Events

    def join(self) -> int:
        """Let a new matcher ask to join; return its number."""
        name = _name(len(self._numbers))
        self._begin(name, self._new_member(name, len(PATHS)))
        return self._numbers[name]

    def leave(self, number: int) -> None:
        """Make a matcher transfer all its subscriptions and leave."""
        self.network.hand_in(_name(number), Leave())

    def crash(self, number: int) -> None:
        """Crash a matcher, with all messages that wait there."""
        self.matchers[number].crash()
        self.network.crash(_name(number))

    def unreachable(self, dispatcher: int, matcher: int, messages: Sequence[int]) -> None:
        if self._members_model.connections_fail:
            self.dispatchers[dispatcher].hold(messages)
            self.network.hand_in(f"d{dispatcher}", Unreachable(_name(matcher)))

    # The machines

    def _report_load(self, name: str, matcher: Matcher) -> Process:
        """Report the load that determines which matcher is split: share of busy time plus backlog."""
        before_s = 0.0
        while matcher.is_up:
            yield self.environment.timeout(self.model.report_s)
            load = (matcher.busy_s - before_s) / self.model.report_s + matcher.backlog_s
            before_s = matcher.busy_s
            self.network.hand_in(name, LoadMessage(load))

    def answer(self, name: str, question: object) -> tuple[float, object]:
        """Read the snapshot for a matcher."""
        assert isinstance(question, Restore)
        found = self._overlapping(question.dimension, question.span)
        return self._members_model.restore_s, Restored(question.dimension, question.span, found)

    def told(self, name: str, news: object) -> None:
        """Ignore a stored subscription: all are there from the start."""

    def stopped(self, name: str) -> None:
        """Stop a matcher that has left."""
        self.matchers[self._numbers[name]].is_up = False

    def _overlapping(self, dimension: int, span: Span) -> tuple[StoredSubscription, ...]:
        return tuple(
            stored
            for stored in self._registry
            if any(overlap(part, span) for part in stored.spans[dimension])
        )


def _name(number: int) -> str:
    return f"m{number:03d}"


def _row(number: int, space: AttributeSpace) -> MatcherRow:
    """Return the row of a founding matcher."""
    spans: list[Span | None] = []
    for axis, owners in zip(space.axes, space.owners, strict=True):
        places = [AXIS_START, *axis.boundaries, AXIS_END]
        segment = owners.index(number)
        spans.append((places[segment], places[segment + 1]))
    return MatcherRow(_name(number), 0, State.UP, tuple(spans))


def simulate_members(
    service: Callable[[simpy.Environment], ElasticService],
    events: Sequence[tuple[float, Callable[[ElasticService], object]]],
    until_s: float,
) -> ElasticService:
    """Run a service with a schedule of events.

    Parameters
    ----------
    service
        Makes the service in an environment.
    events
        (time, action), ascending, such as ``(60.0, lambda service: service.crash(3))``.
    """
    environment = simpy.Environment()
    made = service(environment)

    def happen() -> Process:
        for moment_s, what in events:
            yield environment.timeout(moment_s - environment.now)
            what(made)

    environment.process(happen())
    environment.run(until=until_s)
    return made
