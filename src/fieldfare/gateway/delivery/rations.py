"""How many bytes of messages each space may be sent a second: the quota `delivered_bytes_per_s`.

A space whose bucket is in debt is sent nothing until that is paid. What somebody has taken by then he is
sent: those after him pay for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fieldfare.gateway.admission.quotas import BURST_S, DELIVERED, FREE_S, Quotas
from fieldfare.gateway.delivery.records import PIECE_BYTES, READERS
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.turns import NOBODY

T = TypeVar("T")

AT_ONCE = READERS
"""So many readers of a bounded space are given messages at a time: how large these are is not known before,
and more readers would wait for its threads."""


class Rations:
    """What spaces may be sent, now.

    Parameters
    ----------
    quotas
        Say how much, and keep the buckets.
    """

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._begun: dict[str, int] = {}
        self._on_end: list[Callable[[str], None]] = []

    def call_on_more(self, may_go_on: Callable[[str], None]) -> None:
        """From now on say of which space more may be sent, but for what a clock says."""
        self._on_end.append(may_go_on)
        self._quotas.call_on_change(may_go_on)

    def bounds(self, space: str) -> bool:
        """Whether there is a bound for a space at all."""
        return space != NOBODY and self._quotas.limit(space, DELIVERED) is not None

    def is_out(self, space: str) -> bool:
        """Whether nobody may be given messages of a space for the time being."""
        return self.bounds(space) and (self._begun.get(space, 0) >= AT_ONCE or self.wait_s(space) > 0)

    def wait_s(self, space: str) -> float:
        """How long until its debt is paid."""
        return self._quotas.wait_s(space, DELIVERED, time.monotonic())

    def piece_bytes(self, space: str) -> float:
        """About how much one reader is given at once: not more than comes in about a second."""
        rate = self._quotas.limit(space, DELIVERED)
        return PIECE_BYTES if rate is None else min(PIECE_BYTES, rate * BURST_S)

    def begin(self, space: str, places: int = 1) -> None:
        """Somebody is to be given messages now, beside others or, with all places, alone.

        `end` says when it is known how large these are.
        """
        self._begun[space] = self._begun.get(space, 0) + places

    def end(self, space: str, places: int = 1) -> None:
        """It is known, or he is given none."""
        self._begun[space] -= places
        if not self._begun[space]:
            del self._begun[space]
        for ended in self._on_end:
            ended(space)

    async def paid(self, space: str, parts: Sequence[bytes], composing: Coroutine[Any, Any, T]) -> T:
        """Have messages composed, and pay for what that adds to the parts."""
        before = len(parts)
        self.begin(space)
        try:
            return await composing
        finally:
            size_bytes = sum(map(len, parts[before:]))
            self._quotas.spend(space, time.monotonic(), **{DELIVERED: size_bytes})
            self.end(space)

    def problem(self, space: str) -> HttpProblem:
        """What who cannot wait is told."""
        wait_s = max(FREE_S, self.wait_s(space))
        return self._quotas.problem(space, DELIVERED, wait_s=wait_s)
