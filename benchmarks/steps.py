"""Cost of a step, for each kind of operation in filters (`fieldfare.filters.work`).

    python benchmarks/steps.py --json

evaluates a filter of each kind over an array, with values that make it slow, and prints the nanoseconds of
processor time per step: for evaluation by columns, and for counting the steps beforehand. The bounds on the
steps of an event and of a record bound their time by the most expensive kind: `event_s` and `record_s`.
`lab/fieldfare_lab/step_costs.py` has the kinds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys

from fieldfare.filters.work import EVENT_STEPS_MAX, RECORD_STEPS_MAX
from fieldfare_lab.step_costs import cases, cost_of


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--steps", type=int, default=500_000, help="steps of each kind (default: %(default)s)"
    )
    parser.add_argument(
        "--turns", type=int, default=3, help="rounds, of which the fastest counts (default: %(default)s)"
    )
    options = parser.parse_args()
    found = {name: cost_of(text, data, options.steps, options.turns) for name, text, data in cases()}
    together = {name: cost.evaluation_ns + cost.counting_ns for name, cost in found.items()}
    worst = max(together.values())
    figures = {
        "ns_per_step": {
            name: [round(cost.evaluation_ns, 1), round(cost.counting_ns, 1)] for name, cost in found.items()
        },
        "median_ns": round(statistics.median(together.values()), 1),
        "worst_ns": round(worst, 1),
        "event_s": round(EVENT_STEPS_MAX * worst / 1e9, 1),
        "record_s": round(RECORD_STEPS_MAX * worst / 1e9, 1),
    }
    if options.json:
        print(json.dumps(figures))
        return 0
    for name in sorted(together, key=lambda name: -together[name]):
        cost = found[name]
        print(
            f"{cost.evaluation_ns:8.1f} ns {cost.counting_ns:8.1f} ns to count {cost.steps:9,} steps  {name}"
        )
    print({name: value for name, value in figures.items() if name != "ns_per_step"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
