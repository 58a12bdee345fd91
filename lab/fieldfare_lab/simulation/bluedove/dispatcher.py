"""A simulated dispatcher: routes arrived messages by its view of the matchers, and forwards them by a policy.

A `View` is a partitioning, with the set of each of its slices. In a service with constant matchers it never
changes; otherwise it is rebuilt from the dispatcher's table (see ``members``). Loads are reported for sets,
and a table of loads is for slices; so the last report of every set is kept, and applied to each new view's
table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fieldfare.forwarding import ForwardingPolicy, LoadReport, LoadTable
from fieldfare.partitioning import NO_SLICE, Partitioning
from fieldfare_lab.replicas import forward_with_spares
from fieldfare_lab.simulation.bluedove.model import Trace
from fieldfare_lab.simulation.bluedove.workload import columns_of

SetName = tuple[int, int]
"""(matcher, key): one of a matcher's sets of subscriptions."""


@dataclass(frozen=True, eq=False)
class View:
    """A dispatcher's view of a partitioning.

    Parameters
    ----------
    sets
        The set of each slice.
    live : bool[slices]
        Whether the slice's matcher is considered live.
    """

    partitioning: Partitioning
    sets: tuple[SetName, ...]
    live: NDArray[np.bool_]

    @cached_property
    def slices_of(self) -> dict[SetName, list[int]]:
        """The slices of each set."""
        found: dict[SetName, list[int]] = {}
        for slice_number, name in enumerate(self.sets):
            found.setdefault(name, []).append(slice_number)
        return found


def fixed_view(partitioning: Partitioning) -> View:
    """Return a view that never changes: every slice is a separate set, with the slice's number as key."""
    sets = tuple((part.matcher, i) for i, part in enumerate(partitioning.slices))
    return View(partitioning, sets, np.ones(len(sets), np.bool_))


@dataclass
class Dispatcher:
    """One dispatcher.

    Parameters
    ----------
    view
        Returns the view at a time.
    send
        Sends messages to a set.
    """

    policy: ForwardingPolicy
    view: Callable[[float], View]
    trace: Trace
    send: Callable[[SetName, Sequence[int]], None]
    _reports: dict[SetName, LoadReport] = field(default_factory=dict)
    _loads: LoadTable = field(default_factory=lambda: LoadTable(0))
    _known: View | None = None
    _stranded: list[int] = field(default_factory=list)

    def take(self, matcher: int, reports: Iterable[LoadReport]) -> None:
        """Process a matcher's report."""
        for report in reports:
            name = (matcher, report.slice)
            self._reports[name] = report
            if self._known is not None:
                self._tell(self._known, name)

    def _tell(self, view: View, name: SetName) -> None:
        report = self._reports[name]
        self._loads.take(report._replace(slice=i) for i in view.slices_of.get(name, ()))

    def _look(self, now: float) -> View:
        view = self.view(now)
        if view is not self._known:
            self._known = view
            self._loads = LoadTable(len(view.sets))
            for name in self._reports:
                self._tell(view, name)
        return view

    def hold(self, messages: Iterable[int]) -> None:
        """Keep returned messages, which are forwarded again."""
        self._stranded.extend(messages)

    def forward(self, arrived: Sequence[int], now: float) -> None:
        """Forward messages, beginning with those that found no live matcher before."""
        messages = np.array([*self._stranded, *arrived], np.int64)
        self._stranded = []
        if not len(messages):
            return
        view = self._look(now)
        routes = view.partitioning.route(columns_of(self.trace.values[messages]))
        if len(routes.always):
            raise ValueError("the simulation knows no slices that every event visits")
        chosen = forward_with_spares(self.policy, routes, self._loads, now, view.live)
        groups: dict[SetName, list[int]] = {}
        for message, slice_number in zip(messages.tolist(), chosen.tolist(), strict=True):
            if slice_number == NO_SLICE:
                self._stranded.append(message)
            else:
                groups.setdefault(view.sets[slice_number], []).append(message)
        for (matcher, key), sent in groups.items():
            self.trace.sent_s[sent] = now
            self.trace.matcher[sent] = matcher
            self.trace.key[sent] = key
            self.send((matcher, key), sent)
