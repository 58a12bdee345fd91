"""The balancer of this broker: what it would do about its load, and doing that on an operator's word."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping

from fieldfare.balancing.advice import Advice, Peer, joint_target
from fieldfare.balancing.load import Load, Metrics, metrics_of
from fieldfare.balancing.messages import State
from fieldfare.gateway.federation.balance_board import BalanceBoard
from fieldfare.gateway.federation.balancing.edge_runner import EdgeRunner, balancing_settings, window_s
from fieldfare.gateway.federation.balancing.meter import LoadMeter
from fieldfare.gateway.federation.balancing.planning import Planner, View
from fieldfare.gateway.federation.balancing.rows import load_document
from fieldfare.gateway.federation.balancing.window import Window
from fieldfare.gateway.federation.documents import (
    ActionDocument,
    AdviceDocument,
    BalancingDocument,
    BalancingMoveDocument,
    LoadsDocument,
)
from fieldfare.gateway.federation.moving.book import Key, MoveParts
from fieldfare.gateway.federation.moving.sessions import Moves
from fieldfare.gateway.metrics import BalancingMetrics
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.model import Subscription, space_name


class Balancer:
    """The balancer of one broker: for operators, and by itself where the service was told so."""

    def __init__(
        self,
        parts: MoveParts,
        moves: Moves,
        board: BalanceBoard,
        settings: GatewaySettings,
        metrics: BalancingMetrics,
    ) -> None:
        self._parts = parts
        self._moves = moves
        self._board = board
        self._name = parts.clusters.name
        cores = os.cpu_count() or 1
        self._meter = LoadMeter(
            parts.log,
            parts.match_log,
            settings.output_bytes_per_s,
            cores,
            window_s(settings.balance_interval_s),
        )
        self._planner = Planner(parts, moves)
        self.edge = EdgeRunner(
            self._name,
            is_automatic=settings.balance,
            settings=balancing_settings(
                settings.balance_interval_s, settings.balance_moves_per_min, settings.balance_overload
            ),
            board=board,
            moves=moves,
            planner=self._planner,
            measure=self._measure,
            metrics=metrics,
            unreachable=lambda: [
                name for name in parts.clusters.brokers if parts.clusters.path(name) is None
            ],
            is_reachable=lambda name: parts.clusters.path(name) is not None,
            poke=board.on_post,
        )

    def start(self) -> None:
        """Start measuring, and balancing if the service was told so; on the running event loop."""
        self.edge.start()

    async def close(self) -> None:
        """Stop measuring."""
        await self.edge.close()

    def _measure(self, since_s: float) -> tuple[Load, Window]:
        """Return the load since a time of the monotonic clock, and its window; call it on a thread."""
        others = {each.number for each in list(self._parts.correspondence.brokers.values())}
        since_ms = time.time_ns() // 1_000_000 - int(1000 * (time.monotonic() - since_s))
        return self._meter.measure(self._parts.subscriptions.count, others, since_ms)

    # For operators

    async def document(self, *, is_drain: bool) -> AdviceDocument:
        """Return what this broker sees, and what it would do: about its load, or to be drained."""
        view = await self._view()
        peers = self.edge.peers(view.load, is_drain=is_drain)
        actions, moves = await self._decide(view, peers, is_drain=is_drain)
        others = [(row, age_s) for row, age_s in self._board.known() if row.name != self._name]
        rows = sorted([(self.edge.row(view.load), 0.0), *others], key=lambda each: each[0].name)
        counted = {
            self._name,
            *(name for name, each in peers.items() if each.state is not State.NOT_AVAILABLE),
        }
        return AdviceDocument(
            broker=self._name,
            automatic=self.edge.document(),
            brokers=[
                load_document(row, age_s, self.edge.settings.stale_s, counts=row.name in counted)
                for row, age_s in rows
            ],
            target=_metrics(joint_target(view.load, peers.values())),
            pinned=view.pinned,
            resting=len(self._resting()),
            actions=[_action(each, self._waits_s(each)) for each in actions],
            moves=[_move(subscription, to) for subscription, to in moves],
        )

    async def begin(self, *, is_drain: bool) -> BalancingDocument:
        """Begin the moves that `document` shows; those that cannot be begun are named."""
        view = await self._view()
        peers = self.edge.peers(view.load, is_drain=is_drain)
        _, moves = await self._decide(view, peers, is_drain=is_drain)
        if is_drain:
            self.edge.drained()
        begun, refused = [], []
        for subscription, to in moves:
            try:
                await self._moves.begin(subscription, to)
                begun.append(_move(subscription, to))
            except HttpProblem as problem:
                refused.append(_move(subscription, to, problem.detail))
                if problem.status == 429:
                    break
        left = len(moves) - len(begun) - len(refused)
        return BalancingDocument(begun, refused, left, self._moves.counts())

    async def _view(self) -> View:
        load, window = await asyncio.to_thread(self._measure, self.edge.since_s)
        return await asyncio.to_thread(self._planner.view, load, window)

    def _resting(self) -> set[Key]:
        """Return the subscriptions that balancing by itself leaves here for now."""
        return self.edge.resting() if self.edge.is_automatic else set()

    def _waits_s(self, advice: Advice) -> float:
        return round(self.edge.waits_s(advice.action), 1) if self.edge.is_automatic else 0.0

    async def _decide(
        self, view: View, peers: Mapping[str, Peer], *, is_drain: bool
    ) -> tuple[list[Advice], list[tuple[Subscription, str]]]:
        if is_drain:
            return [], self._planner.drained(view, peers)
        if self.edge.state in (State.BUSY, State.STABILIZING):
            return [], []
        given = view, peers, self.edge.settings, self.edge.triggers, self._resting()
        return await asyncio.to_thread(self._planner.advised, *given)


def _action(advice: Advice, waits_s: float) -> ActionDocument:
    action, plan = advice.action, advice.plan
    return ActionDocument(
        to=action.broker,
        metric=action.metric.value,
        overloaded=None if action.overloaded is None else action.overloaded.value,
        difference=round(float(action.difference), 4),
        is_better=plan is not None,
        here=None if plan is None else _metrics(metrics_of(plan.mine)),
        there=None if plan is None else _metrics(metrics_of(plan.theirs)),
        waits_s=waits_s,
    )


def _metrics(metrics: Metrics) -> LoadsDocument:
    return LoadsDocument(
        round(metrics.input_ratio, 4), round(metrics.output_ratio, 4), round(1000 * metrics.matching_s, 4)
    )


def _move(subscription: Subscription, to: str, detail: str | None = None) -> BalancingMoveDocument:
    return BalancingMoveDocument(space_name(subscription.space), subscription.id, to, detail)
