"""Plans toward the mean of all brokers, beside plain counting; targets of clusters; differences that last."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.balancing.test_report_cards import CAPACITY, Case, Set_, case, load
from tests.doses import drawn

from fieldfare.balancing import Load, MatchingCost, Metric
from fieldfare.balancing.detection import BrokerAction
from fieldfare.balancing.joint import plan_jointly
from fieldfare.balancing.load import (
    Capacity,
    Metrics,
    Resource,
    capacity_of,
    difference,
    joint_metrics,
    metrics_of,
)
from fieldfare.balancing.messages import Pie, Reply, Request, State, Tick
from fieldfare.balancing.plans import Plan
from fieldfare.effects import Effect, Received, Send
from fieldfare_lab.balancing import MigratingBalancer, MigratingState
from fieldfare_lab.balancing.messages import Watch
from fieldfare_lab.balancing.offloader import measured_by
from fieldfare_lab.simulation.balancing.head import (
    GlobalPie,
    HeadBalancer,
    HeadSettings,
    HeadState,
    local_targets,
)

JOINT = HeadSettings(lasting_s=30.0, follow_s=90.0, cluster_hops=8, improvement=0.0)


def target_of(found: Case) -> Metrics:
    return joint_metrics([(metrics_of(each), capacity_of(each)) for each in (found.mine, found.theirs)])


def plan_of(found: Case, metric: Metric, settings: HeadSettings = JOINT) -> Plan:
    loads = found.mine, found.theirs
    action = BrokerAction("B2", metric, float(difference(metric, *loads)))
    target = target_of(found)
    counts = found.counts()
    return plan_jointly(action, loads, found.profile(), counts, counts, (target, target), settings)


def counted(found: Case, plan: Plan) -> tuple[Load, Load]:
    """The loads after a plan, by counting the subscribers and the samples of each broker."""
    moved = {each.key: each.number for each in plan.moved}
    rate = found.mine.input_per_s / found.samples
    stays = [each for each, count in found.filters if moved.get(each.name, 0) < count]
    goes = [each for each, _ in found.filters if moved.get(each.name, 0)]
    matched = sum(moved.get(each.name, 0) * len(each.bits) for each, _ in found.filters) * rate
    before = set().union(*(each.bits for each, _ in found.filters))
    css = set().union(*(each.bits for each in found.css))
    left = before - set().union(*(each.bits for each in stays))
    added = set().union(*(each.bits for each in goes)) - css
    number = sum(moved.values())
    mine = found.mine.after(-number, -len(left) * rate, -matched, -100 * matched)
    return mine, found.theirs.after(number, len(added) * rate, matched, 100 * matched)


@pytest.mark.parametrize("metric", Metric)
def test_a_joint_plan_estimates_what_counting_gives(metric: Metric) -> None:
    moved = 0
    for seed in range(drawn(200)):
        found = case(seed)
        plan = plan_of(found, metric)
        moved += len(plan.moved)
        if plan.moved:
            for mine, expected in zip((plan.mine, plan.theirs), counted(found, plan), strict=True):
                for each in Metric:
                    assert mine.metric(each) == pytest.approx(expected.metric(each), abs=1e-9), (seed, each)
    assert moved > 0


@pytest.mark.parametrize("metric", Metric)
def test_a_joint_plan_overloads_nobody_and_moves_no_more_than_there_is(metric: Metric) -> None:
    for seed in range(drawn(200)):
        found = case(seed)
        plan = plan_of(found, metric)
        counts = found.counts()
        for each in plan.moved:
            assert 0 < each.number <= counts[each.key], seed
        if plan.moved:
            assert all(plan.theirs.ratio(each) <= 0.9 + 1e-9 for each in Resource), seed
            assert abs(difference(metric, plan.mine, plan.theirs)) <= difference(
                metric, found.mine, found.theirs
            )


def silent(mine: int, theirs: int, subscribers: int) -> Case:
    """Two equal brokers of many subscriptions, of which some match nothing and may move."""
    found = case(0)
    filters = [(Set_("silent", frozenset()), subscribers)]
    return replace(found, mine=load(mine, 5.0, 1_000), theirs=load(theirs, 5.0, 1_000), filters=filters)


def test_a_broker_is_given_its_share_of_three_and_not_half_of_two() -> None:
    """600 subscriptions at one of three brokers: by the paper, 300 go to the first that accepts."""
    found = silent(600, 0, 600)
    third = metrics_of(load(200, 5.0, 1_000))
    action = BrokerAction("B2", Metric.DELAY, 0.6)
    plan = plan_jointly(
        action,
        (found.mine, found.theirs),
        found.profile(),
        found.counts(),
        found.counts(),
        (third, third),
        JOINT,
    )
    assert [each.number for each in plan.moved] == pytest.approx([200], abs=10)


def test_a_pair_above_or_below_the_mean_exchanges_nothing() -> None:
    """What it moved would move on, or is about to come from a third broker."""
    found = silent(400, 200, 400)
    counts = found.counts()
    for subscriptions in (100, 500):
        target = metrics_of(load(subscriptions, 5.0, 1_000))
        action = BrokerAction("B2", Metric.DELAY, 0.2)
        loads = found.mine, found.theirs
        plan = plan_jointly(action, loads, found.profile(), counts, counts, (target, target), JOINT)
        assert plan == Plan((), *loads)


def test_a_plan_that_improves_less_than_asked_is_dropped_unless_overloaded() -> None:
    found = silent(600, 400, 600)
    target = target_of(found)
    counts, loads = found.counts(), (found.mine, found.theirs)
    much = replace(JOINT, improvement=0.5)
    for overloaded, is_dropped in ((None, True), (Resource.CPU, False)):
        action = BrokerAction("B2", Metric.DELAY, 0.2, overloaded)
        plan = plan_jointly(action, loads, found.profile(), counts, counts, (target, target), much)
        assert (plan.moved == ()) is is_dropped


def test_a_session_moves_no_more_than_it_may() -> None:
    found = silent(600, 0, 600)
    plan = plan_of(found, Metric.DELAY, replace(JOINT, session_moves_max=7))
    assert sum(each.number for each in plan.moved) == 7


def test_rates_are_counted_from_the_profile() -> None:
    """A broker that works off a queue sends more than what arrives now will let it send."""
    found = case(3)
    profile = replace(found.profile(), sizes=np.arange(1, found.samples + 1) * 10.0)
    load_ = measured_by(profile, found.counts(), found.mine)
    rate = profile.input_per_s / found.samples
    matches = [(count, at) for each, count in found.filters for at in each.bits]
    assert load_.deliveries_per_s == pytest.approx(rate * sum(count for count, _ in matches))
    sent = rate * sum(count * 10 * (at + 1) for count, at in matches)
    assert load_.output_bytes_per_s == pytest.approx(sent)


def test_events_of_a_queue_do_not_count_for_the_matching_time() -> None:
    cost = MatchingCost(0.001, 0.0001, 0.0)
    found = replace(load(100, 5.0, 0.0), matching_s=0.2, cost=cost, is_calibrated=True)
    assert found.of_arrivals() == found
    assert replace(found, input_queue_s=3.0).of_arrivals().matching_s == pytest.approx(0.011)


def test_the_joint_mean_is_weighted_by_capacities() -> None:
    strong, weak = Capacity(3.0, 1.0), Capacity(1.0, 1.0)
    found = joint_metrics([(Metrics(0.2, 0.2, 0.02), strong), (Metrics(0.6, 0.6, 0.06), weak)])
    assert (found.input_ratio, found.output_ratio) == pytest.approx((0.3, 0.4))
    assert capacity_of(load(1, 1.0, 0.0, unit_s=0.5)) == Capacity(2.0, CAPACITY)


def test_farther_clusters_are_to_have_less_and_the_less_so_the_higher_the_load() -> None:
    def targets(ratio: float) -> list[float]:
        clusters = [(Metrics(ratio, ratio, ratio), Capacity(), hops) for hops in range(4)]
        return [each.input_ratio for each in local_targets(clusters, 0.1)]

    low, high = targets(0.3), targets(0.6)
    assert low == pytest.approx([0.405, 0.335, 0.265, 0.195])
    assert high == pytest.approx([0.66, 0.62, 0.58, 0.54])
    assert sum(low) == pytest.approx(4 * 0.3)


# The machines


class Edge:
    """An edge broker that hears of two others."""

    def __init__(self, settings: HeadSettings = JOINT) -> None:
        self.balancer = MigratingBalancer(MigratingState("B11", "B10", "B10"), settings)
        self.now, self.numbers = 0.0, 0
        self.balancer.start(0.0)

    def pie(self, broker: str, ratio: float) -> None:
        self.numbers += 1
        found = Pie(broker, f"{broker[:2]}0", self.numbers, Metrics(ratio), State.OK, frozenset())
        self.balancer.handle(Received("B10", found), self.now)

    def measure(self, ratio: float) -> list[str]:
        """Measure a load 5 s later; return the brokers that are asked for a session."""
        self.now += 5.0
        self.balancer.handle(Tick(1), self.now)
        found = replace(load(100, 0.0, 0.0), input_per_s=100 * ratio, matching_s=0.01, span_s=30.0, cpu=0.0)
        return asked(self.balancer.handle(found, self.now))


def asked(effects: list[Effect]) -> list[str]:
    return [each.to for each in effects if isinstance(each, Send) and isinstance(each.message, Request)]


def test_a_difference_must_last_as_long_as_a_window() -> None:
    edge = Edge()
    edge.pie("B12", 0.1)
    assert [edge.measure(0.4) for _ in range(7)] == [[]] * 6 + [["B12"]]


def test_a_difference_that_comes_and_goes_is_none() -> None:
    edge = Edge()
    edge.pie("B12", 0.1)
    assert [edge.measure(0.4 if number % 4 else 0.15) for number in range(16)] == [[]] * 16


def test_an_overload_is_not_waited_for() -> None:
    edge = Edge()
    edge.pie("B12", 0.1)
    assert edge.measure(0.97) == ["B12"]


def test_after_a_session_lower_thresholds_count_for_a_while() -> None:
    edge = Edge(replace(JOINT, lasting_s=0.0))
    edge.pie("B12", 0.33)
    assert edge.measure(0.4) == []
    edge.balancer._unsettle(edge.now)
    edge.balancer.state.is_stabilizing = False
    assert edge.measure(0.4) == ["B12"]
    other = Edge(replace(JOINT, lasting_s=0.0))
    other.balancer._unsettle(0.0)
    other.now = 100.0
    other.balancer.state.is_stabilizing = False
    other.pie("B12", 0.33)
    assert other.measure(0.4) == []


def test_in_a_global_session_a_peer_is_compared_with_its_own_target() -> None:
    """The other cluster is to have 0.2 less: a difference of 0.25 is none to balance, one of 0.4 is."""
    targets = (("B10", Metrics(0.5)), ("B20", Metrics(0.3)))
    for ratio, expected in ((0.25, []), (0.1, ["B21"])):
        edge = Edge(replace(JOINT, lasting_s=0.0))
        edge.balancer.handle(Watch("B20", ("B21",), targets), 0.0)
        edge.pie("B21", ratio)
        assert edge.measure(0.5) == expected


class Head:
    """A head of two edge brokers in a chain of clusters."""

    def __init__(self, settings: HeadSettings = JOINT) -> None:
        self.head = HeadBalancer(HeadState("B10", "B10", ("B11", "B12"), ("B20",)), settings)
        self.now, self.numbers = 0.0, 0
        self.head.start(0.0)

    def pies(self, ratio: float) -> list[Effect]:
        effects: list[Effect] = []
        for broker in ("B11", "B12"):
            self.numbers += 1
            found = Pie(broker, "B10", self.numbers, Metrics(ratio), State.OK, frozenset({"B11", "B12"}))
            effects += self.head.handle(Received(broker, found), self.now)
        return effects

    def global_pie(self, head: str, ratio: float, *passed: str) -> list[Effect]:
        self.numbers += 1
        pie = GlobalPie(head, head, self.numbers, Metrics(ratio), State.OK, passed)
        return self.head.handle(Received("B20", pie), self.now)

    def tick(self) -> list[Effect]:
        self.now += 5.0
        return self.head.handle(Tick(1), self.now)


def test_global_pie_is_passed_on_as_far_as_sessions_reach() -> None:
    for hops, expected in ((8, ["B00"]), (2, []), (1, [])):
        head = HeadBalancer(
            HeadState("B10", "B10", ("B11",), ("B00", "B20")), replace(JOINT, cluster_hops=hops)
        )
        head.start(0.0)
        pie = GlobalPie("B30", "B30", 1, Metrics(0.1), State.OK, ("B20",))
        sent = head.handle(Received("B20", pie), 0.0)
        assert [each.to for each in sent if isinstance(each, Send)] == expected


def test_a_cluster_asks_one_several_hops_away_with_targets_for_both() -> None:
    head = Head(replace(JOINT, lasting_s=0.0))
    head.pies(0.6)
    head.global_pie("B20", 0.5)
    head.global_pie("B30", 0.1, "B20")
    (request,) = [
        each for each in head.tick() if isinstance(each, Send) and isinstance(each.message, Request)
    ]
    assert request.to == "B30" and isinstance(request.message, Request)
    targets = dict(request.message.targets)
    assert targets["B10"].input_ratio > targets["B30"].input_ratio > 0
    reply = Reply(request.message.session, State.OK, brokers=("B31", "B32"))
    effects = head.head.handle(Received("B30", reply), head.now)
    watches = [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, Watch)]
    assert watches == [Watch("B30", ("B31", "B32"), request.message.targets)] * 2
