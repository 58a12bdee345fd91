"""``python -m tests.faults``: a service under load, one accident after the other; the last line is JSON."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent, HERE.parent / "pipeline", HERE.parent / "scenarios"):
    sys.path.append(str(folder))

from trials import run_trials  # noqa: E402 - found on the path above

from fieldfare_lab.kafka_broker import KafkaBroker  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long (default: 600)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first trial")
    parser.add_argument(
        "--kafka", action="store_true", help="with the logs in Kafka, whose broker suffers too"
    )
    options = parser.parse_args()
    print(f"seed {options.seed}")
    with KafkaBroker() if options.kafka else nullcontext() as broker:
        report = run_trials(options.seed, options.seconds, broker)
    for said in report.said:
        print(said)
    print(report.line())
    return int(report.broken.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
