"""Time until pushed subscriptions are active after a start: ``python benchmarks/pushed.py --json``.

A gateway in this process opens a registry with many subscriptions that have a push address and a saved
cursor, and nothing to send. Prints the seconds until all of them wait for messages, and the
longest time for which the event loop was blocked meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from fieldfare.gateway.context import Gateway
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.model import DEFAULT_SPACE, Cursor, DeliverySettings, Position, PushSettings
from fieldfare.storage import open_registry
from fieldfare.storage.registry import Put

PUT_BATCH_SIZE = 1_000
LOOK_S = 0.01
DELIVERY = DeliverySettings(push=PushSettings("http://127.0.0.1:9/"))


def fill(settings: GatewaySettings, count: int) -> None:
    """Create the subscriptions, with a cursor for each."""
    registry = open_registry(settings.folder.registry_url)
    registry.create_space(DEFAULT_SPACE)
    for start in range(0, count, PUT_BATCH_SIZE):
        puts = [
            Put(DEFAULT_SPACE, f"s{n}", f"data.n = {n}", "sql", b"", delivery=DELIVERY)
            for n in range(start, min(count, start + PUT_BATCH_SIZE))
        ]
        made = registry.apply(puts, (0,), 0)
        registry.save_cursors([(each.number, Cursor((Position(0, 0, 0),))) for each in made])  # type: ignore
    registry.close()


async def measure(settings: GatewaySettings, count: int) -> dict[str, float]:
    """Start a gateway on the registry and wait until all subscriptions wait for messages."""
    gateway = Gateway(settings)
    begun_s = seen_s = time.monotonic()
    longest_s = 0.0
    await gateway.start()
    try:
        while len(gateway.deliveries._waiting) < count:
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            longest_s = max(longest_s, now_s - seen_s - LOOK_S)
            seen_s = now_s
        return {"all_wait_s": round(seen_s - begun_s, 2), "loop_held_ms": round(1000 * longest_s, 1)}
    finally:
        await gateway.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--subscriptions", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = GatewaySettings(data=Path(folder) / "data", webhook_allow="127.0.0.1")
        settings.folder.root.mkdir()
        fill(settings, given.subscriptions)
        found = asyncio.run(measure(settings, given.subscriptions))
    print(json.dumps(found) if given.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
