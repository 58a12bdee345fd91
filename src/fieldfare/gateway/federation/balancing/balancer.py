"""The balancer of this broker: what it would do about its load, and doing that on an operator's word."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fieldfare.balancing.advice import Advice, Peer, Share, advise, spread, state_of
from fieldfare.balancing.load import Load, MatchingCost
from fieldfare.balancing.messages import State
from fieldfare.balancing.poset import Poset
from fieldfare.balancing.press import Profile, aggregate
from fieldfare.balancing.settings import BalancingSettings
from fieldfare.filters import FilterError, compile_filter
from fieldfare.filters.covering import FilterRegion, region_of
from fieldfare.gateway.federation.balancing.meter import LoadMeter
from fieldfare.gateway.federation.balancing.window import Window
from fieldfare.gateway.federation.load_board import LoadBoard
from fieldfare.gateway.federation.moving.book import MoveParts
from fieldfare.gateway.federation.moving.sessions import Moves
from fieldfare.gateway.federation.wire import LoadRow
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.model import Subscription, interest_key, space_name
from fieldfare.storage.errors import StorageError

MEASURED_S = 10.0
"""Interval of the measurements that other brokers are told, in seconds."""

STALE_S = 60.0
"""Age at which another broker's load counts no more, in seconds: subscriptions are not moved there."""

READ_MAX = 100_000
"""Maximum subscriptions that are looked at."""

PLANNED_MAX = 300
"""Maximum subscriptions that a plan chooses from: those with the most matches, and some that match little."""

_SILENT_MAX = 100
_PAGE = 1_000

logger = logging.getLogger("fieldfare.gateway.federation")


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
    state: State
    window: Window
    subscriptions: Sequence[tuple[Subscription, int]]


class Balancer:
    """The balancer of one broker: it measures all the time, and moves subscriptions when it is told to."""

    def __init__(self, parts: MoveParts, moves: Moves, board: LoadBoard, settings: GatewaySettings) -> None:
        self._parts = parts
        self._moves = moves
        self._board = board
        self._name = parts.clusters.name
        self._settings = BalancingSettings()
        cores = os.cpu_count() or 1
        self._meter = LoadMeter(parts.log, parts.match_log, settings.output_bytes_per_s, cores)
        self._busy_s, self._since_ms = -math.inf, 0
        self._measuring: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start measuring, on the running event loop."""
        self._measuring = asyncio.create_task(self._measure_on())

    async def close(self) -> None:
        """Stop measuring."""
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.gather(self._measuring, return_exceptions=True)

    async def _measure_on(self) -> None:
        while True:
            try:
                await self._look()
            except (StorageError, OSError) as error:
                logger.error("the load of this broker cannot be measured: %s", error)
            await asyncio.sleep(MEASURED_S)

    async def _look(self) -> tuple[Load, Window, State]:
        """Measure the load, and have it told to the other brokers."""
        others = {each.number for each in self._parts.correspondence.brokers.values()}
        count = self._parts.subscriptions.count
        now_s, is_busy = time.monotonic(), self._moves.is_under_way
        if is_busy:
            self._busy_s, self._since_ms = now_s, time.time_ns() // 1_000_000
        load, window = await asyncio.to_thread(self._meter.measure, count, others, self._since_ms)
        is_stabilizing = now_s - self._busy_s < self._settings.stabilise_s
        state = state_of(load, self._settings, is_busy=is_busy, is_stabilizing=is_stabilizing)
        self._board.put(_row_of(self._name, load, state))
        return load, window, state

    # For operators

    async def document(self, *, is_drain: bool) -> dict[str, Any]:
        """Return what this broker sees, and what it would do: about its load, or to be drained."""
        view = await self._view()
        actions, moves = await self._decide(view, is_drain=is_drain)
        pinned = sum(each.delivery.pinned for each, _ in view.subscriptions)
        return {
            "broker": self._name,
            "brokers": [_shown(row, age_s) for row, age_s in self._board.known()],
            "pinned": pinned,
            "actions": [_action(each) for each in actions],
            "moves": [_move(subscription, to) for subscription, to in moves],
        }

    async def begin(self, *, is_drain: bool) -> dict[str, Any]:
        """Begin the moves that `document` shows; those that cannot be begun are named."""
        view = await self._view()
        _, moves = await self._decide(view, is_drain=is_drain)
        begun, refused = [], []
        for subscription, to in moves:
            try:
                await self._moves.begin(subscription, to)
                begun.append(_move(subscription, to))
            except HttpProblem as problem:
                refused.append(_move(subscription, to) | {"detail": problem.detail})
                if problem.status == 429:
                    break
        left = len(moves) - len(begun) - len(refused)
        return {"begun": begun, "refused": refused, "left": left, "moving": self._moves.counts()}

    async def _view(self) -> View:
        load, window, state = await self._look()
        found = await asyncio.to_thread(self._matched, window)
        return View(load, state, window, found)

    def _matched(self, window: Window) -> list[tuple[Subscription, int]]:
        """Return this broker's subscriptions that may move, or are pinned, with their matches."""
        numbers, counts = window.matches()
        matches = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        return [(each, matches.get(each.number, 0)) for each in self._subscriptions()]

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

    async def _decide(
        self, view: View, *, is_drain: bool
    ) -> tuple[list[Advice], list[tuple[Subscription, str]]]:
        takers = {
            row.name: Peer(_load_of(row, view.load.matching_s), State(row.state))
            for row, age_s in self._board.known()
            if row.name != self._name and age_s < STALE_S and self._parts.clusters.path(row.name) is not None
        }
        if is_drain:
            return [], self._drained(view, takers)
        if view.state in (State.BUSY, State.STABILIZING):
            return [], []
        return await asyncio.to_thread(self._advised, view, takers)

    def _drained(self, view: View, takers: Mapping[str, Peer]) -> list[tuple[Subscription, str]]:
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

    def _advised(
        self, view: View, takers: Mapping[str, Peer]
    ) -> tuple[list[Advice], list[tuple[Subscription, str]]]:
        by_matches = sorted(view.subscriptions, key=lambda each: (-each[1], each[0].number))
        some = by_matches[:PLANNED_MAX]
        if len(by_matches) > PLANNED_MAX:
            some = by_matches[: PLANNED_MAX - _SILENT_MAX] + by_matches[-_SILENT_MAX:]
        standing, poset, movable = dict[str, Subscription](), Poset(), dict[Hashable, int]()
        for subscription, _ in some:
            region = _region(subscription, subscription.space)
            if region is not None:
                name = str(subscription.number)
                standing[name] = subscription
                poset.add(name, region)
                key = poset.key_of(name)
                movable[key] = movable.get(key, 0) + (not subscription.delivery.pinned)
        keys = (*poset.nodes, PUBLISHERS.key)
        bits = view.window.bits([*([int(id) for id in poset.nodes[key].ids] for key in keys[:-1]), []])
        origins = view.window.origins(self._parts.log)
        bits[-1] = [origin is None for origin in origins]
        poset.add(PUBLISHERS.key, PUBLISHERS)

        def profile(broker: str) -> Profile:
            known = self._parts.correspondence.brokers.get(broker)
            accepted = view.window.bits([[] if known is None else [known.number]])
            accepted[0] |= [origin == broker for origin in origins]
            return Profile(
                keys,
                bits,
                aggregate(accepted, len(origins)),
                view.load.input_per_s,
                view.window.event_bytes,
            )

        # The algorithms ask for the filters of the broker that accepts load: those known here are enough.
        takers = {name: replace(peer, css=tuple(self._css(name))) for name, peer in takers.items()}
        found = advise(view.load, takers, poset, profile, movable, self._settings)
        return found, list(self._chosen(found, poset, standing))

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

    def _chosen(
        self, found: Sequence[Advice], poset: Poset, standing: Mapping[str, Subscription]
    ) -> Iterator[tuple[Subscription, str]]:
        for advice in found:
            for each in () if advice.plan is None else advice.plan.moved:
                here = [standing[id] for id in poset.nodes[each.key].ids]
                free = [subscription for subscription in here if not subscription.delivery.pinned]
                yield from ((subscription, advice.action.broker) for subscription in free[: each.number])


def _region(subscription: Subscription, space: str) -> SpaceRegion | None:
    with suppress(FilterError, RecursionError):
        filter = compile_filter(subscription.filter, subscription.dialect)
        return SpaceRegion(space, region_of(filter))
    return None


def _row_of(name: str, load: Load, state: State) -> LoadRow:
    return LoadRow(
        name,
        time.time_ns() // 1_000_000,
        state.value,
        float(load.input_per_s),
        float(load.matching_s),
        int(load.subscriptions),
        float(load.deliveries_per_s),
        float(load.output_bytes_per_s),
        load.output_bytes_per_s_max,
        float(load.cpu),
        float(load.memory),
        load.input_queue_s,
    )


def _load_of(row: LoadRow, unmeasured_s: float = 0.0) -> Load:
    """Return the load of a row; a broker without events is taken to need as much time for one as this."""
    matching_s = row.matching_s or unmeasured_s
    return Load(
        input_per_s=row.input_per_s,
        matching_s=matching_s,
        cost=MatchingCost(fixed_s=matching_s),
        is_calibrated=True,
        subscriptions=row.subscriptions,
        deliveries_per_s=row.deliveries_per_s,
        output_bytes_per_s=row.output_bytes_per_s,
        output_bytes_per_s_max=row.output_bytes_per_s_max,
        cpu=row.cpu,
        memory=row.memory,
        input_queue_s=row.queue_s,
    )


def _shown(row: LoadRow, age_s: float) -> dict[str, Any]:
    load = _load_of(row)
    return {
        "name": row.name,
        "state": row.state if age_s < STALE_S else "unknown",
        "input": round(float(load.input_ratio), 4),
        "output": round(float(load.output_ratio), 4),
        "delay_ms": round(1000 * row.matching_s, 4),
        "cpu": round(row.cpu, 3),
        "memory": round(row.memory, 3),
        "queue_s": round(row.queue_s, 3),
        "subscriptions": row.subscriptions,
        "events_per_s": round(row.input_per_s, 1),
        "deliveries_per_s": round(row.deliveries_per_s, 1),
        "age_s": round(age_s, 1),
    }


def _action(advice: Advice) -> dict[str, Any]:
    action, plan = advice.action, advice.plan
    found: dict[str, Any] = {
        "to": action.broker,
        "metric": action.metric.value,
        "overloaded": None if action.overloaded is None else action.overloaded.value,
        "difference": round(float(action.difference), 4),
        "is_better": plan is not None,
    }
    if plan is not None:
        for name, load in (("here", plan.mine), ("there", plan.theirs)):
            found[name] = {
                "input": round(float(np.max(load.input_ratio)), 4),
                "output": round(float(np.max(load.output_ratio)), 4),
                "delay_ms": round(1000 * float(np.max(load.matching_s)), 4),
            }
    return found


def _move(subscription: Subscription, to: str) -> dict[str, Any]:
    return {"space": space_name(subscription.space), "id": subscription.id, "to": to}
