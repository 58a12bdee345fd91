"""The results beside the paper's points and this project's goals: one JSON object."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from typing import Any

from overlay_runs import (
    DDBR_MEAN_MS,
    DDBR_RATE,
    FBR_NEXT_MS,
    FBR_NEXT_RATE,
    FBR_RATE,
    LISTS,
    MERC_RATE,
    OVERLAYS,
    OVERLOADED_MS,
    PROTOCOLS,
    RESULTS,
    SEEDS,
    SET_UPS,
    calibration,
)

BYTES_MAX = 130
THROUGHPUT_GOAL = 7.0
LATENCY_GOAL = -0.55
LIST_RANGES = {"D-DBR": 5.0, "MERC": 1.6}
"""The paper's longest mean list of a broker."""
CLOSER = 0.5
"""The share of D-DBR's gain over FBR above which MERC is closer to D-DBR."""
LIST_TOLERANCE = 0.1
"""A mean list within this share of the paper's is taken for equal."""


def by_seed(name: str, field: str, protocol: str, **wanted: Any) -> list[float]:
    """Return a field of a protocol's rows, in the order of the seeds."""
    return [
        row[field]
        for row in RESULTS.read(name)
        if row["protocol"] == protocol and all(row[key] == value for key, value in wanted.items())
    ]


def ratios(numerators: list[float], denominators: list[float]) -> list[float]:
    """Return the ratio of each seed."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


def latencies(overlay: str, counted: str, protocol: str, rate: int) -> list[float]:
    """Return the mean latency of each seed, in ms; infinite where brokers are overloaded."""
    found = {
        row["seed"]: row["mean_ms"]
        for row in RESULTS.read("general_latency")
        if (row["overlay"], row["counted"], row["protocol"]) == (overlay, counted, protocol)
        and row["rate_per_min"] == rate
        and row["mean_ms"] <= OVERLOADED_MS
    }
    return [found.get(seed, math.inf) for seed in SEEDS]


def rates(overlay: str, counted: str, protocol: str) -> list[float]:
    """Return the throughput of each seed, in messages per minute."""
    return by_seed("general_throughput", "throughput_per_min", protocol, overlay=overlay, counted=counted)


@dataclass(frozen=True, slots=True)
class Claim:
    """One of the paper's claims in one set-up: values of the seeds (of the brokers), and whether it holds.

    Attributes
    ----------
    holds
        For the median of the seeds, or for every broker.
    """

    text: str
    paper: str
    values: tuple[float, ...]
    form: str
    holds: bool


def claims(overlay: str, counted: str) -> list[Claim]:
    """Return the paper's claims about 100 brokers, in the order of the page."""
    return [*_throughput_claims(overlay, counted), *_latency_claims(overlay, counted), *_list_claims(overlay)]


def _throughput_claims(overlay: str, counted: str) -> list[Claim]:
    fbr, ddbr, merc = (rates(overlay, counted, name) for name in PROTOCOLS)
    gains, mercs, shares = ratios(ddbr, fbr), ratios(merc, fbr), _shares(fbr, ddbr, merc)
    gain, between = statistics.median(gains), statistics.median(mercs)
    return [
        Claim("D-DBR's throughput over FBR's", "7", tuple(gains), ".1f", gain >= THROUGHPUT_GOAL),
        Claim("MERC's throughput over FBR's", "between", tuple(mercs), ".1f", 1 < between < gain),
        Claim(
            "MERC's gain as a share of D-DBR's",
            "over 0.5",
            tuple(shares),
            ".2f",
            statistics.median(shares) > CLOSER,
        ),
    ]


def _shares(fbr: list[float], ddbr: list[float], merc: list[float]) -> list[float]:
    """Return how far MERC is on the way from FBR to D-DBR, for each seed."""
    return [(m - f) / (d - f) for f, d, m in zip(fbr, ddbr, merc, strict=True)]


def _latency_claims(overlay: str, counted: str) -> list[Claim]:
    fbr, ddbr, merc = (latencies(overlay, counted, name, FBR_RATE) for name in PROTOCOLS)
    late = latencies(overlay, counted, "FBR", FBR_NEXT_RATE)
    loaded = latencies(overlay, counted, "D-DBR", DDBR_RATE)
    means = [statistics.median(found) for found in (fbr, ddbr, merc)]
    share = _shares(*([mean] for mean in means))[0]
    steady, ddbr_then = (
        statistics.median(latencies(overlay, counted, name, MERC_RATE)) for name in ("MERC", "D-DBR")
    )
    is_steady = steady < math.inf
    return [
        Claim(
            f"FBR at {FBR_NEXT_RATE:,}/min, ms",
            f"{FBR_NEXT_MS:,}",
            tuple(late),
            ",.0f",
            statistics.median(late) > 2 * means[0],
        ),
        Claim(
            f"D-DBR at {DDBR_RATE:,}/min, ms",
            f"{DDBR_MEAN_MS}",
            tuple(loaded),
            ",.0f",
            statistics.median(loaded) / means[0] - 1 <= LATENCY_GOAL,
        ),
        Claim(
            f"MERC at {FBR_RATE:,}/min, ms", "between", tuple(merc), ",.0f", means[1] < means[2] < means[0]
        ),
        Claim("its gain as a share of D-DBR's", "over 0.5", (share,), ".2f", share > CLOSER),
        Claim(
            f"MERC at {MERC_RATE:,}/min over D-DBR there",
            "slightly over 1",
            (steady / ddbr_then,) if is_steady else (),
            ".2f",
            is_steady and 1 <= steady / ddbr_then <= 1.5,
        ),
    ]


def _list_claims(overlay: str) -> list[Claim]:
    found = []
    for name, mean in LISTS.items():
        means = by_seed("general_overhead", "list_mean", name, overlay=overlay)
        brokers = by_seed("general_lists", "list_mean", name, overlay=overlay)
        is_equal = abs(statistics.median(means) / mean - 1) <= LIST_TOLERANCE
        text = f"{name}: mean list" + (" (set)" if name == "D-DBR" else "")
        found.append(Claim(text, f"{mean}", tuple(means), ".2f", is_equal))
        most = LIST_RANGES[name]
        found.append(
            Claim(
                f"{name}: the brokers' mean lists",
                f"1 to {most:g}",
                (min(brokers), max(brokers)),
                ".1f",
                max(brokers) <= most,
            )
        )
    return found


def list_bytes() -> int:
    """Return the most bytes that a destination list takes with 1,000 brokers."""
    return max(row["bitmap_bytes_max"] for row in RESULTS.read("list_bytes"))


def summary() -> dict[str, Any]:
    """Return the figures of section IV, as found here."""
    found: dict[str, Any] = {
        "calibration": {overlay: calibration(overlay) for overlay in OVERLAYS},
        "seeds": len(SEEDS),
        "latency_goal": LATENCY_GOAL,
    }
    for overlay, counted in SET_UPS:
        fbr = statistics.median(latencies(overlay, counted, "FBR", FBR_RATE))
        loaded = latencies(overlay, counted, "D-DBR", DDBR_RATE)
        found[f"{overlay}, {counted}"] = {
            "throughput_per_min": {
                name: round(statistics.median(rates(overlay, counted, name))) for name in PROTOCOLS
            },
            "ddbr_latency_change": round(statistics.median(loaded) / fbr - 1, 3),
            "claims": {
                claim.text: {
                    "paper": claim.paper,
                    "values": [round(each, 3) if each < math.inf else "overloaded" for each in claim.values],
                    "holds": claim.holds,
                }
                for claim in claims(overlay, counted)
            },
        }
    most = list_bytes()
    found["list_bytes_max_with_1000_brokers"] = {"values": most, "holds": most <= BYTES_MAX}
    return found


if __name__ == "__main__":
    print(json.dumps(summary(), indent=2))
