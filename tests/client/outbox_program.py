"""A program that publishes through an outbox until it is killed, and says what it has published.

python outbox_program.py KIND URL OUTBOX ROUND COUNT      # KIND: sync, async

Writes the number of each event when `publish` has returned, and ``end`` when all were acknowledged and the
publisher is closed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from fieldfare import AsyncClient, BatchSettings, Client, RetrySettings

SOON = RetrySettings(first_wait_s=0.01, most_wait_s=0.05)
SMALL = BatchSettings(max_events=7, linger_ms=1, max_in_flight=3)
PAUSE_S = 0.0005
"""Requests go out while events come, so that death meets them in all states."""


def make_event(round_number: int, number: int) -> dict[str, object]:
    return {"source": "/test", "type": "count", "data": {"round": round_number, "n": number}}


def say(text: object) -> None:
    os.write(1, f"{text}\n".encode())


def publish(url: str, outbox: str, round_number: int, count: int) -> None:
    with Client(url) as client, client.publisher(SMALL, SOON, outbox=outbox) as publisher:
        for number in range(count):
            publisher.publish(make_event(round_number, number))
            say(number)
            time.sleep(PAUSE_S)
        publisher.flush()


async def publish_async(url: str, outbox: str, round_number: int, count: int) -> None:
    async with AsyncClient(url) as client, client.publisher(SMALL, SOON, outbox=outbox) as publisher:
        for number in range(count):
            publisher.publish(make_event(round_number, number))
            say(number)
            await asyncio.sleep(PAUSE_S)
        await publisher.flush()


def main() -> None:
    kind, url, outbox, round_number, count = sys.argv[1:]
    if kind == "sync":
        publish(url, outbox, int(round_number), int(count))
    else:
        asyncio.run(publish_async(url, outbox, int(round_number), int(count)))
    say("end")


if __name__ == "__main__":
    main()
