"""Server-sent events from a real server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from statistics import median

import httpx
import numpy as np
from gateway_support import BATCH, EVENTS, SUBSCRIPTIONS, NaivePipeline, encode, event, served, until

from fieldfare.storage import NewMatchBlock


class Stream:
    """An open stream: its messages as (position, event), its other events by name."""

    def __init__(self, response: httpx.Response) -> None:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        self._lines = response.iter_lines()
        assert next(self._lines).startswith(":")
        assert next(self._lines) == ""

    def messages(self, count: int) -> list[tuple[str, dict]]:
        found = []
        for fields in self._events():
            found.append((fields["id"], json.loads(fields["data"])))
            if len(found) == count:
                return found
        raise AssertionError(f"the stream ended after {len(found)} of {count} messages")

    def rest(self) -> list[dict]:
        return list(self._events())

    def _events(self) -> Iterator[dict]:
        fields: dict[str, str] = {}
        for line in self._lines:
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                yield fields
                fields = {}


def subscribe(client: httpx.Client, id: str, filter: str) -> None:
    client.put(f"{SUBSCRIPTIONS}/{id}", json={"filter": filter}).raise_for_status()


def publish(client: httpx.Client, *events: dict) -> None:
    client.post(EVENTS, content=encode(list(events)), headers=BATCH).raise_for_status()


def ack(client: httpx.Client, id: str, *positions: str) -> None:
    client.post(f"{SUBSCRIPTIONS}/{id}/ack", json={"positions": positions}).raise_for_status()


def test_a_stream_goes_on_from_the_cursor_live_and_again_after_a_cut(tmp_path):
    with served(tmp_path) as (gateway, client):
        pipeline = NaivePipeline(gateway)
        subscribe(client, "a", "data.x > 0")
        publish(client, event(1, {"x": 1}), event(2, {"x": 0}), event(3, {"x": 3}))
        pipeline.step()
        with client.stream("GET", f"{SUBSCRIPTIONS}/a/stream") as response:
            stream = Stream(response)
            assert [position for position, _ in stream.messages(2)] == ["0-0-0", "0-0-2"]
            publish(client, event(4, {"x": 4}))
            pipeline.step()
            assert stream.messages(1) == [("0-1-0", event(4, {"x": 4}))]
            ack(client, "a", "0-0-0", "0-1-0")
        until(lambda: gateway.deliveries.connected == 0)
        with client.stream("GET", f"{SUBSCRIPTIONS}/a/stream") as response:
            assert [position for position, _ in Stream(response).messages(1)] == ["0-0-2"]


def test_the_window_holds_a_stream_back_until_acks_come(tmp_path):
    with served(tmp_path, heartbeat_s=0.05) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        publish(client, *(event(i, {"x": 1}) for i in range(5)))
        NaivePipeline(gateway).step()
        with client.stream("GET", f"{SUBSCRIPTIONS}/a/stream", params={"window": 2}) as response:
            stream = Stream(response)
            assert [each[0] for each in stream.messages(2)] == ["0-0-0", "0-0-1"]
            given = gateway.metrics.delivered_total
            time.sleep(0.2)  # several heartbeats: it had the time, and gave nothing
            assert gateway.metrics.delivered_total == given == 2
            ack(client, "a", "0-0-1")
            assert [each[0] for each in stream.messages(1)] == ["0-0-2"]


def test_a_stream_waits_for_an_ack_where_the_next_event_does_not_fit_into_its_bytes(tmp_path):
    with served(tmp_path) as (gateway, client):
        settings = {"filter": "data.x = 1", "delivery": {"max_in_flight_bytes": 20_000}}
        client.put(f"{SUBSCRIPTIONS}/a", json=settings).raise_for_status()
        publish(client, *(event(i, {"x": 1, "text": "x" * (9_000 if i > 4 else 1)}) for i in range(10)))
        NaivePipeline(gateway).step()
        with client.stream("GET", f"{SUBSCRIPTIONS}/a/stream") as response:
            stream = Stream(response)
            found = stream.messages(6)
            for at in range(6, 10):
                ack(client, "a", *(place for place, _ in found[: at - 1]))
                found += stream.messages(1)
                delivery = gateway.deliveries.loaded[1]
                assert delivery._leases._size_bytes <= 20_000
            assert [each["id"] for _, each in found] == [str(i) for i in range(10)]


def test_unacked_messages_come_again_on_the_same_stream_after_their_deadline(tmp_path):
    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        publish(client, event(1, {"x": 1}))
        NaivePipeline(gateway).step()
        with client.stream("GET", f"{SUBSCRIPTIONS}/a/stream", params={"ack_deadline_s": 0.1}) as response:
            assert [each[0] for each in Stream(response).messages(2)] == ["0-0-0", "0-0-0"]


def test_a_deleted_subscription_ends_its_streams_by_name(tmp_path):
    with served(tmp_path) as (_, client):
        subscribe(client, "a", "data.x = 1")
        with client.stream("GET", f"{SUBSCRIPTIONS}/a/stream") as response:
            stream = Stream(response)
            client.delete(f"{SUBSCRIPTIONS}/a").raise_for_status()
            assert stream.rest() == [{"event": "deleted", "data": "{}"}]
        assert client.get(f"{SUBSCRIPTIONS}/a/stream").status_code == 404
        assert client.get(f"{SUBSCRIPTIONS}/a/stream", params={"window": 0}).status_code == 404


def test_streams_end_when_the_gateway_stops(tmp_path):
    ended = threading.Event()
    with served(tmp_path) as (_, client):
        subscribe(client, "a", "data.x = 1")
        opened = threading.Event()

        def follow() -> None:
            with (
                httpx.Client(base_url=client.base_url, timeout=60) as mine,
                mine.stream("GET", f"{SUBSCRIPTIONS}/a/stream") as response,
            ):
                stream = Stream(response)
                opened.set()
                assert stream.rest() == []
                ended.set()

        thread = threading.Thread(target=follow)
        thread.start()
        assert opened.wait(60)
    thread.join(60)
    assert ended.is_set()


def test_fifty_streams_cost_few_looks_into_a_block_and_only_those_who_matched_are_woken(tmp_path):
    with served(tmp_path) as (gateway, client):
        for i in range(50):
            subscribe(client, f"s{i}", f"data.x = {i % 10}")
        pipeline = NaivePipeline(gateway)
        looks = []
        original = gateway.tail.block_at

        def counted(partition: int, offset: int) -> object:
            block = original(partition, offset)
            if block is not None:
                looks.append(offset)
            return block

        gateway.tail.block_at = counted
        responses = []
        try:
            streams = []
            for i in range(50):
                request = client.build_request("GET", f"{SUBSCRIPTIONS}/s{i}/stream")
                responses.append(client.send(request, stream=True))
                streams.append(Stream(responses[-1]))
            until(lambda: len(gateway.deliveries._waiting) == 50)
            publish(client, event(1, {"x": 3}))
            pipeline.step()
            for i in range(3, 50, 10):
                assert streams[i].messages(1)[0][0] == "0-0-0"
            assert gateway.metrics.delivered_total == 5
            assert looks.count(0) <= 3
        finally:
            for response in responses:
                response.close()
        until(lambda: gateway.deliveries.connected == 0)


def test_a_message_leaves_within_milliseconds_of_its_block(tmp_path):
    """From the block's file to the client: the median, because the machine may be busy."""
    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        pipeline = NaivePipeline(gateway)
        latencies_s, requests_s = [], []
        with client.stream("GET", f"{SUBSCRIPTIONS}/a/stream") as response:
            stream = Stream(response)
            for i in range(40):
                publish(client, event(i, {"x": 1}))
                pipeline.step()
                start_s = time.perf_counter()
                stream.messages(1)
                latencies_s.append(time.perf_counter() - start_s)
                start_s = time.perf_counter()
                assert client.get("/healthz").status_code == 200
                requests_s.append(time.perf_counter() - start_s)
        assert median(latencies_s) < 0.02 + 3 * median(requests_s)


def test_a_busy_stream_gives_every_message_once_and_in_order(tmp_path):
    count, batch = 20_000, 1_000
    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        number = gateway.registry.get("default", "a").number
        for first in range(0, count, batch):
            publish(client, *(event(i, {"x": 1}) for i in range(first, first + batch)))
        records = count // batch
        gateway.match_log.write(
            NewMatchBlock.by_event(
                0,
                records,
                np.full(records, batch, np.int32),
                np.arange(count + 1, dtype=np.int64),
                np.full(count, number, np.uint32),
            )
        )
        start_s = time.perf_counter()
        with client.stream("GET", f"{SUBSCRIPTIONS}/a/stream", params={"window": 20_000}) as response:
            found = Stream(response).messages(count)
        seconds = time.perf_counter() - start_s
        assert [position for position, _ in found] == [f"0-{i // batch}-{i % batch}" for i in range(count)]
        assert [each["id"] for _, each in found] == [str(i) for i in range(count)]
        client.post(f"{SUBSCRIPTIONS}/a/ack", json={"up_to": found[-1][0]}).raise_for_status()
        print(f"{count / seconds:.0f} messages/s, parsed by the test")
