"""The balancer of this broker: what it would do about its load, and doing that on an operator's word."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import numpy as np

from fieldfare.balancing.advice import Advice, Peer
from fieldfare.balancing.load import Load
from fieldfare.balancing.messages import State
from fieldfare.gateway.federation.balance_board import BalanceBoard
from fieldfare.gateway.federation.balancing.edge_runner import EdgeRunner, balancing_settings
from fieldfare.gateway.federation.balancing.meter import LoadMeter
from fieldfare.gateway.federation.balancing.planning import Planner, View
from fieldfare.gateway.federation.balancing.rows import load_of, shown
from fieldfare.gateway.federation.balancing.window import Window
from fieldfare.gateway.federation.moving.book import MoveParts
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
        self._meter = LoadMeter(parts.log, parts.match_log, settings.output_bytes_per_s, cores)
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

    async def document(self, *, is_drain: bool) -> dict[str, Any]:
        """Return what this broker sees, and what it would do: about its load, or to be drained."""
        view = await self._view()
        actions, moves = await self._decide(view, is_drain=is_drain)
        others = [(row, age_s) for row, age_s in self._board.known() if row.name != self._name]
        rows = sorted([(self.edge.row(view.load), 0.0), *others], key=lambda each: each[0].name)
        return {
            "broker": self._name,
            "automatic": self.edge.document(),
            "brokers": [shown(row, age_s, self.edge.settings.stale_s) for row, age_s in rows],
            "pinned": view.pinned,
            "actions": [_action(each) for each in actions],
            "moves": [_move(subscription, to) for subscription, to in moves],
        }

    async def begin(self, *, is_drain: bool) -> dict[str, Any]:
        """Begin the moves that `document` shows; those that cannot be begun are named."""
        view = await self._view()
        _, moves = await self._decide(view, is_drain=is_drain)
        if is_drain:
            self.edge.drained()
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
        load, window = await asyncio.to_thread(self._measure, self.edge.since_s)
        return await asyncio.to_thread(self._planner.view, load, window)

    async def _decide(
        self, view: View, *, is_drain: bool
    ) -> tuple[list[Advice], list[tuple[Subscription, str]]]:
        stale_s = self.edge.settings.stale_s
        takers = {
            row.name: Peer(load_of(row, view.load.matching_s), State(row.state))
            for row, age_s in self._board.known()
            if row.name != self._name and age_s < stale_s and self._parts.clusters.path(row.name) is not None
        }
        if is_drain:
            return [], self._planner.drained(view, takers)
        if self.edge.state in (State.BUSY, State.STABILIZING):
            return [], []
        return await asyncio.to_thread(self._planner.advised, view, takers, self.edge.settings)


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
