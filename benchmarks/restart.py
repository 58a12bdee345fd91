"""How long publishing and delivery pause when a service is restarted under load.

    python benchmarks/restart.py --json

runs a service with 100,000 subscriptions; 200 single events are published per second, and one subscriber
gets all of them over server-sent events. After some seconds the service is restarted. Prints one JSON object:

publish_gap_s
    The longest time between two answers to publishers. Goal: 1.
delivery_gap_s
    The longest time between two deliveries. Goal: 5.
took_s
    From the request for the restart until the new processes have replaced the old ones.
lost, doubled
    Events that were not delivered, and deliveries of an event that had been delivered. Goal: 0.

``--how`` chooses what happens: `restart` (``fieldfare restart``), `stop` (stop the service and start it
again, as a service manager does), `kill-gateway` or `kill-pipeline` (SIGKILL; it is started again).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from live import register

from fieldfare.cli.demo.service import SERVE, Service, ServicePlaces
from fieldfare.client import AsyncClient, BatchSettings

EVENTS_PER_S = 200
WARM_S = 5.0
AFTER_S = 8.0
ARRIVAL_WAIT_S = 60.0
PORT = 17738
LOOK_S = 0.05


class Load:
    """A publisher and a subscriber, and the times at which they got something."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ends = False
        self.answered_s: list[float] = []
        self.delivered_s: list[float] = []
        self.published: list[str] = []
        self.delivered: Counter[str] = Counter()

    async def publish(self) -> None:
        settings = BatchSettings(linger_ms=0, max_in_flight=16)
        async with AsyncClient(self._url) as client, client.publisher(settings) as publisher:
            begin_s, futures = time.monotonic(), []
            while not self._ends:
                number = len(futures)
                wait_s = begin_s + number / EVENTS_PER_S - time.monotonic()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                event = {"specversion": "1.0", "id": str(number), "source": "/restart", "type": "probe"}
                self.published.append(str(number))
                futures.append(publisher.publish(event))
                futures[-1].add_done_callback(lambda _: self.answered_s.append(time.monotonic()))
            await asyncio.gather(*futures)

    async def subscribe(self) -> None:
        async with (
            AsyncClient(self._url) as client,
            client.subscribe("probe", "type = 'probe'", auto_ack=True) as messages,
        ):
            async for message in messages:
                self.delivered_s.append(time.monotonic())
                self.delivered[message.event["id"]] += 1

    async def run(self, restart: Any) -> float:
        """Run the load, and `restart` on a thread in the midst of it; return the seconds that it took."""
        subscribing = asyncio.ensure_future(self.subscribe())
        await asyncio.sleep(1.0)
        publishing = asyncio.ensure_future(self.publish())
        await asyncio.sleep(WARM_S)
        began_s = time.monotonic()
        await asyncio.to_thread(restart)
        took_s = time.monotonic() - began_s
        await asyncio.sleep(AFTER_S)
        self._ends = True
        await publishing
        until_s = time.monotonic() + ARRIVAL_WAIT_S
        while len(self.delivered) < len(self.published) and time.monotonic() < until_s:
            await asyncio.sleep(LOOK_S)
        if subscribing.done():
            subscribing.result()
        subscribing.cancel()
        await asyncio.gather(subscribing, return_exceptions=True)
        # From one second before, so that the subscriber's first events do not count.
        self.answered_s = [at_s for at_s in self.answered_s if at_s > began_s - 1]
        self.delivered_s = [at_s for at_s in self.delivered_s if at_s > began_s - 1]
        return took_s


def gap_s(times_s: list[float]) -> float:
    return max(later - earlier for earlier, later in itertools.pairwise(times_s))


def restart_with(how: str, data: Path, service: Service) -> None:
    """Restart the service, and wait until it is ready again."""
    if how == "restart":
        command = [sys.executable, "-c", SERVE, "restart", "--data", str(data)]
        subprocess.run(command, check=True, stdout=sys.stderr)
    elif how == "stop":
        service.stop()
        service.__enter__()
        service.wait_until_ready()
    else:
        name = how.removeprefix("kill-")
        os.kill(int((data / "run" / f"{name}.lock").read_text().split()[0]), signal.SIGKILL)


def measured(how: str, subscriptions: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="fieldfare-restart-") as folder:
        data = Path(folder) / "data"
        with Service(data, ServicePlaces(port=PORT)) as service:
            service.wait_until_ready()
            register(service.url, subscriptions)
            service.wait_until_indexed()
            load = Load(service.url)
            took_s = asyncio.run(load.run(lambda: restart_with(how, data, service)))
    return {
        "how": how,
        "publish_gap_s": round(gap_s(load.answered_s), 2),
        "delivery_gap_s": round(gap_s(load.delivered_s), 2),
        "took_s": round(took_s, 1),
        "lost": len(set(load.published) - set(load.delivered)),
        "doubled": sum(times - 1 for times in load.delivered.values()),
        "events": len(load.published),
        "subscriptions": subscriptions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--how", choices=("restart", "stop", "kill-gateway", "kill-pipeline"), default="restart"
    )
    parser.add_argument("--subscriptions", type=int, default=100_000, help="(default: %(default)s)")
    options = parser.parse_args()
    figures = measured(options.how, options.subscriptions)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name:16} {figure}")


if __name__ == "__main__":
    main()
