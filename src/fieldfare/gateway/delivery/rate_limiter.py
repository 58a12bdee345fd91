"""Delivery rate limit: bytes of messages sent to a space per second, the quota `delivered_bytes_per_s`.

A space whose token bucket is in debt is sent nothing until the debt is paid. Messages taken before that are
still sent; later readers pay for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fieldfare.gateway.admission.quotas import BURST_S, DELIVERED, FREE_S, Quotas
from fieldfare.gateway.delivery.records import PIECE_BYTES
from fieldfare.gateway.fair_queue import NO_SPACE
from fieldfare.gateway.problems import HttpProblem

T = TypeVar("T")

AT_ONCE = 2
"""Maximum readers of a rate-limited space that receive messages at a time; the others wait. The size of the
messages is not known beforehand, and more readers would send much more than the limit."""


class DeliveryRateLimiter:
    """A rate limiter for the messages sent to each space.

    Parameters
    ----------
    quotas
        The limits of the spaces, with their token buckets.
    """

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._begun: dict[str, int] = {}
        self._on_end: list[Callable[[str], None]] = []

    def call_on_more(self, has_progressed: Callable[[str], None]) -> None:
        """Call a function with each space that may be sent more, except where only time has passed."""
        self._on_end.append(has_progressed)
        self._quotas.call_on_change(has_progressed)

    def bounds(self, space: str) -> bool:
        """Whether a space has a delivery rate limit."""
        return space != NO_SPACE and self._quotas.limit(space, DELIVERED) is not None

    def is_out(self, space: str) -> bool:
        """Whether a space may be sent no messages at present."""
        return self.bounds(space) and (self._begun.get(space, 0) >= AT_ONCE or self.wait_s(space) > 0)

    def wait_s(self, space: str) -> float:
        """Return the seconds until a space's debt is paid."""
        return self._quotas.wait_s(space, DELIVERED, time.monotonic())

    def piece_bytes(self, space: str) -> float:
        """Return about how many bytes one reader receives at once: at most about a second's allowance."""
        rate = self._quotas.limit(space, DELIVERED)
        return PIECE_BYTES if rate is None else min(PIECE_BYTES, rate * BURST_S)

    def reserve(self, space: str, places: int = 1) -> None:
        """Reserve places for a reader that is about to receive messages; with all places, it is the only one.

        Call `free` once the size of its messages is known.
        """
        self._begun[space] = self._begun.get(space, 0) + places

    def free(self, space: str, places: int = 1) -> None:
        """Free a reader's places: the size of its messages is known, or it receives none."""
        self._begun[space] -= places
        if not self._begun[space]:
            del self._begun[space]
        for ended in self._on_end:
            ended(space)

    async def paid(self, space: str, parts: Sequence[bytes], composing: Coroutine[Any, Any, T]) -> T:
        """Await `composing`, and charge the space for the bytes that it adds to `parts`."""
        before = len(parts)
        self.reserve(space)
        try:
            return await composing
        finally:
            size_bytes = sum(map(len, parts[before:]))
            self._quotas.spend(space, time.monotonic(), **{DELIVERED: size_bytes})
            self.free(space)

    def problem(self, space: str) -> HttpProblem:
        """Return the problem for a client that cannot wait for its space's debt to be paid."""
        wait_s = max(FREE_S, self.wait_s(space))
        return self._quotas.problem(space, DELIVERED, wait_s=wait_s)
