"""Ways to publish, all with the same interface: fieldfare's publisher, a plain loop, Kafka's producer."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import httpx

from fieldfare import Client
from fieldfare.client import BatchPolicy, FlushTimeout
from fieldfare.client.encoding import encode_event

EVENT = {"source": "/bench", "type": "t", "data": {"price": 17.25, "pad": "x" * 150}}

Done = Callable[[], None]


class Sender(Protocol):
    """One way to publish `EVENT`."""

    def send(self, done: Done | None = None) -> None:
        """Pass one event; `done` is called when it is durable."""

    def acknowledged(self) -> int:
        """The number of durable events."""

    def waiting(self) -> int:
        """The number of events that were passed and are not durable yet."""

    def trouble(self) -> str:
        """The error of the last request, if it failed."""

    def flush(self, timeout_s: float) -> None:
        """Wait until no event is pending, or for some seconds."""

    def close(self) -> None:
        """Discard the pending events."""


class FieldfareSender:
    """The client's publisher with a policy, which is made for it: a tuner begins without any knowledge."""

    def __init__(self, url: str, make_policy: Callable[[], BatchPolicy]) -> None:
        self._client = Client(url)
        self._publisher = self._client.publisher(make_policy())

    def send(self, done: Done | None = None) -> None:
        future = self._publisher.publish(EVENT)
        if done is not None:
            future.add_done_callback(lambda _: done())

    def acknowledged(self) -> int:
        return self._publisher.stats().acknowledged_events

    def waiting(self) -> int:
        stats = self._publisher.stats()
        return stats.queued_events + stats.in_flight_events

    def trouble(self) -> str:
        return self._publisher.stats().trouble or "no request failed"

    def flush(self, timeout_s: float) -> None:
        with suppress(FlushTimeout):
            self._publisher.flush(timeout_s)

    def close(self) -> None:
        self._publisher.close(timeout_s=0.01)
        self._client.close(timeout_s=0.01)


class _Counting:
    def __init__(self) -> None:
        self._sent = self._acknowledged = 0

    def acknowledged(self) -> int:
        return self._acknowledged

    def waiting(self) -> int:
        return self._sent - self._acknowledged

    def trouble(self) -> str:
        return "its errors are not known"

    def flush(self, timeout_s: float) -> None:
        end_s = time.monotonic() + timeout_s
        while self.waiting() and time.monotonic() < end_s:
            time.sleep(0.001)


class PlainLoopSender(_Counting):
    """A program without a publisher: sends some events in one request, waits for the answer, repeats."""

    def __init__(self, url: str, events: int) -> None:
        super().__init__()
        self._http = httpx.Client(base_url=url)
        self._events = events
        self._queue: deque[tuple[bytes, Done | None]] = deque()
        self._there_is_more = threading.Condition()
        self._is_open = True
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, done: Done | None = None) -> None:
        with self._there_is_more:
            self._sent += 1
            self._queue.append((encode_event(EVENT), done))
            if len(self._queue) >= self._events:
                self._there_is_more.notify()

    def close(self) -> None:
        with self._there_is_more:
            self._is_open = False
            self._there_is_more.notify()
        self._thread.join(10)
        self._http.close()

    def _run(self) -> None:
        headers = {"content-type": "application/x-ndjson"}
        while True:
            with self._there_is_more:
                self._there_is_more.wait_for(lambda: len(self._queue) >= self._events or not self._is_open)
                if not self._is_open:
                    return
                batch = [self._queue.popleft() for _ in range(self._events)]
            body = b"".join(line + b"\n" for line, _ in batch)
            self._http.post("/v1/spaces/default/events", content=body, headers=headers).raise_for_status()
            self._acknowledged += len(batch)
            for _, done in batch:
                if done is not None:
                    done()


class KafkaSender(_Counting):
    """confluent-kafka's producer with its defaults, but it keeps order (idempotence, and so acks=all)."""

    def __init__(self, address: str, topic: str) -> None:
        super().__init__()
        from confluent_kafka import Producer  # Not a dependency: the caller has checked that it is installed.

        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": address, "enable.idempotence": True, "acks": "all"}, logger=None
        )
        self._is_open = True
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()
        self.send()  # Connecting takes several round trips, and a new broker needs some time.
        self.flush(30.0)

    def send(self, done: Done | None = None) -> None:
        def delivered(error: Any, _: object) -> None:
            if error is not None:
                if self._is_open:
                    raise RuntimeError(str(error))
                return
            self._acknowledged += 1
            if done is not None:
                done()

        self._sent += 1
        while True:
            try:
                self._producer.produce(self._topic, encode_event(EVENT), on_delivery=delivered)
                return
            except BufferError:  # The producer's queue is full.
                time.sleep(0.001)

    def close(self) -> None:
        self._is_open = False
        self._thread.join(10)
        self._producer.purge()
        self._producer.flush(1)

    def _poll(self) -> None:
        while self._is_open:
            self._producer.poll(0.1)
