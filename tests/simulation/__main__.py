"""``python -m tests.simulation``: seeds of the simulation, one after the other."""

from __future__ import annotations

import argparse
import sys
import time

from .simulation import report, simulate_all, simulated


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--first", type=int, default=0, help="the first of many (default: 0)")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many (default: 1000)")
    options = parser.parse_args()
    alone = options.seed is not None
    seeds = (
        range(options.seed, options.seed + 1)
        if alone
        else range(options.first, options.first + options.seeds)
    )
    failed = steps = 0
    began_s = time.perf_counter()
    with simulated():
        for outcome in simulate_all(seeds):
            steps += outcome.steps
            if outcome.said:
                failed += 1
                print(report(outcome), flush=True)
    took_s = time.perf_counter() - began_s
    print(
        f"{len(seeds)} seeds, {steps} steps, {failed} failed, {60 * len(seeds) / took_s:.0f} seeds a minute"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
