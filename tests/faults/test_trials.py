"""Trials, in a small dose: what `make faults` does for as long as one likes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ledger import Fault
from trials import ACCIDENTS, DECK, KINDS, Report, find_compiler, run_trial

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]

SMALL = ("kill gateway", "cut", "failing", "nonsense")


def check(folder: Path, seed: int, deck: tuple[str, ...]) -> None:
    report = Report(seed)
    run_trial(folder, seed, report, deck)
    line = json.loads(report.line())
    assert {kind: line[kind] for kind in KINDS} == dict.fromkeys(KINDS, 0), report.said
    # Where there is no compiler, disks do not fail.
    assert line["faults"] == len(deck) - (0 if find_compiler() else deck.count("failing"))
    assert line["deliveries"] > 0


def test_a_trial_with_a_few_accidents_breaks_no_promise(tmp_path: Path) -> None:
    check(tmp_path, 151, SMALL)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [152, 153])
def test_a_whole_trial_breaks_no_promise(tmp_path: Path, seed: int) -> None:
    check(tmp_path, seed, DECK)


def test_what_breaks_a_promise_is_counted_by_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that could not fail would show nothing."""

    def doubled(*_: object) -> None:
        raise Fault("doubled", "it came again")

    monkeypatch.setitem(ACCIDENTS, "cut", doubled)
    report = Report(154)
    run_trial(tmp_path, 154, report, ("cut",))
    assert report.broken == {"doubled": 1}
    assert "seed 154, at cut: doubled: it came again" in report.said
