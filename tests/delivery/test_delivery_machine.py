"""The delivery of one subscription, moved by hand: no clock, no I/O."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.delivery.keys import INDEX_BITS, key_of, position_of
from fieldfare.model import Position


def keys(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def acked_runs(delivery: Delivery) -> list[tuple[int, int]]:
    return [(key_of(first), key_of(last)) for first, last in delivery.cursor().acked]


def fed(*values: int, read_to: int | None = None) -> Delivery:
    delivery = Delivery(1, [0])
    delivery.feed(keys(*values), values[-1] + 1 if read_to is None else read_to)
    return delivery


def test_keys_order_as_positions_do():
    positions = [Position(0, 0, 9999), Position(0, 1, 0), Position(0, 1, 1), Position(0, 1 << 40, 5)]
    assert [position_of(key_of(each)) for each in positions] == positions
    assert sorted(map(key_of, positions)) == list(map(key_of, positions))
    assert str(position_of(key_of(positions[0]))) == "0-0-9999"


def test_messages_come_in_order_once_and_the_cursor_follows_the_acks():
    delivery, session = fed(3, 5, 9, read_to=20), Session(10)
    assert delivery.cursor_keys[0] == 3, "what did not match needs no ack"
    assert delivery.take(session, 2, 0.0, 30.0) == [3, 5]
    assert delivery.take(session, 5, 0.0, 30.0) == [9]
    assert delivery.take(session, 5, 0.0, 30.0) == []
    assert delivery.ack([5])
    assert (delivery.cursor_keys[0], acked_runs(delivery)) == (3, [(5, 5)])
    assert delivery.ack([3])
    assert (delivery.cursor_keys[0], delivery.cursor().acked) == (9, ())
    assert not delivery.ack([3, 5]), "an ack repeated changes nothing"
    delivery.ack([9])
    assert delivery.cursor_keys[0] == 20
    assert session.held == 0


def test_the_window_bounds_what_is_unacked():
    delivery, session = fed(*range(10)), Session(3)
    assert delivery.take(session, 100, 0.0, 30.0) == [0, 1, 2]
    assert not delivery.has_message(session)
    delivery.ack([1])
    assert delivery.has_message(session)
    assert delivery.take(session, 100, 0.0, 30.0) == [3]


def test_a_lease_that_runs_out_gives_the_message_again_and_an_ack_still_counts():
    delivery, session = fed(1, 2, 3), Session(10)
    assert delivery.take(session, 2, 0.0, 10.0) == [1, 2]
    assert not delivery.expire(9.9)
    delivery.ack([1])
    assert delivery.expire(10.0)
    assert delivery.take(session, 10, 10.0, 10.0) == [2, 3]
    delivery.expire(20.0)
    delivery.ack([2, 3])  # late, but before anybody got them again
    assert delivery.take(session, 10, 20.0, 10.0) == []
    assert delivery.in_flight == session.held == 0


def test_a_nack_gives_again_before_what_is_new_and_only_once():
    delivery, session = fed(1, 2, 3), Session(10)
    delivery.take(session, 2, 0.0, 30.0)
    assert delivery.nack([2, 2, 99]) == 1
    assert delivery.take(session, 10, 0.0, 30.0) == [2, 3]


def test_a_session_that_ends_gives_back_what_it_held_and_no_more():
    delivery, first, second = fed(1, 2, 3, 4), Session(10), Session(10)
    assert delivery.take(first, 2, 0.0, 30.0) == [1, 2]
    assert delivery.take(second, 1, 0.0, 30.0) == [3]
    delivery.ack([1])
    delivery.release(first)
    assert delivery.take(second, 10, 0.0, 30.0) == [2, 4]


def test_ack_up_to_settles_what_was_given_and_what_was_not():
    delivery, session = fed(1, 2, 3, 4, 5, read_to=100), Session(10)
    delivery.take(session, 2, 0.0, 30.0)
    assert delivery.ack_up_to(3)
    assert (delivery.cursor_keys[0], session.held) == (4, 0)
    assert delivery.take(session, 10, 0.0, 30.0) == [4, 5]
    delivery.ack_up_to(200)
    assert delivery.cursor_keys[0] == 201
    delivery.feed(keys(150, 201, 205), 300)
    assert delivery.take(session, 10, 0.0, 30.0) == [201, 205], "what was acked before it was read is skipped"


def test_after_a_restart_what_was_acked_beyond_the_cursor_does_not_come():
    delivery, session = fed(1, 2, 3, 4), Session(10)
    delivery.take(session, 4, 0.0, 30.0)
    delivery.ack([2, 4])
    again = Delivery.from_cursor(1, delivery.cursor(), (0,))
    again.feed(keys(1, 2, 3, 4), 5)
    assert again.take(session, 10, 0.0, 30.0) == [1, 3]
    again.ack([1, 3])
    assert (again.cursor_keys[0], again.cursor().acked) == (5, ())


def test_an_ack_from_before_a_restart_counts_although_nobody_was_given_the_message_since():
    delivery, session = Delivery(1, [0]), Session(10)
    assert delivery.ack([2])
    delivery.feed(keys(1, 2, 3), 5)
    assert delivery.take(session, 10, 0.0, 30.0) == [1, 3]


def test_a_cursor_that_meets_nothing_but_non_matches_moves_on():
    delivery = Delivery(1, [0])
    delivery.feed(keys(), 7 << INDEX_BITS)
    assert position_of(delivery.cursor_keys[0]) == Position(0, 7, 0)
    assert delivery.wants_feed


def test_what_was_read_and_not_given_may_be_forgotten_and_is_read_again():
    delivery, session = fed(1, 2, 3, read_to=10), Session(2)
    delivery.take(session, 2, 0.0, 30.0)
    delivery.forget_unread()
    assert delivery.lanes[0].read_to == 3
    delivery.feed(keys(1, 2, 3), 10)
    delivery.ack([1, 2])
    assert delivery.take(session, 2, 0.0, 30.0) == [3]


class DeliveryAgainstModel(RuleBasedStateMachine):
    """Random feeds, takes, acks, nacks, lapses of time and restarts, held against plain sets."""

    def __init__(self) -> None:
        super().__init__()
        self.delivery = Delivery(1, [0])
        self.sessions = [Session(4), Session(100)]
        self.now_s = 0.0
        self.matches: set[int] = set()
        self.acked: set[int] = set()
        self.held: dict[int, float] = {}
        self.fed_to = 0

    @rule(gaps=st.lists(st.integers(1, 5), max_size=6), beyond=st.integers(0, 5))
    def feed(self, gaps: list[int], beyond: int) -> None:
        values = []
        at = self.fed_to
        for gap in gaps:
            values.append(at + gap - 1)
            at += gap
        self.fed_to = at + beyond
        self.matches.update(values)
        self._feed_all()

    def _feed_all(self) -> None:
        self.delivery.feed(keys(*sorted(self.matches)), self.fed_to)

    @rule(which=st.integers(0, 1), limit=st.integers(0, 10), lease_s=st.integers(1, 20))
    def take(self, which: int, limit: int, lease_s: int) -> None:
        session = self.sessions[which]
        self._lapse()
        could = self.delivery.has_message(session)
        given = self.delivery.take(session, limit, self.now_s, lease_s)
        assert given == sorted(set(given))
        for key in given:
            assert key in self.matches and key not in self.acked and key not in self.held
            self.held[key] = self.now_s + lease_s
        if limit:
            assert bool(given) == could
        assert session.held <= session.window

    @rule(seconds=st.integers(1, 15))
    def pass_time(self, seconds: int) -> None:
        self.now_s += seconds
        self._lapse()
        self.delivery.expire(self.now_s)

    def _lapse(self) -> None:
        self.held = {key: end_s for key, end_s in self.held.items() if end_s > self.now_s}

    @precondition(lambda self: self.matches)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.matches)), max_size=4))
        self.delivery.ack(chosen)
        self.acked.update(chosen)
        for key in chosen:
            self.held.pop(key, None)

    @precondition(lambda self: self.matches)
    @rule(data=st.data())
    def ack_up_to(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.matches)))
        self.delivery.ack_up_to(chosen)
        self.acked.update(key for key in self.matches if key <= chosen)
        self.held = {key: end_s for key, end_s in self.held.items() if key > chosen}

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.held)))
        assert self.delivery.nack([chosen]) == 1
        del self.held[chosen]

    @rule()
    def restart(self) -> None:
        self.delivery = Delivery.from_cursor(1, self.delivery.cursor(), (0,))
        self.sessions = [Session(4), Session(100)]
        self.held = {}
        self._feed_all()

    @invariant()
    def the_cursor_passes_nothing_that_is_not_acked(self) -> None:
        assert all(key in self.acked for key in self.matches if key < self.delivery.cursor_keys[0])
        runs = acked_runs(self.delivery)
        assert runs == sorted(runs) and all(first <= last for first, last in runs)
        beyond = {key for key in self.matches if any(first <= key <= last for first, last in runs)}
        assert beyond == {key for key in self.acked if key >= self.delivery.cursor_keys[0]}
        assert self.delivery.in_flight == sum(session.held for session in self.sessions)

    def teardown(self) -> None:
        """In the end everything comes that was not acked."""
        self.restart()
        given = self.delivery.take(Session(1 << 20), 1 << 20, self.now_s, 1.0)
        assert set(given) == self.matches - self.acked


TestDeliveryAgainstModel = DeliveryAgainstModel.TestCase
TestDeliveryAgainstModel.settings = settings(
    max_examples=80, stateful_step_count=40, derandomize=True, deadline=None
)
