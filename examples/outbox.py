"""Publish readings that must not get lost: they wait on disk while the service is down, and across runs.

python examples/outbox.py [FILE] [COUNT]  # with and without a service at FIELDFARE_URL, or http://127.0.0.1:7737
"""

from __future__ import annotations

import random
import sys

from fieldfare import Client
from fieldfare.client import FlushTimeout, Outbox

PATIENCE_S = 5.0


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else "readings.outbox"
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    chance = random.Random(11)
    with Client() as client, client.publisher(outbox=path) as publisher:
        left = publisher.outbox.stats().waiting_events if publisher.outbox else 0
        print(f"{left} events are left from earlier runs")
        for number in range(count):
            data = {"number": number, "celsius": round(chance.gauss(20, 3), 1)}
            # Stored on return: a kill -9 from here on loses nothing.
            publisher.publish({"source": "/thermometer", "type": "reading", "data": data})
        try:
            publisher.flush(PATIENCE_S)
        except FlushTimeout:
            print(f"not all events are sent: {publisher.stats().trouble}".splitlines()[0])
    with Outbox(path) as outbox:
        now = outbox.stats()
        print(f"{left + count - now.waiting_events} events sent, {now.waiting_events} wait in {now.path}")
        for refused in outbox.refused():
            print(f"refused: {refused.raw!r}: {refused.reason}")


if __name__ == "__main__":
    main()
