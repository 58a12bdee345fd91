"""What the results say, beside the paper's points and this project's goals: one JSON object."""

from __future__ import annotations

import json
import statistics
from typing import Any

from overlay_runs import DDBR_RATE, FBR_NEXT_RATE, FBR_RATE, MERC_RATE, PROTOCOLS, RESULTS, calibration


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


def latency(protocol: str, rate: int) -> float:
    """Return the mean of the seeds' mean latencies at a rate."""
    return statistics.mean(by_seed("general_latency", "mean_ms", protocol, rate_per_min=rate))


def summary() -> dict[str, Any]:
    """Return the figures of section IV, as found here."""
    rates = {name: by_seed("general_throughput", "throughput_per_min", name) for name in PROTOCOLS}
    base = latency("FBR", FBR_RATE)
    return {
        "calibration": calibration(),
        "throughput_per_min": {name: round(statistics.median(found)) for name, found in rates.items()},
        "ddbr_to_fbr_throughput": round(statistics.median(ratios(rates["D-DBR"], rates["FBR"])), 2),
        "merc_to_fbr_throughput": round(statistics.median(ratios(rates["MERC"], rates["FBR"])), 2),
        "fbr_mean_ms": {rate: round(latency("FBR", rate)) for rate in (FBR_RATE, FBR_NEXT_RATE)},
        "ddbr_mean_ms": {DDBR_RATE: round(latency("D-DBR", DDBR_RATE))},
        "merc_mean_ms": {MERC_RATE: round(latency("MERC", MERC_RATE))},
        "ddbr_latency_change": round(latency("D-DBR", DDBR_RATE) / base - 1, 3),
        "list_mean": {
            name: round(statistics.median(by_seed("general_overhead", "list_mean", name)), 3)
            for name in ("D-DBR", "MERC")
        },
    }


if __name__ == "__main__":
    print(json.dumps(summary(), indent=2))
