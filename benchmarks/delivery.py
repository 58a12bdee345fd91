"""Cost of delivering a message in the delivery state machine, on one core.

Messages are fed, taken and acked, one at a time and in hundreds, without network or disk. A figure is the
best of several passes, in processor time::

    python benchmarks/delivery.py            # a table
    python benchmarks/delivery.py --json     # one JSON object
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.delivery.keys import key_at

PASSES = 7
MESSAGES = 20_000


def handled(at_once: int, partitions: int) -> float:
    """Processor seconds per message when a number of messages are handled together."""
    delivery = Delivery(1, [key_at(partition, 0) for partition in range(partitions)])
    session = Session(window=1_000)
    blocks = [
        (np.arange(at_once, dtype=np.int64) + key_at(turn % partitions, turn + 1), turn)
        for turn in range(MESSAGES // at_once)
    ]
    started_s = time.process_time()
    for keys, turn in blocks:
        delivery.feed(keys, key_at(turn % partitions, turn + 2))
        taken = delivery.take(session, at_once, float(turn), 30.0)
        delivery.ack(taken)
    took_s = time.process_time() - started_s
    assert delivery.cursor_keys[0] > key_at(0, 0) and not delivery.in_flight
    return took_s / MESSAGES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    found = {
        f"{name}_{partitions}_us": round(1e6 * min(handled(at_once, partitions) for _ in range(PASSES)), 3)
        for name, at_once in (("alone", 1), ("hundreds", 100))
        for partitions in (1, 3)
    }
    if parser.parse_args().json:
        print(json.dumps(found))
    else:
        print("µs per message that is fed, taken and acked; the name ends with the number of partitions")
        for name, value in found.items():
            print(f"  {name.removesuffix('_us'):12} {value:8.3f}")


if __name__ == "__main__":
    main()
