"""Forwarding as machines: time and chance are passed in, loads are reported."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.forwarding import (
    Adaptive,
    Balanced,
    ForwardingPolicy,
    LoadMeter,
    LoadReport,
    LoadTable,
    Random,
    ResponseTime,
    SubscriptionCount,
    forward_batch,
)
from fieldfare.forwarding.dispatch import ROUND_EVENTS_MIN
from fieldfare.forwarding.policies import cheapest
from fieldfare.partitioning import NO_SLICE, Routes
from fieldfare_lab.replicas import SpareRoutes, forward_with_spares

SLICES = 6
NONE = np.zeros(0, np.int32)

reports = st.lists(
    st.builds(
        LoadReport,
        st.integers(0, SLICES - 1),
        st.floats(0, 10),
        st.integers(0, 50),
        st.floats(0, 100),
        st.sampled_from([0.0, 0.5, 10.0, 200.0]),
        st.integers(0, 1000),
    ),
    max_size=12,
)
candidates = st.lists(
    st.lists(st.integers(NO_SLICE, SLICES - 1), min_size=3, max_size=3), min_size=1, max_size=70
)
policies = st.sampled_from(
    [Adaptive(), Balanced(np.array([0, 1, 2] * 2)), ResponseTime(), SubscriptionCount()]
)


def loads_of(reported: list[LoadReport]) -> LoadTable:
    loads = LoadTable(SLICES)
    loads.take(reported)
    return loads


def routes_of(chosen: list[list[int]]) -> Routes:
    return Routes(np.array(chosen, np.int32).reshape(len(chosen), -1), NONE)


def choose_one(costs: Sequence[float], candidates: Sequence[int], live: Sequence[bool]) -> int:
    """`cheapest` for one event, in plain Python; costs of its candidates, `live` of all slices."""
    usable = [
        (cost, place)
        for place, (cost, candidate) in enumerate(zip(costs, candidates, strict=True))
        if candidate != NO_SLICE and live[candidate]
    ]
    return candidates[min(usable)[1]] if usable else NO_SLICE


@settings(max_examples=drawn(150))
@given(policies, reports, candidates, st.lists(st.booleans(), min_size=SLICES, max_size=SLICES))
def test_a_batch_is_forwarded_as_round_after_round_of_single_events(
    policy: ForwardingPolicy, reported: list[LoadReport], chosen: list[list[int]], live: list[bool]
) -> None:
    loads = loads_of(reported)
    forwarded = forward_batch(policy, routes_of(chosen), loads, 11.0, np.array(live))
    expected: list[int] = []
    for start in range(0, len(chosen), ROUND_EVENTS_MIN):
        sent = np.bincount(np.array([i for i in expected if i != NO_SLICE], int), minlength=SLICES)
        for event in chosen[start : start + ROUND_EVENTS_MIN]:
            costs = policy.costs(loads, 11.0, np.array([event], np.int32), sent.astype(float))[0]
            expected.append(choose_one(costs.tolist(), event, live))
    assert forwarded.chosen.tolist() == expected


def test_a_batch_of_equal_events_is_shared_in_proportion_to_the_matching_rates() -> None:
    """Section III.B.2: a faster matcher receives proportionally more messages than a slower one."""
    loads = loads_of([LoadReport(0, 0.0, 0, 0.0, 300.0, 1), LoadReport(1, 0.0, 0, 0.0, 100.0, 1)])
    sent = np.bincount(forward_batch(Adaptive(), routes_of([[0, 1]] * 40_000), loads, 0.0).chosen)
    assert sent[0] / sent[1] == pytest.approx(3, rel=0.05)


def test_without_extrapolation_a_complete_batch_goes_to_one_matcher() -> None:
    loads = loads_of([LoadReport(0, 0.0, 0, 0.0, 300.0, 1), LoadReport(1, 0.0, 0, 0.0, 100.0, 1)])
    assert set(forward_batch(ResponseTime(), routes_of([[0, 1]] * 1000), loads, 0.0).chosen) == {0}


def test_a_balanced_batch_makes_no_event_search_much_because_its_matcher_is_idle() -> None:
    """The second half would take ten times as long on the idle matcher 1, and delay everything."""
    loads = loads_of([LoadReport(0, 0.0, 0, 0.0, 100.0, 1), LoadReport(1, 0.0, 0, 0.0, 10.0, 1)])
    routes = routes_of([[0, 1]] * 2000)
    holders = np.array([0, 1, 2, 2, 2, 2])
    sent = np.bincount(forward_batch(Balanced(holders), routes, loads, 0.0).chosen)
    assert sent[1] < 2000 / 11
    busiest_s = max(sent / [100.0, 10.0])
    assert busiest_s == pytest.approx(2000 / 110, rel=0.1)


def test_chance_is_seeded_and_uses_every_candidate_alike() -> None:
    routes = routes_of([[0, 1, 2, 3]] * 4000)
    first, again = (
        forward_batch(Random(np.random.default_rng(5)), routes, LoadTable(SLICES), 0.0).chosen
        for _ in range(2)
    )
    assert first.tolist() == again.tolist()
    assert np.bincount(first).tolist() == pytest.approx([1000] * 4, rel=0.1)


def test_dead_matchers_are_avoided_and_spares_are_used_last() -> None:
    routes = routes_of([[0, 1], [0, 0], [2, 2]])
    spared = SpareRoutes(routes.candidates, NONE, np.array([[3], [4], [NO_SLICE]], np.int32))
    live = np.array([False, True, False, True, True, True])
    chosen = forward_batch(SubscriptionCount(), routes, LoadTable(SLICES), 0.0, live).chosen
    assert chosen.tolist() == [1, NO_SLICE, NO_SLICE]
    chosen = forward_with_spares(SubscriptionCount(), spared, LoadTable(SLICES), 0.0, live)
    assert chosen.tolist() == [1, 4, NO_SLICE]


def test_a_policy_without_any_report_prefers_small_slices() -> None:
    loads = loads_of([LoadReport(0, 0.0, 0, 0.0, 0.0, 500), LoadReport(1, 0.0, 0, 0.0, 0.0, 20)])
    pair = np.array([[0, 1]], np.int32)
    costs = Adaptive().costs(loads, 0.0, pair, np.zeros(SLICES))
    assert cheapest(costs, pair, np.ones(SLICES, bool)).tolist() == [1]


def test_a_late_report_does_not_undo_a_newer_one() -> None:
    loads = loads_of([LoadReport(0, 2.0, 7, 1.0, 1.0, 1), LoadReport(0, 1.0, 9, 1.0, 1.0, 1)])
    assert loads.queue_length[0] == 7


def test_a_meter_averages_over_its_window_and_keeps_quiet_while_little_changes() -> None:
    """Section IV.C: workload information is pushed every second if the load changes more than 10%."""
    meter = LoadMeter(started_s=0.0, window_s=2.0)
    meter.arrived(3, 100, 1.0)
    meter.matched(3, 90, 0.5, 1.5)
    assert meter.reports({3: 40}, 2.0) == [LoadReport(3, 2.0, 10, 50.0, 180.0, 40)]
    assert meter.reports({3: 41}, 2.5) == []
    meter.arrived(3, 50, 3.5)
    meter.matched(3, 60, 0.25, 3.75)
    assert meter.reports({3: 41}, 4.0) == [LoadReport(3, 4.0, 0, 25.0, 240.0, 41)]


def test_an_idle_matcher_keeps_the_rate_that_it_had() -> None:
    meter = LoadMeter(started_s=0.0, window_s=2.0)
    meter.arrived(0, 10, 0.5)
    meter.matched(0, 10, 0.1, 0.6)
    (report,) = meter.reports({0: 5}, 60.0)
    assert (report.arrivals_per_s, report.matches_per_s) == (0.0, 100.0)
