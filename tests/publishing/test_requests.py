"""The tuner of requests by hand: sizes, pauses, refusals, requests under way."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from statistics import mean
from typing import Any

import pytest

from fieldfare.publishing.requests import RequestCost, RequestKnobs, RequestOutcome, RequestTuner


def teach(
    tuner: RequestTuner,
    cost: Callable[[int], float],
    sizes: list[int],
    *,
    start_s: float = 0.0,
    backlog: int = 0,
) -> float:
    """Requests of these sizes, one after the other; the time when the last has ended."""
    now_s = start_s
    for size in sizes:
        now_s += cost(size)
        tuner.observe(RequestOutcome(size, cost(size), backlog_events=backlog), now_s)
    return now_s


def near(events: int) -> float:
    """2 ms, and 10 µs for each event."""
    return 0.002 + 0.00001 * events


SIZES = [1, 100, 10, 500, 50, 1000, 5, 200] * 4


def test_a_straight_line_is_learned_exactly() -> None:
    cost = RequestCost(0.9)
    assert cost.expect(1) is None
    for size in SIZES:
        cost.add(size, near(size), 0.0)
    assert cost.fixed_s == pytest.approx(0.002)
    assert cost.each_s == pytest.approx(0.00001)
    assert cost.expect(300) == pytest.approx(0.005)


def test_the_line_is_found_in_noise() -> None:
    chance = random.Random(5)
    cost = RequestCost(0.95)
    for _ in range(300):
        size = chance.choice(SIZES)
        cost.add(size, near(size) * chance.uniform(0.8, 1.2), 0.0)
    assert cost.each_s == pytest.approx(0.00001, rel=0.2)
    assert cost.fixed_s == pytest.approx(0.002, rel=0.3)


def test_requests_of_one_size_keep_the_slope_that_was_known() -> None:
    cost = RequestCost(0.9)
    for size in [*SIZES, *[1000] * 100]:
        cost.add(size, near(size), 0.0)
    assert cost.each_s == pytest.approx(0.00001)


def test_a_slow_request_does_not_raise_the_cost_of_an_event() -> None:
    """Small requests met pauses of 30 ms; but 300 events went in 5 ms, so none costs more than 17 µs."""
    cost = RequestCost(0.9)
    cost.add(300, 0.005, 0.0)
    for number in range(40):
        cost.add(1 + number % 8, 0.002 + 0.004 * (number % 8), 1.0)
    assert cost.each_s <= 0.005 / 300
    cost.add(2, 0.010, 20.0)  # Old samples no longer bound the slope.
    assert cost.each_s <= 0.005


def test_before_anything_is_known_events_go_at_once() -> None:
    setting = RequestTuner().setting
    assert (setting.most_events, setting.linger_s, setting.most_requests) == (10_000, 0.0, 1)


def test_a_full_request_spends_a_twentieth_on_what_is_fixed() -> None:
    """19 x 2 ms / 10 µs = 3,800 events: 40 ms, of which 2 ms are fixed."""
    tuner = RequestTuner()
    teach(tuner, near, SIZES)
    assert tuner.setting.most_events == pytest.approx(3800, rel=0.01)
    assert tuner.setting.linger_s == 0.0


def test_a_long_round_trip_makes_requests_as_large_as_the_service_takes() -> None:
    tuner = RequestTuner()
    teach(tuner, lambda size: 0.140 + 0.00001 * size, SIZES)
    assert tuner.setting.most_events == 10_000


def test_a_bound_on_latency_bounds_a_request_to_half_of_it() -> None:
    """20 ms: 10 ms for a request: (10 - 2) ms / 10 µs = 800 events."""
    tuner = RequestTuner(RequestKnobs(latency_bound_s=0.020))
    teach(tuner, near, SIZES[:8])
    teach(tuner, near, [1] * 8, start_s=100.0)
    assert tuner.setting.most_events == pytest.approx(800, rel=0.01)


def test_the_slack_of_a_latency_bound_is_used_for_linger() -> None:
    """Requests take 2 ms, 100 ms may pass: after twice 2 ms there are 96 ms to gather more."""
    tuner = RequestTuner(RequestKnobs(latency_bound_s=0.100))
    teach(tuner, lambda _: 0.002, [1] * 20)
    assert tuner.setting.linger_s == pytest.approx(0.096)


def test_a_load_that_needs_larger_requests_gets_them_over_the_bound() -> None:
    """90,000 events/s arrive; at 10 µs each a tenth of the time is left for what is fixed, 2 ms a request:
    n = load x fixed / (1 - load x each) = 1,800, and a quarter more, though 20 ms would allow only 800."""
    tuner = RequestTuner(RequestKnobs(latency_bound_s=0.020))
    now_s = teach(tuner, near, SIZES)
    backlog = 0
    for _ in range(40):
        took_s = near(800)
        backlog += int(90_000 * took_s) - 800
        now_s += took_s
        tuner.observe(RequestOutcome(800, took_s, backlog_events=backlog), now_s)
    assert tuner.setting.most_events == pytest.approx(2250, rel=0.05)


def test_each_refusal_halves_the_load_and_passing_requests_restore_it() -> None:
    tuner = RequestTuner()
    now_s = teach(tuner, near, SIZES)
    full = tuner.setting.most_events
    for number in (1, 2, 3):
        now_s += 1
        tuner.observe(RequestOutcome(100, 0.5, attempts=3), now_s)
        assert tuner.setting.most_events == pytest.approx(full / 2**number, abs=2)
    assert tuner.setting.linger_s > 0.1
    assert tuner.estimates().throttle == 0.125
    teach(tuner, near, SIZES[:8], start_s=now_s)
    assert tuner.setting.most_events == pytest.approx(full, rel=0.05)
    assert tuner.setting.linger_s == 0.0


def test_a_request_that_failed_for_good_lowers_the_load_too() -> None:
    tuner = RequestTuner()
    tuner.observe(RequestOutcome(10, 0.1, acknowledged=False), 1.0)
    assert tuner.setting.most_events == 5000


def test_the_load_never_falls_to_nothing() -> None:
    tuner = RequestTuner()
    for number in range(50):
        tuner.observe(RequestOutcome(1, 0.1, attempts=2), float(number))
    assert tuner.setting.most_events == 156  # A 64th of 10,000.


def test_a_sudden_slowness_is_a_refusal_until_it_is_the_new_normal() -> None:
    tuner = RequestTuner()
    now_s = teach(tuner, near, SIZES)
    tuner.observe(RequestOutcome(100, 1.0), now_s + 1)
    assert tuner.estimates().throttle == 0.5
    teach(tuner, lambda size: 1.0 + near(size), SIZES, start_s=now_s + 1)
    assert tuner.estimates().throttle == 1.0


def test_pauses_of_a_busy_machine_are_no_slowness() -> None:
    tuner = RequestTuner()
    now_s = teach(tuner, near, SIZES)
    tuner.observe(RequestOutcome(1, 0.200), now_s + 1)
    assert tuner.estimates().throttle == 1.0


def test_one_request_at_a_time_is_kept_unless_more_are_allowed() -> None:
    tuner = RequestTuner()
    teach(tuner, near, SIZES, backlog=100_000)
    assert tuner.setting.most_requests == 1


def far(events: int) -> float:
    """140 ms, and 3 µs for each event."""
    return 0.140 + 0.000003 * events


def test_with_a_backlog_one_request_more_is_tried_at_each_answer_while_none_queues() -> None:
    """Requests that are as fast however many are in flight: nothing is full yet."""
    tuner = RequestTuner(RequestKnobs(most_requests=20))
    seen = [1]
    for number in range(1, 6):
        tuner.observe(RequestOutcome(1000, far(1000), backlog_events=100_000), 0.143 + number / 1000)
        seen.append(tuner.setting.most_requests)
    assert seen == [1, 2, 3, 4, 5, 6]
    tuner = RequestTuner(RequestKnobs(most_requests=3))
    teach(tuner, far, [*SIZES, *[10_000] * 20], backlog=100_000)
    assert tuner.setting.most_requests == 3


def test_requests_in_flight_share_what_is_unanswered() -> None:
    """6,000 wait and 3,000 are in flight: 3,000 for each of three; a request may always have 1,000."""
    for backlog, in_flight, most_events in ((6000, 3000, 3000), (6000, 3002, 3001), (90, 10, 1000)):
        tuner = RequestTuner(RequestKnobs(most_requests=3))
        teach(tuner, far, [10, 20, 10, 20], backlog=100)
        tuner.observe(RequestOutcome(10, far(10), 1, True, backlog, in_flight), 10.0)
        assert (tuner.setting.most_requests, tuner.setting.most_events) == (3, most_events)


def test_requests_that_have_queued_behind_others_do_not_change_what_an_event_costs() -> None:
    """Requests of 5,000 events and of 3,000 take 200 ms alike, as each waits for the one before."""
    tuner = RequestTuner(RequestKnobs(most_requests=3))
    now_s = teach(tuner, near, SIZES)
    known = tuner.estimates()
    for number in range(20):
        events = 3000 if number % 2 else 5000
        tuner.observe(RequestOutcome(events, 0.2, 1, True, 9000, 8000 - events), now_s + 0.1 * number)
    found = tuner.estimates()
    assert found.each_s == pytest.approx(known.each_s, rel=0.01)


def test_on_a_long_path_events_need_not_wait_for_the_request_before() -> None:
    """Some events a round trip: no backlog worth the name, and each would be half a round trip older."""
    for cost, most in ((far, 6), (near, 1)):
        tuner = RequestTuner(RequestKnobs(most_requests=6))
        teach(tuner, cost, [3, 5, 1, 4, 2] * 4, backlog=2)
        assert tuner.setting.most_requests == most


def test_without_a_backlog_one_request_is_enough() -> None:
    tuner = RequestTuner(RequestKnobs(most_requests=6))
    teach(tuner, near, SIZES)
    assert tuner.setting.most_requests == 1


def test_on_a_short_path_requests_in_flight_return_to_one() -> None:
    """A program began on a busy machine: its first answers took as long as those of a long path."""
    tuner = RequestTuner(RequestKnobs(most_requests=6))
    now_s = teach(tuner, far, [3, 5, 1, 4, 2] * 4, backlog=2)
    assert tuner.setting.most_requests == 6
    teach(tuner, near, [3, 5, 1, 4, 2] * 2, start_s=now_s, backlog=2)
    assert tuner.setting.most_requests == 1


def test_requests_under_way_leave_one_after_the_other_and_not_all_together() -> None:
    """280 events a round trip in six requests: one every 23 ms. With few events none waits for company."""
    for events, linger_s in ((280, 0.140 / 6), (1, 0.0)):
        tuner = RequestTuner(RequestKnobs(most_requests=6))
        teach(tuner, far, [events, *[events + 1, events] * 20], backlog=1)
        assert tuner.setting.most_requests == 6
        assert tuner.setting.linger_s == pytest.approx(linger_s, abs=0.001)


def test_requests_that_queue_at_the_service_become_fewer() -> None:
    """The service serves one at a time: w requests under way take w times as long."""
    tuner = RequestTuner(RequestKnobs(most_requests=10))
    now_s = 0.0
    seen = []
    for _ in range(60):
        under_way = tuner.setting.most_requests
        took_s = 0.010 * under_way
        now_s += 0.010
        tuner.observe(RequestOutcome(100, took_s, backlog_events=100_000), now_s)
        seen.append(under_way)
    assert min(seen[20:]) >= 2 and max(seen[20:]) <= 4


def test_a_refusal_halves_the_requests_under_way() -> None:
    tuner = RequestTuner(RequestKnobs(most_requests=8))
    now_s = teach(tuner, far, SIZES, backlog=100_000)
    tuner.observe(RequestOutcome(100, 0.5, attempts=2), now_s + 1)
    assert tuner.setting.most_requests == 4


def test_requests_that_were_under_way_together_are_one_refusal() -> None:
    """One packet is lost: five requests are repeated, or wait behind the one that is."""
    tuner = RequestTuner(RequestKnobs(most_requests=8))
    now_s = teach(tuner, far, SIZES, backlog=100_000)
    known = tuner.estimates()
    for number in range(5):
        late = RequestOutcome(100, 1.0 + number / 1000, attempts=1 + (number < 2))
        tuner.observe(late, now_s + 1.0 + number / 1000)
    found = tuner.estimates()
    assert (found.throttle, tuner.setting.most_requests) == (0.5, 4)
    assert (found.fixed_s, found.each_s) == (known.fixed_s, known.each_s)
    tuner.observe(RequestOutcome(100, 1.0, attempts=2), now_s + 2.5)
    assert tuner.estimates().throttle == 0.25, "the next one that fails is another refusal"


def test_the_load_is_what_was_sent_and_what_the_backlog_grew_by() -> None:
    """100 sent in a second while 50 more came than went: 150/s."""
    tuner = RequestTuner()
    tuner.observe(RequestOutcome(100, 0.1, backlog_events=0), 1.0)
    assert tuner.estimates().load_per_s is None
    tuner.observe(RequestOutcome(100, 0.1, backlog_events=50), 2.0)
    assert tuner.estimates().load_per_s == pytest.approx(150.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"latency_bound_s": 0.0},
        {"least_events": 0},
        {"most_events": 10},
        {"most_requests": 0},
        {"fixed_share": 0.0},
        {"slow_request": 1.0},
    ],
)
def test_invalid_knobs_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        RequestKnobs(**wrong)


def serve(steps: list[tuple[float, float]], fixed_s: float, each_s: float) -> list[tuple[float, int, float]]:
    """One request at a time with the tuner's settings; events come evenly, at a rate for its seconds.

    Gives each request's end, the backlog it leaves, and the mean age of its events when it ends.
    """
    arrivals: list[float] = []
    start_s = 0.0
    for rate_per_s, seconds in steps:
        arrivals += [start_s + number / rate_per_s for number in range(int(rate_per_s * seconds))]
        start_s += seconds
    tuner, now_s, sent, done = RequestTuner(), 0.0, 0, []
    while sent < len(arrivals):
        now_s = max(now_s, arrivals[sent])
        come = bisect_right(arrivals, now_s)
        count = min(come - sent, tuner.setting.most_events)
        took_s = fixed_s + each_s * count
        now_s += took_s
        mean_arrival_s = sum(arrivals[sent : sent + count]) / count
        sent += count
        backlog = bisect_right(arrivals, now_s) - sent
        tuner.observe(RequestOutcome(count, took_s, backlog_events=backlog), now_s)
        done.append((now_s, backlog, now_s - mean_arrival_s))
    return done


@pytest.mark.parametrize("fixed_s", [0.005, 0.025, 0.145])
@pytest.mark.parametrize(("before_per_s", "after_per_s"), [(50, 20_000), (20_000, 50), (2000, 15_000)])
def test_a_step_of_the_load_is_settled_within_5_requests(
    before_per_s: float, after_per_s: float, fixed_s: float
) -> None:
    """The issue's goal on the client's path: loopback, and round trips of 20 and 140 ms."""
    seconds = 40 * fixed_s
    done = serve([(before_per_s, seconds), (after_per_s, 100 * fixed_s)], fixed_s, 20e-6)
    after = [age_s for end_s, _, age_s in done if end_s > seconds]
    steady_s = mean(after[-41:-1])  # Some tens of requests: with few events their ages differ by chance.
    assert mean(after[5:45]) <= 1.05 * steady_s


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_no_backlog_grows_below_capacity(share: float) -> None:
    """10,000 events in 5 + 200 ms are 48,780 events/s. A share of that must not queue up."""
    capacity_per_s = 10_000 / (0.005 + 10_000 * 20e-6)
    done = serve([(share * capacity_per_s, 4.0)], 0.005, 20e-6)
    middle = len(done) // 2
    early, late = (max(backlog for _, backlog, _ in half) for half in (done[5:middle], done[middle:]))
    assert late <= 1.05 * early
