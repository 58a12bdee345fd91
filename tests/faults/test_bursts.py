"""Kills one upon the other are drawn by a seed, and counted when somebody did die of them."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import bursts
import pytest
from bursts import PAUSE_MAX_S, STRIKES, WEIGHTS, Strike, burst, draw
from trials import Report, run_trial


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Some that would sleep for long."""
    started = [subprocess.Popen(["sleep", "600"]) for _ in range(4)]
    yield started
    for each in started:
        each.kill()
        each.wait()


def test_a_seed_draws_the_same_burst_and_all_bursts_together_strike_everybody() -> None:
    assert draw(Random(3)) == draw(Random(3)) != draw(Random(4))
    random = Random(5)
    drawn = [draw(random) for _ in range(300)]
    assert {len(strikes) for strikes in drawn} == set(range(STRIKES[0], STRIKES[1] + 1))
    strikes = [strike for each in drawn for strike in each]
    assert {strike.wanted[0] for strike in strikes} == {*WEIGHTS, "supervisor"}
    assert all(0 <= strike.pause_s <= PAUSE_MAX_S for strike in strikes)
    assert sorted(strike.pause_s for strike in strikes)[len(strikes) // 2] < PAUSE_MAX_S / 4
    spares = [not any({"driver", "java"} & {*strike.wanted} for strike in each) for each in drawn]
    assert 0.5 < sum(spares) / len(drawn) < 0.7
    both = [strike for strike in strikes if strike.kinds == 2]
    assert 0.2 < len(both) / len(strikes) < 0.3


def test_who_is_not_there_is_not_counted_and_the_next_one_is_struck(
    processes: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's next one has not been started yet, and the indexer has just died by itself."""
    gateway, dead, *tasks = (each.pid for each in processes)
    processes[1].kill()
    processes[1].wait()
    there = {"gateway": [gateway], "indexer": [dead], "task": tasks}
    monkeypatch.setattr(bursts, "present", lambda service, kind: there.get(kind, []))
    pauses: list[float] = []
    played: Any = SimpleNamespace(service=None, linger=pauses.append)
    strikes = [
        Strike(("driver", "java"), 2, None, 1.0),
        Strike(("driver", "indexer", "gateway", "task"), 2, None, 0.0),
        Strike(("task", "gateway"), 1, 3, 0.5),
    ]
    killed: Counter[str] = Counter()
    burst(played, strikes, killed)
    assert killed == {"gateway": 1, "task": 1}
    assert pauses == [1.0, 0.0, 0.5]
    assert processes[0].wait() == processes[3].wait() == -9
    assert processes[2].poll() is None, "of several tasks one died"


@pytest.mark.service
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [156, 157])
def test_bursts_of_kills_break_no_promise(tmp_path: Path, seed: int) -> None:
    report = Report(seed)
    run_trial(tmp_path, seed, report, ("burst", "burst", "burst"))
    assert not report.broken, report.said
    assert report.kills.total() >= 3 * STRIKES[0] - 3, "now and then nobody is there"
    assert len(report.kills) > 3
