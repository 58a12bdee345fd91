from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest
from flights_in_sqlite import FlightsInSqlite

from fieldfare.cli.demo.alerts import FAMILIES, FOLLOWED, Alert, draw_alerts

pytestmark = pytest.mark.long


def test_the_same_seed_draws_the_same_alerts_everywhere(departures: pa.Table) -> None:
    followed, others = draw_alerts(departures, 2_000, followed=40)
    text = "".join(f"{alert.id} {alert.filter}\n" for alert in [*followed, *others])
    assert (
        hashlib.sha256(text.encode()).hexdigest()
        == "915d18aa9a2c45fbb3afa17241d3fc580a7a058efc032f8900ba8ed264b06f06"
    )
    assert draw_alerts(departures, 2_000, followed=40) == (followed, others)
    assert draw_alerts(departures, 2_000, followed=40, seed=7) != (followed, others)


def test_all_ids_differ_and_the_count_includes_the_followed(departures: pa.Table) -> None:
    followed, others = draw_alerts(departures, 5_000, followed=30)
    assert len(followed) == 30
    assert len({alert.id for alert in [*followed, *others]}) == 5_000


def test_every_family_is_drawn_at_its_share(departures: pa.Table) -> None:
    _, others = draw_alerts(departures, 50_000)
    counts = Counter(alert.family for alert in others)
    assert sum(share for share, _ in FAMILIES) == 10_000
    assert sum(share for share, _ in FOLLOWED) == 100
    for share, family in FAMILIES:
        expected = share * 5
        assert abs(counts[family.__name__] - expected) <= 5 * expected**0.5, family.__name__


def test_an_event_meets_a_few_dozen_alerts_of_a_hundred_thousand(
    departures: pa.Table, events: list[bytes]
) -> None:
    """SQLite counts them: it shares no code with fieldfare, and is quick enough for all 100,000."""
    _, others = draw_alerts(departures, 100_000)
    sample = FlightsInSqlite(events[:: len(events) // 50])
    assert 20 <= _count(sample, others) / sample.size <= 60


def test_those_who_follow_live_receive_tens_of_thousands(departures: pa.Table, events: list[bytes]) -> None:
    followed, _ = draw_alerts(departures, 40, followed=40)
    some = FlightsInSqlite(events[::4])
    counts = [len(some.matches(alert.filter)) for alert in followed]
    assert min(counts) > 0
    assert 50_000 <= 4 * sum(counts) <= 120_000


def _count(flights: FlightsInSqlite, alerts: Sequence[Alert]) -> int:
    return sum(len(flights.matches(alert.filter)) for alert in alerts)
