"""When a failed attempt is repeated, and how long after."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from fieldfare.client.errors import ApiError, ConnectionFailed

PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that speak of the moment rather than of the request."""

FAULTY_REQUEST_STATUSES = frozenset({400, 409, 413, 414, 415, 422, 431})
"""Answers that no later repeat of the same request can change."""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How attempts are repeated.

    Attributes
    ----------
    first_wait_s : float
        Wait after the first failure; each later wait may be twice as long. Higher is kinder to a service in
        trouble, lower recovers sooner.
    most_wait_s : float
        No wait is longer, unless the service asks for it (Retry-After).
    deadline_s : float
        From the first attempt; when it has passed, the last error is final.
    """

    first_wait_s: float = 0.05
    most_wait_s: float = 5.0
    deadline_s: float = 120.0

    def __post_init__(self) -> None:
        if not 0 < self.first_wait_s <= self.most_wait_s or self.deadline_s < 0:
            raise ValueError("retry settings: 0 < first_wait_s <= most_wait_s and deadline_s >= 0 must hold")


STAY_CONNECTED = RetrySettings(first_wait_s=0.1, most_wait_s=5.0, deadline_s=float("inf"))
"""Once a stream has been open, it is opened again for as long as it takes."""


OUT_OF_ORDER = "urn:fieldfare:problem:out-of-order"


def newest_in_log(error: Exception) -> int | None:
    """Of a request that came out of order, the producer's newest sequence; None for any other error."""
    if not isinstance(error, ApiError) or error.problem.get("type") != OUT_OF_ORDER:
        return None
    newest = error.problem.get("newest")
    return newest if isinstance(newest, int) else None


def is_passing(error: Exception) -> bool:
    """Whether the same request may well succeed a little later."""
    if isinstance(error, ApiError):
        return error.status in PASSING_STATUSES or newest_in_log(error) is not None
    return isinstance(error, ConnectionFailed)


def is_about_the_moment(error: Exception) -> bool:
    """Whether waiting may help, however long: all but an answer that finds fault with the request itself.

    Wider than `is_passing`, for events that can wait for as long as it takes: a space that is missing can be
    created, a wrong proxy can be mended.
    """
    if newest_in_log(error) is not None:
        return True
    return not (isinstance(error, ApiError) and error.status in FAULTY_REQUEST_STATUSES)


class Backoff:
    """The waits between the attempts of one request: exponential, with full jitter.

    Jitter spreads clients that failed at the same moment, so that they do not come back at the same moment.
    """

    def __init__(
        self,
        settings: RetrySettings,
        started_s: float,
        chance: random.Random,
        passes: Callable[[Exception], bool] = is_passing,
    ) -> None:
        self._settings = settings
        self._passes = passes
        self._deadline_s = started_s + settings.deadline_s
        self._chance = chance
        self._bound_s = settings.first_wait_s

    def next_wait_s(self, error: Exception, now_s: float) -> float | None:
        """How long to wait before the next attempt; None when there should be none."""
        if not self._passes(error) or now_s >= self._deadline_s:
            return None
        wait_s = self._bound_s * self._chance.uniform(0.5, 1.0)
        self._bound_s = min(self._bound_s * 2, self._settings.most_wait_s)
        if isinstance(error, ApiError) and error.retry_after_s is not None:
            wait_s = error.retry_after_s + wait_s
        # One last attempt is made at the deadline itself rather than none after a long wait.
        return min(wait_s, self._deadline_s - now_s)
