"""How long the engine takes for an event: ``python experiments/bluedove/calibrate.py``.

Builds an index of so many W-BLUEDOVE subscriptions, matches batches of events with ``Part.match`` on one
core, and keeps the fastest of several rounds. Writes ``calibration.json``, which the simulations read, so
that they give the same on every machine. Run it again to see what they would give on yours.

The paper's matcher searches linearly, in a time that the paper does not say. One figure fixes it: BlueDove
with 20 matchers and 40,000 subscriptions saturates at 114,000 messages a second. ``systems.py`` has
it.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import repeat
from pathlib import Path
from time import perf_counter

import numpy as np

from fieldfare.matching.build import IndexEntry
from fieldfare.matching.part import build_part
from fieldfare.model import OPEN_END
from fieldfare.workloads.synthetic import WORKLOADS

HERE = Path(__file__).resolve().parent
SIZES = [1, 250, 500, 1000, 2000, 4000, 8000, 16_000, 40_000]
BATCH_EVENTS = 2048


def event_us(size: int, rounds: int) -> float:
    """Microseconds for one event among so many subscriptions, the fastest of some rounds."""
    forms = WORKLOADS["bluedove"].normal_forms(size, 1)
    part = build_part(
        IndexEntry(number, number, 0, OPEN_END, form, "", "sql") for number, form in enumerate(forms)
    )
    events = WORKLOADS["bluedove"].events(BATCH_EVENTS, 2)
    offsets = np.zeros(BATCH_EVENTS, np.int64)
    part.match(events, offsets, None)
    best_s = float("inf")
    for _ in repeat(None, rounds):
        started_s = perf_counter()
        part.match(events, offsets, None)
        best_s = min(best_s, perf_counter() - started_s)
    return best_s / BATCH_EVENTS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=HERE / "calibration.json")
    options = parser.parse_args()
    rows = [{"subscriptions": size, "event_us": round(event_us(size, options.rounds), 4)} for size in SIZES]
    rows[0]["subscriptions"] = 0  # the smallest index that can be built stands for an empty one
    found = {"engine": rows, "batch_events": BATCH_EVENTS, "workload": "bluedove", "cores": 1}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
