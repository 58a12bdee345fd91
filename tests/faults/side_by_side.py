"""Trials side by side: a machine of many cores tries several services at once, each on cores of its own."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

from trials import Report, run_trials

SEEDS_APART = 1_000
"""Between the first seeds of two lanes: none has so many trials."""


def shares(cores: list[int], lanes: int) -> list[list[int]]:
    """Each lane's cores: as many for each, none for two."""
    size = len(cores) // lanes
    return [cores[lane * size : (lane + 1) * size] for lane in range(lanes)]


def _run_lane(cores: list[int], seed: int, seconds: float, deck: tuple[str, ...]) -> Report:
    os.sched_setaffinity(0, cores)  # its service's processes inherit them, and have as many tasks
    return run_trials(seed, seconds, deck)


def run_side_by_side(lanes: int, seed: int, seconds: float, deck: tuple[str, ...]) -> Report:
    """Trials in several processes; gives what all of them have to say."""
    own = shares(sorted(os.sched_getaffinity(0)), lanes)
    # Not forked: each has threads of its own.
    with ProcessPoolExecutor(lanes, multiprocessing.get_context("spawn")) as pool:
        running = [
            pool.submit(_run_lane, cores, seed + lane * SEEDS_APART, seconds, deck)
            for lane, cores in enumerate(own)
        ]
        return sum((each.result() for each in running), Report(seed))
