"""``python -m tests.fuzz``: a million inputs or more for the parsers, and what became of them."""

from __future__ import annotations

import argparse
import sys
import time

from fieldfare.filters.filter import DIALECTS

from .fuzzing import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="inputs in total (default: a million)")
    parser.add_argument("--dialects", nargs="*", default=list(DIALECTS), choices=list(DIALECTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=30, help="the longest it may take (default: 30)")
    options = parser.parse_args()
    failed = False
    share_s = options.minutes * 60 / len(options.dialects)
    for dialect in options.dialects:
        started = time.monotonic()
        report = fuzz(
            dialect,
            -(-options.inputs // len(options.dialects)),
            options.seed,
            until=lambda end=started + share_s: time.monotonic() > end,
        )
        taken_s = time.monotonic() - started
        print(
            f"{dialect}: {report.inputs:,} inputs, {report.valid:,} valid, "
            f"{report.inputs / taken_s:,.0f} inputs/s, "
            f"slowest step {report.slowest_s * 1000:.0f} ms, {len(report.failures)} failures"
        )
        for problem, text in report.failures:
            failed = True
            print(f"  {problem}\n    {text[:2_000]!r}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
