"""Tickets: credentials in an address, for browsers, which send no key with an `EventSource` or a WebSocket.

A ticket is for the streams of one subscription and for a short time, since addresses end up in logs and
histories. It has the rights of its caller, and ends with the caller's key.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from fieldfare.gateway.admission.callers import Caller, unauthorised
from fieldfare.gateway.problems import HttpProblem

TICKETS_MAX = 20_000
TICKETS_OF_CALLER_MAX = 2_000
"""Maximum valid tickets, in total and per caller; more are refused with 429."""

VALID_MAX_S = 86_400
PARAMETER = "ticket"
PREFIX = "ft_"

_IN_QUERY = re.compile(rb"(?:^|&)%b=" % PARAMETER.encode())


@dataclass(frozen=True, slots=True)
class _Ticket:
    caller: Caller
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
        self._tickets: dict[bytes, _Ticket] = {}
        self._counts: Counter[Caller] = Counter()

    def issue(self, caller: Caller, paths: frozenset[str], valid_s: float) -> str:
        """Return a new ticket for GET requests to some paths. Raise Problem 429 if there are too many."""
        self._forget_ended()
        if len(self._tickets) >= TICKETS_MAX or self._counts[caller] >= TICKETS_OF_CALLER_MAX:
            detail = "Too many tickets are valid: use them, or let some expire."
            raise HttpProblem(429, "overloaded", detail, headers={"Retry-After": "1"}, why="tickets")
        text = PREFIX + secrets.token_urlsafe(32)
        self._tickets[_digest(text)] = _Ticket(caller, paths, self._clock_s() + valid_s)
        self._counts[caller] += 1
        return text

    def find(self, text: str, path: str) -> Caller:
        """Return the caller whose ticket this is. Raise Problem 401 if it is not valid for the path."""
        ticket = self._tickets.get(_digest(text))
        if (
            ticket is None
            or ticket.ends_s <= self._clock_s()
            or ticket.caller.has_ended
            or path not in ticket.paths
        ):
            raise unauthorised(
                "This ticket is not valid here, or no longer: get another with POST"
                " /v1/spaces/{space}/subscriptions/{id}/ticket."
            )
        return ticket.caller

    def _forget_ended(self) -> None:
        now_s = self._clock_s()
        for digest, ticket in list(self._tickets.items()):
            if ticket.ends_s <= now_s or ticket.caller.has_ended:
                del self._tickets[digest]
                self._counts[ticket.caller] -= 1
                if not self._counts[ticket.caller]:
                    del self._counts[ticket.caller]


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
