"""Cheung and Jacobsen 2006, section 3.3, "Mediating Subscriber Migration", step by step.

The whole protocol with losses and crashes is in tests/balancing/scenarios.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from tests.papers.padres.test_padres_section_3 import Broker, load, sent

from fieldfare.balancing.load import metrics_of
from fieldfare.balancing.messages import Again, Cancel, Reply, Request, SessionId, State
from fieldfare.balancing.press import Profile
from fieldfare.effects import Ask, Effect, Received, Tell, Timer
from fieldfare_lab.balancing.messages import (
    Attach,
    Attached,
    Detach,
    Detached,
    Done,
    Drop,
    Join,
    Joined,
    Move,
    Open,
    Released,
    Sample,
    Sampled,
    Subscribed,
    Subscription,
)
from fieldfare_lab.simulation.balancing.subscriber import Subscriber

SESSION = SessionId("B2", 1, 1)


@dataclass(frozen=True)
class Filter_:
    """A filter that covers only itself."""

    key: str

    def covers(self, other: Filter_) -> bool:
        return self == other


def subscription(id: str) -> Subscription:
    return Subscription(id, f"c{id}", Filter_(id))


def questions(effects: list[Effect], kind: type) -> list[object]:
    return [each.question for each in effects if isinstance(each, Ask) and isinstance(each.question, kind)]


class Acceptor(Broker):
    """A load-accepting broker in a session."""

    def __init__(self) -> None:
        super().__init__()
        self.measure(load(0.2))
        self.hand(Received("B2", Request(SESSION)))

    def join(self, id: str, total: int = 2) -> list[Effect]:
        effects = self.hand(Received(f"c{id}", Join(SESSION, subscription(id), total)))
        assert [each.subscription.id for each in questions(effects, Attach)] == [id]  # type: ignore[attr-defined]
        return effects

    def attach(self, id: str) -> list[Effect]:
        return self.hand(Attached(SESSION, id, {"o": 7}))


def test_a_subscriber_that_is_told_subscribes_at_the_new_broker_with_session_and_number() -> None:
    client = Subscriber("c1", 2.0)
    effects = client.handle(Received("B1", Move(SESSION, subscription("1"), "B2", 5)), 0.0)
    ((to, join),) = sent(effects, Join)
    assert to == "B2" and join == Join(SESSION, subscription("1"), 5)


def test_the_session_ends_with_the_last_of_n_subscribers() -> None:
    broker = Acceptor()
    broker.join("1")
    assert sent(broker.attach("1"), Done) == []
    broker.join("2")
    ((to, done),) = sent(broker.attach("2"), Done)
    assert to == "B2" and isinstance(done, Done) and set(done.joined) == {"1", "2"}
    assert broker.state is State.STABILIZING


def test_the_session_ends_after_n_times_the_migration_timeout_with_those_that_came() -> None:
    """Ours: only they move. Unsubscribing the others would lose their messages."""
    broker = Acceptor()
    (timer,) = [each for each in broker.join("1", total=3) if isinstance(each, Timer)]
    assert timer.at_s == pytest.approx(broker.now + 3 * 1.0)
    broker.attach("1")
    broker.now = timer.at_s
    assert isinstance(timer.message, Again)
    ((_, done),) = sent(broker.hand(timer.message), Done)
    assert isinstance(done, Done) and set(done.joined) == {"1"}
    late = broker.hand(Received("c2", Join(SESSION, subscription("2"), 3)))
    ((_, refused),) = sent(late, Joined)
    assert isinstance(refused, Joined) and not refused.is_accepted


def test_the_new_broker_delivers_from_the_switch_place_on() -> None:
    """In place of duplicates that the client drops."""
    broker = Acceptor()
    for id in ("1", "2"):
        broker.join(id)
        broker.attach(id)
    effects = broker.hand(Received("B2", Released(SESSION, {"1": {"o": 9}})))
    told = [each.news for each in effects if isinstance(each, Tell)]
    assert told == [Open(SESSION, "1", {"o": 9}), Drop(SESSION, "2")]
    assert set(broker.balancer.state.subscriptions) == {"1"}


class Offerer(Broker):
    """An offloading broker whose delay is to be balanced, with ten silent subscriptions."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(10):
            self.hand(Subscribed(subscription(f"{number}")))
        peer = load(0.1, delay_s=0.01)
        self.pie(metrics_of(peer))
        ((_, request),) = sent(self.measure(load(0.45, delay_s=0.05)), Request)
        assert isinstance(request, Request)
        self.session = request.session
        asked = self.hand(Received("B2", Reply(self.session, State.OK, peer, ())))
        assert len(questions(asked, Sample)) == 1
        profile = Profile(
            tuple(f"{number}" for number in range(10)),
            np.zeros((10, 4), dtype=bool),
            np.zeros(4, dtype=bool),
            9.0,
            100.0,
        )
        self.told = sent(self.hand(Sampled(self.session, profile)), Move)


def test_each_subscriber_of_the_offload_list_is_told_where_to_subscribe_and_how_many_they_are() -> None:
    told = Offerer().told
    assert 0 < len(told) < 10
    for to, move in told:
        assert isinstance(move, Move)
        assert (to, move.to, move.total) == (move.subscription.client, "B2", len(told))


def test_after_done_it_waits_until_all_that_has_queued_is_delivered() -> None:
    """The paper: input queuing delay + matching delay + output queuing delay; here, until it is so."""
    broker = Offerer()
    (_, move), *_ = broker.told
    assert isinstance(move, Move)
    id = move.subscription.id
    effects = broker.hand(Received("B2", Done(broker.session, {id: {"o": 7}})))
    assert questions(effects, Detach) == [Detach(broker.session, {id: {"o": 7}})]
    assert sent(effects, Released) == [] and id in broker.balancer.state.subscriptions
    assert broker.state is State.STABILIZING
    effects = broker.hand(Detached(broker.session, {id: {"o": 9}}))
    assert sent(effects, Released) == [("B2", Released(broker.session, {id: {"o": 9}}))]
    assert id not in broker.balancer.state.subscriptions
    assert len(broker.balancer.state.subscriptions) == 9  # those that did not connect stay


def test_a_session_that_nobody_joins_is_cancelled() -> None:
    broker = Offerer()
    broker.now += len(broker.told) * 1.0 + 5.0
    effects = broker.hand(Again(broker.session, "move", 1))
    assert sent(effects, Cancel) == [("B2", Cancel(broker.session))]
