"""The bytes of a destination list in a system of 1,000 brokers, by the number of destinations."""

from __future__ import annotations

import statistics
from random import Random
from typing import Any

from overlay_runs import RESULTS, SEEDS

from fieldfare_lab.routing import BrokerSettings
from fieldfare_lab.routing.destinations import Numbering

BROKERS = 1_000
LENGTHS = (1, 2, 5, 10, 30, 100, 200, 300, 500, 700, 900, 1_000)
DRAWS = 20
NAMES = tuple([f"b{number:04}" for number in range(BROKERS)])


def measured() -> list[dict[str, Any]]:
    """Return the bytes of random lists of each length."""
    numbering, rows = Numbering(NAMES), []
    for length in LENGTHS:
        sizes = []
        for seed in SEEDS:
            rng = Random(f"lists {seed}")
            for number in range(DRAWS):
                bitmap = numbering.encode(1, number + 1, rng.sample(NAMES, length))
                assert bitmap is not None
                sizes.append(len(bitmap))
        rows.append(
            {
                "brokers": BROKERS,
                "destinations": length,
                "bitmap_bytes_mean": round(statistics.mean(sizes), 1),
                "bitmap_bytes_max": max(sizes),
                "sent_as": "names" if length <= BrokerSettings().list_names_max else "bitmap",
            }
        )
    return rows


if __name__ == "__main__":
    RESULTS.keep("list_bytes", measured)
