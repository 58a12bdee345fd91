"""The messages of a stream that settles them automatically: a lease without an end."""

from __future__ import annotations

import gc
import math
import tracemalloc
from collections import deque

import numpy as np
import pytest

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.delivery.sessions import KEPT_SESSIONS


def keys(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def fed(*values: int) -> Delivery:
    delivery = Delivery(1, [0])
    delivery.feed(keys(*values), values[-1] + 1)
    return delivery


def test_what_an_automatic_stream_holds_takes_little_memory_however_long_it_is_open():
    """Thousands of streams with a window each must not be millions of objects."""
    deliveries = [(Delivery(number, [0]), Session(2_000, is_auto=True), deque()) for number in range(20)]
    tracemalloc.start()
    for key in range(3_000):
        for delivery, session, held in deliveries:
            delivery.feed(keys(key << 20), (key << 20) + 1)
            held += delivery.take(session, 10, float(key), math.inf)
            if len(held) > 1_000:
                assert delivery.ack([held.popleft()]) == 1
    for _, _, held in deliveries:
        held.clear()
    gc.collect()
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size_bytes / (20 * 1_000) < 50, "bytes of a message that is held"


@pytest.mark.parametrize("kept", [0, KEPT_SESSIONS])
def test_what_an_automatic_stream_has_settled_leaves_it_and_the_rest_comes_again(kept, monkeypatch):
    monkeypatch.setattr("fieldfare.delivery.sessions.KEPT_SESSIONS", kept)
    delivery, session = Delivery(1, [0]), Session(100, is_auto=True)
    held: list[int] = []
    for key in range(5_000):
        delivery.feed(keys(key), key + 1)
        held += delivery.take(session, 10, float(key), math.inf)
        if len(held) > 50:
            assert delivery.ack([held.pop(0)]) == 1
    assert session.held == delivery.in_flight == len(held) == 50
    assert all(lease.open == 50 and len(lease.keys) < 3 * 50 for lease in session.leases)
    assert delivery.next_deadline_s is None
    delivery.release(session)
    assert delivery.take(Session(100), 100, 9_999.0, 30.0) == held, "all that was not settled comes again"


@pytest.mark.parametrize("kept", [0, KEPT_SESSIONS])
def test_an_automatic_stream_starts_empty_after_everything_is_settled(kept, monkeypatch):
    monkeypatch.setattr("fieldfare.delivery.sessions.KEPT_SESSIONS", kept)
    delivery, session = fed(1, 2, 3), Session(10, is_auto=True)
    first = delivery.take(session, 1, 0.0, math.inf)
    assert delivery.ack(first) == 1 and not session.leases
    assert delivery.take(session, 2, 0.0, math.inf) == [2, 3]
    assert session.held == 2
    delivery.seek([0])
    assert session.held == 0
    delivery.feed(keys(1, 2), 10)
    assert delivery.take(session, 5, 0.0, math.inf) == [1, 2] and session.held == 2


@pytest.mark.parametrize("kept", [0, KEPT_SESSIONS])
def test_a_message_delivered_twice_to_an_automatic_stream_is_redelivered_once(kept, monkeypatch):
    monkeypatch.setattr("fieldfare.delivery.sessions.KEPT_SESSIONS", kept)
    delivery, session = fed(1, 2, 3), Session(10, is_auto=True)
    assert delivery.take(session, 3, 0.0, math.inf) == [1, 2, 3]
    assert delivery.nack([2], 0.0) == 1
    assert delivery.take(session, 3, 0.0, math.inf) == [2] and session.held == 3
    delivery.release(session)
    assert delivery.take(Session(10), 10, 0.0, 30.0) == [1, 2, 3]
