"""Tickets: credentials in an address, for browsers, which send no key with an `EventSource` or a WebSocket.

A ticket is for the streams of one subscription and for a short time, since addresses end up in logs and
histories. It has the rights of its caller, and ends with the caller's key, and with the subscription:
one that is created later with the same id is another.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from fieldfare.gateway.admission.callers import Caller, unauthorised
from fieldfare.gateway.problems import HttpProblem
from fieldfare.model import Subscription

TICKETS_MAX = 20_000
TICKETS_OF_SPACE_MAX = 2_000
"""Maximum valid tickets, in total and per space; more are refused with 429."""

VALID_MAX_S = 86_400
SUBSCRIPTION = "fieldfare.subscription"
"""Scope key of the number of the subscription to which a request's ticket limits it."""
PARAMETER = "ticket"
PREFIX = "ft_"

_IN_QUERY = re.compile(rb"(?:^|&)%b=" % PARAMETER.encode())


@dataclass(frozen=True, slots=True)
class Ticket:
    """A valid ticket: its caller, and the number of the subscription that it is for."""

    caller: Caller
    subscription: int
    paths: frozenset[str]
    ends_s: float


class Tickets:
    """The valid tickets of one gateway process, in memory: after a restart none is valid.

    Parameters
    ----------
    clock_s
        A monotonic clock, in seconds.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._tickets: dict[bytes, Ticket] = {}
        self._of_spaces: dict[str, set[bytes]] = {}

    def issue(self, caller: Caller, subscription: Subscription, paths: frozenset[str], valid_s: float) -> str:
        """Return a new ticket for GET requests to some paths. Raise Problem 429 if there are too many."""
        self._forget_ended(subscription.space)
        if len(self._tickets) >= TICKETS_MAX:
            for space in list(self._of_spaces):
                self._forget_ended(space)
        of_space = self._of_spaces.get(subscription.space, set())
        if len(self._tickets) >= TICKETS_MAX or len(of_space) >= TICKETS_OF_SPACE_MAX:
            detail = (
                "The maximum number of valid tickets is reached: wait until some expire, and request a"
                " shorter `valid_s`."
            )
            raise HttpProblem(429, "overloaded", detail, headers={"Retry-After": "1"}, why="tickets")
        text = PREFIX + secrets.token_urlsafe(32)
        digest = _digest(text)
        self._tickets[digest] = Ticket(caller, subscription.number, paths, self._clock_s() + valid_s)
        of_space.add(digest)
        self._of_spaces[subscription.space] = of_space
        return text

    def find(self, text: str, path: str) -> Ticket:
        """Return a ticket. Raise Problem 401 if it is not valid for the path."""
        ticket = self._tickets.get(_digest(text))
        if ticket is None or path not in ticket.paths or self._has_ended(ticket):
            raise invalid_ticket()
        return ticket

    def _has_ended(self, ticket: Ticket) -> bool:
        return ticket.ends_s <= self._clock_s() or ticket.caller.has_ended

    def _forget_ended(self, space: str) -> None:
        of_space = self._of_spaces.get(space, set())
        for digest in [each for each in of_space if self._has_ended(self._tickets[each])]:
            of_space.remove(digest)
            del self._tickets[digest]
        if not of_space:
            self._of_spaces.pop(space, None)


def invalid_ticket() -> HttpProblem:
    """Create a Problem 401 that does not tell an unknown ticket from one that has ended."""
    return unauthorised(
        "This ticket has expired, or is not for this subscription: get another with POST"
        " /v1/spaces/{space}/subscriptions/{id}/ticket."
    )


def split_query(query: bytes) -> tuple[str | None, bytes]:
    """Return the ticket of a query, None without one, and the query without it."""
    if not _IN_QUERY.search(query):
        return None, query
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
    found = [value for name, value in pairs if name == PARAMETER]
    rest = [(name, value) for name, value in pairs if name != PARAMETER]
    return found[0] if found else None, urlencode(rest, encoding="latin-1").encode("latin-1")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
