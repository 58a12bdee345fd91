"""Running estimates of a noisy quantity: a moving average, and the minimum or maximum of recent samples."""

from __future__ import annotations

from collections import deque


class MovingAverage:
    """An exponentially weighted moving average.

    ``value = gain * value + (1 - gain) * sample``; the first sample becomes the value.

    Parameters
    ----------
    gain : float
        Weight of the past, 0 <= gain < 1. Higher is smoother, lower follows sooner.
    """

    __slots__ = ("_gain", "value")

    def __init__(self, gain: float) -> None:
        if not 0 <= gain < 1:
            raise ValueError(f"a filter gain must be at least 0 and below 1, not {gain}")
        self._gain = gain
        self.value: float | None = None

    def add(self, sample: float) -> float:
        """Add a sample and return the new average."""
        value = sample if self.value is None else self._gain * self.value + (1 - self._gain) * sample
        self.value = value
        return value


class RecentExtreme:
    """The minimum of the samples of the last ``window_s`` seconds (the maximum, with ``most=True``).

    It keeps only samples that can still become the extreme, so the work per sample is constant on average.
    """

    __slots__ = ("_samples", "_sign", "_window_s")

    def __init__(self, window_s: float, *, most: bool = False) -> None:
        self._window_s = window_s
        self._sign = -1.0 if most else 1.0
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, sample: float, now_s: float) -> float:
        """Add a sample and return the current extreme."""
        signed = self._sign * sample
        samples = self._samples
        while samples and samples[-1][1] >= signed:
            samples.pop()
        samples.append((now_s, signed))
        while samples[0][0] < now_s - self._window_s:
            samples.popleft()
        return self._sign * samples[0][1]

    @property
    def value(self) -> float | None:
        """The extreme at the time of the last sample; None before the first."""
        return self._sign * self._samples[0][1] if self._samples else None
