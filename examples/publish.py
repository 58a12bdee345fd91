"""Publish quotes: one at a time with a future each, then many in one call.

python examples/publish.py            # the service of FIELDFARE_URL, else http://127.0.0.1:7737
"""

from __future__ import annotations

import random

from fieldfare import Client

SYMBOLS = ("YHOO", "IBM", "HAL", "MSFT")


def quote(chance: random.Random) -> dict[str, object]:
    """Return a CloudEvent; the client fills in id, time and specversion."""
    data = {"symbol": chance.choice(SYMBOLS), "price": round(chance.uniform(10, 30), 2)}
    return {"source": "/quotes", "type": "quote", "data": data}


def main() -> None:
    chance = random.Random(11)
    with Client() as client:
        # Each call returns at once; events are sent in batches in the background.
        futures = [client.publish(quote(chance)) for _ in range(100)]
        print(f"the first is durable at {futures[0].result()}, the last at {futures[-1].result()}")
        # Or publish many events and wait for all of them.
        positions = client.publish_many(quote(chance) for _ in range(900))
        print(f"{len(positions)} more are durable")


if __name__ == "__main__":
    main()
