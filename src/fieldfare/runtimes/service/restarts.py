"""When a child that died is started again, and when that is given up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """How patient the supervisor is.

    Parameters
    ----------
    quick_s
        A child that dies within so many seconds of being ready, or was never ready, died *quickly*.
        Larger: a child that fails again and again is noticed more surely.
    deaths_max
        After so many quick deaths in a row the service gives up. Larger: more patience with a machine
        that recovers by itself, a longer wait for the message.
    backoff_s, backoff_max_s
        The pause before the first restart in seconds; it doubles with each quick death up to the
        largest. Larger: calmer, longer outages.
    """

    quick_s: float = 2.0
    deaths_max: int = 5
    backoff_s: float = 0.2
    backoff_max_s: float = 5.0


class Restarts:
    """The deaths of one child; time is passed in as seconds of a clock that never goes back."""

    def __init__(self, settings: RestartSettings) -> None:
        self._settings = settings
        self._ready_s: float | None = None
        self.quick_deaths = 0

    def ready(self, now_s: float) -> None:
        """The child has become ready."""
        self._ready_s = now_s

    def died(self, now_s: float) -> float | None:
        """The child has died: the pause in seconds before it is started again; None to give up."""
        settings = self._settings
        lived = self._ready_s is not None and now_s - self._ready_s >= settings.quick_s
        self._ready_s = None
        self.quick_deaths = 0 if lived else self.quick_deaths + 1
        if self.quick_deaths >= settings.deaths_max:
            return None
        return min(settings.backoff_s * 2.0 ** max(0, self.quick_deaths - 1), settings.backoff_max_s)
