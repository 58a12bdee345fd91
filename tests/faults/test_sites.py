"""Three sites in a line: kills, and links that are cut and frozen, lose and double nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sites import KINDS, Ledger, SitesReport, deck_of, running_sites, suffer_all

pytestmark = [pytest.mark.service]

CALM_PACE_S = 0.2
SOME = ["cut 0", "kill gateway 1", "freeze 1", "kill java 0", "cut 1", "kill supervisor 2"]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "routing",
    [pytest.param("ddbr", marks=pytest.mark.slow), pytest.param("fbr", marks=pytest.mark.slow), "merc"],
)
def test_some_kills_and_cuts_lose_and_double_nothing(tmp_path: Path, routing: str) -> None:
    report = SitesReport(1, 3)
    names = SOME[:3] if routing == "merc" else SOME
    with running_sites(tmp_path, 3, 1, pace_s=CALM_PACE_S, routing=routing) as sites:
        suffer_all(sites, names, time.monotonic() + 600, report)
    assert report.is_good, "\n".join(report.said)
    assert report.kills + report.cuts + report.freezes == len(names)
    assert report.events > 50 and report.deliveries > 4 * report.events - report.events // 2


def test_the_ledger_names_what_is_lost_doubled_and_foreign() -> None:
    ledger = Ledger()
    for number in range(4):
        ledger.publish(f"0-{number}", number % 2)
    for number in range(3):
        ledger.arrive(0, "all", f"0-{number}", f"{number}")
    ledger.arrive(0, "all", "0-0", "0")
    ledger.arrive(0, "all", "0-1", "7")
    ledger.arrive(0, "mine", "0-0", "0")
    ledger.arrive(0, "mine", "0-1", "1")
    ledger.arrive(0, "mine", "0-2", "2")
    report = SitesReport(0, 1)
    ledger.judge(report)
    assert (report.lost, report.doubled, report.foreign, report.redeliveries) == (1, 1, 1, 1)
    assert not ledger.has_all(0, "all") and ledger.has_all(0, "mine")
    assert not report.is_good


def test_the_deck_has_each_kind_of_process_at_each_site() -> None:
    deck = deck_of(3)
    assert all(f"kill {kind} {place}" in deck for kind in KINDS for place in range(3))
    assert {"cut 0", "cut 1", "freeze 0", "freeze 1"} <= set(deck)
