"""When a child that died is started again: always, after pauses that grow while it dies at once."""

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
    deaths_told
        At this many quick deaths in a row the console shows what the child said last. Larger: a calmer
        console, a longer wait for the message.
    backoff_s, backoff_max_s
        The pause before the first restart in seconds; it doubles with each quick death up to the
        largest. Larger: calmer, longer outages.
    """

    quick_s: float = 2.0
    deaths_told: int = 3
    backoff_s: float = 0.2
    backoff_max_s: float = 30.0


class Restarts:
    """The deaths of one child; time is passed in as seconds of a clock that never goes back."""

    def __init__(self, settings: RestartSettings) -> None:
        self._settings = settings
        self._ready_s: float | None = None
        self.quick_deaths = 0

    def ready(self, now_s: float) -> None:
        """The child has become ready."""
        self._ready_s = now_s

    def died(self, now_s: float) -> float:
        """The child has died: the pause in seconds before it is started again."""
        settings = self._settings
        lived = self._ready_s is not None and now_s - self._ready_s >= settings.quick_s
        self._ready_s = None
        self.quick_deaths = 0 if lived else self.quick_deaths + 1
        # No power of a number that grows for ever.
        doublings = min(max(0, self.quick_deaths - 1), 60)
        return min(settings.backoff_s * 2.0**doublings, settings.backoff_max_s)

    @property
    def is_told(self) -> bool:
        """Whether it is time to show what the child said last."""
        return self.quick_deaths == self._settings.deaths_told
