"""Arrival times of requests: Poisson processes of one rate, or a profile of rates (the paper's table II)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator


def poisson_times(
    rate_per_s: float, duration_s: float, seed: int, *, start_s: float = 0.0
) -> Iterator[float]:
    """Yield the times of a Poisson process of this rate, from ``start_s`` on, for `duration_s` seconds."""
    chance = random.Random(f"arrivals {seed} {start_s}")
    now_s = start_s
    while (now_s := now_s + chance.expovariate(rate_per_s)) < start_s + duration_s:
        yield now_s


def profile_times(steps: Iterable[tuple[float, float, float]], seed: int) -> Iterator[float]:
    """Yield the times of a process with a rate in steps: (start in s, end in s, requests per s), in order."""
    for start_s, end_s, rate_per_s in steps:
        yield from poisson_times(rate_per_s, end_s - start_s, seed, start_s=start_s)
