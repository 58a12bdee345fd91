"""What a stream holds that settles its messages itself: a lease without an end."""

from __future__ import annotations

import math

import numpy as np

from fieldfare.delivery.delivery import Delivery, Session


def keys(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def fed(*values: int) -> Delivery:
    delivery = Delivery(1, [0])
    delivery.feed(keys(*values), values[-1] + 1)
    return delivery


def test_what_an_automatic_stream_holds_is_one_lease_however_long_it_is_open():
    """Thousands of streams with a window each must not be millions of objects for Python's collector."""
    delivery, session = Delivery(1, [0]), Session(100, is_auto=True)
    held: list[int] = []
    for key in range(5_000):
        delivery.feed(keys(key), key + 1)
        held += delivery.take(session, 10, float(key), math.inf)
        if len(held) > 50:
            assert delivery.ack([held.pop(0)]) == 1
    assert session.held == delivery.in_flight == len(held) == 50
    (lease,) = session.leases
    assert lease.open == 50 and len(lease.keys) < 3 * 50, "what is settled leaves it"
    assert delivery.next_deadline_s is None
    delivery.release(session)
    assert delivery.take(Session(100), 100, 9_999.0, 30.0) == held, "all that was not settled comes again"


def test_an_automatic_stream_that_has_settled_everything_begins_anew():
    delivery, session = fed(1, 2, 3), Session(10, is_auto=True)
    first = delivery.take(session, 1, 0.0, math.inf)
    assert delivery.ack(first) == 1 and not session.leases
    assert delivery.take(session, 2, 0.0, math.inf) == [2, 3]
    assert session.held == 2 and [lease.keys for lease in session.leases] == [[2, 3]]
    delivery.seek([0])
    assert session.held == 0
    delivery.feed(keys(1, 2), 10)
    assert delivery.take(session, 5, 0.0, math.inf) == [1, 2] and session.held == 2
