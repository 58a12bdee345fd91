"""Common parts of `over_http`: a service of its own, publishers side by side, and their latencies."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from statistics import mean, quantiles
from typing import Any

from support import CLIENT, FIXED, OURS, PAPER

from fieldfare import Client
from fieldfare.client import (
    AutoBatching,
    AutotunedBatching,
    BatchPolicy,
    BatchSettings,
    FieldfareError,
    PolledBatching,
    Publisher,
    WindowedBatching,
)
from fieldfare.publishing.autotuned import AutotunedKnobs
from fieldfare.testing import LocalService
from fieldfare_lab.publishing import FixedPublisher

FIXED_SIZES = (1, 10, 50)
SAMPLE_S = 0.1
DRAIN_S = 5.0
"""Seconds after the last request, in which messages may still arrive."""


@dataclass(frozen=True, slots=True)
class Way:
    """A setting of the publisher: its name, the kind of tuner, and how to make its policy."""

    name: str
    tuner: str
    make: Callable[[], BatchPolicy]


def fixed(size: int, poll_s: float = 0.050) -> Way:
    """Fixed N and T_poll, with T = 200 ms, as in the paper's figure 8."""
    poll = "" if poll_s == 0.050 else f", T_poll = {poll_s:g} s"
    longest_s = max(0.200, poll_s)
    return Way(
        f"fixed N = {size}{poll}", FIXED, lambda: PolledBatching(FixedPublisher(size, poll_s, longest_s))
    )


def tuned(first: int = 1) -> Way:
    """The paper's tuner."""
    name = PAPER if first == 1 else f"{PAPER}, N = {first} at first"
    return Way(name, PAPER, lambda: AutotunedBatching(AutotunedKnobs(first_batch_messages=first)))


WAYS = (
    *(fixed(size) for size in FIXED_SIZES),
    Way("fixed, linger 5 ms", FIXED, lambda: BatchSettings()),
    Way("fixed, no linger, 5 in flight", FIXED, lambda: BatchSettings(10_000, linger_ms=0, max_in_flight=5)),
    tuned(),
    Way("windowed", OURS, WindowedBatching),
    Way("auto", CLIENT, AutoBatching),
)


@dataclass(slots=True)
class Sample:
    """A publisher's state: N (the maximum of a batch), its counters, and the events that wait."""

    second: float
    batch_messages: int
    requests: int
    waiting: int
    in_flight: int
    repeated: int


@dataclass(slots=True)
class Record:
    """The fates of one publisher's requests; all times in seconds since the first arrival was due."""

    due_s: list[float] = field(default_factory=list)
    acknowledged_s: dict[int, float] = field(default_factory=dict)
    delivered_s: dict[int, float] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    ended_s: float = 0.0

    def summarise(self, start_s: float, end_s: float) -> dict[str, Any]:
        """Latencies in ms of the messages that were due in a span; one that is missing is as old as it is."""
        numbers = [n for n, due_s in enumerate(self.due_s) if start_s <= due_s < end_s]
        ages_ms = [1000 * (self.delivered_s.get(n, self.ended_s) - self.due_s[n]) for n in numbers]
        durable_ms = [1000 * (self.acknowledged_s.get(n, self.ended_s) - self.due_s[n]) for n in numbers]
        cuts = quantiles(ages_ms, n=20) if len(ages_ms) > 1 else [float("nan")] * 19
        inside = [sample for sample in self.samples if start_s <= sample.second < end_s]
        requests = inside[-1].requests - inside[0].requests if inside else 0
        return {
            "latency_mean_ms": round(mean(ages_ms), 1) if ages_ms else float("nan"),
            **{f"latency_p{5 * at}_ms": round(cuts[at - 1], 1) for at in (1, 5, 10, 15, 19)},
            "acknowledged_mean_ms": round(mean(durable_ms), 1) if durable_ms else float("nan"),
            "messages": len(numbers),
            "delivered": sum(n in self.delivered_s for n in numbers),
            "requests": requests,
        }


def _serve(pipe: Connection) -> None:
    with LocalService() as service:
        pipe.send(service.url)
        with suppress(EOFError):
            pipe.recv()


@contextmanager
def running_service() -> Iterator[str]:
    """The address of a service in a process of its own: the gateway, and matching without Spark."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        yield here.recv()
    finally:
        here.close()
        process.join(10)
        if process.is_alive():
            process.terminate()


class Run:
    """Publishers side by side: each gets the same requests at the same times, over its own connection.

    Parameters
    ----------
    ways
        The settings.
    """

    def __init__(self, ways: Sequence[Way]) -> None:
        self._ways = ways
        self.records = {way.name: Record() for way in ways}
        self._start_s = 0.0

    def deliver(self, data: dict[str, Any]) -> None:
        """Note that the subscriber has read a message."""
        self.records[data["way"]].delivered_s.setdefault(data["n"], time.monotonic() - self._start_s)

    def publish(self, times_s: Sequence[float], addresses: dict[str, str]) -> dict[str, Record]:
        """Publish requests at these times, of each setting at its address; return what became of them."""
        clients = {way.name: Client(addresses[way.name]) for way in self._ways}
        publishers = {way.name: clients[way.name].publisher(way.make()) for way in self._ways}
        ended = threading.Event()
        self._start_s = time.monotonic() + 0.5
        sampler = threading.Thread(target=self._sample, args=(publishers, ended), daemon=True)
        sampler.start()
        try:
            for number, due_s in enumerate(times_s):
                time.sleep(max(0.0, self._start_s + due_s - time.monotonic()))
                for name, publisher in publishers.items():
                    self._publish(name, publisher, number, due_s)
            self._drain()
        finally:
            ended.set()
            sampler.join(5)
            for name, record in self.records.items():
                record.ended_s = time.monotonic() - self._start_s
                publishers[name].close(timeout_s=0.1)
                clients[name].close(timeout_s=0.1)
        return self.records

    def _publish(self, name: str, publisher: Publisher, number: int, due_s: float) -> None:
        record = self.records[name]
        record.due_s.append(due_s)
        event = {"source": "/publisher", "type": "request", "data": {"way": name, "n": number}}

        def note(future: Any) -> None:
            if not isinstance(future.exception(), FieldfareError):
                record.acknowledged_s[number] = time.monotonic() - self._start_s

        publisher.publish(event).add_done_callback(note)

    def _drain(self) -> None:
        until_s = time.monotonic() + DRAIN_S
        while time.monotonic() < until_s:
            if all(len(record.delivered_s) == len(record.due_s) for record in self.records.values()):
                return
            time.sleep(0.05)

    def _sample(self, publishers: dict[str, Publisher], ended: threading.Event) -> None:
        while not ended.wait(SAMPLE_S):
            for name, publisher in publishers.items():
                found = publisher.stats()
                self.records[name].samples.append(
                    Sample(
                        time.monotonic() - self._start_s,
                        found.limits.max_events,
                        found.requests,
                        found.queued_events,
                        found.in_flight_events,
                        found.repeated_requests,
                    )
                )


@contextmanager
def subscribed(url: str, run: Run) -> Iterator[None]:
    """Read all messages while the context is open: a subscriber next to the service."""
    with Client(url) as client:
        client.create_subscription("source = '/publisher'", "everything")
        ready = threading.Event()

        def read() -> None:
            with client.subscribe("everything", auto_ack=True) as messages:
                for message in messages:
                    if message.event["type"] == "end":
                        return
                    if message.event["type"] == "begin":
                        ready.set()
                    else:
                        run.deliver(message.event["data"])

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        client.publish_many([{"source": "/publisher", "type": "begin"}])
        if not ready.wait(10):
            raise RuntimeError("the subscriber got nothing within 10 s")
        try:
            yield
        finally:
            client.publish_many([{"source": "/publisher", "type": "end"}])
            thread.join(10)
