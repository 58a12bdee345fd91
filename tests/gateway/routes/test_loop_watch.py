"""The watch on event loops finds long steps."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from loop_watch import LoopWatch, watch_loops, watched


def burn(ms: float) -> None:
    end_s = time.thread_time() + ms / 1000
    while time.thread_time() < end_s:
        pass


def in_another_loop(monkeypatch: pytest.MonkeyPatch, *steps_ms: float) -> LoopWatch:
    async def work() -> None:
        for ms in steps_ms:
            await asyncio.sleep(0)
            burn(ms)

    with watch_loops(monkeypatch) as watch:
        thread = threading.Thread(target=lambda: asyncio.run(work()))
        thread.start()
        thread.join()
    return watch


def test_a_step_that_holds_the_loop_is_found_and_named(monkeypatch):
    watch = in_another_loop(monkeypatch, 1, 50, 1)
    assert watch.longest_ms >= 50 and watch.longest_wall_ms >= 50
    assert "work" in watch.longest
    with pytest.raises(AssertionError, match="on the event loop"):
        watch.check()


def test_many_short_steps_are_no_long_one(monkeypatch):
    in_another_loop(monkeypatch, *[1.0] * 60).check()


def test_waiting_is_not_counted_as_work(monkeypatch):
    """A noisy machine stretches the clock on the wall, not a thread's own time."""

    async def work() -> None:
        time.sleep(0.05)

    with watch_loops(monkeypatch) as watch:
        thread = threading.Thread(target=lambda: asyncio.run(work()))
        thread.start()
        thread.join()
    watch.check()
    assert watch.longest_wall_ms >= 50


def test_the_watch_is_over_when_it_ends(monkeypatch):
    before = asyncio.Handle._run
    in_another_loop(monkeypatch, 1)
    assert asyncio.Handle._run is before


def test_a_gateway_is_watched_on_its_own_loop_only(tmp_path, monkeypatch):
    with watched(monkeypatch, tmp_path) as (_, client, watch):
        burn(50)
        assert client.get("/healthz").status_code == 200
        watch.check()
