"""Cheung and Jacobsen 2006, section 3: PEER, PIE, detection, mediation."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from fieldfare.balancing import BalancingSettings, Load, Metric
from fieldfare.balancing.detection import broker_actions, difference_actions, exceeding, is_stable
from fieldfare.balancing.load import Metrics, Resource, delay_difference, metrics_of
from fieldfare.balancing.messages import Cancel, MeasureLoad, Pie, Reply, Request, SessionId, State, Tick
from fieldfare.balancing.settings import Ratios
from fieldfare.effects import Ask, Effect, Received, Send
from fieldfare_lab.balancing import MigratingBalancer, MigratingState
from fieldfare_lab.balancing.messages import Watch
from fieldfare_lab.simulation.balancing.head import (
    GLOBAL_STATES,
    Ended,
    GlobalPie,
    HeadBalancer,
    HeadSettings,
    HeadState,
    mean_metrics,
)
from fieldfare_lab.simulation.balancing.offload import offload

SETTINGS = HeadSettings(offload=offload)


def load(input_ratio: float = 0.0, output: float = 0.0, delay_s: float = 0.01, **more: float) -> Load:
    return Load(
        input_per_s=input_ratio / delay_s,
        matching_s=delay_s,
        subscriptions=10,
        output_bytes_per_s=output,
        output_bytes_per_s_max=1.0,
        span_s=60.0,
        **more,  # type: ignore[arg-type]
    )


def sent(effects: list[Effect], kind: type) -> list[tuple[str, object]]:
    return [
        (each.to, each.message)
        for each in effects
        if isinstance(each, Send) and isinstance(each.message, kind)
    ]


# 3.2, the metrics of a PIE message


def test_input_utilisation_is_the_rate_over_the_highest_match_rate() -> None:
    """I_r = rate of incoming messages / maximum match rate; that is 1 / matching delay: 20/s of 100/s."""
    assert Load(input_per_s=20, matching_s=0.01).input_ratio == pytest.approx(20 / (1 / 0.01))


def test_output_utilisation_is_the_used_share_of_the_bandwidth() -> None:
    assert Load(output_bytes_per_s=300, output_bytes_per_s_max=1_200).output_ratio == 0.25


def test_equation_1_delays_are_normalised_by_a_tenth_of_a_second() -> None:
    """'Delay differences much less than 0.1 s do not yield high percentage differences'."""
    assert delay_difference(0.03, 0.01) == pytest.approx(0.2)
    assert abs(delay_difference(0.001, 0.002)) == pytest.approx(0.01)


def test_a_pie_message_has_five_attributes() -> None:
    names = {each.name for each in fields(Pie)}
    papers = {"metrics", "state", "balanced", "cluster", "broker"}
    assert names == papers | {"number", "capacity"}  # these two are ours
    assert {each.name for each in fields(Metrics)} == {"input_ratio", "output_ratio", "matching_s"}


def test_the_four_states_and_the_subset_of_the_heads() -> None:
    assert [each.value for each in State] == ["OK", "BUSY", "N/A", "STABILIZING"]
    assert set(GLOBAL_STATES) < set(State)


# 3.2, local detection, step 1


@pytest.mark.parametrize("resource", Resource)
def test_above_the_lower_overload_threshold_a_broker_is_overloaded(resource: Resource) -> None:
    below, above = (_with(resource, ratio) for ratio in (0.89, 0.91))
    assert exceeding(below, SETTINGS, higher=False) == []
    assert exceeding(above, SETTINGS, higher=False) == [resource]
    assert exceeding(above, SETTINGS, higher=True) == []
    assert exceeding(_with(resource, 0.96), SETTINGS, higher=True) == [resource]


def _with(resource: Resource, ratio: float) -> Load:
    match resource:
        case Resource.INPUT:
            return load(input_ratio=ratio)
        case Resource.OUTPUT:
            return load(output=ratio)
        case Resource.CPU:
            return load(cpu=ratio)
    return load(memory=ratio)


PEERS = {"B2": Metrics(0.1, 0.3, 0.01), "B3": Metrics(0.3, 0.1, 0.02)}


@pytest.mark.parametrize("resource", Resource)
def test_between_the_thresholds_a_broker_is_inert(resource: Resource) -> None:
    """It neither accepts (N/A) nor invokes, whatever the differences."""
    assert broker_actions(_with(resource, 0.93), PEERS, SETTINGS) == []


@pytest.mark.parametrize("resource", Resource)
def test_above_the_higher_threshold_it_balances_with_every_broker(resource: Resource) -> None:
    actions = broker_actions(_with(resource, 0.96), PEERS, SETTINGS)
    assert {each.broker for each in actions} == {"B2", "B3"}
    assert {each.overloaded for each in actions} == {resource}
    assert [each.difference for each in actions] == sorted(
        [each.difference for each in actions], reverse=True
    )


def test_each_ratio_may_have_its_own_overload_threshold() -> None:
    own = BalancingSettings(
        lower_overload=Ratios(0.9, 0.5, 0.9, 0.9), higher_overload=Ratios(0.95, 0.6, 1, 1)
    )
    assert exceeding(load(output=0.7), own, higher=True) == [Resource.OUTPUT]
    assert exceeding(load(output=0.7), SETTINGS, higher=True) == []


def test_the_cpu_that_works_off_a_queue_is_no_overload_unless_as_in_the_paper() -> None:
    """Figure 6a: B1 gives all its subscriptions away while its CPU works off what has queued."""
    draining = load(input_ratio=0.3, cpu=1.0, input_queue_s=20.0)
    assert exceeding(draining, SETTINGS, higher=True) == []
    papers = BalancingSettings(sheds_backlog=True)
    assert exceeding(draining, papers, higher=True) == [Resource.CPU]


# Step 2


def test_a_difference_above_a_tenth_is_a_reason_to_balance() -> None:
    mine = load(input_ratio=0.35, output=0.15, delay_s=0.025)
    actions = broker_actions(mine, PEERS, SETTINGS)
    assert [(each.broker, each.metric) for each in actions] == [
        ("B2", Metric.INPUT),  # 0.25
        ("B2", Metric.DELAY),  # 0.15
    ]


def test_the_list_is_in_descending_order_of_the_difference() -> None:
    mine = load(input_ratio=0.5, output=0.6, delay_s=0.05)
    actions = broker_actions(mine, PEERS, SETTINGS)
    differences = [each.difference for each in actions]
    assert differences == sorted(differences, reverse=True) and len(actions) == 6


def test_the_second_step_is_only_run_if_nothing_is_overloaded() -> None:
    mine = load(input_ratio=0.97, output=0.6)
    assert {each.overloaded for each in broker_actions(mine, PEERS, SETTINGS)} == {Resource.INPUT}


def test_between_clusters_the_thresholds_are_015() -> None:
    theirs = {"B20": Metrics(0.30, 0.0, 0.0)}
    for mine, count in ((Metrics(0.44, 0.0, 0.0), 0), (Metrics(0.46, 0.0, 0.0), 1)):
        found = difference_actions(mine, theirs, SETTINGS.global_, SETTINGS.normalisation_s)
        assert len(found) == count
    assert SETTINGS.local.of(Metric.INPUT) == SETTINGS.local.of(Metric.DELAY) == 0.1


def test_queuing_delays_are_measured_beside_the_ratios() -> None:
    """An alternative metric that lags by what it measures; not used for decisions here either."""
    assert {"input_queue_s", "output_queue_s"} <= {each.name for each in fields(Load)}


# The machine of an edge broker


class Broker:
    """A balancer whose runtime is the test."""

    def __init__(self, settings: BalancingSettings = SETTINGS) -> None:
        self.balancer = MigratingBalancer(MigratingState("B1", "B0", "B0"), settings)
        self.now = 0.0
        self.effects: list[Effect] = []
        self.numbers = 0
        self.balancer.start(self.now)

    def pie(self, metrics: Metrics, state: State = State.OK, broker: str = "B2", cluster: str = "B0") -> None:
        self.numbers += 1
        self.hand(Received("B0", Pie(broker, cluster, self.numbers, metrics, state, frozenset())))

    def hand(self, message: object) -> list[Effect]:
        self.effects = self.balancer.handle(message, self.now)
        return self.effects

    def measure(self, found: Load, seconds: float = 5.0) -> list[Effect]:
        self.now += seconds
        asked = self.hand(Tick(1))
        assert any(isinstance(each, Ask) and isinstance(each.question, MeasureLoad) for each in asked)
        return self.hand(found)

    @property
    def state(self) -> State:
        return self.balancer.state.state


SESSION = SessionId("B2", 1, 1)


@pytest.mark.parametrize("resource", Resource)
def test_na_rejects_requests(resource: Resource) -> None:
    broker = Broker()
    broker.measure(_with(resource, 0.92))
    assert broker.state is State.NOT_AVAILABLE
    ((_, reply),) = sent(broker.hand(Received("B2", Request(SESSION))), Reply)
    assert isinstance(reply, Reply) and reply.state is State.NOT_AVAILABLE and reply.load is None


def test_ok_accepts_with_load_and_css_and_both_are_busy() -> None:
    broker = Broker()
    broker.measure(load(0.2))
    ((_, reply),) = sent(broker.hand(Received("B2", Request(SESSION))), Reply)
    assert isinstance(reply, Reply) and reply.state is State.OK and reply.load == load(0.2)
    assert broker.state is State.BUSY
    other = SessionId("B3", 1, 1)
    ((_, reply),) = sent(broker.hand(Received("B3", Request(other))), Reply)
    assert isinstance(reply, Reply) and reply.state is State.BUSY


def test_a_busy_broker_runs_no_detection() -> None:
    broker = Broker()
    broker.measure(load(0.2))
    broker.hand(Received("B2", Request(SESSION)))
    broker.pie(Metrics(), broker="B3")
    assert sent(broker.measure(load(0.99)), Request) == []


def test_requests_go_one_by_one_through_the_list() -> None:
    broker = Broker()
    broker.pie(Metrics(0.0, 0.0, 0.0), broker="B2")
    broker.pie(Metrics(0.1, 0.0, 0.0), broker="B3")
    ((to, request),) = sent(broker.measure(load(0.5)), Request)
    assert to == "B2" and isinstance(request, Request)
    ((to, _),) = sent(broker.hand(Received("B2", Reply(request.session, State.BUSY))), Request)
    assert to == "B3"


def test_of_two_requests_that_cross_that_of_the_lower_name_stands() -> None:
    """Otherwise two brokers that detect at the same moments refuse each other for ever."""
    for peer, expected in (("A1", State.OK), ("B2", State.BUSY)):
        broker = Broker()
        broker.pie(Metrics(), broker=peer)
        assert sent(broker.measure(load(0.5)), Request)
        ((_, reply),) = sent(broker.hand(Received(peer, Request(SessionId(peer, 1, 1)))), Reply)
        assert isinstance(reply, Reply) and reply.state is expected
        assert broker.state is State.BUSY


def test_a_broker_that_all_have_refused_waits_for_up_to_three_detections() -> None:
    waits = set()
    for name in ("B1", "B3", "B5", "B7", "B9"):
        broker = Broker()
        broker.balancer.state.name = name
        broker.pie(Metrics())
        ((_, request),) = sent(broker.measure(load(0.5)), Request)
        assert isinstance(request, Request)
        broker.hand(Received("B2", Reply(request.session, State.BUSY)))
        waits.add(next(at for at in range(9) if sent(broker.measure(load(0.5)), Request)))
    assert waits <= {0, 1, 2, 3} and len(waits) > 1


@pytest.mark.parametrize("state", [State.BUSY, State.NOT_AVAILABLE, State.STABILIZING])
def test_only_brokers_whose_pie_says_ok_are_asked(state: State) -> None:
    broker = Broker()
    broker.pie(Metrics(), state)
    assert sent(broker.measure(load(0.8)), Request) == []
    broker.pie(Metrics(), State.OK)
    assert sent(broker.measure(load(0.8)), Request)


def stabilising(settings: BalancingSettings = SETTINGS) -> Broker:
    broker = Broker(settings)
    broker.measure(load(0.2))
    broker.balancer.state.is_stabilizing = True
    broker.balancer.state.stable_from_s = broker.now + 30
    broker.measure(load(0.2))
    assert broker.state is State.STABILIZING
    return broker


def test_stabilising_neither_accepts_nor_invokes() -> None:
    broker = stabilising()
    ((_, reply),) = sent(broker.hand(Received("B2", Request(SESSION))), Reply)
    assert isinstance(reply, Reply) and reply.state is State.STABILIZING
    broker.pie(Metrics())
    assert sent(broker.measure(load(0.5)), Request) == []


def test_stabilising_invokes_if_overloaded() -> None:
    broker = stabilising()
    broker.pie(Metrics())
    assert sent(broker.measure(load(0.97)), Request)


def test_after_30_s_a_stable_load_ends_stabilising() -> None:
    broker = stabilising()
    for _ in range(4):
        broker.measure(load(0.2))
        assert broker.state is State.STABILIZING
    broker.measure(load(0.2))
    assert broker.state is State.OK


def test_after_30_s_a_load_that_still_changes_does_not() -> None:
    broker = stabilising()
    for step in range(8):
        broker.measure(load(0.2 + 0.06 * (step % 2)))
    assert broker.state is State.STABILIZING
    broker.measure(load(0.2))
    broker.measure(load(0.2))
    assert broker.state is State.OK


def test_stable_is_a_change_of_at_most_5_percent() -> None:
    assert is_stable(Metrics(0.2, 0.2, 0.010), Metrics(0.24, 0.16, 0.014), SETTINGS)
    assert not is_stable(Metrics(0.2, 0.2, 0.01), Metrics(0.26, 0.2, 0.01), SETTINGS)
    assert not is_stable(Metrics(0.2, 0.2, 0.01), Metrics(0.2, 0.2, 0.016), SETTINGS)


def test_na_ends_when_the_ratios_have_fallen() -> None:
    broker = Broker()
    broker.measure(load(0.92))
    broker.measure(load(0.5))
    assert broker.state is State.OK


def test_pie_is_published_when_something_changes_and_at_the_latest_after_a_minute() -> None:
    broker = Broker()
    published = [bool(sent(broker.measure(load(0.2)), Pie)) for _ in range(14)]
    assert [at for at, is_sent in enumerate(published) if is_sent] == [0, 12]
    assert sent(broker.measure(load(0.23)), Pie)
    assert sent(broker.measure(load(0.92)), Pie)


def test_a_message_of_another_cluster_is_heard_in_a_global_session_only() -> None:
    broker = Broker()
    broker.pie(Metrics(), broker="B21", cluster="B20")
    assert broker.balancer.peers(broker.now) == {}
    broker.hand(Received("B0", Watch("B20", ("B21",))))
    broker.pie(Metrics(), broker="B21", cluster="B20")
    assert list(broker.balancer.peers(broker.now)) == ["B21"]
    broker.hand(Received("B0", Watch("B20", ())))
    assert broker.balancer.peers(broker.now) == {}


def test_an_older_pie_message_that_comes_later_is_ignored() -> None:
    broker = Broker()
    broker.hand(Pie("B2", "B0", 7, Metrics(0.5), State.OK, frozenset()))
    broker.hand(Pie("B2", "B0", 6, Metrics(0.1), State.OK, frozenset()))
    assert broker.balancer.peers(broker.now)["B2"].metrics.input_ratio == 0.5


def test_the_balanced_set_are_those_to_whom_there_is_nothing_to_offload() -> None:
    broker = Broker()
    broker.pie(Metrics(0.15, 0.0, 0.01), broker="B2")
    broker.pie(Metrics(0.05, 0.0, 0.01), broker="B3")
    broker.pie(Metrics(0.60, 0.0, 0.01), broker="B4")
    broker.measure(load(0.2))
    # The request to B3 goes out; its answer is a refusal, and the broker is OK again.
    session = broker.balancer.state.offering
    assert session is not None and session.action.broker == "B3"
    broker.hand(Received("B3", Reply(session.session, State.BUSY)))
    assert broker.balancer.balanced(broker.now) == {"B2", "B4"}


# 3.1 and 3.3, the machine of a cluster-head


class Head:
    """A head whose edge brokers and neighbours are the test."""

    def __init__(
        self, edges: tuple[str, ...] = ("B11", "B12"), neighbours: tuple[str, ...] = ("B20",)
    ) -> None:
        self.head = HeadBalancer(HeadState("B10", "B10", edges, neighbours), SETTINGS)
        self.now = 0.0
        self.numbers = 0
        self.head.start(0.0)

    def hand(self, sender: str, message: object) -> list[Effect]:
        return self.head.handle(Received(sender, message), self.now)

    def pie(self, broker: str, metrics: Metrics, state: State = State.OK, balanced: str = "") -> list[Effect]:
        self.numbers += 1
        cluster = f"{broker[:-1]}0"
        found = Pie(broker, cluster, self.numbers, metrics, state, frozenset(balanced.split()))
        return self.hand(broker if cluster == "B10" else cluster, found)

    def global_pie(self, ratio: float, state: State = State.OK, head: str = "B20") -> list[Effect]:
        self.numbers += 1
        return self.hand(head, GlobalPie(head, head, self.numbers, Metrics(ratio), state))

    def tick(self) -> list[Effect]:
        self.now += 5
        return self.head.handle(Tick(1), self.now)

    def in_session(self) -> SessionId:
        self.pie("B11", Metrics(0.6), balanced="B12")
        self.pie("B12", Metrics(0.6), balanced="B11")
        self.global_pie(0.1)
        ((_, request),) = sent(self.tick(), Request)
        assert isinstance(request, Request)
        self.hand("B20", Reply(request.session, State.OK, brokers=("B21", "B22")))
        assert self.head.state.state is State.BUSY
        return request.session


def test_local_pie_goes_to_the_other_edge_brokers_of_the_cluster() -> None:
    assert [to for to, _ in sent(Head().pie("B11", Metrics(0.2)), Pie)] == ["B12"]


def test_global_pie_is_the_mean_of_the_cluster_and_goes_to_the_neighbours() -> None:
    head = Head(neighbours=("B20", "B30"))
    assert sent(head.pie("B11", Metrics(0.2, 0.4, 0.01)), GlobalPie) == []  # B12 is unheard
    found = sent(head.pie("B12", Metrics(0.4, 0.0, 0.03)), GlobalPie)
    assert [to for to, _ in found] == ["B20", "B30"]
    (pie,) = {message for _, message in found}
    assert isinstance(pie, GlobalPie)
    assert (pie.metrics.input_ratio, pie.metrics.output_ratio) == pytest.approx((0.3, 0.2))
    assert pie.metrics.matching_s == pytest.approx(0.02)
    assert mean_metrics([]) == Metrics()


def test_a_head_with_edge_brokers_does_not_pass_global_pie_on() -> None:
    assert sent(Head(neighbours=("B20", "B30")).global_pie(0.1), GlobalPie) == []


def test_a_head_without_edge_brokers_passes_it_one_hop_on() -> None:
    head = Head(edges=(), neighbours=("B20", "B30", "B40"))
    found = sent(head.global_pie(0.1), GlobalPie)
    assert [to for to, _ in found] == ["B30", "B40"]
    assert sent(head.hand("B30", found[0][1]), GlobalPie) == []  # it comes back: not again


def test_a_cluster_is_na_if_an_edge_broker_is() -> None:
    head = Head()
    head.pie("B11", Metrics(0.92), State.NOT_AVAILABLE)
    head.pie("B12", Metrics(0.1))
    assert head.head.state.state is State.NOT_AVAILABLE
    ((_, reply),) = sent(head.hand("B20", Request(SessionId("B20", 1, 1))), Reply)
    assert isinstance(reply, Reply) and reply.state is State.NOT_AVAILABLE


def test_an_overloaded_edge_broker_offloads_within_its_cluster_first() -> None:
    """Promotes locality. Ours: once its edge brokers can do nothing for each other, the cluster sheds."""
    head = Head()
    head.global_pie(0.1)
    head.pie("B11", Metrics(0.96), State.NOT_AVAILABLE)
    head.pie("B12", Metrics(0.5))
    assert sent(head.tick(), Request) == []
    head.pie("B12", Metrics(0.94), State.NOT_AVAILABLE, balanced="B11")
    assert sent(head.tick(), Request)


def test_while_an_edge_broker_is_busy_or_stabilising_there_is_no_global_detection() -> None:
    for state in (State.BUSY, State.STABILIZING):
        head = Head()
        head.global_pie(0.1)
        head.pie("B11", Metrics(0.6), state)
        head.pie("B12", Metrics(0.6))
        assert sent(head.tick(), Request) == []


def test_in_a_global_session_edge_brokers_hear_the_other_clusters_pie() -> None:
    head = Head()
    head.pie("B11", Metrics(0.6), balanced="B12")
    head.pie("B12", Metrics(0.6), balanced="B11")
    head.global_pie(0.1)
    ((to, request),) = sent(head.tick(), Request)
    assert to == "B20" and isinstance(request, Request) and request.brokers == ("B11", "B12")
    effects = head.hand("B20", Reply(request.session, State.OK, brokers=("B21", "B22")))
    assert sent(effects, Watch) == [(edge, Watch("B20", ("B21", "B22"))) for edge in ("B11", "B12")]
    assert [to for to, _ in sent(head.pie("B11", Metrics(0.5)), Pie)] == ["B12", "B20"]
    assert [to for to, _ in sent(head.pie("B21", Metrics(0.1)), Pie)] == ["B11", "B12"]


def test_it_ends_when_all_edge_brokers_are_balanced_with_each_other() -> None:
    head = Head()
    session = head.in_session()
    everyone = ("B11", "B12", "B21", "B22")
    for broker in everyone[:3]:
        head.pie(broker, Metrics(0.3), balanced=" ".join(each for each in everyone if each != broker))
    assert sent(head.tick(), Cancel) == []
    head.pie("B22", Metrics(0.3), balanced="B21 B12 B11")
    effects = head.tick()
    assert sent(effects, Cancel) == [("B20", Cancel(session))]
    assert sent(effects, Watch) == [(edge, Watch("B20", ())) for edge in ("B11", "B12")]
    assert head.head.state.state is State.OK
    head.hand("B20", Ended(session))
    assert head.head.state.ending == {}


def test_a_global_session_that_does_not_balance_ends_all_the_same() -> None:
    head = Head()
    session = head.in_session()
    head.now += SETTINGS.session_s
    assert sent(head.tick(), Cancel) == [("B20", Cancel(session))]


def test_the_partner_ends_its_part_when_told() -> None:
    head = Head()
    head.pie("B11", Metrics(0.1))
    head.pie("B12", Metrics(0.1))
    head.global_pie(0.6)
    session = SessionId("B20", 1, 1)
    effects = head.hand("B20", Request(session, ("B21", "B22")))
    ((_, reply),) = sent(effects, Reply)
    assert isinstance(reply, Reply) and reply.state is State.OK and reply.brokers == ("B11", "B12")
    assert len(sent(effects, Watch)) == 2 and head.head.state.state is State.BUSY
    effects = head.hand("B20", Cancel(session))
    assert sent(effects, Ended) == [("B20", Ended(session))] and len(sent(effects, Watch)) == 2
    assert head.head.state.state is State.OK
    assert sent(head.hand("B20", Cancel(session)), Ended)  # the answer was lost: again


def test_metrics_of_a_load_are_those_of_its_pie() -> None:
    found = load(0.3, 0.2, 0.05)
    assert metrics_of(found) == Metrics(pytest.approx(0.3), 0.2, 0.05)  # type: ignore[arg-type]
    assert replace(found, cpu=1.0).cpu == 1.0
