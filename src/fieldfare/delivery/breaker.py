"""Who may call an address now: a circuit breaker, which also keeps to the pace that an address allows.

    TRYING ──▶ one may call, to see how it goes: nothing is known of the address, or it is said to be broken
    CLOSED ──▶ all may call
    OPEN   ──▶ nobody, until some time has passed; the longer, the more often trying has failed

               Succeeded                        Failed: several in a row, or one that says it all
      TRYING ───────────▶ CLOSED          CLOSED ────────▶ OPEN ──── the time has come ──▶ TRYING
         └────── Failed ─────────────────────────────────────▲

A machine without I/O. Who wants to call says so and waits to be told; who was told says how it went.

    Want, Withdraw ────▶┌─────────┐──▶ Tell(Admitted)  one who wanted may call
    Succeeded, Failed ─▶│ Breaker │──▶ Timer(Due)      look again then
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
"""With so many failures in a row an address counts as broken."""

OPEN_FIRST_S = 1.0
OPEN_MAX_S = 300.0
"""How long an address is left alone: the first time, and at most; a part of it is chance."""


class BreakerState(enum.Enum):
    """What is thought of an address."""

    TRYING = "trying"
    CLOSED = "closed"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Want:
    """Somebody wants to call; each asks once, until he was admitted and has said how it went, or leaves."""

    who: Hashable


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Somebody does not want to call any more, or was admitted and has not called."""

    who: Hashable


@dataclass(frozen=True, slots=True)
class Succeeded:
    """Who was admitted has called, and all is well."""

    who: Hashable


@dataclass(frozen=True, slots=True)
class Failed:
    """It is not.

    Attributes
    ----------
    is_enough
        Whether this one failure says that nobody needs to call for the time being.
    wait_s
        For how long at least the address itself wants to be left alone.
    """

    who: Hashable
    is_enough: bool = False
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Due:
    """The breaker's own: some time has passed."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """One who wanted to call may."""

    who: Hashable


class Breaker:
    """See above.

    Parameters
    ----------
    rng
        Spreads over time who comes back, so that not all do at once.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.state = BreakerState.TRYING
        self.failures = 0
        """In a row."""
        self.until_s = 0.0
        """Until when it is open, where it is."""
        self._openings = 0
        self._waiting: dict[Hashable, None] = {}
        self._calling: set[Hashable] = set()
        self._trier: Hashable | None = None
        self._spacing_s, self._begun_s = 0.0, -math.inf
        self._timer_s: float | None = None

    def pace(self, spacing_s: float) -> None:
        """From now on there is so much time between the starts of two calls."""
        self._spacing_s = spacing_s

    def handle(self, message: Want | Withdraw | Succeeded | Failed | Due, now: float) -> list[Effect]:
        """Take in a message."""
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
                self._timer_s = None  # whichever it was: one too many does no harm
        return self._admit(now)

    def _end(self, who: Hashable) -> bool:
        """Somebody is done; whether he was calling."""
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
            # It called before the address was known to be broken, and says only what is known.
            self.until_s = max(self.until_s, now + message.wait_s)
        elif is_enough and (was_trier or self.state is BreakerState.CLOSED):
            longest_s = min(OPEN_MAX_S, OPEN_FIRST_S * 2.0 ** min(self._openings, 30))
            pause_s = longest_s * (0.5 + self._rng.random() / 2)
            self._openings += 1
            self.state = BreakerState.OPEN
            self.until_s = now + max(pause_s, message.wait_s)
        elif message.wait_s:
            # An earlier caller is asked to wait while another one tries: what is asked for holds for all.
            self.state, self._trier = BreakerState.OPEN, None
            self.until_s = now + message.wait_s

    def _admit(self, now: float) -> list[Effect]:
        """Let call who may."""
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
