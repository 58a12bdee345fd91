"""The rates of links between brokers."""

from __future__ import annotations

from dataclasses import dataclass

from fieldfare.gateway.federation.wire import BATCH_BYTES
from fieldfare.gateway.token_bucket import TokenBucket

PACED_S = 1.0
"""Seconds of a link's rate that a batch may have: a slow link gets small batches, and shows that it is up."""

PACED_MIN_BYTES = 16 << 10
"""Minimum bytes of such a batch; a single larger entry is sent alone."""


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Maximum bytes per second that a broker sends over each link, on average; 0 means no limit.

    Attributes
    ----------
    bytes_per_s
        For everything.
    catch_up_bytes_per_s
        For full batches, of which there are many after an interruption.
    """

    bytes_per_s: float = 0
    catch_up_bytes_per_s: float = 0

    def batch_bytes(self) -> int:
        """Return the bytes of entries after which a batch ends."""
        rates = [rate for rate in (self.bytes_per_s, self.catch_up_bytes_per_s) if rate]
        return min([BATCH_BYTES, *(max(PACED_MIN_BYTES, int(rate * PACED_S)) for rate in rates)])

    def buckets(self, now_s: float) -> tuple[TokenBucket | None, TokenBucket | None]:
        """Return the bytes that one link may send, and those that it may send in full batches."""
        of_all, of_full = (
            TokenBucket(rate, rate * PACED_S, 0.0, now_s) if rate else None
            for rate in (self.bytes_per_s, self.catch_up_bytes_per_s)
        )
        return of_all, of_full


NO_LIMITS = LinkRates()
