"""``kill -9`` at any moment: nothing acknowledged is lost, matched wrongly or delivered again."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import httpx
import pytest
from pipeline_support import random_event, random_filter
from replay import RegistryWatcher, Version, compare, logged, versions_of, wait_matched
from service_support import Api, RunningService, cloud_event, is_running, running_service, until

from fieldfare.client.event_stream import EventStreamParser
from fieldfare.filters import compile_filter
from fieldfare.runtimes.process.restarts import RestartSettings
from fieldfare.storage import open_event_log
from fieldfare.storage.files.match_log import FileMatchLog

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("service"), pytest.mark.timeout(600)]

BATCH_EVENTS_MAX = 8
PACE_S = 0.01
RETRY_S = 0.05
STREAMED, PULLED = "streamed", "pulled"
FILTERS = {STREAMED: "data.x >= 2", PULLED: "data.word LIKE 'a%' OR data.y < 3"}
CHANGED_IDS = 12
SETTINGS = {"maintenance_s": 0.5, "heartbeat_s": 1}


class Actor:
    """Somebody who uses the service from a thread of their own until told to stop."""

    def __init__(self, url: str) -> None:
        self.api = Api(url)
        self.stopping = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._act, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(60)
        self.check()

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def _act(self) -> None:
        try:
            while not self.stopping.is_set():
                try:
                    self.act()
                except httpx.TransportError:
                    self.stopping.wait(RETRY_S)
        except BaseException as error:
            self.error = error

    def act(self) -> None:
        """One thing to do; a broken connection ends it, and it is done again."""
        raise NotImplementedError


class Publisher(Actor):
    """Publishes numbered events; what was not acknowledged is sent again with the same sequence."""

    def __init__(self, url: str, seed: str) -> None:
        self._random = Random(seed)
        self._sequence = self._sent = 0
        self._batch: list[dict] = []
        self.acknowledged: dict[int, tuple[int, int]] = {}
        super().__init__(url)

    def act(self) -> None:
        if not self._batch:
            for _ in range(self._random.randrange(1, BATCH_EVENTS_MAX)):
                self._sent += 1
                data = random_event(self._random)["data"] | {"n": self._sent}
                self._batch.append(cloud_event(str(self._sent), data))
        headers = {"fieldfare-producer": "p", "fieldfare-sequence": str(self._sequence)}
        offset = self.api.publish("default", self._batch, **headers)
        for index, event in enumerate(self._batch):
            self.acknowledged[event["data"]["n"]] = (offset, index)
        self._sequence += 1
        self._batch = []
        self.stopping.wait(PACE_S)


class Changer(Actor):
    """Replaces and removes subscriptions all the time."""

    def __init__(self, url: str, seed: str) -> None:
        self._random = Random(seed)
        super().__init__(url)

    def act(self) -> None:
        id = f"s{self._random.randrange(CHANGED_IDS)}"
        if self._random.random() < 0.7:
            self.api.put("default", id, random_filter(self._random))
        else:
            self.api.remove("default", id)
        self.stopping.wait(PACE_S)


class Receiver(Actor):
    """Receives and acks; a message must not come again once its ack was answered."""

    path: str

    def __init__(self, url: str) -> None:
        self.confirmed: set[str] = set()
        self.repeated = 0
        self._seen: set[str] = set()
        super().__init__(url)

    def take(self, positions: list[str]) -> None:
        for position in positions:
            assert position not in self.confirmed, f"{position} came again after its ack was durable"
            self.repeated += position in self._seen
            self._seen.add(position)
        self._ack(positions)
        self.confirmed.update(positions)

    def _ack(self, positions: list[str]) -> None:
        """Ack until that is answered: what was durable before the gateway was killed does not come again."""
        while True:
            try:
                answer = self.api.http.post(f"{self.path}/ack", json={"positions": positions})
            except httpx.TransportError:
                assert not self.stopping.wait(RETRY_S), f"no answer to the ack of {positions}"
            else:
                answer.raise_for_status()
                return


class Streamer(Receiver):
    """Reads the subscription's stream of server-sent events."""

    path = f"/v1/spaces/default/subscriptions/{STREAMED}"

    def act(self) -> None:
        with self.api.http.stream("GET", f"{self.path}/stream") as response:
            assert response.status_code == 200
            parser = EventStreamParser()
            for chunk in response.iter_raw():
                frames = parser.feed(chunk)
                if frames:
                    self.take([frame.id.decode() for frame in frames])
                if self.stopping.is_set():
                    return


class Puller(Receiver):
    """Pulls a few messages at a time."""

    path = f"/v1/spaces/default/subscriptions/{PULLED}"

    def act(self) -> None:
        answer = self.api.http.post(f"{self.path}/pull", json={"max": 20, "wait_s": 1})
        answer.raise_for_status()
        positions = [message["position"] for message in answer.json()["messages"]]
        if positions:
            self.take(positions)


class Traffic:
    """Events, changes and subscribers on a service, and the proof that all went well."""

    def __init__(self, service: RunningService, seed: int) -> None:
        self.service = service
        api = Api(service.url)
        for id, text in FILTERS.items():
            api.put("default", id, text)
        self._watcher = RegistryWatcher(service.folder)
        self.publisher = Publisher(service.url, f"{seed}-publisher")
        self.changer = Changer(service.url, f"{seed}-changer")
        self.receivers = {STREAMED: Streamer(service.url), PULLED: Puller(service.url)}

    @property
    def _actors(self) -> list[Actor]:
        return [self.publisher, self.changer, *self.receivers.values()]

    def move(self, service: RunningService) -> None:
        """Go on at another service on the same data."""
        self.service = service
        for actor in self._actors:
            actor.api.http.base_url = service.url

    @property
    def acknowledged(self) -> int:
        for actor in self._actors:
            actor.check()
        return len(self.publisher.acknowledged)

    def flow(self, events: int) -> None:
        """Wait until so many more events are acknowledged."""
        enough = self.acknowledged + events
        until(lambda: self.acknowledged >= enough)

    def finish(self) -> None:
        """Stop, let the service come to the end of its work, and check all that it did."""
        self.changer.stop()
        self.publisher.stop()
        folder = self.service.folder
        wait_matched(folder)
        versions = versions_of(self._watcher.changes())
        comparison = compare(folder, versions)
        assert comparison.differences == []
        found = {
            event["data"]["n"]: (record.offset, index)
            for record, events in logged(folder)
            for index, event in enumerate(events)
        }
        assert len(found) == comparison.events, "an event is in the log twice"
        assert found == self.publisher.acknowledged
        for id, receiver in self.receivers.items():
            self._check_deliveries(id, receiver, versions)
        print(
            f"{comparison}, {[receiver.repeated for receiver in self.receivers.values()]} came again unacked"
        )

    def _check_deliveries(self, id: str, receiver: Receiver, versions: list[Version]) -> None:
        (version,) = [version for version in versions if version.text == FILTERS[id]]
        matches = compile_filter(version.text).matches
        expected = {
            f"0-{record.offset}-{index}"
            for record, events in logged(self.service.folder)
            for index, event in enumerate(events)
            if record.stamp >= version.revision and matches(event)
        }
        until(lambda: receiver.error or len(receiver.confirmed) >= len(expected), why=f"({id})")
        receiver.stop()
        assert receiver.confirmed == expected


def victims_of(service: RunningService, kind: str) -> list[int]:
    """The processes to kill for each kind of accident."""
    find: dict[str, Callable[[], list[int]]] = {
        "driver": lambda: [service.driver],
        "java": lambda: [service.jvm],
        "gateway": lambda: [service.gateway],
        "both": lambda: [service.driver, service.gateway],
        "task": lambda: service.processes("fieldfare.runtimes.spark.worker_daemon"),
        "source": lambda: service.sources,
        "indexer": lambda: [service.indexer],
    }
    return until(find[kind])


def strike(service: RunningService, kind: str) -> None:
    """Kill the processes of one kind of accident."""
    if kind == "starting":
        strike(service, "driver")
        until(lambda: service.jvm)  # the next driver's, which has not got far yet
        kind = "driver"
    victims = victims_of(service, kind)
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):  # it went with its parent
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(is_running, victims)))
    if kind in ("java", "task", "source", "indexer"):
        # The driver notices only after a while, or gets over it: then what is in the log now is matched.
        end, matches = open_event_log(service.folder.log_url).end(), FileMatchLog(service.folder.matches)
        until(lambda: matches.end(0) >= end)


def suffer(data: Path, seed: int, kinds: list[str]) -> None:
    """Kill what is named, one after the other, at random moments of a flow of events; check everything."""
    random, deaths = Random(seed), 0
    print(f"seed {seed}")
    with running_service(data, **SETTINGS) as service:
        flowing = Traffic(service, seed)
        for number, kind in enumerate(kinds):
            flowing.flow(random.randrange(1, 150))
            strike(service, kind)
            deaths += {"gateway": 0, "starting": 2}.get(kind, 1)
            if kinds[number + 1 : number + 2] == ["gateway"]:
                continue  # It is struck while others are still on their way up again.
            service.wait_ready()
            if deaths >= 3:
                # A pipeline that died five times in a row, each time as soon as it was ready, is given up.
                deaths, ready_s = 0, time.monotonic()
                until(lambda since_s=ready_s: time.monotonic() - since_s > RestartSettings().quick_s)
        flowing.flow(50)
        flowing.finish()


def test_nothing_is_lost_when_driver_gateway_or_both_are_killed(tmp_path: Path) -> None:
    """Once each, and the indexer; the gateway while the driver is still on its way up again."""
    suffer(tmp_path / "data", seed=5, kinds=["indexer", "driver", "gateway", "both"])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_is_lost_whatever_is_killed_and_how_often(tmp_path: Path, seed: int) -> None:
    """Every process that takes part, in an order drawn anew."""
    kinds = ["driver", "starting", "java", "gateway", "both", "task", "source", "indexer", "gateway"]
    Random(seed).shuffle(kinds)
    print(kinds)
    suffer(tmp_path / "data", seed, kinds)


@pytest.mark.slow
def test_a_killed_supervisor_takes_its_children_with_it_and_another_goes_on(tmp_path: Path) -> None:
    """The next one is started at once, while the first one's children are still ending."""
    first = RunningService(tmp_path / "data", **SETTINGS).wait_ready()
    flowing = Traffic(first, seed=9)
    flowing.flow(100)
    children = first.processes("")
    assert len(children) > 5
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    with running_service(tmp_path / "data", **SETTINGS) as second:
        flowing.move(second)
        flowing.flow(100)
        until(lambda: not any(map(is_running, children)), 40)
        flowing.finish()
