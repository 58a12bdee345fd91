"""Redelivery in the delivery's machine: once, when it is due, and without cost for others."""

from __future__ import annotations

from test_delivery_machine import fed, keys

from fieldfare.delivery.delivery import Session
from fieldfare.delivery.keys import position_of


def test_a_dead_letter_retried_while_in_flight_does_not_come_again_after_its_ack():
    """Its dead letter is from before a seek: it was kept as pending, also after a restart."""
    delivery, session = fed(1), Session(10)
    assert delivery.take(session, 1, 0.0, 30.0) == [1]
    delivery.terminate([1], "why")
    delivery.saved(delivery.mark())
    delivery.seek([0])
    delivery.feed(keys(1), 2)
    assert delivery.take(session, 1, 0.0, 30.0) == [1]
    delivery.retry([1])
    delivery.ack([1])
    assert delivery.cursor().settled == (position_of(1),), "its letter goes"
    assert not delivery.tries.retried and delivery.take(session, 1, 0.0, 30.0) == []


def test_a_waiting_message_given_up_and_retried_is_taken_once_after_its_delay():
    delivery, session = fed(1), Session(10)
    for _ in range(3):
        assert delivery.take(session, 5, 0.0, 30.0) == [1], "it is in one answer once"
        delivery.nack([1], 0.0)
        delivery.terminate([1], "why")
        delivery.retry([1])
    assert delivery.take(session, 5, 0.0, 30.0) == [1]
    assert delivery.tries.counts[1] == 1
    delivery.nack([1], 0.0, 5.0)
    delivery.terminate([1], "why")
    delivery.retry([1])
    assert delivery.take(session, 5, 0.0, 30.0) == [1]
    delivery.nack([1], 0.0, 60.0)
    assert delivery.take(session, 5, 30.0, 30.0) == [], "the first delay counts no more"
    assert delivery.take(session, 5, 60.0, 30.0) == [1]


def test_a_session_that_ends_does_not_examine_messages_of_others():
    """Closing a stream cost time in proportion to the messages held by all streams."""
    delivery, holder = fed(*range(1, 2_001)), Session(2_000)
    delivery.take(holder, 2_000, 0.0, 30.0)
    looked = 0

    class Counted(dict):
        def items(self):
            nonlocal looked
            looked += len(self)
            return super().items()

    delivery._leases._of = Counted(delivery._leases._of)
    for _ in range(100):
        delivery.release(Session(1))
    assert looked == 0 and holder.held == 2_000
    delivery.release(holder)
    assert holder.held == 0 and len(delivery.take(Session(2_000), 2_000, 0.0, 30.0)) == 2_000


def test_delays_of_settled_messages_leave_memory():
    delivery, session = fed(*range(1, 10_001)), Session(10)
    for key in range(1, 10_001):
        assert delivery.take(session, 1, 0.0, 30.0) == [key]
        delivery.nack([key], 0.0, 86_400.0)
        delivery.ack([key])
    assert len(delivery._waits._later) < 2_000
