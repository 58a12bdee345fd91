"""Which connection is closed for a new one."""

from __future__ import annotations

import random

import pytest

from fieldfare.gateway.admission.evictable import Evictable, address_of


class Closed:
    def __init__(self) -> None:
        self.is_closed = False

    def evict_connection(self) -> None:
        self.is_closed = True


def test_the_oldest_connection_of_the_address_with_the_most_gives_way():
    evictable, connections = Evictable(), set()
    mine, theirs = [Closed()], [Closed() for _ in range(3)]
    for connection, address in ((mine[0], "mine"), *((each, "theirs") for each in theirs)):
        connections.add(connection)
        evictable.add(connection, address)
    evictable.add(theirs[0], "theirs")  # another request has begun on it
    assert evictable.evict_one_connection(connections, 4)
    assert not any(each.is_closed for each in (*mine, *theirs))
    assert evictable.evict_one_connection(connections, 3) and theirs[1].is_closed
    assert evictable.evict_one_connection(connections, 3) and theirs[2].is_closed
    evictable.discard(theirs[0])
    assert evictable.evict_one_connection(connections, 3) and mine[0].is_closed
    assert not evictable.evict_one_connection(connections, 3), "the others have complete requests"


def test_the_queues_agree_with_a_list_that_is_searched():
    rng = random.Random(7)
    evictable, order = Evictable(), []
    pool = [(Closed(), f"a{rng.randrange(6)}") for _ in range(60)]
    connections = {each for each, _ in pool}
    for _ in range(3_000):
        verb, (connection, address) = rng.randrange(3), rng.choice(pool)
        if verb == 0:
            evictable.add(connection, address)
            order = [entry for entry in order if entry[0] is not connection] + [(connection, address)]
        elif verb == 1:
            evictable.discard(connection)
            order = [entry for entry in order if entry[0] is not connection]
        else:
            counts = {name: sum(each == name for _, each in order) for _, name in order}
            before = {each for each, _ in order}
            assert evictable.evict_one_connection(connections, 0) == bool(order)
            gone = before - {each for each, _ in pool if each in evictable}
            for each in gone:
                address = dict(order)[each]
                assert counts[address] == max(counts.values())
                assert each is next(entry for entry, name in order if name == address)
            order = [entry for entry in order if entry[0] not in gone]
            assert len(gone) == bool(before)
        assert len(evictable) == len(order)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("192.0.2.1", 1), "192.0.2.1"),
        (("::ffff:192.0.2.1", 1, 0, 0), "192.0.2.1"),
        (("2001:db8::1", 1, 0, 0), "2001:db8::/64"),
        (("2001:db8::ffff:1%eth0", 1, 0, 2), "2001:db8::/64"),
        ("", ""),
        (None, ""),
    ],
)
def test_an_ipv6_network_counts_as_one_address(peer, address):
    assert address_of(peer) == address
