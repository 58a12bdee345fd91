"""Who may call an address now: what each request passes first."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Hashable

from fieldfare.delivery.breaker import Admitted, Breaker, BreakerState, Due, Failed, Succeeded, Want, Withdraw
from fieldfare.effects import Tell, Timer
from fieldfare.gateway.push.addresses import Target
from fieldfare.gateway.push.sender import Meaning, Outcome, Permission, Sender

PERMITTED_S = 86_400.0
"""For so long a permission counts before it is asked for again."""

WORDS = {BreakerState.CLOSED: "working", BreakerState.OPEN: "broken", BreakerState.TRYING: "trying"}
"""What the states of a breaker are called where subscribers read them."""

Message = Want | Withdraw | Succeeded | Failed | Due


class Gate:
    """One address as one space calls it: runs its breaker, and asks it for permission.

    Spaces share none: what one makes of an address is not told to another by how its own requests fare.

    Parameters
    ----------
    url
        The address.
    rng
        For the breaker.
    broken
        Those that are broken, this one with them while it is.
    """

    def __init__(self, url: str, rng: random.Random, broken: set[Gate]) -> None:
        self.target = Target.parse(url)
        self.users = 0
        self._broken = broken
        self._breaker = Breaker(rng)
        self._waiting: dict[Hashable, asyncio.Future[None]] = {}
        self._asking = asyncio.Lock()
        self._permitted_until_s = self._told_s = -math.inf
        self._refused: Outcome | None = None
        self._last: Outcome | None = None

    @property
    def is_broken(self) -> bool:
        return self._breaker.state is BreakerState.OPEN

    async def admitted(self, who: Hashable) -> None:
        """Wait until somebody may call; he must say with `ended` how it went."""
        self._waiting[who] = future = asyncio.get_running_loop().create_future()
        try:
            self._hand_in(Want(who))
            await future
        except BaseException:
            self._hand_in(Withdraw(who))
            raise
        finally:
            del self._waiting[who]

    def ended(self, who: Hashable, answer: Outcome | None) -> None:
        """Somebody who was admitted has called, or did not (None)."""
        if answer is None:
            self._hand_in(Withdraw(who))
            return
        self._last = answer
        if answer.meaning is Meaning.ACCEPTED:
            self._hand_in(Succeeded(who))
        else:
            self._hand_in(Failed(who, answer.meaning is not Meaning.FAILED, answer.wait_s))

    async def permission(self, sender: Sender, timeout_s: float) -> Outcome | None:
        """Ask for permission, unless there is one; why there is none.

        Who has waited for another one's answer takes that for his own: where nobody answers, to ask one after
        the other would take so long that leases run out.
        """
        wanted_s = time.monotonic()
        async with self._asking:
            if time.monotonic() < self._permitted_until_s:
                return None
            if self._refused is None or self._told_s < wanted_s:
                found = await sender.ask(self.target, timeout_s)
                self._told_s = time.monotonic()
                self._refused = found if isinstance(found, Outcome) else None
                if isinstance(found, Permission):
                    self._breaker.pace(found.spacing_s)
                    self._permitted_until_s = time.monotonic() + PERMITTED_S
            return self._refused

    def document(self) -> dict[str, object]:
        """What subscribers are told of it."""
        breaker, last = self._breaker, self._last
        document: dict[str, object] = {"state": WORDS[breaker.state], "failures": breaker.failures}
        if breaker.state is BreakerState.OPEN:
            document["next_try_s"] = round(max(0.0, breaker.until_s - time.monotonic()), 1)
        if last is not None:
            document["last"] = last.said
        return document

    def _hand_in(self, message: Message) -> None:
        for effect in self._breaker.handle(message, time.monotonic()):
            if isinstance(effect, Timer) and isinstance(effect.message, Due):
                wait_s = max(0.0, effect.at_s - time.monotonic())
                asyncio.get_running_loop().call_later(wait_s, self._hand_in, effect.message)
            elif isinstance(effect, Tell) and isinstance(effect.news, Admitted):
                future = self._waiting[effect.news.who]
                if not future.done():
                    future.set_result(None)
        if self.is_broken and self.users:
            self._broken.add(self)
        else:
            self._broken.discard(self)
