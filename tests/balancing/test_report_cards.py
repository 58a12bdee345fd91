"""Report cards and the offload algorithms beside plain twins, and what must hold for any loads."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from tests.doses import drawn

from fieldfare.balancing import BalancingSettings, Load, MatchingCost, Metric, Resource
from fieldfare.balancing.press import Profile
from fieldfare_lab.balancing.poset import Poset
from fieldfare_lab.simulation.balancing.cards import Exchange
from fieldfare_lab.simulation.balancing.offload import offload

SETTINGS = BalancingSettings()
CAPACITY = 10_000.0


@dataclass(frozen=True)
class Set_:
    """A filter: the samples that it matches."""

    name: str
    bits: frozenset[int]

    @property
    def key(self) -> str:
        return self.name

    def covers(self, other: Set_) -> bool:
        return other.bits <= self.bits


@dataclass
class Case:
    """Two brokers, and the subscriptions of the first: name, matched samples, subscribers."""

    mine: Load
    theirs: Load
    filters: list[tuple[Set_, int]]
    css: list[Set_]
    samples: int = 12

    def profile(self) -> Profile:
        bits = [[at in each.bits for at in range(self.samples)] for each, _ in self.filters]
        accepted = [any(at in each.bits for each in self.css) for at in range(self.samples)]
        keys = tuple(each.name for each, _ in self.filters)
        return Profile(
            keys,
            np.array(bits, dtype=bool).reshape(len(keys), self.samples),
            np.array(accepted, dtype=bool),
            self.mine.input_per_s,
            100.0,
        )

    def poset(self) -> Poset:
        return Poset(
            [(f"{each.name}.{number}", each) for each, count in self.filters for number in range(count)]
        )

    def counts(self) -> dict[object, int]:
        return {each.name: count for each, count in self.filters}

    def exchange(self) -> Exchange:
        return Exchange(self.mine, self.theirs, self.profile(), self.counts(), self.counts(), SETTINGS)


def load(subscriptions: int, input_per_s: float, sent: float, unit_s: float = 1e-4) -> Load:
    matching_s = subscriptions * unit_s
    return Load(
        input_per_s=input_per_s,
        matching_s=matching_s,
        subscriptions=subscriptions,
        deliveries_per_s=sent / 100,
        output_bytes_per_s=sent,
        output_bytes_per_s_max=CAPACITY,
        cpu=min(1.0, input_per_s * matching_s),
        memory=0.1 + subscriptions * 1e-4,
        memory_per_subscription=1e-4,
        cost=MatchingCost(subscription_s=unit_s),
        span_s=20.0,
    )


def case(seed: int) -> Case:
    rng = Random(seed)
    filters = []
    for number in range(rng.randrange(1, 12)):
        bits = frozenset(at for at in range(12) if rng.random() < rng.choice([0.0, 0.2, 0.9]))
        filters.append((Set_(f"f{number:02}", bits), rng.randrange(1, 9)))
    css = [Set_(f"c{number}", frozenset(rng.sample(range(12), rng.randrange(6)))) for number in range(2)]
    total = sum(count for _, count in filters)
    mine = load(total, 20.0, rng.uniform(0, CAPACITY), rng.uniform(1e-4, 3e-3))
    theirs = load(rng.randrange(0, 60), rng.uniform(0, 20), rng.uniform(0, CAPACITY / 2), 1e-4)
    return Case(mine, theirs, filters, css if rng.random() < 0.8 else [])


def naive(found: Case, metric: Metric, at: int) -> tuple[int, float, float, float]:
    """A card by counting: number, difference, rate reduced by all, rate added."""
    each, count = found.filters[at]
    i_r, samples = found.mine.input_per_s, found.samples
    rate = i_r * len(each.bits) / samples
    css = set().union(*(c.bits for c in found.css)) if found.css else set()
    added = i_r * len(each.bits - css) / samples
    rest = set().union(*(f.bits for other, (f, _) in enumerate(found.filters) if other != at))
    reduced = i_r * len(each.bits - rest) / samples

    def after(k: int) -> tuple[float, dict[Resource, float]]:
        mine_n, theirs_n = found.mine.subscriptions - k, found.theirs.subscriptions + k
        mine_d = found.mine.matching_s * mine_n / found.mine.subscriptions
        if found.theirs.subscriptions:
            theirs_d = found.theirs.matching_s * theirs_n / found.theirs.subscriptions
        else:
            theirs_d = found.theirs.matching_s + found.theirs.cost.subscription_s * theirs_n
        mine_in = max(0.0, i_r - (reduced if k == count else 0.0))
        theirs_in = found.theirs.input_per_s + (added if k else 0.0)
        mine_out = max(0.0, found.mine.output_bytes_per_s - k * rate * 100) / CAPACITY
        theirs_out = (found.theirs.output_bytes_per_s + k * rate * 100) / CAPACITY
        ratios = {
            Resource.INPUT: theirs_in * theirs_d,
            Resource.OUTPUT: theirs_out,
            Resource.CPU: theirs_in * theirs_d,
            Resource.MEMORY: found.theirs.memory + k * 1e-4,
        }
        if metric is Metric.DELAY:
            return (mine_d - theirs_d) / 0.1, ratios
        if metric is Metric.INPUT:
            return mine_in * mine_d - theirs_in * theirs_d, ratios
        return mine_out - theirs_out, ratios

    number = 0
    for k in range(1, count + 1):
        if any(ratio > 0.9 for ratio in after(k)[1].values()):
            break
        number = k
        if after(k)[0] <= 0.005:
            break
    if number > 1 and abs(after(number - 1)[0]) < abs(after(number)[0]):
        number -= 1
    return number, after(number)[0], reduced, added


@pytest.mark.parametrize("metric", Metric)
def test_cards_are_those_of_plain_counting(metric: Metric) -> None:
    for seed in range(drawn(300)):
        found = case(seed)
        cards = found.exchange().cards(np.arange(len(found.filters)), metric)
        for at in range(len(found.filters)):
            number, difference, reduced, added = naive(found, metric, at)
            assert cards.number[at] == number, (seed, at)
            assert cards.difference[at] == pytest.approx(difference), (seed, at)
            assert cards.reduced_by_all_per_s[at] == pytest.approx(reduced), (seed, at)
            assert cards.added_per_s[at] == pytest.approx(added), (seed, at)
            assert cards.reduced_per_s[at] == pytest.approx(
                reduced if number == found.filters[at][1] else 0.0
            )


ACTIONS = [
    (Metric.INPUT, None),
    (Metric.OUTPUT, None),
    (Metric.DELAY, None),
    (Metric.INPUT, Resource.INPUT),
    (Metric.INPUT, Resource.CPU),
    (Metric.OUTPUT, Resource.OUTPUT),
]


@pytest.mark.parametrize(("metric", "overloaded"), ACTIONS)
def test_no_plan_overloads_the_acceptor_or_moves_more_than_there_is(
    metric: Metric, overloaded: Resource | None
) -> None:
    moved = 0
    for seed in range(drawn(300)):
        found = case(seed)
        loads = found.mine, found.theirs
        plan = offload(
            metric,
            overloaded,
            loads,
            found.poset(),
            found.profile(),
            found.counts(),
            tuple(found.css),
            SETTINGS,
        )
        counts = found.counts()
        for each in plan.moved:
            assert 0 < each.number <= counts[each.key], seed
            counts[each.key] = 0  # a subscription is chosen once
            moved += each.number
        if plan.moved:
            for each in Resource:
                assert plan.theirs.ratio(each) <= 0.9 + 1e-9, (seed, each)
        if overloaded is None and plan.moved:
            before, after = (abs(_difference(metric, *pair)) for pair in (loads, (plan.mine, plan.theirs)))
            assert after < before, seed
    assert moved > 0


def _difference(metric: Metric, mine: Load, theirs: Load) -> float:
    return float(mine.metric(metric) - theirs.metric(metric))


@pytest.mark.parametrize("metric", Metric)
def test_a_plans_estimates_are_those_of_its_moves_one_by_one(metric: Metric) -> None:
    """After all choices, the loads are those that equation 2 and 4 give for what has moved together."""
    for seed in range(drawn(100)):
        found = case(seed)
        plan = offload(
            metric,
            None,
            (found.mine, found.theirs),
            found.poset(),
            found.profile(),
            found.counts(),
            tuple(found.css),
            SETTINGS,
        )
        filters = {each.name: (each, count) for each, count in found.filters}
        moved = sum(each.number for each in plan.moved)
        left = {name: count for name, (_, count) in filters.items()}
        css = set().union(*(each.bits for each in found.css)) if found.css else set[int]()
        for each in plan.moved:
            left[each.key] -= each.number  # type: ignore[index]
            css |= filters[each.key][0].bits  # type: ignore[index]
        before = set().union(*(each.bits for each, _ in found.filters))
        stays = set().union(*(filters[name][0].bits for name, count in left.items() if count), set())
        i_r = found.mine.input_per_s
        expected = max(0.0, i_r - i_r * len(before - stays) / found.samples)
        assert plan.mine.input_per_s == pytest.approx(expected), seed
        old = set().union(*(each.bits for each in found.css)) if found.css else set()
        assert plan.theirs.input_per_s == pytest.approx(
            found.theirs.input_per_s + i_r * len(css - old) / found.samples
        ), seed
        assert plan.mine.matching_s == pytest.approx(
            found.mine.matching_s * (found.mine.subscriptions - moved) / found.mine.subscriptions
        ), seed
