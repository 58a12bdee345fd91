"""The gate for requests that add to what a site owes to others: new events, and new or replaced filters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fieldfare.gateway.problems import HttpProblem


class ChangeGate:
    """Lets requests in unless the site is leaving; counts those that are inside. Used on the event loop."""

    def __init__(self) -> None:
        self.refusal = ""
        """Why requests are refused, one sentence; empty while they are not."""
        self.inside = 0
        """Number of requests that were let in and are not answered."""

    def check(self) -> None:
        """Raise Problem 503 if requests are refused."""
        if self.refusal:
            hint = "Send it to another site; `fieldfare brokers leave --cancel` lets this one stay."
            raise HttpProblem(503, "leaving", self.refusal, hint=hint)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count a request as inside; raise Problem 503 if requests are refused."""
        self.check()
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1
