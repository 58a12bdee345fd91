"""Retries: which failures are temporary, and how long to wait."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from fieldfare.client.errors import ApiError, ConnectionFailed, ServiceNotTrusted

PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses of temporary failures, after which a client retries."""

FAULTY_REQUEST_STATUSES = frozenset({400, 409, 413, 414, 415, 422, 431})
"""HTTP statuses for a faulty request, which no retry can change."""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """Settings for retries after temporary failures.

    Attributes
    ----------
    first_wait_s : float
        Wait after the first failure, in seconds; it doubles at each retry. Higher is easier on a service in
        trouble, lower recovers sooner.
    most_wait_s : float
        Maximum wait, in seconds, unless the service asks for a longer one (Retry-After).
    deadline_s : float
        Time from the first attempt, in seconds, after which the last error is final.
    """

    first_wait_s: float = 0.05
    most_wait_s: float = 5.0
    deadline_s: float = 120.0

    def __post_init__(self) -> None:
        if not 0 < self.first_wait_s <= self.most_wait_s or self.deadline_s < 0:
            raise ValueError("retry settings: 0 < first_wait_s <= most_wait_s and deadline_s >= 0 must hold")


STAY_CONNECTED = RetrySettings(first_wait_s=0.1, most_wait_s=5.0, deadline_s=float("inf"))
"""Settings for reopening a stream that has been open: without a deadline."""


OUT_OF_ORDER = "urn:fieldfare:problem:out-of-order"


def newest_in_log(error: Exception) -> int | None:
    """Return the producer's newest sequence in the log, from an out-of-order error; None for other errors."""
    if not isinstance(error, ApiError) or error.problem.get("type") != OUT_OF_ORDER:
        return None
    newest = error.problem.get("newest")
    return newest if isinstance(newest, int) else None


def is_passing(error: Exception) -> bool:
    """Whether an error is temporary, so that the same request may succeed later."""
    if isinstance(error, ApiError):
        return error.status in PASSING_STATUSES or newest_in_log(error) is not None
    return isinstance(error, ConnectionFailed) and not isinstance(error, ServiceNotTrusted)


def is_about_the_moment(error: Exception) -> bool:
    """Whether waiting may help: for all errors except an answer that the request itself is faulty.

    Wider than `is_passing`, for events without a deadline: a missing space may be created, and a wrong proxy
    setting corrected.
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
        """Return the seconds to wait before the next attempt; None if there should be none."""
        if not self._passes(error) or now_s >= self._deadline_s:
            return None
        wait_s = self._bound_s * self._chance.uniform(0.5, 1.0)
        self._bound_s = min(self._bound_s * 2, self._settings.most_wait_s)
        if isinstance(error, ApiError) and error.retry_after_s is not None:
            wait_s = error.retry_after_s + wait_s
        # The last attempt is made at the deadline itself.
        return min(wait_s, self._deadline_s - now_s)
