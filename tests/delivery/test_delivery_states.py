"""The table of a message's states in ``fieldfare/delivery/__init__.py``: random walks move as it says."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
from test_delivery_walk import STEPS, Walk

import fieldfare.delivery
from fieldfare.delivery.delivery import Delivery
from fieldfare.delivery.retry_queue import AT_ONCE

PENDING, IN_FLIGHT, DELAYED, SETTLED, DEAD = "pending", "in flight", "delayed", "settled", "dead"
ROW = re.compile(
    r"^    (pending|in flight|delayed|settled|dead) +(pending|in flight|delayed|settled|dead) +(.+)$"
)
SEEDS = 120
"""Walks with and without crashes: enough for the rarest move."""
Move = tuple[str, str, str]
METHODS = (
    *("feed", "take", "ack", "ack_up_to", "nack", "extend", "terminate", "release", "give_back", "expire"),
    *("retry", "seek", "configure", "saved", "name", "to_name", "weigh", "mark"),
)
"""The methods that the walks call on a delivery."""


def table() -> set[Move]:
    """Return the moves of the table: from, to, and the method that moves a message."""
    text = fieldfare.delivery.__doc__ or ""
    found = [match for line in text.splitlines() if (match := ROW.match(line))]
    moves = {(match[1], match[2], method) for match in found for method in match[3].split(", ")}
    # Without dead letters, a message that is given up is settled.
    return moves | {(start, SETTLED, method) for start, end, method in moves if end == DEAD}


def state_of(delivery: Delivery, key: int, listed: set[int]) -> str:
    """Return the state of a message; `listed` are the keys of saved dead letters."""
    if key in delivery._leases:
        return IN_FLIGHT
    if delivery._waits.due.get(key, AT_ONCE) != AT_ONCE:
        return DELAYED
    if delivery.partitions[0].owes(key) or key in delivery.tries.retried:
        return PENDING
    if key in delivery.tries.letters or (key in listed and key not in delivery.tries.settled):
        return DEAD
    return SETTLED


class Watched(Walk):
    """A walk that records every move of every message, with the method that caused it."""

    moves: set[Move]

    def start(self) -> None:
        super().start()
        self.delivery = Noted(self.delivery, self)  # type: ignore[assignment]

    def states(self) -> list[str]:
        delivery = self.delivery
        assert isinstance(delivery, Noted)
        letters = self.registry.letters.items()
        listed = {key for key, row in letters if row is not self.old.get(key)}  # since the last seek
        return [state_of(delivery.delivery, key, listed) for key in self.keys]


class Noted:
    """A delivery whose methods are recorded when they are called from outside, but not by each other."""

    def __init__(self, delivery: Delivery, walk: Watched) -> None:
        self.delivery, self.walk = delivery, walk

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.delivery, name)
        return functools.partial(self.watched, name, found) if name in METHODS else found

    def watched(self, name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        if name == "take":  # `take` expires leases and delays first
            self.watched("expire", self.delivery.expire, arguments[2])
        before = self.walk.states()
        result = method(*arguments)
        after = self.walk.states()
        self.walk.moves |= {(a, b, name) for a, b in zip(before, after, strict=True) if a != b}
        return result


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def moves() -> set[Move]:
    found: set[Move] = set()
    for crashes in (False, True):
        for seed in range(SEEDS):
            walk = Watched.__new__(Watched)
            walk.moves = found
            Walk.__init__(walk, seed, crashes=crashes)
            for _ in range(STEPS):
                walk.step()
    return found


def test_no_message_moves_in_a_way_that_is_not_in_the_table(moves: set[Move]) -> None:
    assert not moves - table(), "\n".join(map(str, sorted(moves - table())))


def test_every_move_in_the_table_happens(moves: set[Move]) -> None:
    assert not table() - moves, "\n".join(map(str, sorted(table() - moves)))
