"""Processor time of a message in a gateway whose streams get messages rarely.

    python benchmarks/serving.py --json

runs a gateway in this process. 2,000 streams are open; what is sent on them is discarded, so the kernel's
part is not measured. A block of the match log has 200 events, each of which matches two streams; it is
written when all messages of the block before have arrived. Prints one JSON object:

message_us
    Processor time of the whole process per message, from the writing of a block to its last message; the
    median over the blocks. It depends on other load much less than wall time does: compare two checkouts
    alternately.
least_us
    The minimum over the blocks.
messages
    The total number of messages.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from live import step_of
from starlette.types import ASGIApp, Message
from streams import name_of

from fieldfare.gateway.app import create_app
from fieldfare.gateway.context import Gateway
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.model import Subscription
from fieldfare.storage import NewMatchBlock, open_match_log

BULK = 1_000
SPACE = "/v1/spaces/default"
PAD = "x" * 120
FIRST_BLOCKS = 3
"""Warm-up blocks, which are not counted."""


class Sink:
    """The common receiver of all streams, which discards their contents."""

    def __init__(self) -> None:
        self.messages = 0

    async def send(self, message: Message) -> None:
        if message.get("body", b"").startswith(b"id: "):
            self.messages += message["body"].count(b"\ndata: ")

    async def receive(self) -> Message:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("no client disconnects")


def scope_of(method: str, path: str, query: bytes = b"", kind: str = "application/json") -> dict[str, Any]:
    headers = [(b"host", b"localhost"), (b"content-type", kind.encode())]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query,
        "headers": headers,
        "state": {},
    }


async def ask(app: ASGIApp, path: str, body: bytes, kind: str = "application/json") -> None:
    """One POST."""
    statuses: list[int] = []
    bodies = iter((body,))

    async def receive() -> Message:
        return {"type": "http.request", "body": next(bodies), "more_body": False}

    async def send(message: Message) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    scope = scope_of("POST", path, kind=kind)
    scope["headers"].append((b"content-length", b"%d" % len(body)))
    await app(scope, receive, send)
    if statuses[0] >= 300:
        raise RuntimeError(f"{path} was answered with {statuses[0]}")


def lines_of(first: int, count: int) -> bytes:
    event = {"specversion": "1.0", "source": "/serving", "type": "t", "data": {"pad": PAD}}
    return b"".join(json.dumps(event | {"id": str(first + n)}).encode() + b"\n" for n in range(count))


async def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    gateway = Gateway(GatewaySettings.model_validate({"data": folder}))
    app = create_app(gateway)
    matches = open_match_log(gateway.settings.folder.matches_url).partition(0)
    count, events, sink = options.streams, options.events, Sink()
    async with app.router.lifespan_context(app):
        for first in range(0, count, BULK):
            some = [
                {"id": name_of(n), "filter": f"data.n = {n}"} for n in range(first, min(first + BULK, count))
            ]
            await ask(app, f"{SPACE}/subscriptions", json.dumps({"subscriptions": some}).encode())
        found = [gateway.registry.get("default", name_of(n)) for n in range(count)]
        numbers = np.array([each.number for each in found if isinstance(each, Subscription)], np.uint32)
        paths = [f"{SPACE}/subscriptions/{name_of(n)}/stream" for n in range(count)]
        streams = [
            asyncio.ensure_future(app(scope_of("GET", path, b"ack=auto"), sink.receive, sink.send))
            for path in paths
        ]
        while gateway.deliveries.connected < count:
            await asyncio.sleep(0.05)
        took_s: list[float] = []
        for block in range(options.blocks + FIRST_BLOCKS):
            await ask(app, f"{SPACE}/events", lines_of(block * events, events), "application/x-ndjson")
            ones = np.arange(block * events, (block + 1) * events) * step_of(count) % count
            both = np.sort(np.stack((ones, (ones + count // 2) % count), 1), 1)
            ends = np.arange(events + 1, dtype=np.int64) * 2
            new = NewMatchBlock.by_event(
                block, block + 1, np.array([events], np.int32), ends, numbers[both].ravel()
            )
            began_s = time.process_time()
            matches.write(new)
            while sink.messages < 2 * events * (block + 1):
                await asyncio.sleep(0.001)
            took_s.append((time.process_time() - began_s) / (2 * events))
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    counted = took_s[FIRST_BLOCKS:]
    return {
        "message_us": round(1e6 * statistics.median(counted), 1),
        "least_us": round(1e6 * min(counted), 1),
        "messages": sink.messages,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--streams", type=int, default=2_000, help="open streams (default: %(default)s)")
    parser.add_argument("--events", type=int, default=200, help="events of a block (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=60, help="(default: %(default)s)")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="fieldfare-serving-") as folder:
        figures = uvloop.run(measure(Path(folder), options))
    if options.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name:12} {figure}")


if __name__ == "__main__":
    main()
