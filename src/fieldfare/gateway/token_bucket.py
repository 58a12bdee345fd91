"""A token bucket that may go into debt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TokenBucket:
    """A token bucket: it fills at a rate, and amounts are taken out, into debt if necessary.

    Times are in seconds of a monotonic clock.

    Attributes
    ----------
    rate
        Amount added per second; negative while something takes amounts out all the time.
    most
        Maximum level.
    level
        Amount as of ``at_s``; a negative level is a debt.
    debt_max
        Maximum debt; more is forgiven.
    reserved
        Part of the taken amount that is an estimate, given back when the actual amount is known.
    """

    rate: float
    most: float
    level: float
    at_s: float
    debt_max: float = float("inf")
    reserved: float = 0.0

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the level is positive, and at least one unit is there; 0 if it is."""
        self.fill(now_s)
        if self.level > 0:
            return 0.0
        # Estimates may be given back at any moment.
        return max((1.0 - self.level - self.reserved) / self.rate, 1.0 / self.rate)

    def take(self, amount: float, now_s: float) -> None:
        """Take an amount out, into debt if necessary."""
        self.fill(now_s)
        self.level -= amount

    def fill(self, now_s: float) -> None:
        """Add what has come since the last call."""
        level = self.level + (now_s - self.at_s) * self.rate
        self.level, self.at_s = max(-self.debt_max, min(level, self.most)), now_s
