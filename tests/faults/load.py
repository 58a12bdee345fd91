"""A seeded load on a service that suffers: publishers, changers and readers check all they are told.

Several spaces have publishers of one name that count the same sequences, with one request under way or
five; events come as JSON and as Arrow, a few at a time and ten thousand; streams and pulls read. What anybody
is answered goes into the ledger, and what a subscription is given is checked against it on arrival: the right
event, of the right space, in order, at one place only, matched by the filter that stood, and not acked
before. `Load.finish` waits for the rest.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import pyarrow as pa
from ledger import Event, Fault, Key, Ledger, hold
from pipeline_support import TYPED, random_event, random_filter, typed_event
from readers import (
    CHANGED,
    RETRY_S,
    Actor,
    Called,
    Conversant,
    Historian,
    Puller,
    Reader,
    Stopped,
    Streamer,
)
from service_support import ARROW, LINES, Api, RunningService, cloud_event, until
from wire import Wire

from fieldfare.client.in_flight import InFlight
from fieldfare.model import Position

PACE_S = 0.01
SMALL_EVENTS_MAX = 8
LARGE_EVENTS = 10_000
DELIVERED_S = 400.0
PRODUCER = "p"
"""The name of every space's publisher."""
UNDER_WAY_MAX = 5
CHANGES_ITS_WAY = 0.03
"""The chance, before each request, that a publisher may have another number of them under way from now on."""

COLUMNS = [pa.field(name, pa.string()) for name in ("specversion", "id", "source", "type")]
SMALL = pa.schema([*COLUMNS, pa.field("data", pa.struct([*TYPED.field("data").type, ("n", pa.int64())]))])
LARGE = pa.schema([*COLUMNS, pa.field("data", pa.struct({"n": pa.int64(), "bulk": pa.int64()}))])

FILTERS = {
    "streamed": "data.x >= 2",
    "pulled": "data.word LIKE 'a%' OR data.y < 3",
    "sparse": "data.bulk < 3 OR data.x = 5",
    "called": "data.bulk < 3 OR data.flag = TRUE",
}
"""What stands in every space, and is read all the time."""

MAY_REFUSE = {
    *((429, "overloaded"), (503, "disk-full"), (503, "storage"), (503, "stopping"), (503, "not-matched")),
}
"""The answers that say that something cannot be done now."""


class Publisher(Actor):
    """Publishes numbered events; what was not acknowledged is sent again with the same sequence.

    For a while it has one request under way, and says nothing of order; for a while several, each of which
    says what it follows, as the client's do.

    Attributes
    ----------
    most_at_once
        How many requests it has had under way at the same time.
    came_early
        How many were told that what they follow was not there yet.
    """

    def __init__(self, load: Load, place: int, space: str, seed: str) -> None:
        super().__init__(load, space, seed)
        self._number = place * 10**9
        self._sequence = 0
        self._under_way_max = 1 if place % 2 else UNDER_WAY_MAX
        self._under_way: deque[Future[None]] = deque()
        self._senders = ThreadPoolExecutor(UNDER_WAY_MAX)
        self._order, self._order_lock = InFlight(), threading.Lock()
        self.most_at_once = self.came_early = 0

    def act(self) -> None:
        # However long the pipeline is away: that nothing comes any more is for others to notice.
        until(self._has_room, float("inf"))
        if self.random.random() < CHANGES_ITS_WAY:
            self.end_begun()
            self._under_way_max = self.random.choice((1, 2, UNDER_WAY_MAX))
        while len(self._under_way) >= self._under_way_max or (self._under_way and self._under_way[0].done()):
            self._under_way.popleft().result()
        events, content, headers = self._draw()
        headers |= {"fieldfare-producer": PRODUCER, "fieldfare-sequence": str(self._sequence)}
        self.ledger.sending(self.space, events)
        with self._order_lock:
            self._order.add(self._sequence)
        sent = self._sequence, events, content, headers
        self._under_way.append(self._senders.submit(self._append, *sent, self._under_way_max > 1))
        self.most_at_once = max(self.most_at_once, sum(not each.done() for each in self._under_way))
        self._sequence += 1
        self.stopping.wait(self.load.pace_s)

    def end_begun(self) -> None:
        """Wait until every request under way is acknowledged."""
        while self._under_way:
            self._under_way.popleft().result()

    def stop(self) -> None:
        self.pause()
        super().stop()
        self._senders.shutdown()

    def _append(
        self, sequence: int, events: list[Event], content: bytes, headers: dict[str, str], is_behind: bool
    ) -> None:
        """Send one until it is acknowledged; one that came too early again and again."""
        where, repeats = f"{self.space}: sequence {sequence}", 0
        while True:
            with self._order_lock:
                follows, front = self._order.follows(sequence), self._order.front
            order = {"fieldfare-follows": str(follows)} if is_behind else {}
            answer, tries = self.call("POST", "/events", content=content, headers=headers | order)
            document = answer.json()
            repeats += tries - 1
            if answer.status_code == 200:
                break
            is_early = is_behind and document["type"].endswith(":out-of-order")
            hold(is_early and document["newest"] < sequence, "wrong", f"{where}: {answer.text}")
            self.came_early += 1
            with self._order_lock:
                if front == sequence:
                    self._order.learn(sequence, document["newest"])
            if self.stopping.wait(RETRY_S):
                raise Stopped
        hold(repeats > 0 or not document["duplicate"], "wrong", f"{where} was taken for a repeat: {document}")
        assert document["count"] == len(events), document
        place = document["offset"], document["stamp"]
        self.ledger.acknowledge(self.space, *place, events, len(content))
        with self._order_lock:
            self._order.end(sequence, is_taken=True)

    def _has_room(self) -> bool:
        return (
            self.stopping.is_set()
            or self.paused.is_set()
            or self.load.behind_bytes() < self.load.behind_max_bytes
        )

    def _draw(self) -> tuple[list[Event], bytes, dict[str, str]]:
        chance = self.random.random()
        if chance < self.load.large_share:
            data = [{"bulk": self.random.randrange(1000)} for _ in range(LARGE_EVENTS)]
            events, schema = self._numbered(data), LARGE
        elif chance < 0.4:
            events, schema = self._numbered(self._small(typed=True)), SMALL
        else:
            events, schema = self._numbered(self._small(typed=False)), None
        if schema is None:
            return events, "".join(json.dumps(event) + "\n" for event in events).encode(), dict(LINES)
        if schema is LARGE and self.random.random() < 0.5:
            return events, msgspec.json.Encoder().encode_lines(events), dict(LINES)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_pylist(events, schema))
        return events, sink.getvalue().to_pybytes(), dict(ARROW)

    def _small(self, *, typed: bool) -> Iterator[dict[str, Any]]:
        for _ in range(self.random.randrange(1, SMALL_EVENTS_MAX)):
            if typed:
                nothing = {"x": None, "y": None, "word": None, "flag": None}
                yield typed_event(self.random).get("data") or nothing
            else:
                yield random_event(self.random)["data"]

    def _numbered(self, data: Iterable[dict[str, Any]]) -> list[Event]:
        events = []
        for each in data:
            self._number += 1
            events.append(cloud_event(str(self._number), each | {"n": self._number}))
        return events


class Changer(Actor):
    """Replaces the filter of a subscription that is being read, and many that nobody reads.

    So many at once that every time a snapshot of the index is due.
    """

    def act(self) -> None:
        if self.load.bulk_subscriptions and self.random.random() < 0.02:
            x = self.random.randrange(1000)
            items = [
                {"id": f"b{n}", "filter": f"data.z = {n + x}"} for n in range(self.load.bulk_subscriptions)
            ]
            answer, _ = self.call("POST", "/subscriptions", json={"subscriptions": items})
            assert answer.status_code == 200, answer.text
            assert answer.json()["refused"] == []
        elif self.random.random() < 0.3:
            id = f"o{self.random.randrange(6)}"
            if self.random.random() < 0.5:
                answer, _ = self.call("DELETE", f"/subscriptions/{id}")
                assert answer.status_code in (204, 404), answer.text
            else:
                self.put(id, random_filter(self.random))
        else:
            self.put(CHANGED, f"data.bulk IS NULL AND ({random_filter(self.random)})")
        self.stopping.wait(0.1)

    def put(self, id: str, text: str) -> None:
        answer, _ = self.call("PUT", f"/subscriptions/{id}", json={"filter": text})
        assert answer.status_code in (200, 201), answer.text
        document = answer.json()
        assert document["filter"] == text
        if id == CHANGED:
            self.ledger.promise((self.space, id), text, document["revision"])


@dataclass
class LoadSettings:
    """How much of what is done.

    Attributes
    ----------
    spaces
        The spaces' names.
    large_share
        The share of requests with ten thousand events.
    bulk_subscriptions
        How many subscriptions are replaced at once now and then; 0 for never.
    behind_max_bytes
        Publishers wait while so many bytes of log are before some subscriber: a short retention must not
        overtake who reads all the time.
    """

    spaces: tuple[str, ...] = ("default", "alpha")
    large_share: float = 0.01
    bulk_subscriptions: int = 0
    behind_max_bytes: int = 2 << 20
    pace_s: float = PACE_S


class Load:
    """Everybody who uses the service, and the ledger."""

    def __init__(
        self,
        service: RunningService,
        seed: int,
        settings: LoadSettings | None = None,
        wire: Wire | None = None,
    ) -> None:
        settings = settings or LoadSettings()
        self._wire = wire
        self.calls = 0
        self.in_peace_s = float("-inf")
        """Since when the service is in peace: never, while it is struck again and again."""
        self._connect(service)
        self.ledger = Ledger()
        self.large_share, self.pace_s = settings.large_share, settings.pace_s
        self.bulk_subscriptions = settings.bulk_subscriptions
        self.behind_max_bytes = settings.behind_max_bytes
        self.publishers: list[Publisher] = []
        self.changers: list[Changer | Historian] = []
        self.readers: dict[Key, Reader] = {}
        self.uncertain: set[Key] = set()
        """Subscriptions of which only that is known that what comes is an event of their space."""
        api = Api(self.url)
        for place, space in enumerate(settings.spaces):
            if space != "default":
                api.create_space(space)
            for id, text in FILTERS.items():
                answer = api.put(space, id, text)
                self.ledger.promise((space, id), text, answer["revision"])
                self.ledger.watch((space, id))
            self.publishers.append(Publisher(self, place, space, f"{seed}-publisher-{space}"))
            changer = Changer(self, space, f"{seed}-changer-{space}")
            changer.put(CHANGED, "data.x = 1")
            self.changers.append(changer)
            self.changers.append(Historian(self, space, f"{seed}-historian-{space}"))
            for kind, id in (
                (Called, "called"),
                (Streamer if place % 2 == 0 else Conversant, "streamed"),
                (Puller, "pulled"),
                (Puller, "sparse"),
                (Streamer, CHANGED),
            ):
                reader = self.readers[space, id] = kind(self, (space, id), f"{seed}-{space}-{id}")
                if isinstance(reader, Called):
                    path = f"/v1/spaces/{space}/subscriptions/{id}"
                    answer = api.http.patch(path, json={"delivery": reader.settings})
                    assert answer.status_code == 200, answer.text
        for actor in self.actors:
            actor.start()

    def _connect(self, service: RunningService) -> None:
        self.service, self.url = service, service.url
        if self._wire is not None:
            self._wire.target, self.url = service.url, self._wire.url

    @contextmanager
    def no_peace(self) -> Iterator[None]:
        """The service is struck again and again, and is ready in the end: until then nothing is late."""
        self.in_peace_s = float("inf")
        yield
        self.in_peace_s = time.monotonic()

    @property
    def actors(self) -> list[Actor]:
        return [*self.publishers, *self.changers, *self.readers.values()]

    def refused(self, answer: httpx.Response) -> None:
        """An answer that is no success must be a problem that says that it can be tried again."""
        kind = ""
        if answer.headers.get("content-type") == "application/problem+json":
            kind = answer.json()["type"]
        self.refused_as(answer.status_code, kind, f"{answer.request.url}: {answer.status_code} {answer.text}")
        assert "retry-after" in answer.headers

    def refused_as(self, status: int, kind: str, what: str) -> None:
        """A refusal, by its status and kind."""
        kind = kind.rpartition(":")[2]
        assert (status, kind) in MAY_REFUSE, what
        with self.ledger.lock:
            self.ledger.refusals[status, kind] += 1

    def behind_bytes(self) -> int:
        """How many bytes of log are before the subscriber that is furthest behind and does not pause."""
        return self.ledger.behind_bytes(
            key for key, reader in self.readers.items() if not reader.paused.is_set()
        )

    def check(self) -> int:
        """How many events are acknowledged; raises what went wrong anywhere."""
        for actor in self.actors:
            actor.check()
        return self.ledger.acknowledged

    def flow(self, events: int, deadline_s: float = 120.0) -> None:
        """Wait until so many more events are acknowledged, and so much of what is owed came through."""
        enough, confirmed = self.check() + events, self._confirmed()
        until(lambda: self.check() >= enough, deadline_s, f"({events} more events are acknowledged)")
        until(lambda: self.check() and self._confirmed() > confirmed, deadline_s, "(matches are delivered)")

    def _confirmed(self) -> int:
        return sum(len(reader.confirmed) for reader in self.readers.values())

    def move(self, service: RunningService) -> None:
        """Go on at another service on the same data."""
        self._connect(service)
        for actor in self.actors:
            actor.api.http.base_url = self.url
        if self.in_peace_s < float("inf"):  # else the one before may live yet, and go on giving
            for reader in self.readers.values():
                reader.has_all = True  # Whoever had given something is dead.

    def settle(self) -> None:
        """Let publishers and changers rest, and wait until every reader that does not has what it is owed."""
        for actor in (*self.publishers, *self.changers):
            actor.pause()
        self._wait_delivered()

    def resume(self) -> None:
        """Everybody goes on."""
        for actor in self.actors:
            actor.paused.clear()

    def _wait_delivered(self) -> None:
        for key, reader in self.readers.items():
            if reader.paused.is_set():
                continue
            owed = self.ledger.owed(key) if key not in self.uncertain else {}

            def has_all(reader: Reader = reader, owed: dict[Position, int] = owed) -> bool:
                reader.check()
                return reader.error is not None or owed.keys() <= reader.confirmed.keys()

            try:
                until(has_all, DELIVERED_S)
            except AssertionError:
                reader.check()
                missing = [str(at) for at in sorted(owed.keys() - reader.confirmed.keys())]
                lacks = f"{key} lacks {len(missing)} of {len(owed)}: {missing[:5]}"
                raise Fault("lost", lacks) from None
            reader.check()
            if key not in self.uncertain:
                reader.caught_up()

    def rewind(self, end: int) -> None:
        """Somebody puts back a log that ends there; which filters change from then on is not known."""
        self.ledger.forget_from(end)
        for reader in self.readers.values():
            reader.rewind(end)
        self._forget_changes()

    def forget_acks(self, confirmed: dict[Key, dict[Position, int]]) -> None:
        """Somebody puts back a registry that knows of these acks only, and of filters as they stood then."""
        for key, reader in self.readers.items():
            reader.confirmed = confirmed[key]
        self._forget_changes()

    def _forget_changes(self) -> None:
        for key in self.readers:
            if key[1] == CHANGED:
                self.uncertain.add(key)
                self.ledger.promises.pop(key, None)

    def finish(self) -> None:
        """Stop everybody, once all that is owed has come, and check that nothing else has."""
        self.resume()
        for actor in (*self.publishers, *self.changers):
            actor.stop()
        self._wait_delivered()
        for key, reader in self.readers.items():
            reader.stop()
            if key in self.uncertain:
                continue
            owed = self.ledger.owed(key)
            if reader.confirmed != owed:
                differing = sorted(reader.confirmed.keys() ^ owed.keys())
                said = [self.ledger.standing(key, at) for at in differing[:5]]
                raise Fault("wrong", "\n".join([f"{key}: {_difference(reader.confirmed, owed)}", *said]))
        self.ledger.check_order()
        repeated = sum(reader.repeated for reader in self.readers.values())
        print(
            f"{self.ledger.acknowledged} events in {len(self.ledger.records)} records, {self._confirmed()}"
            f" messages confirmed, {repeated} came again unacked, {self.ledger.replays} pasts read,"
            f" {sum(each.came_early for each in self.publishers)} requests came too early,"
            f" refused: {dict(self.ledger.refusals)}"
        )

    def abandon(self) -> None:
        """Let everybody go, whatever the state of things."""
        for actor in self.actors:
            actor.stopping.set()


def _difference(found: dict[Position, int], owed: dict[Position, int]) -> str:
    more = sorted(found.keys() - owed.keys())
    return f"{len(owed.keys() - found.keys())} missing, {len(more)} not owed: {[str(at) for at in more[:5]]}"
