"""Barazzutti et al. 2014 (E-StreamHub), section V: the policy and its two steps."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "experiments" / "estreamhub"))

import placement_decision

from fieldfare.elasticity.enforcer import ClusterLoad, ElasticityPolicy, decide
from fieldfare.elasticity.messages import SliceMove
from fieldfare.elasticity.rules import SliceLoad, first_fit, least_state

POLICY = ElasticityPolicy()


def load(**hosts: list[float]) -> ClusterLoad:
    found = {
        f"{host}/{i}": SliceLoad(f"{host}/{i}", host, cpu, 1)
        for host, cpus in hosts.items()
        for i, cpu in enumerate(cpus)
    }
    return ClusterLoad(found, tuple(hosts))


def test_the_policy_is_the_papers() -> None:
    bounds = (POLICY.mean_low, POLICY.mean_high, POLICY.host_low, POLICY.host_high, POLICY.target)
    assert bounds == (0.3, 0.7, 0.2, 0.8, 0.5)
    assert (POLICY.window_s, POLICY.grace_s) == (30.0, 30.0)


def test_figure_5_the_slices_with_least_state_go_to_a_new_host() -> None:
    """73 and 74 %: AP:1 and AP:2 leave the one, EP:1 and EP:2 the other, and a third host is needed."""
    asked = decide(placement_decision.load(), POLICY)
    assert asked is not None
    assert set(asked.moves) == {SliceMove(name, 0) for name in ("AP:1", "AP:2", "EP:1", "EP:2")}
    assert (asked.new_hosts, asked.released) == (1, ())


def test_the_first_step_takes_at_least_the_difference_with_the_least_memory() -> None:
    slices = [SliceLoad("a", "h", 0.3, 100), SliceLoad("b", "h", 0.15, 10), SliceLoad("c", "h", 0.15, 10)]
    assert {each.name for each in least_state(slices, 0.3)} == {"b", "c"}
    assert {each.name for each in least_state(slices, 0.31)} in ({"a", "b"}, {"a", "c"})


def test_the_second_step_is_first_fit_by_decreasing_load() -> None:
    slices = [
        SliceLoad("small", "h", 0.1, 1),
        SliceLoad("large", "h", 0.3, 1),
        SliceLoad("middle", "h", 0.2, 1),
    ]
    places = first_fit(slices, {"h1": 0.25, "h2": 0.1}, 0.5, 1)
    assert places == {"large": "h2", "middle": "h1", "small": "h2"}


def test_new_hosts_come_when_the_spare_capacity_is_not_enough() -> None:
    places = first_fit([SliceLoad("a", "h", 0.4, 1)], {"h1": 0.3}, 0.5, 1)
    assert places == {"a": 0}


def test_global_rules_go_first() -> None:
    """The mean is above 70 % and one host below 20 %: hosts are added, and none is emptied."""
    asked = decide(load(h1=[0.3, 0.3, 0.35], h2=[0.3, 0.3, 0.35], h3=[0.3, 0.3, 0.35], h4=[0.04]), POLICY)
    assert asked is not None
    assert asked.reason.startswith("global") and not asked.released


def test_scaling_in_releases_the_least_loaded_until_the_mean_is_the_target() -> None:
    """Four hosts with 69 % in all: floor(0.69 / 0.5) = 1 is left."""
    asked = decide(load(h1=[0.3], h2=[0.14], h3=[0.15, 0.05], h4=[0.05]), POLICY)
    assert asked is not None
    assert asked.released == ("h4", "h2", "h3")
    assert {move.to for move in asked.moves} == {"h1"}


def test_scaling_in_leaves_no_fewer_than_the_upper_bound_allows() -> None:
    """88 % in all: one host would have more than 70 % and soon be two again."""
    asked = decide(load(h1=[0.3], h2=[0.2], h3=[0.25, 0.08], h4=[0.05]), POLICY)
    assert asked is not None
    assert asked.released == ("h4", "h2")


def test_an_overloaded_host_gives_only_its_own_slices() -> None:
    """Local rule: the mean is 55 %, one host has 85 %."""
    asked = decide(load(h1=[0.2, 0.25, 0.4], h2=[0.15, 0.1], h3=[0.2, 0.35]), POLICY)
    assert asked is not None
    assert asked.reason == "local: h1 has CPU 85%"
    assert {move.slice.partition("/")[0] for move in asked.moves} == {"h1"}


def test_an_underloaded_host_gives_all_its_slices_and_is_released() -> None:
    asked = decide(load(h1=[0.5], h2=[0.4], h3=[0.05, 0.05]), POLICY)
    assert asked is not None
    assert asked.reason == "local: h3 has CPU 10%"
    assert asked.released == ("h3",)
    assert {move.slice for move in asked.moves} == {"h3/0", "h3/1"}


def test_within_the_bounds_nothing_moves() -> None:
    assert decide(load(h1=[0.3, 0.35], h2=[0.4]), POLICY) is None
