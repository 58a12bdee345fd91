"""When a dead child is restarted: always, after pauses that grow while it dies quickly."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """Pauses and thresholds for restarting children.

    Parameters
    ----------
    quick_s
        A child that dies within this many seconds of being ready, or was never ready, died *quickly*. Larger:
        a child that fails repeatedly is noticed more surely.
    deaths_told
        After this many quick deaths in a row the console shows the child's last output. Larger: a calmer
        console, a longer wait for the message.
    backoff_s, backoff_max_s
        The pause before the first restart in seconds; it doubles with each quick death up to the maximum.
        Larger: calmer, longer outages.
    """

    quick_s: float = 2.0
    deaths_told: int = 3
    backoff_s: float = 0.2
    backoff_max_s: float = 30.0


class Restarts:
    """The deaths of one child; times are seconds of a monotonic clock."""

    def __init__(self, settings: RestartSettings) -> None:
        self._settings = settings
        self._ready_s: float | None = None
        self.quick_deaths = 0

    def ready(self, now_s: float) -> None:
        """Note that the child has become ready."""
        self._ready_s = now_s

    def died(self, now_s: float) -> float:
        """Note that the child has died; return the pause in seconds before its restart."""
        settings = self._settings
        lived = self._ready_s is not None and now_s - self._ready_s >= settings.quick_s
        self._ready_s = None
        self.quick_deaths = 0 if lived else self.quick_deaths + 1
        # Bounded, so that the power does not overflow.
        doublings = min(max(0, self.quick_deaths - 1), 60)
        return min(settings.backoff_s * 2.0**doublings, settings.backoff_max_s)

    @property
    def is_told(self) -> bool:
        """Whether the console shall show the child's last output."""
        return self.quick_deaths == self._settings.deaths_told
