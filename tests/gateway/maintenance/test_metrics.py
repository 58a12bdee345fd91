"""Figures of a gateway over a window of time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gateway_support import event, run, running

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


def test_metrics_tell_readiness_lag_and_disk(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:

            async def scraped() -> dict[str, float]:
                text = (await r.client.get("/metrics")).text
                lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
                return {name: float(value) for name, _, value in lines}

            found = await scraped()
            assert found["fieldfare_lag_seconds"] == 0
            assert found['fieldfare_ready{component="pipeline"}'] == 0, "it never ran"
            assert found['fieldfare_ready{component="disk"}'] == 1
            assert found["fieldfare_disk_free_bytes"] > 1 << 20
            assert found["fieldfare_quarantined_records"] == 0
            await r.subscribe("a", "data.x = 1")
            await r.publish(event(1, {"x": 1}))
            found = await scraped()
            assert 0 < found["fieldfare_lag_seconds"] < 60 and found["fieldfare_lag_events"] == 1
            assert found["fieldfare_log_bytes"] > 0
            assert 0 < (await r.client.get("/v1/stats")).json()["lag_s"] < 60
            r.pipeline.step()
            r.pipeline.beat()
            found = await scraped()
            assert found["fieldfare_lag_seconds"] == 0 and found["fieldfare_lag_events"] == 0
            assert found['fieldfare_ready{component="pipeline"}'] == 1
            assert found['fieldfare_ready{component="indexer"}'] == 1

    run(work)
