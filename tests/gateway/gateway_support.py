"""What the gateway's tests share: a running gateway, and a pipeline that matches with the evaluator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from fieldfare.filters import compile_filter
from fieldfare.gateway.admission.connections import server_config
from fieldfare.gateway.app import create_app
from fieldfare.gateway.context import Gateway
from fieldfare.gateway.delivery.record_lines import all_lines
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.model import interest_key, is_forwarded
from fieldfare.runtimes.process.listening import listening_socket
from fieldfare.storage import NewMatchBlock

DEADLINE_S = 60.0
EVENTS = "/v1/spaces/default/events"
SUBSCRIPTIONS = "/v1/spaces/default/subscriptions"
BATCH = {"content-type": "application/cloudevents-batch+json"}
LINES = {"content-type": "application/x-ndjson"}
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
STRUCTURED = {"content-type": "application/cloudevents+json"}


def event(id: Any = "1", data: Any = None, **attributes: Any) -> dict[str, Any]:
    """A valid CloudEvent."""
    return {"specversion": "1.0", "id": str(id), "source": "/test", "type": "t", "data": data, **attributes}


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class NaivePipeline:
    """Matches the log with the filters' evaluator, one block a call."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._filters: dict[tuple[str, str], Any] = {}

    def step(self, records: int = 1 << 30) -> int:
        """Match what the log holds beyond the match log; returns the match log's new end."""
        gateway = self._gateway
        start = gateway.match_log.end(gateway.log.start())
        found = list(gateway.log.read(start, min(gateway.log.end(), start + records)))
        if not found:
            return start
        versions = list(gateway.registry.versions(gateway.registry.revision(), 0))
        counts, lengths, numbers, spaces = [], [], [], Counter[str]()
        for record in found:
            counts += [0] * (record.offset - start - len(counts))
            counts.append(record.count)
            for line in all_lines(record.payload):
                matched = sorted(
                    {
                        version.destination or version.number
                        for version in versions
                        if (
                            version.space == record.space
                            or (version.space == interest_key(record.space) and is_forwarded(record.origin))
                        )
                        and version.revision <= record.stamp < version.closed_by
                        and self._filter(version.filter, version.dialect).matches(json.loads(line))
                    }
                )
                lengths.append(len(matched))
                numbers += matched
                spaces[record.space] += len(matched)
        end = found[-1].offset + 1
        block = NewMatchBlock.by_event(
            start,
            end,
            np.array(counts, np.int32),
            np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
            np.array(numbers, np.uint32),
            {"appended_ms": found[0].appended_ms, "matched_ms": time.time_ns() // 1_000_000},
        )
        gateway.match_log.write(replace(block, spaces=spaces))
        return end

    def beat(self, offset: int | None = None, state: str = "running") -> None:
        """Write the heartbeat; everything in the match log is committed, or up to an offset."""
        gateway = self._gateway
        if offset is None:
            offset = gateway.match_log.end(gateway.log.start())
        beat = {"pid": 1, "state": state, "time_ms": time.time_ns() // 1_000_000, "offset": offset}
        for who in ("pipeline", "indexer"):
            gateway.settings.folder.heartbeat_of(who).write_bytes(encode(beat))

    def _filter(self, text: str, dialect: str) -> Any:
        if (text, dialect) not in self._filters:
            self._filters[text, dialect] = compile_filter(text, dialect)
        return self._filters[text, dialect]


class Running:
    """A gateway in this process, spoken to without a network."""

    def __init__(self, gateway: Gateway, app: Starlette, client: httpx.AsyncClient) -> None:
        self.gateway = gateway
        self.routes = [route for route in app.routes if isinstance(route, Route)]
        self.client = client
        self.pipeline = NaivePipeline(gateway)

    async def publish(self, *events: dict[str, Any], space: str = "default") -> dict[str, Any]:
        answer = await self.client.post(
            f"/v1/spaces/{space}/events", content=encode(list(events)), headers=BATCH
        )
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def subscribe(self, id: str, filter: str) -> dict[str, Any]:
        answer = await self.client.put(f"{SUBSCRIPTIONS}/{id}", json={"filter": filter})
        assert answer.status_code in (200, 201), answer.text
        return dict(answer.json())

    async def pull(self, id: str, **body: Any) -> list[dict[str, Any]]:
        answer = await self.client.post(f"{SUBSCRIPTIONS}/{id}/pull", json=body)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["messages"])

    async def ack(self, id: str, *positions: str) -> str:
        answer = await self.client.post(f"{SUBSCRIPTIONS}/{id}/ack", json={"positions": positions})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["cursor"])


@contextlib.asynccontextmanager
async def running(data: Path, **settings: Any) -> AsyncIterator[Running]:
    """Open a gateway on a data directory and close it in the end."""
    gateway = Gateway(GatewaySettings.model_validate({"data": Path(data), **settings}))
    app = create_app(gateway)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield Running(gateway, app, client)


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Run an asynchronous test to its end, which must come soon."""

    async def limited() -> None:
        await asyncio.wait_for(work(), DEADLINE_S)  # type: ignore[arg-type]

    asyncio.run(limited())


class _Server(uvicorn.Server):
    """Ends the open streams when it stops, on its own event loop, as the gateway's process does."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.stop_requests()
        await super().shutdown(sockets)


@contextlib.contextmanager
def served(
    data: Path, *, loop: Literal["auto", "asyncio"] = "auto", **settings: Any
) -> Iterator[tuple[Gateway, httpx.Client]]:
    """A gateway behind a real server on a free port, with a client for it."""
    gateway = Gateway(GatewaySettings.model_validate({"data": Path(data), **settings}))
    tls = gateway.certificates
    config = server_config(create_app(gateway), gateway.settings, tls, loop=loop, timeout_graceful_shutdown=5)
    server = _Server(config, gateway)
    listener = listening_socket("127.0.0.1", 0)
    port = listener.getsockname()[1]
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        until(lambda: server.started)
        url = f"http://127.0.0.1:{port}" if tls is None else f"https://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=DEADLINE_S, verify=False) as client:
            yield gateway, client
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def until(condition: Callable[[], Any]) -> Any:
    """Wait for a condition; fail when it does not come true in time."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "it did not come true in time"
        time.sleep(0.005)
    return found


async def until_async(condition: Callable[[], Any]) -> Any:
    """Wait for a condition in an asynchronous test; fail when it does not come true in time."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "it did not come true in time"
        await asyncio.sleep(0.002)
    return found
