"""The service of Li et al. 2011 in simulated time, with matchers that stay: dispatchers, links, matchers.

publisher ─▶ dispatcher ──(network)──▶ matcher: queue of a set ─▶ processor ─▶ subscriber
                 ▲                        │
                 └──── λ, μ, q ───────────┘  each report period
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from fieldfare.forwarding import ForwardingPolicy
from fieldfare.partitioning import Partitioning, Placement
from fieldfare_lab.simulation.bluedove.dispatcher import Dispatcher, SetName, View, fixed_view
from fieldfare_lab.simulation.bluedove.matcher import Matcher
from fieldfare_lab.simulation.bluedove.model import ServiceModel, Trace
from fieldfare_lab.simulation.bluedove.workload import Boxes

Process = Generator[simpy.Event, Any, None]
PolicyFactory = Callable[[np.random.Generator], ForwardingPolicy]


@dataclass(frozen=True, eq=False)
class PlacedStore:
    """A matcher's slices of a placement."""

    slices: tuple[int, ...]
    placement: Placement
    boxes: Boxes
    trace: Trace

    def sizes(self) -> dict[int, int]:
        return {key: len(self.placement.of(key)) for key in self.slices}

    def search(self, key: int, message: int) -> list[int]:
        return search_boxes(self.boxes, self.placement.of(key), self.trace.values[message])


def search_boxes(boxes: Boxes, numbers: NDArray[Any], values: NDArray[np.int64]) -> list[int]:
    """Return those of some subscriptions that contain a point, ascending."""
    inside = ((boxes.low[numbers] <= values) & (values <= boxes.high[numbers])).all(axis=1)
    found: list[int] = np.sort(numbers[inside]).tolist()
    return found


class Service:
    """Dispatchers, links and matchers; subclasses may let matchers join and leave.

    Parameters
    ----------
    policy
        Makes each dispatcher's forwarding policy, from a random generator.
    searches
        Whether messages are matched, or only take their time.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        model: ServiceModel,
        trace: Trace,
        policy: PolicyFactory,
        views: Sequence[Callable[[float], View]],
        seed: int,
        searches: bool,
    ) -> None:
        self.environment = environment
        self.model = model
        self.trace = trace
        self.searches = searches
        self.matchers: dict[int, Matcher] = {}
        self._chance = Random(f"network {seed}")
        self.dispatchers = [
            Dispatcher(policy(np.random.default_rng([seed, i])), view, trace, partial(self._send, i))
            for i, view in enumerate(views)
        ]
        for i, dispatcher in enumerate(self.dispatchers):
            own = np.flatnonzero(trace.dispatcher == i)
            environment.process(self._dispatch(dispatcher, own.tolist(), trace.arrived_s[own].tolist()))
        environment.process(self._watch())

    def start(self, matcher: Matcher) -> None:
        """Add a matcher to the service."""
        self.matchers[matcher.number] = matcher
        self.environment.process(self._report(matcher))

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Call an action after a delay."""
        timer = self.environment.timeout(delay_s)
        timer.callbacks.append(lambda _: action())

    def delay_s(self) -> float:
        """Return a random network delay for one message."""
        return self.model.network_s * self._chance.uniform(1, 2)

    def _dispatch(self, dispatcher: Dispatcher, own: list[int], arrived_s: list[float]) -> Process:
        """Let one dispatcher forward arrived messages every `dispatch_s`."""
        place = 0
        while True:
            yield self.environment.timeout(self.model.dispatch_s)
            now, first = self.environment.now, place
            while place < len(own) and arrived_s[place] <= now:
                place += 1
            dispatcher.forward(own[first:place], now)

    def _send(self, dispatcher: int, name: SetName, messages: Sequence[int]) -> None:
        """Send messages after a delay; it varies less than a dispatcher's period: links keep their order."""
        self.later(self.delay_s(), lambda: self._deliver(dispatcher, name, messages))

    def _deliver(self, dispatcher: int, name: SetName, messages: Sequence[int]) -> None:
        number, key = name
        matcher = self.matchers[number]
        if matcher.is_up:
            matcher.receive(key, messages)
        else:
            self.unreachable(dispatcher, number, messages)

    def unreachable(self, dispatcher: int, matcher: int, messages: Sequence[int]) -> None:
        """Handle messages to a crashed matcher: they are lost, as in the paper."""

    def _report(self, matcher: Matcher) -> Process:
        """Report a matcher's load periodically, with a random phase; the first report comes immediately."""
        yield self.environment.timeout(self.model.report_s * self._chance.random() / 100)
        phase_s = self.model.report_s * self._chance.random()
        while matcher.is_up:
            self._tell_all(matcher)
            yield self.environment.timeout(phase_s or self.model.report_s)
            phase_s = 0.0

    def _tell_all(self, matcher: Matcher) -> None:
        reports = matcher.reports()
        for dispatcher in self.dispatchers if reports else ():
            self.later(self.delay_s(), lambda to=dispatcher: to.take(matcher.number, reports))  # type: ignore[misc]

    def _watch(self) -> Process:
        while True:
            yield self.environment.timeout(self.model.report_s)
            waiting = [matcher.backlog_s for matcher in self.matchers.values() if matcher.is_up]
            self.trace.backlog.append((self.environment.now, waiting))


def new_trace(values: NDArray[np.int64], arrived_s: NDArray[np.float64], model: ServiceModel) -> Trace:
    """Return a trace of messages that are assigned to the dispatchers in turn."""
    turns = np.arange(len(arrived_s)) % model.dispatchers
    return Trace(values, arrived_s, turns.astype(np.int16))


def simulate(
    partitioning: Partitioning,
    boxes: Boxes,
    policy: PolicyFactory,
    model: ServiceModel,
    values: NDArray[np.int64],
    arrived_s: NDArray[np.float64],
    until_s: float,
    *,
    placement: Placement | None = None,
    seed: int = 1,
    searches: bool = False,
) -> Trace:
    """Run a service with constant matchers.

    Parameters
    ----------
    partitioning, boxes
        The partitioning of the subscriptions, and the subscriptions.
    values, arrived_s : int64[n, 4] and float64[n]
        The messages and their arrival times.
    placement
        The boxes' placement, if it is known already.
    seed
        Seed of network delays, report times, and policies.

    Returns
    -------
    Trace
        The trace of every message up to ``until_s``.
    """
    environment = simpy.Environment()
    trace = new_trace(values, arrived_s, model)
    view = fixed_view(partitioning)
    service = Service(environment, model, trace, policy, [lambda _: view] * model.dispatchers, seed, searches)
    placed = partitioning.place(boxes.extents) if placement is None else placement
    for number in sorted({part.matcher for part in partitioning.slices}):
        own = tuple(i for i, part in enumerate(partitioning.slices) if part.matcher == number)
        store = PlacedStore(own, placed, boxes, trace)
        service.start(Matcher(environment, number, store, model, trace, searches))
    environment.run(until=until_s)
    return trace
