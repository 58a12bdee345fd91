"""Heartbeats of idle streams: one timer serves all of them, and none that has ended."""

from __future__ import annotations

import httpx
from gateway_support import SUBSCRIPTIONS, run, served, until_async
from test_streams import subscribe

from fieldfare.gateway.transports.heartbeats import BEATS_BATCH_SIZE, Heartbeats


class Stream:
    """Counts its heartbeats."""

    def __init__(self) -> None:
        self.told = 0

    def beat(self) -> None:
        self.told += 1


def test_every_silent_stream_is_told_again_and_again_until_it_ends():
    async def work() -> None:
        beats = Heartbeats(0.01)
        first, *others = streams = [Stream() for _ in range(2 * BEATS_BATCH_SIZE + 7)]
        for stream in streams:
            beats.sent(stream)
        await until_async(lambda: min(stream.told for stream in streams) >= 3)
        for stream in others:
            beats.ended(stream)
        ended, before = [stream.told for stream in others], first.told
        await until_async(lambda: first.told >= before + 3)
        assert [stream.told for stream in others] == ended
        beats.ended(first)

    run(work)


def test_an_idle_stream_shows_its_client_that_the_connection_stands(tmp_path):
    with served(tmp_path, heartbeat_s=0.02) as (_, client):
        subscribe(client, "a", "data.x = 1")
        with client.stream("GET", f"{SUBSCRIPTIONS}/a/stream", timeout=httpx.Timeout(60)) as response:
            found = b""
            for chunk in response.iter_raw():
                found += chunk
                if found.count(b"\n:\n\n") >= 3:
                    break
            assert found.startswith(b": fieldfare\n\n:\n\n")
