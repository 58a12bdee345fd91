"""A watch on event loops: which of their steps held the thread longest.

While one step runs, every other client waits. Used with a gateway that has a thread and an event loop of its
own (`watched`), so that what the test itself does is not counted. Time is the thread's processor time: a busy
machine stretches it far less than a clock on the wall, and waiting for another thread does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_support import served
from tests.yardstick import slowness

from fieldfare.gateway.context import Gateway

STEP_MAX_MS = 5.0
"""No step whose length a client decides may take longer."""

SHARED_PROCESSOR = 2.0
"""Factor by which a step may be longer, because another program may use half of the core."""


@dataclass(slots=True)
class LoopWatch:
    """The longest step so far, in milliseconds, and its code.

    Attributes
    ----------
    longest_ms
        Processor time of the longest step.
    longest
        The callback or coroutine that took it.
    longest_wall_ms
        The longest step by the clock: it also counts waiting (for a lock, a disk), and other programs.
        Compare it with generous bounds only.
    steps
        How many steps were seen: that the watch was on at all.
    """

    longest_ms: float = 0.0
    longest: str = "nothing"
    longest_wall_ms: float = 0.0
    steps: int = 0

    def restart(self) -> None:
        """Forget what was seen, for instance what a start took."""
        self.longest_ms = self.longest_wall_ms = 0.0
        self.longest = "nothing"
        self.steps = 0

    def check(self, most_ms: float = STEP_MAX_MS * SHARED_PROCESSOR) -> None:
        """Fail the test when a step took too long."""
        assert self.steps > 0, "no event loop ran under the watch"
        if self.longest_ms > most_ms:
            most_ms *= slowness()
        assert self.longest_ms <= most_ms, f"{self.longest_ms:.1f} ms on the event loop: {self.longest}"


@contextlib.contextmanager
def watch_loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopWatch]:
    """Watch every asyncio event loop in this process, save those of the calling thread.

    The garbage collector rests meanwhile: its long rounds come from the tests around, not from a request.
    """
    watch = LoopWatch()
    caller = threading.get_ident()
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        if threading.get_ident() == caller:
            run(handle)
            return
        # Only the longest step is described, and later, because its representation takes time itself.
        callback = handle._callback
        started_s, cpu_s = time.perf_counter(), time.thread_time()
        run(handle)
        took_ms = (time.thread_time() - cpu_s) * 1000
        watch.longest_wall_ms = max(watch.longest_wall_ms, (time.perf_counter() - started_s) * 1000)
        watch.steps += 1
        if took_ms > watch.longest_ms:
            watch.longest_ms, watch.longest = took_ms, _name_of(callback)

    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    with monkeypatch.context() as patched:
        patched.setattr(asyncio.Handle, "_run", timed)
        try:
            yield watch
        finally:
            if collecting:
                gc.enable()


@contextlib.contextmanager
def watched(
    monkeypatch: pytest.MonkeyPatch, data: Path, **settings: Any
) -> Iterator[tuple[Gateway, httpx.Client, LoopWatch]]:
    """A gateway behind a real server, as `served` gives it, under a watch that begins when it is up."""
    with (
        watch_loops(monkeypatch) as watch,
        served(data, loop="asyncio", **settings) as (gateway, client),
    ):
        watch.restart()
        yield gateway, client, watch


def _name_of(callback: Any) -> str:
    task = getattr(callback, "__self__", None)
    return repr(task) if isinstance(task, asyncio.Task) else repr(callback)
