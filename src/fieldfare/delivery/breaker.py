"""A circuit breaker for an address, which also enforces the rate that the address allows.

    TRYING ──▶ one trial call at a time ("half-open"): the address is new, or was broken
    CLOSED ──▶ all calls are admitted
    OPEN   ──▶ no calls until a pause is over; the pause grows with each failed trial

               Succeeded                        Failed: several in a row, or one that is enough
      TRYING ───────────▶ CLOSED          CLOSED ────────▶ OPEN ──── the pause is over ──▶ TRYING
         └────── Failed ─────────────────────────────────────▲

A state machine without I/O. A caller asks (Want), waits until it is admitted, calls, and reports the result.

    Want, Withdraw ────▶┌─────────┐──▶ Tell(Admitted)  a waiting caller may call
    Succeeded, Failed ─▶│ Breaker │──▶ Timer(Due)      check again then
    Due ───────────────▶└─────────┘
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Hashable
from dataclasses import dataclass

from fieldfare.effects import Effect, Tell, Timer

FAILURES_MAX = 5
"""Consecutive failures after which the breaker opens."""

OPEN_FIRST_S = 1.0
OPEN_MAX_S = 300.0
"""First and longest pause before a trial call, in seconds. Each failed trial doubles it; up to half is
randomly left out."""


class BreakerState(enum.Enum):
    """State of the breaker for an address."""

    TRYING = "trying"
    CLOSED = "closed"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Want:
    """A caller asks to call. It asks again only after it has reported a result or withdrawn."""

    who: Hashable


@dataclass(frozen=True, slots=True)
class Withdraw:
    """A caller stops waiting, or was admitted and has not called."""

    who: Hashable


@dataclass(frozen=True, slots=True)
class Succeeded:
    """An admitted call succeeded."""

    who: Hashable


@dataclass(frozen=True, slots=True)
class Failed:
    """An admitted call failed.

    Attributes
    ----------
    is_enough
        Whether this failure alone opens the breaker.
    wait_s
        Minimum pause that the address itself asks for, in seconds.
    """

    who: Hashable
    is_enough: bool = False
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Due:
    """The breaker's own timer has fired."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A waiting caller may call."""

    who: Hashable


class Breaker:
    """A circuit breaker with a minimum time between the starts of calls.

    Parameters
    ----------
    rng
        Randomizes the pauses, so that not all addresses are tried again at once.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.state = BreakerState.TRYING
        self.failures = 0
        """Number of consecutive failures."""
        self.until_s = 0.0
        """End of the pause while the breaker is open, in seconds of the clock."""
        self._openings = 0
        self._waiting: dict[Hashable, None] = {}
        self._calling: set[Hashable] = set()
        self._trier: Hashable | None = None
        self._spacing_s, self._begun_s = 0.0, -math.inf
        self._timer_s: float | None = None

    def pace(self, spacing_s: float) -> None:
        """Set the minimum time between the starts of two calls, in seconds."""
        self._spacing_s = spacing_s

    def start(self, now: float) -> list[Effect]:
        return []

    def handle(self, message: Want | Withdraw | Succeeded | Failed | Due, now: float) -> list[Effect]:
        """Handle a message; return the effects to carry out."""
        match message:
            case Want(who):
                self._waiting.setdefault(who)
            case Withdraw(who):
                self._end(who)
            case Succeeded(who):
                self._succeed(who)
            case Failed():
                self._fail(message, now)
            case Due():
                self._timer_s = None  # whichever timer it was: an additional check does no harm
        return self._admit(now)

    def _end(self, who: Hashable) -> bool:
        """Remove a caller; return whether it was calling."""
        self._waiting.pop(who, None)
        if who == self._trier:
            self._trier = None
        if who not in self._calling:
            return False
        self._calling.remove(who)
        return True

    def _succeed(self, who: Hashable) -> None:
        was_trier = who == self._trier
        if not self._end(who):
            return
        if was_trier:
            self.state, self._openings = BreakerState.CLOSED, 0
        if self.state is BreakerState.CLOSED:
            self.failures = 0

    def _fail(self, message: Failed, now: float) -> None:
        was_trier = message.who == self._trier
        if not self._end(message.who):
            return
        self.failures += 1
        is_enough = message.is_enough or was_trier or self.failures >= FAILURES_MAX
        if self.state is BreakerState.OPEN:
            # The call began before the breaker opened: its failure adds nothing but the pause it asks for.
            self.until_s = max(self.until_s, now + message.wait_s)
        elif is_enough and (was_trier or self.state is BreakerState.CLOSED):
            longest_s = min(OPEN_MAX_S, OPEN_FIRST_S * 2.0 ** min(self._openings, 30))
            pause_s = longest_s * (0.5 + self._rng.random() / 2)
            self._openings += 1
            self.state = BreakerState.OPEN
            self.until_s = now + max(pause_s, message.wait_s)
        elif message.wait_s:
            # An earlier call is told to wait during the trial call of another: the pause holds for all.
            self.state, self._trier = BreakerState.OPEN, None
            self.until_s = now + message.wait_s

    def _admit(self, now: float) -> list[Effect]:
        """Admit the waiting callers that may call now."""
        effects: list[Effect] = []
        while self._waiting:
            if self.state is BreakerState.OPEN:
                if now < self.until_s:
                    return effects + self._timer(self.until_s)
                self.state = BreakerState.TRYING
            if self.state is BreakerState.TRYING and self._trier is not None:
                return effects
            next_s = self._begun_s + self._spacing_s
            if now < next_s:
                return effects + self._timer(next_s)
            who = next(iter(self._waiting))
            del self._waiting[who]
            self._calling.add(who)
            if self.state is BreakerState.TRYING:
                self._trier = who
            self._begun_s = now
            effects.append(Tell(Admitted(who)))
        return effects

    def _timer(self, at_s: float) -> list[Effect]:
        if self._timer_s is not None and self._timer_s <= at_s:
            return []
        self._timer_s = at_s
        return [Timer(at_s, Due())]
