"""Messages of one ordering key: one at a time, delayed only by their own key, and sticky to a stream."""

from __future__ import annotations

import pytest
from test_delivery_machine import fed

from fieldfare.delivery import delivery as delivery_machine
from fieldfare.delivery import key_ordering
from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.delivery.keys import position_of
from fieldfare.model import DeliverySettings

ORDERED = DeliverySettings(order_by="subject")


def name(key: int) -> int | None:
    """The ordering key is the remainder of a division by four; for 0 there is no key."""
    return key % 4 or None


def ordered(*keys: int, **settings: object) -> Delivery:
    delivery = fed(*keys)
    delivery.configure(DeliverySettings(order_by="subject", **settings))
    return delivery


def take(delivery: Delivery, session: Session, limit: int = 100, now_s: float = 0.0) -> list[int]:
    while found := delivery.to_name(session, 100):
        delivery.name(found, list(map(name, found)))
    return delivery.take(session, limit, now_s, 30.0)


def test_one_of_a_key_is_given_at_a_time_and_those_without_a_key_all_at_once():
    delivery, session = ordered(*range(1, 13)), Session(100)
    assert take(delivery, session) == [1, 2, 3, 4, 8, 12], "4, 8 and 12 have none"
    assert take(delivery, session) == [] and not delivery.has_message(session)
    delivery.ack([2])
    assert take(delivery, session) == [6]
    delivery.ack([1, 3, 6])
    assert take(delivery, session) == [5, 7, 10]


def test_a_message_that_fails_holds_only_its_key():
    delivery, session = ordered(*range(1, 13)), Session(100)
    assert take(delivery, session) == [1, 2, 3, 4, 8, 12]
    delivery.nack([1], 0.0, delay_s=20.0)
    delivery.ack([2, 3])
    assert take(delivery, session, now_s=10.0) == [6, 7]
    delivery.ack([6, 7, 4, 8, 12])
    assert take(delivery, session, now_s=10.0) == [10, 11]
    assert take(delivery, session, now_s=20.0) == [1], "and not the younger ones of its key"
    delivery.ack([1])
    assert take(delivery, session, now_s=20.0) == [5]
    assert delivery.tries.count_of(5) == 1


def test_a_given_up_message_does_not_hold_its_key():
    delivery, session = ordered(1, 5, 9, max_attempts=1), Session(100)
    assert take(delivery, session) == [1]
    delivery.nack([1], 0.0)
    assert take(delivery, session) == [5]
    delivery.terminate([5], "why")
    assert take(delivery, session) == [9]
    assert [letter.key for letter in delivery.mark().letters] == [1, 5]


def test_what_a_stream_held_comes_before_the_younger_ones_of_its_key_wherever_it_comes():
    delivery, first, second = ordered(*range(1, 13)), Session(100), Session(100)
    assert take(delivery, first, 4) == [1, 2, 3, 4]
    assert take(delivery, second) == [8, 12]
    delivery.release(first)
    assert take(delivery, second) == [1, 2, 3, 4]


def test_a_key_stays_with_the_stream_that_had_it_while_that_has_room():
    delivery, first, second = ordered(1, 2, 5, 6, 9, 10), Session(1), Session(100)
    assert take(delivery, first) == [1]
    assert take(delivery, second) == [2]
    delivery.ack([1, 2])
    assert take(delivery, second) == [6], "5 is the first one's"
    assert not delivery.has_message(second)
    assert delivery.has_message(first) and take(delivery, first) == [5]
    delivery.ack([6])
    assert take(delivery, second) == [10]
    delivery.ack([5, 10])
    delivery.release(first)
    assert take(delivery, second) == [9], "it has gone"


def test_a_stream_without_room_does_not_delay_others():
    delivery, first, second = ordered(1, 2, 5), Session(2), Session(100)
    assert take(delivery, first) == [1, 2]
    delivery.ack([1])
    assert take(delivery, first) == [5]
    delivery.nack([5], 0.0)
    delivery.retry([])
    first.window = 1
    assert delivery.has_message(second) and take(delivery, second) == [5]


def test_pulls_keep_no_key():
    delivery, pulls, stream = ordered(1, 5), Session(100, is_shared=True), Session(100)
    assert take(delivery, pulls) == [1]
    delivery.ack([1])
    assert take(delivery, stream) == [5]


def test_when_too_many_messages_of_a_key_wait_all_others_wait(monkeypatch):
    for module in (key_ordering, delivery_machine):
        monkeypatch.setattr(module, "ORDERED_MAX", 6)
    delivery, session = ordered(1, 5, 9, 13, 17, 21, 22), Session(100)
    assert take(delivery, session) == [1]
    assert take(delivery, session) == [] and not delivery.has_message(session) and not delivery.wants_feed
    delivery.ack([1])
    assert delivery.has_message(session) and take(delivery, session) == [5]
    assert delivery.has_message(session) and take(delivery, session) == [22]


def test_an_automatic_stream_gets_all_messages_in_order():
    delivery, session = ordered(1, 2, 5, 6), Session(100, is_auto=True)
    assert take(delivery, session) == [1, 2, 5, 6]
    delivery.release(session)
    assert take(delivery, Session(100)) == [1, 2]


@pytest.mark.parametrize("given", [1, 3])
def test_an_attempt_is_counted_when_a_message_is_given_and_not_when_its_key_is_read(given):
    """A message that waited behind its key when the gateway was killed was never delivered."""
    delivery = ordered(1, 5, 9, max_attempts=1)
    session = Session(100)
    for _ in range(given):
        (key,) = take(delivery, session)
        if key != 4 * given - 3:
            delivery.ack([key])
    again = Delivery.from_cursor(1, delivery.cursor(), (0,))
    again.configure(DeliverySettings(order_by="subject", max_attempts=2))
    again.feed(fed(1, 5, 9).partitions[0]._fed, 10)
    (key,) = take(again, session := Session(100))
    assert (key, again.tries.count_of(key)) == (4 * given - 3, 2)
    again.ack([key])
    assert [again.tries.count_of(key) for key in take(again, session)] == ([1] if given == 1 else [])


def test_ordering_can_be_turned_on_and_off():
    delivery, session = fed(1, 2, 5, 6, 9), Session(100)
    assert delivery.take(session, 3, 0.0, 30.0) == [1, 2, 5]
    delivery.nack([1], 0.0)
    delivery.nack([2], 0.0, 60.0)
    delivery.configure(ORDERED)
    assert take(delivery, session) == [], "5, which has the same key as 1, is in flight; 2 waits"
    delivery.ack([5])
    assert take(delivery, session) == [1]
    assert delivery.tries.count_of(1) == 2
    delivery.configure(DeliverySettings())
    assert delivery.take(session, 9, 0.0, 30.0) == [6, 9]
    assert delivery.tries.counts.get(6, 1) == 1
    assert delivery.take(session, 9, 60.0, 30.0) == [1, 2, 6, 9]
    delivery.ack_up_to(9)
    assert delivery.cursor().positions == (position_of(10),)


def test_messages_without_a_key_do_not_evict_the_last_reader_of_a_key(monkeypatch):
    monkeypatch.setattr(key_ordering, "HOMES_MAX", 1)
    delivery, first, second = ordered(1, 4, 8, 12, 5), Session(2), Session(100)
    assert take(delivery, first, 2) == [1, 4]
    delivery.ack([4])
    assert take(delivery, first, 1) == [8]
    delivery.ack([1, 8])
    assert take(delivery, second) == [12], "5 is the first one's"
