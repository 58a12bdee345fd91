"""A publisher's decisions reach Prometheus."""

from __future__ import annotations

from pathlib import Path

from faulty_service import FaultyService
from prometheus_client import CollectorRegistry, generate_latest

from fieldfare import BatchSettings, Client
from fieldfare.client.metrics import COUNTERS, GAUGES, PublisherCollector


def read(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.removeprefix("fieldfare_publisher_"): float(value) for name, value in samples}


def test_each_publisher_has_its_figures(service: FaultyService, client: Client, tmp_path: Path) -> None:
    event = {"source": "/test", "type": "t", "data": {}}
    auto, fixed = client.publisher(outbox=tmp_path / "outbox"), client.publisher(BatchSettings(max_events=7))
    registry = CollectorRegistry()
    registry.register(PublisherCollector({"auto": auto, "fixed": fixed}))
    auto.publish_many([event] * 20)
    fixed.publish_many([event] * 3)
    found = read(registry)
    assert found['acknowledged_events_total{publisher="auto"}'] == 20
    assert found['acknowledged_events_total{publisher="fixed"}'] == 3
    assert found['batch_events{publisher="fixed"}'] == 7
    assert found['throttle{publisher="auto"}'] == 1
    assert found['request_fixed_seconds{publisher="auto"}'] > 0
    assert found['outbox_waiting_events{publisher="auto"}'] == 0
    assert 'throttle{publisher="fixed"}' not in found
    assert 'outbox_waiting_events{publisher="fixed"}' not in found


def test_every_metric_is_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
    for name in (*COUNTERS, *GAUGES):
        assert f"`{name}" in guide, name
