"""Telling a process that hangs from one that works, starts, or has nothing to do."""

from __future__ import annotations

import json
from pathlib import Path

from fieldfare.runtimes.process.watching import HangWatch


class Beats:
    """A pipeline's heartbeat, written by hand; the time is moved by hand too."""

    def __init__(self, path: Path, stall_s: float = 10.0) -> None:
        self.pid = 7
        self._path = path
        self._watch = HangWatch(path, stall_s)
        self._count = 0
        self._now_s = 0.0

    def hang(self, now_s: float, **beat: object) -> str:
        """Return the watch's result, called every second, after a new beat if one is given."""
        while self._now_s < now_s - 1:
            self._now_s += 1
            if said := self._watch(self.pid, self._now_s):
                return said
        return self.look(now_s, **beat)

    def look(self, now_s: float, **beat: object) -> str:
        """Return the watch's result if it was not called since the last time."""
        self._now_s = now_s
        if beat:
            self._count += 1
            self._path.write_text(json.dumps({"pid": self.pid, "n": self._count, "state": "running", **beat}))
        return self._watch(self.pid, now_s)


def test_a_pipeline_without_anything_to_do_does_not_hang(tmp_path):
    """An idle night, in which the wall clock jumps too."""
    beats = Beats(tmp_path / "beat")
    for second in range(0, 1000, 5):
        assert beats.hang(second, offset=4, log_end=4, time_ms=-second * 10**9) == ""
    assert beats.hang(1000, offset=4, log_end=5) == ""
    assert beats.hang(1004, offset=4, log_end=5) == ""
    assert "matched nothing" in beats.hang(1016, offset=4, log_end=5)


def test_progress_is_a_record_and_waiting_for_the_index_is_no_hang(tmp_path):
    """A day's backlog, and a million filters that are indexed first."""
    beats = Beats(tmp_path / "beat")
    for second in range(0, 100, 5):
        assert beats.hang(second, offset=4, log_end=50, indexed=False) == ""
    for second in range(100, 200, 5):
        assert beats.hang(second, offset=second, log_end=500) == ""
    for second in range(200, 300, 5):
        assert beats.hang(second, offset=200, log_end=500, state="recovering") == ""


def test_a_pipeline_may_be_silent_for_longer_while_it_starts(tmp_path):
    beats = Beats(tmp_path / "beat")
    assert beats.hang(0.0) == ""
    assert beats.hang(20.0) == ""
    assert beats.hang(30.0, offset=0, log_end=9, state="starting") == ""
    assert beats.hang(75.0) == ""
    assert "no heartbeat" in beats.hang(90.0)


def test_a_start_killed_for_silence_gets_twice_the_time_next(tmp_path):
    """Much else runs on the machine: Spark alone takes a minute to start, where it took seven seconds.

    Each start that is ended is one more that the next one has to wait for; with the same patience for all
    of them the service would never be ready again.
    """
    beats = Beats(tmp_path / "beat")
    now_s = 0.0
    for patience_s in (50, 100, 200, 400, 400):
        beats.pid += 1
        waiting = {"offset": 0, "log_end": 9, "state": "starting"}
        assert beats.hang(now_s + 1, **waiting) == ""
        assert beats.hang(now_s + patience_s - 2, **waiting) == ""
        assert "matched nothing" in beats.hang(now_s + patience_s + 20, **waiting)
        now_s += patience_s + 20
    beats.pid += 1
    assert beats.hang(now_s + 1, offset=0, log_end=9) == ""
    assert "no heartbeat" in beats.hang(now_s + 30), "who runs has no longer"
    beats.pid += 1
    assert beats.hang(now_s + 31, **waiting) == ""
    assert "no heartbeat" in beats.hang(now_s + 100), "after it ran, the patience is reset"


def test_a_pipeline_that_was_paused_with_its_supervisor_does_not_hang(tmp_path):
    """A laptop's lid is closed overnight with events waiting: no process could do anything."""
    beats = Beats(tmp_path / "beat")
    assert beats.hang(0.0, offset=4, log_end=50) == ""
    for pause in range(1, 4):
        assert beats.look(pause * 30_000.0) == ""
    assert "no heartbeat" in beats.hang(90_020.0), "who hangs is found all the same"
