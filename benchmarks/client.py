"""Events per second that the client sends and receives, with a server that does almost nothing.

    python benchmarks/client.py [--json] [--events N]

The server is a separate process. It counts the lines of a request and answers, or writes a stream of
prepared messages. The figures are events per second of wall time, and events per second of the client's own
CPU time, which is the rate that the client would reach on a core that does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from fieldfare import AsyncClient, BatchSettings, Client

PAD = "x" * 230
EVENT = {"source": "/q", "type": "t", "data": {"price": 17.25, "pad": PAD}}
MESSAGE = json.dumps({"specversion": "1.0", "id": "1", **EVENT}, separators=(",", ":")).encode()


class Sink(asyncio.Protocol):
    """A server with just enough HTTP/1.1 for one client."""

    offset = 0

    def __init__(self, messages: int) -> None:
        self._rest = bytearray()
        self._messages = messages

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while (end := self._rest.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._rest[:end]).lower()
            at = head.find(b"content-length: ")
            size = int(head[at + 16 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._rest) < end + 4 + size:
                return
            body = bytes(self._rest[end + 4 : end + 4 + size])
            del self._rest[: end + 4 + size]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if b"/stream?" in head:
            self._streaming = asyncio.create_task(self._stream())
            return
        text = b'{"partition":0,"offset":%d,"count":%d,"duplicate":false}' % (Sink.offset, body.count(b"\n"))
        Sink.offset += 1
        self._write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text) + text)

    async def _stream(self) -> None:
        self._write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for start in range(0, self._messages, 500):
            frames = (b"id: 0-%d-%d\ndata: %s\n\n" % (start, index, MESSAGE) for index in range(500))
            part = b"".join(frames)
            self._write(b"%x\r\n%s\r\n" % (len(part), part))
            while self._transport.get_write_buffer_size() > 1 << 20:  # type: ignore[attr-defined]
                await asyncio.sleep(0.001)

    def _write(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]


def serve(pipe: Connection, messages: int) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Sink(messages), "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def measure(name: str, events: int, work: Callable[[], None]) -> dict[str, float]:
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    work()
    took_s, took_cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    return {
        f"{name}_per_s": round(events / took_s),
        f"{name}_per_cpu_s": round(events / took_cpu_s),
    }


def run_all(url: str, events: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    with Client(url) as client:
        client.publish_many([MESSAGE] * 1000)
        figures |= measure("publish_many_encoded", events, lambda: _in_slices(client, [MESSAGE] * events))
        figures |= measure("publish_many_dicts", events, lambda: _in_slices(client, [EVENT] * events))

        def one_by_one(event: object) -> None:
            for _ in range(events):
                client.publish(event)  # type: ignore[arg-type]
            client.flush()

        figures |= measure("publish_encoded", events, lambda: one_by_one(MESSAGE))
        figures |= measure("publish_dicts", events, lambda: one_by_one(EVENT))

        def receive(ack: bool) -> None:
            with client.subscribe("bench") as messages:
                for count, message in enumerate(messages, start=1):
                    if ack:
                        message.ack()
                    if count == events:
                        return

        figures |= measure("receive", events, lambda: receive(False))
        figures |= measure("receive_and_ack", events, lambda: receive(True))

    async def asynchronously() -> None:
        async with AsyncClient(url, batch=BatchSettings()) as client:
            for start in range(0, events, 10_000):
                await client.publish_many([EVENT] * min(10_000, events - start))

    figures |= measure("async_publish_many_dicts", events, lambda: asyncio.run(asynchronously()))
    return figures


def _in_slices(client: Client, events: list[object]) -> None:
    for start in range(0, len(events), 20_000):
        client.publish_many(events[start : start + 20_000])  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--events", type=int, default=100_000, help="events per measurement")
    options = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(there, options.events), daemon=True
    )
    server.start()
    try:
        figures = run_all(f"http://127.0.0.1:{here.recv()}", options.events)
    finally:
        server.terminate()
    figures["event_bytes"] = len(MESSAGE)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:<32}{value:>12,.0f}")


if __name__ == "__main__":
    main()
