"""The policy "auto" with a simulated service: how many requests it has in flight, and how soon."""

from __future__ import annotations

from functools import cache

import pytest
from simulated_service import Part, SimulatedService

from fieldfare.client import AutoBatching, BatchSettings

ONE = (Part(0.002, 20e-6),)
"""A service that does everything in one thread: 50,000 events/s."""

PIPELINE = (Part(0.0005, 6e-6), Part(0.001, 12e-6), Part(0.0005, 6e-6))
"""Client, service and disk, which work at the same time: 83,000 events/s."""

SERVICES = {"one": ONE, "pipeline": PIPELINE}
NEAR = 0.945
"""Share of the best throughput; a full request of "auto" spends 5 % on what a request costs without events.
"""
SECONDS = 8.0
REQUEST_BYTES_MAX = 4 << 20
FIXED = [
    BatchSettings(events, REQUEST_BYTES_MAX, linger_ms, in_flight)
    for events in (1000, 10_000)
    for linger_ms in (5.0, 50.0)
    for in_flight in (1, 2, 5)
]
AT_ONCE = [BatchSettings(10_000, REQUEST_BYTES_MAX, 0.0, in_flight) for in_flight in (1, 2, 5)]


def warm_s(round_trip_s: float) -> float:
    return 0.5 + 5 * round_trip_s


@cache
def best_throughput(service: str, round_trip_s: float, unanswered_max: int) -> float:
    return max(
        SimulatedService(settings, round_trip_s, SERVICES[service]).throughput(
            100_000, unanswered_max, warm_s(round_trip_s), SECONDS
        )
        for settings in FIXED
    )


@pytest.mark.parametrize("unanswered_max", [20_000, 60_000])
@pytest.mark.parametrize("round_trip_s", [0.0, 0.020, 0.140])
@pytest.mark.parametrize("service", SERVICES)
def test_throughput_is_near_that_of_the_best_fixed_setting(
    service: str, round_trip_s: float, unanswered_max: int
) -> None:
    auto = SimulatedService(AutoBatching(), round_trip_s, SERVICES[service])
    found = auto.throughput(100_000, unanswered_max, warm_s(round_trip_s), SECONDS)
    assert found >= NEAR * best_throughput(service, round_trip_s, unanswered_max)


@pytest.mark.parametrize("round_trip_s", [0.0, 0.020, 0.140])
@pytest.mark.parametrize("service", SERVICES)
def test_single_events_are_as_fast_as_with_the_best_fixed_setting(service: str, round_trip_s: float) -> None:
    def latency_s(policy: AutoBatching | BatchSettings) -> float:
        return SimulatedService(policy, round_trip_s, SERVICES[service]).latency_s(
            50, warm_s(round_trip_s), 4.0
        )

    assert latency_s(AutoBatching()) <= 1.05 * min(latency_s(settings) for settings in AT_ONCE)


def allowed(service: SimulatedService) -> list[int]:
    return [in_flight for _, _, in_flight in service.answers]


def test_on_a_long_path_the_number_of_requests_grows_with_each_answer() -> None:
    """One request until the first answer, since an older service keeps no order; five within a second."""
    service = SimulatedService(AutoBatching(), 0.140, PIPELINE)
    service.throughput(100_000, 60_000, 0.0, 1.0)
    assert allowed(service)[:4] == [2, 3, 4, 5]
    assert next(end_s for end_s, _, in_flight in service.answers if in_flight == 5) < 1.0


def test_a_second_request_hides_the_round_trip_of_the_first() -> None:
    """10,000 events take 20 + 202 ms. With one request in flight the service would be idle for a tenth."""
    service = SimulatedService(AutoBatching(), 0.020, ONE)
    per_s = service.throughput(100_000, 60_000, 0.0, 10.0)
    assert per_s > 0.97 * 10_000 / (0.002 + 10_000 * 20e-6)
    assert set(allowed(service)[20:]) <= {2, 3, 4}


def test_requests_do_not_pile_up_at_a_service_that_is_full() -> None:
    """On a short path one request is enough for a service with one thread; at most three more queue there."""
    service = SimulatedService(AutoBatching(max_in_flight=20), 0.0, ONE)
    service.throughput(100_000, 200_000, 0.0, 20.0)
    assert max(allowed(service)) <= 4


def test_as_many_requests_are_in_flight_as_fill_a_long_path() -> None:
    """A full request works for 300 ms of 1.7 s: between five and six fill the service."""
    service = SimulatedService(AutoBatching(max_in_flight=20), 1.4, (Part(0.0, 30e-6),))
    service.throughput(100_000, 200_000, 0.0, 40.0)
    assert {5, 6, 7, 8} >= set(allowed(service)[-20:])
