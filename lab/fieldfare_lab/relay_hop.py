"""A relay in a process of its own, and both of its neighbours, played by this one with the links' protocol.

a ──Batch──▶ hub (fieldfare relay) ──Batch──▶ b
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fieldfare.encodings import GZIP, unpack
from fieldfare.gateway.federation.wire import (
    MEDIA_TYPE,
    VERSION,
    Answer,
    Batch,
    Destination,
    Events,
    Row,
    decode_answer,
    decode_batch,
    encoder,
)
from fieldfare.gateway.peers import DDBR
from fieldfare.runtimes.process.listening import listening_socket

WAIT_S = 30.0
BODY_MAX_BYTES = 16 << 20
ROWS = (Row("a", "identity-a", 1, ("hub",)), Row("b", "identity-b", 1, ("hub",)))


class RelayHop:
    """Starts the relay and its neighbours; used with `with`.

    Attributes
    ----------
    ready_s
        Seconds from the start of the relay's process to its first answer.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listener = listening_socket("127.0.0.1", 0)
        port = self._listener.getsockname()[1]
        free = listening_socket("127.0.0.1", 0)
        self._url = f"http://127.0.0.1:{free.getsockname()[1]}"
        free.close()
        self._command = [sys.executable, "-m", "fieldfare", "relay", "--data", str(folder / "hub")]
        self._command += ["--broker", "hub", "--port", self._url.rpartition(":")[2]]
        for name in "ab":
            self._command += ["--peer", f"{name}=http://127.0.0.1:{port}/{name}"]
        route = Route("/{me}/v1/brokers/hub/entries", self._receive, methods=["POST"])
        config = uvicorn.Config(Starlette(routes=[route]), log_config=None, access_log=False)
        self._server = uvicorn.Server(config)
        self._came_s: dict[int, float] = {}
        self._watermarks = dict.fromkeys("ab", 0)
        self.ready_s = 0.0

    def __enter__(self) -> RelayHop:
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],))
        self._thread.start()
        begun_s = time.monotonic()
        log = (self._folder / "hub.log").open("wb")
        environment = {**os.environ, "PATH": ""}
        self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)
        while self._state("/healthz") is None:
            if self._process.poll() is not None or time.monotonic() - begun_s > WAIT_S:
                raise RuntimeError((self._folder / "hub.log").read_text())
            time.sleep(0.01)
        self.ready_s = time.monotonic() - begun_s
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(WAIT_S)
        self._server.should_exit = True
        self._thread.join(WAIT_S)

    def _state(self, path: str) -> dict[str, object] | None:
        try:
            return dict(httpx.get(f"{self._url}{path}", timeout=1).json())
        except httpx.HTTPError:
            return None

    def pss_mb(self) -> float:
        """Return the relay's proportional share of memory, in MB."""
        lines = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text().splitlines()
        return round(next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000, 1)

    async def _receive(self, request: Request) -> Response:
        """Take a batch of the relay as its neighbour."""
        body = await request.body()
        now_s = time.monotonic()
        if request.headers.get("content-encoding") == GZIP:
            body = bytes(unpack(body, GZIP, BODY_MAX_BYTES))
        batch, entries = decode_batch(body)
        me = request.path_params["me"]
        for entry in entries:
            if isinstance(entry, Events):
                for line in entry.payload.splitlines():
                    self._came_s.setdefault(json.loads(line)["data"]["number"], now_s)
        if entries:
            self._watermarks[me] = batch.first + len(entries) - 1
        answer = Answer(VERSION, me, f"identity-{me}", self._watermarks[me], batch.digest, ROWS)
        return Response(encoder.encode(answer), media_type=MEDIA_TYPE)

    def run(self, count: int, rate_per_s: float) -> list[float]:
        """Send events over the relay, one a request; return how long each took, in ms."""
        return asyncio.run(self._run(count, rate_per_s))

    async def _run(self, count: int, rate_per_s: float) -> list[float]:
        sent_s: list[float] = []
        async with httpx.AsyncClient(headers={"Content-Type": MEDIA_TYPE}, timeout=WAIT_S) as client:
            digest = await self._join(client)
            begun_s = time.monotonic()
            sending: list[asyncio.Task[None]] = []
            for number in range(count):
                await asyncio.sleep(max(0.0, begun_s + number / rate_per_s - time.monotonic()))
                if sending:  # In order, as a link sends them; a late answer delays the next.
                    await sending[-1]
                sent_s.append(time.monotonic())
                sending.append(asyncio.create_task(self._send(client, number, digest)))
            await asyncio.gather(*sending)
            deadline_s = time.monotonic() + WAIT_S
            while len(self._came_s) < count:
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"{count - len(self._came_s)} events have not come")
                await asyncio.sleep(0.05)
        return [1000 * (self._came_s[number] - sent_s[number]) for number in range(count)]

    async def _join(self, client: httpx.AsyncClient) -> str:
        """Tell the relay both rows, and wait until it has a path to b."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            answer = await self._post(client, Batch(VERSION, *self._names, 1, (), "", ROWS))
            state = (await client.get(f"{self._url}/v1/brokers")).json()
            if any(each["name"] == "b" and each["next_hop"] for each in state["brokers"]):
                return answer.digest
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the relay has no path: {state}")
            await asyncio.sleep(0.1)

    _names = ("a", "identity-a", "hub", DDBR)

    async def _send(self, client: httpx.AsyncClient, number: int, digest: str) -> None:
        data = {"number": number, "pad": "x" * 120}
        event = {"specversion": "1.0", "id": str(number), "source": "/hop", "type": "paced", "data": data}
        payload = json.dumps(event).encode() + b"\n"
        to = (Destination("b", 1, number + 1),)
        entry = encoder.encode(Events("a", to, "default", 0, number, 1, 1, payload))
        await self._post(client, Batch(VERSION, *self._names, number + 1, (msgspec.Raw(entry),), digest))

    async def _post(self, client: httpx.AsyncClient, batch: Batch) -> Answer:
        response = await client.post(f"{self._url}/v1/brokers/a/entries", content=encoder.encode(batch))
        if response.status_code != 200:
            raise RuntimeError(f"the relay answered {response.status_code}: {response.text[:300]}")
        return decode_answer(response.content)
