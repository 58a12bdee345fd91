"""Figures of a gateway over a window of time."""

from __future__ import annotations

import numpy as np

from fieldfare.gateway.metrics import LATENCY_WINDOW_S, Metrics
from fieldfare.storage.match_log import MatchBlock


def seen(metrics: Metrics, latency_ms: float) -> None:
    block = MatchBlock.__new__(MatchBlock)
    figures = {"counts": np.ones(10, np.int64), "matches": 1}
    figures["extra"] = {"matched_ms": 1000.0 + latency_ms, "appended_ms": 1000.0}
    for name, value in figures.items():
        object.__setattr__(block, name, value)
    metrics.block_seen(block)


def test_the_latency_of_a_restart_is_forgotten_after_the_window() -> None:
    """After a restart `top` showed p50 = p99 = 18.7 s for eight minutes."""
    metrics = Metrics()
    metrics.sample(100.0)
    seen(metrics, 18_700.0)
    assert metrics.match_latency_ms() == {"p50": 18_700.0, "p99": 18_700.0}
    metrics.sample(100.0 + LATENCY_WINDOW_S / 2)
    seen(metrics, 5.0)
    assert metrics.match_latency_ms()["p99"] == 18_700.0
    metrics.sample(101.0 + LATENCY_WINDOW_S)
    assert metrics.match_latency_ms() == {"p50": 5.0, "p99": 5.0}
    metrics.sample(200.0 + 2 * LATENCY_WINDOW_S)
    assert metrics.match_latency_ms() == {"p50": None, "p99": None}
