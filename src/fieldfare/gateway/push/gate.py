"""Admission of requests: each passes its subscription's gate and its server's.

    subscription ──▶ Gate ────▶ Server ──▶ request ──┬─▶ a response with a status: counts for the gate
                    breaker     breaker, rate,       └─▶ none: counts for the server
                                permission

A server is identified by scheme, host and port. Spaces share neither gates nor servers: the results of one
space's requests tell another space nothing.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Hashable
from dataclasses import replace
from typing import Annotated

from msgspec import Meta, Struct

from fieldfare.delivery.breaker import (
    FAILURES_MAX,
    Admitted,
    Breaker,
    BreakerState,
    Failed,
    Succeeded,
    Want,
    Withdraw,
)
from fieldfare.gateway.push.addresses import Target
from fieldfare.gateway.push.sender import Meaning, Outcome, Permission, Sender
from fieldfare.runtimes.machines import MachineRunner

PERMITTED_S = 86_400.0
"""How long a granted permission is valid, in seconds, before it is requested again."""

STATES = (BreakerState.OPEN, BreakerState.TRYING, BreakerState.CLOSED)
"""The breaker's states, those that delay requests most first."""

WORDS = {BreakerState.CLOSED: "working", BreakerState.OPEN: "broken", BreakerState.TRYING: "trying"}


class PushStateDocument(Struct, omit_defaults=True):
    """State of a subscription's push."""

    state: Annotated[
        str,
        Meta(extra_json_schema={"enum": [*WORDS.values(), "paused", "off"]}),
        "`working`: messages are sent. `broken`: requests failed, and the next one waits. `trying`: one"
        " request is sent as a trial. `paused`: the subscription is paused. `off`: this service sends no"
        " pushes.",
    ]
    failures: Annotated[int | None, "Number of requests in a row that failed."] = None
    next_try_s: Annotated[float | None, "Seconds until the next trial; only while `broken`."] = None
    last: Annotated[
        str | None, "Result of the last request, as a sentence; missing before the first one."
    ] = None
    requests: Annotated[int | None, "Number of requests in flight."] = None


"""The breaker's states in documents for subscribers."""

BREAKER = "breaker"

Message = Want | Withdraw | Succeeded | Failed


class Guard:
    """A circuit breaker on the event loop, and the callers that wait for it."""

    def __init__(self, rng: random.Random) -> None:
        self.breaker = Breaker(rng)
        self._waiting: dict[Hashable, asyncio.Future[None]] = {}
        self._runner = MachineRunner({}, {Admitted: self._admit})
        self._runner.add(BREAKER, self.breaker)

    @property
    def is_broken(self) -> bool:
        return self.breaker.state is BreakerState.OPEN

    async def admitted(self, who: Hashable) -> None:
        """Wait until a caller may call. The caller must report the result."""
        self._waiting[who] = future = asyncio.get_running_loop().create_future()
        try:
            self.report(Want(who))
            await future
        except BaseException:
            self.report(Withdraw(who))
            raise
        finally:
            del self._waiting[who]

    def report(self, message: Message) -> None:
        """Pass a message to the breaker."""
        self._runner.dispatch(BREAKER, message)

    def _admit(self, name: str, news: Admitted) -> None:
        future = self._waiting[news.who]
        if not future.done():
            future.set_result(None)


class Server(Guard):
    """One server as called by one space: admits requests to all its addresses, and requests permission.

    Its breaker opens when there is no connection or no response, or when permission is refused for
    several URLs: thousands of URLs may differ only in the path, and a server that refuses permission would be
    asked for each of them.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.users = 0
        self.last: Outcome | None = None
        """The last outcome that counted for the server."""
        self._asking = asyncio.Lock()
        self._permitted_until_s = self._told_s = -math.inf
        self._silence: Outcome | None = None
        """Outcome of the last request for permission if there was no response."""
        self._refusals: dict[Target, Outcome] = {}
        """URLs that were refused since the last granted permission, at most `FAILURES_MAX`."""

    async def permission(self, sender: Sender, target: Target, timeout_s: float) -> Outcome | None:
        """Return None if the server gives permission, else the outcome of the refused request.

        Permission for one URL holds for all; a valid permission is not requested again. A refusal with a
        status holds for its URL, and for all once `FAILURES_MAX` URLs were refused. A caller that waited for
        another caller's request uses its refusal, too: if the server does not respond, one request after the
        other would outlast the leases.
        """
        wanted_s = time.monotonic()
        async with self._asking:
            if time.monotonic() < self._permitted_until_s:
                return None
            if self._told_s >= wanted_s and (known := self._known(target)) is not None:
                return known
            found = await sender.ask_permission(target, timeout_s)
            self._told_s = time.monotonic()
            self._silence = None
            if isinstance(found, Permission):
                self.breaker.pace(found.spacing_s)
                self._permitted_until_s = time.monotonic() + PERMITTED_S
                self._refusals.clear()
                return None
            if found.concerns_server:
                self._silence = found
                return found
            if len(self._refusals) < FAILURES_MAX:
                self._refusals[target] = found
            return self._judged(found)

    def _known(self, target: Target) -> Outcome | None:
        """Return an earlier outcome that holds for a URL, if there is one."""
        if self._silence is not None:
            return self._silence
        known = self._refusals.get(target)
        if known is None and len(self._refusals) >= FAILURES_MAX:
            known = next(iter(self._refusals.values()))
        return None if known is None else self._judged(known)

    def _judged(self, refusal: Outcome) -> Outcome:
        return replace(refusal, concerns_server=len(self._refusals) >= FAILURES_MAX)


class Gate(Guard):
    """One subscription's admission to its address: its own breaker, then its server's.

    A response with a status, whichever it is, shows that the server works, and counts for the subscription
    alone: other addresses of the server may belong to others and work. So do 429 and 503 with their
    ``Retry-After``: providers of many addresses limit each by itself, and a server that is overloaded as a
    whole tells each subscription so, which then pauses.

    Parameters
    ----------
    rng
        Random generator of the breaker.
    server
        The server of the subscription's address.
    """

    def __init__(self, rng: random.Random, server: Server) -> None:
        super().__init__(rng)
        self.server = server

    async def admitted(self, who: Hashable) -> None:
        """Wait until a caller may send a request. The caller must report the result with `ended`."""
        await super().admitted(who)
        try:
            await self.server.admitted(who)
        except BaseException:
            self.report(Withdraw(who))
            raise

    def ended(self, who: Hashable, answer: Outcome | None) -> None:
        """Report the outcome of an admitted request, or None if it was not sent."""
        if answer is None:
            self.report(Withdraw(who))
            self.server.report(Withdraw(who))
            return
        # A final refusal is no reason to stop: the subscription is paused.
        failed = Failed(who, answer.meaning not in (Meaning.FAILED, Meaning.GONE), answer.wait_s)
        if answer.concerns_server:
            self.server.last = answer
            self.server.report(failed)
            self.report(Withdraw(who))
        else:
            self.server.report(Succeeded(who))
            self.report(Succeeded(who) if answer.meaning is Meaning.ACCEPTED else failed)

    def document(self) -> PushStateDocument:
        """Return the state of the subscription's requests as shown to subscribers."""
        breakers = (self.breaker, self.server.breaker)
        state = next(each for each in STATES if each in [breaker.state for breaker in breakers])
        document = PushStateDocument(WORDS[state], max(breaker.failures for breaker in breakers))
        if state is BreakerState.OPEN:
            until_s = max(breaker.until_s for breaker in breakers if breaker.state is state)
            document.next_try_s = round(max(0.0, until_s - time.monotonic()), 1)
        if self.server.last is not None:
            document.last = self.server.last.said
        return document
