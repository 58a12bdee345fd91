"""Trials, in a small dose: what `make faults` does for as long as one likes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import trials
from ledger import Fault
from load import LoadSettings
from scene import CALM_LOAD
from side_by_side import shares
from trials import ACCIDENTS, DECK, KINDS, LOAD, Report, find_compiler, only, run_trial

pytestmark = [pytest.mark.service, pytest.mark.timeout(1200)]

SMALL = ("kill gateway", "kill starting", "cut", "failing", "nonsense", "flood nested")


def check(folder: Path, seed: int, deck: tuple[str, ...], load: LoadSettings = LOAD) -> None:
    report = Report(seed)
    run_trial(folder, seed, report, deck, load=load)
    line = json.loads(report.line())
    assert {kind: line[kind] for kind in KINDS} == dict.fromkeys(KINDS, 0), report.said
    # Where there is no compiler, disks do not fail.
    assert line["faults"] == len(deck) - (0 if find_compiler() else deck.count("failing"))
    assert line["deliveries"] > 0


def test_a_trial_with_a_few_accidents_breaks_no_promise(tmp_path: Path) -> None:
    check(tmp_path, 151, SMALL, CALM_LOAD)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [152, 153])
def test_a_whole_trial_breaks_no_promise(tmp_path: Path, seed: int) -> None:
    check(tmp_path, seed, DECK)


def test_what_breaks_a_promise_is_counted_by_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that could not fail would show nothing. Its service is a stand-in."""
    ledger = SimpleNamespace(acknowledged=3)
    load = SimpleNamespace(flow=lambda *_: None, ledger=ledger, calls=4, readers={})
    stand_in = SimpleNamespace(random=Random(154), load=load)
    monkeypatch.setattr(trials, "scene", lambda *_, **options: nullcontext(stand_in))

    def doubled(*_: object) -> None:
        raise Fault("doubled", "it came again")

    monkeypatch.setitem(ACCIDENTS, "cut", doubled)
    report = Report(154)
    run_trial(tmp_path, 154, report, ("cut",))
    assert report.broken == {"doubled": 1} and report.operations == 7
    assert "seed 154, at cut: doubled: it came again" in report.said


def test_accidents_of_some_kinds_only_make_a_trial_of_the_usual_length() -> None:
    kills = only(DECK, ("kill",))
    assert set(kills) == {name for name in DECK if name.startswith("kill ")}
    assert len(DECK) <= len(kills) < 2 * len(DECK)
    assert Counter(kills)["kill gateway"] == 3 * Counter(kills)["kill java"]
    assert only(DECK, ("strand",)) == ()


def test_trials_side_by_side_are_counted_together_and_share_no_core() -> None:
    assert shares([0, 1, 2, 5, 6], 2) == [[0, 1], [2, 5]]
    java = Counter({"java": 2})
    one = Report(7, 1, 20, 5, java, Counter({"kill java": 2}), Counter({"lost": 1}), ["seed 7"])
    gateways = Counter({"java": 1, "gateway": 2})
    other = Report(1007, 2, 30, 6, gateways, Counter({"kill java": 1, "cut": 1}), Counter(), [])
    both = json.loads((one + other).line())
    assert (both["seed"], both["trials"], both["operations"], both["kills"]) == (7, 3, 50, 5)
    assert both["killed"] == {"gateway": 2, "java": 3}
    assert both["accidents"] == {"cut": 1, "kill java": 3}
    assert (both["lost"], both["stuck"], (one + other).said) == (1, 0, ["seed 7"])


@pytest.mark.slow
def test_trials_of_kills_alone_run_side_by_side() -> None:
    """As ``make faults`` runs them: a process for each lane, whose reports become one."""
    options = ["--only", "kill", "--lanes", "2", "--seconds", "1", "--seed", "155"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", *options],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["trials"] == 2
    assert line["kills"] >= line["faults"] == 2
    assert {name.partition(" ")[0] for name in line["accidents"]} == {"kill"}
    assert {*re.findall(r"^[0-9:]{8} ([0-9]+) kill ", done.stdout, re.MULTILINE)} == {"155", "1155"}


def test_a_lane_needs_a_core_and_an_accident_a_name() -> None:
    for options, said in (
        (["--lanes", "100000"], "each lane needs one"),
        (["--lanes", "2", "--kafka"], "one broker"),
        (["--only", "strand"], "for --kafka"),
        (["--only", "murder"], "invalid choice: 'murder'"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults", *options],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert said in done.stderr
