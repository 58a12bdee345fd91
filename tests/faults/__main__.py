"""``python -m tests.faults``: a service under load, one accident after the other; the last line is JSON."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent, HERE.parent / "pipeline", HERE.parent / "scenarios"):
    sys.path.append(str(folder))

from side_by_side import run_side_by_side  # noqa: E402 - found on the path above
from sites import run_sites  # noqa: E402
from trials import ACCIDENTS, DECK, KAFKA_DECK, only, run_trials  # noqa: E402

from fieldfare_lab.kafka_broker import KafkaBroker  # noqa: E402


def report_sites(options: argparse.Namespace) -> int:
    report = run_sites(options.sites, options.seed, options.seconds, options.routing)
    print("\n".join(report.said))
    print(report.line())
    return int(not report.is_good)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long (default: 600)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first trial")
    parser.add_argument(
        "--kafka", action="store_true", help="with the logs in Kafka, whose broker suffers too"
    )
    parser.add_argument(
        "--only", nargs="+", choices=sorted(ACCIDENTS), metavar="ACCIDENT", help="none but such accidents"
    )
    parser.add_argument(
        "--lanes", type=int, default=1, help="number of services at once, each on its share of the cores"
    )
    parser.add_argument(
        "--sites", type=int, default=0, help="number of services, linked in a line, instead of one"
    )
    parser.add_argument(
        "--routing", default="ddbr", choices=("ddbr", "fbr", "merc"), help="of the sites (default: ddbr)"
    )
    options = parser.parse_args()
    if options.sites:
        if options.kafka or options.only or options.lanes > 1 or options.sites < 2:
            parser.error("--sites: from 2, and without --kafka, --only and --lanes")
        return report_sites(options)
    if options.kafka and options.lanes > 1:
        parser.error("--lanes: with --kafka there is one broker, whose accidents would befall all")
    if not 1 <= options.lanes <= len(os.sched_getaffinity(0)):
        parser.error(f"--lanes: there are {len(os.sched_getaffinity(0))} cores, and each lane needs one")
    deck = KAFKA_DECK if options.kafka else DECK
    if options.only:
        deck = only(deck, options.only)
        if not deck:
            parser.error(f"--only: {' '.join(options.only)} is for --kafka")
    print(f"seed {options.seed}")
    if options.lanes > 1:
        report = run_side_by_side(options.lanes, options.seed, options.seconds, deck)
    else:
        with KafkaBroker() if options.kafka else nullcontext() as broker:
            report = run_trials(options.seed, options.seconds, deck, broker)
    for said in report.said:
        print(said)
    print(report.line())
    return int(report.broken.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
