"""Ji et al. 2013 (D-DBR, MERC), section IV: the claims that hold, in the kept results of experiments/routing.

The claims that do not hold are in docs/papers/ddbr_merc-figures.md, with the reason.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "experiments" / "routing"))

import list_bytes  # noqa: E402
from overlay_runs import (  # noqa: E402
    FBR_MEAN_MS,
    FBR_NEXT_RATE,
    FBR_RATE,
    LISTS,
    OVERLAYS,
    PROTOCOLS,
    RESULTS,
    SEEDS,
    SET_UPS,
)
from routing_summary import by_seed, claims, latencies, rates, ratios, summary  # noqa: E402

SET_UP = pytest.mark.parametrize(("overlay", "counted"), SET_UPS)


@SET_UP
def test_every_set_up_has_three_seeds_and_the_papers_point_of_fbr(overlay: str, counted: str) -> None:
    assert len(SEEDS) >= 3
    for name in PROTOCOLS:
        assert len(rates(overlay, counted, name)) == len(SEEDS)
    assert statistics.median(latencies(overlay, counted, "FBR", FBR_RATE)) == pytest.approx(
        FBR_MEAN_MS, rel=0.02
    )


@pytest.mark.parametrize("counted", ["held", "examined"])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_where_tables_are_scanned_d_dbr_carries_seven_times_as_much_at_less_than_half_the_latency(
    overlay: str, counted: str
) -> None:
    found = {claim.text: claim for claim in claims(overlay, counted)}
    assert found["D-DBR's throughput over FBR's"].holds
    assert found["D-DBR at 14,000/min, ms"].holds
    assert found["FBR at 2,500/min, ms"].holds


@SET_UP
def test_d_dbr_carries_more_than_fbr_with_every_seed(overlay: str, counted: str) -> None:
    fbr, ddbr = (rates(overlay, counted, name) for name in ("FBR", "D-DBR"))
    assert min(ratios(ddbr, fbr)) > 2.5


@SET_UP
def test_fbrs_latency_grows_steeply_beyond_its_rate(overlay: str, counted: str) -> None:
    before, after = (latencies(overlay, counted, "FBR", rate) for rate in (FBR_RATE, FBR_NEXT_RATE))
    assert statistics.median(after) > 2 * statistics.median(before)


@pytest.mark.parametrize("protocol", ["D-DBR", "MERC"])
def test_on_lines_where_whole_tables_take_time_no_protocol_carries_less_than_fbr(protocol: str) -> None:
    rows = {
        (row["protocol"], row["seed"], row["brokers"], row["subscriptions"]): row["throughput_per_min"]
        for row in kept("linear", counted="held")
    }
    gains: dict[tuple[int, int], list[float]] = {}
    for (name, seed, *size), found in rows.items():
        if name == protocol:
            gains.setdefault(tuple(size), []).append(found / rows["FBR", seed, *size])
    medians = {size: statistics.median(each) for size, each in gains.items()}
    assert len(medians) == 15 and min(medians.values()) >= 0.99
    assert max(medians.values()) > 1.3


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_mercs_lists_are_shorter_than_d_dbrs(overlay: str) -> None:
    ddbr, merc = (by_seed("general_overhead", "list_mean", name, overlay=overlay) for name in LISTS)
    assert max(merc) < min(ddbr)
    assert min(by_seed("general_lists", "list_mean", "MERC", overlay=overlay)) >= 1


def test_on_the_chain_mercs_mean_list_is_the_papers() -> None:
    merc = by_seed("general_overhead", "list_mean", "MERC", overlay="chain")
    assert statistics.median(merc) == pytest.approx(LISTS["MERC"], rel=0.05)


def limits(kind: str, protocol: str, field: str) -> list[float]:
    return by_seed("limitations", field, protocol, overlay=kind)


@pytest.mark.parametrize("kind", ["acyclic", "cyclic"])
def test_destinations_lift_the_limitations_of_fbr(kind: str) -> None:
    for field in ("remote_entries_a_broker", "matchings_an_event", "examined_an_event", "compared_an_event"):
        fbr, ddbr, merc = (limits(kind, name, field) for name in PROTOCOLS)
        assert max(ddbr) < min(fbr), field
        assert all(d <= m < f for f, d, m in zip(fbr, ddbr, merc, strict=True)), field
    for name in PROTOCOLS:
        for field in ("lost", "doubled", "foreign"):
            assert limits(kind, name, field) == [0] * len(SEEDS)


def test_with_cycles_only_fbr_waits_for_a_link_that_is_cut() -> None:
    assert min(limits("cyclic", "FBR", "late")) > 0
    assert limits("cyclic", "D-DBR", "late") == limits("cyclic", "MERC", "late") == [0] * len(SEEDS)


def kept(name: str, **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in RESULTS.read(name) if all(row[key] == value for key, value in wanted.items())]


@pytest.mark.parametrize("brokers", [100, 1_000])
def test_a_change_of_the_topology_stays_in_its_cluster_with_merc_and_reaches_all_with_d_dbr(
    brokers: int,
) -> None:
    ddbr, merc = (kept("maintenance", brokers=brokers, protocol=name) for name in ("D-DBR", "MERC"))
    assert ddbr and merc
    assert all(row["rows_a_broker"] == brokers and row["brokers_reached"] > 0.98 * brokers for row in ddbr)
    assert all(row["reached_outside_the_cluster"] == 0 < row["brokers_reached"] < 25 for row in merc)


def test_mercs_maintenance_does_not_grow_with_the_system() -> None:
    small, large = (
        statistics.mean(
            row["messages_a_change"] for row in kept("maintenance", brokers=size, protocol="MERC")
        )
        for size in (100, 1_000)
    )
    assert large < 1.5 * small


def test_a_list_of_a_thousand_brokers_takes_130_bytes_at_most() -> None:
    found = list_bytes.measured()
    assert RESULTS.read("list_bytes") == found
    assert summary()["list_bytes_max_with_1000_brokers"] == {
        "values": max(row["bitmap_bytes_max"] for row in found),
        "holds": True,
    }


@pytest.mark.long
@pytest.mark.parametrize("program", ["general_topology", "linear_topology", "limitations", "maintenance"])
def test_without_the_quotes_a_program_says_so(program: str, tmp_path: Path) -> None:
    settings = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'lab'}",
        "FIELDFARE_SHARED_DATA": str(tmp_path),
    }
    path = ROOT / "experiments" / "routing" / f"{program}.py"
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=True, env=settings
    )
    assert done.stdout.startswith("Skipped: ")
