"""Helpers of the gateway's tests: a running gateway, and a pipeline that matches with the evaluator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
from starlette.applications import Starlette
from starlette.routing import Route

from fieldfare.gateway.admission.connections import server_config
from fieldfare.gateway.app import create_app
from fieldfare.gateway.context import Gateway
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.runtimes.process.listening import listening_socket
from fieldfare.testing import naive_pipeline
from fieldfare.testing.local_service import GatewayServer

DEADLINE_S = 180.0
BEAT_S = 0.2
"""Seconds between two heartbeats while nothing is matched: each writes two files."""
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


class NaivePipeline(naive_pipeline.NaivePipeline):
    """Matches a gateway's log with the filters' evaluator, one block a call."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway.log, gateway.registry, gateway.match_log, gateway.settings.folder)


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
    """Open a gateway on a data directory and close it at the end."""
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


@contextlib.contextmanager
def served(
    data: Path, *, loop: Literal["auto", "asyncio"] = "auto", **settings: Any
) -> Iterator[tuple[Gateway, httpx.Client]]:
    """A gateway behind a real server on a free port, with a client for it."""
    gateway = Gateway(GatewaySettings.model_validate({"data": Path(data), **settings}))
    tls = gateway.certificates
    config = server_config(create_app(gateway), gateway.settings, tls, loop=loop, timeout_graceful_shutdown=5)
    server = GatewayServer(config, gateway)
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


def pauses() -> Iterator[float]:
    """Seconds between two looks at a condition, ever longer: a look takes time from what is waited for."""
    pause_s, deadline_s = 0.001, time.monotonic() + DEADLINE_S
    while True:
        assert time.monotonic() < deadline_s, "it did not come true in time"
        yield pause_s
        pause_s = min(1.3 * pause_s, 0.05)


def until(condition: Callable[[], Any]) -> Any:
    """Wait for a condition; fail when it does not come true in time."""
    waits = pauses()
    while not (found := condition()):
        time.sleep(next(waits))
    return found


async def until_async(condition: Callable[[], Any]) -> Any:
    """Wait for a condition in an asynchronous test; fail when it does not come true in time."""
    waits = pauses()
    while not (found := condition()):
        await asyncio.sleep(next(waits))
    return found


@contextlib.contextmanager
def matching(gateway: Gateway) -> Iterator[None]:
    """A pipeline that matches what arrives, when the log's bell rings, and writes heartbeats."""
    pipeline, ends = NaivePipeline(gateway), threading.Event()
    waiter = gateway.log.listen({0: 0})

    def run() -> None:
        matched, beat_s = -1, 0.0
        while not ends.is_set():
            waiter.clear()
            before, matched = matched, pipeline.step()
            if matched != before or time.monotonic() - beat_s > BEAT_S:
                pipeline.beat()
                beat_s = time.monotonic()
            if matched == before:
                waiter.wait(BEAT_S)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        waiter.set()
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "matching did not end"
        waiter.close()
