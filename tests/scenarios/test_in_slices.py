"""The whole service with spaces in several slices: every event meets exactly what it must."""

from __future__ import annotations

import os
import re
import signal
import threading
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from replay import RegistryWatcher, compare, versions_of, wait_matched
from service_support import Api, RunningService, cloud_event, running_service, until
from test_validity import SPACES, change_under_load, check_answers

from fieldfare.partitioning import AttributeSpace
from fieldfare.pipeline.manifest import Manifest
from fieldfare.runtimes.process.heartbeat import read_beat
from fieldfare.storage import open_index_store, open_match_log, open_registry
from fieldfare.storage.folder import DataFolder

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]

KILL_EVERY_S = 4.0
HASH = {"partitioning": "hash", "matchers": 3, "slices": "beta=replicated"}
SPACE = {"partitioning": "attribute_space", "matchers": 2, "slices": "alpha=hash:4", "forwarding": "balanced"}


def newest(folder: DataFolder) -> Manifest:
    found = open_index_store(folder.index_url).newest()
    assert found is not None
    return found


def shape(folder: DataFolder) -> dict[str, int]:
    """At how many matchers each space is held."""
    return {name: space.matchers for name, space in newest(folder).spaces.items()}


def kill_workers(service: RunningService, stop: threading.Event) -> None:
    """End one of the processes in which tasks run, again and again."""
    while not stop.wait(KILL_EVERY_S):
        workers = service.processes("fieldfare.runtimes.spark.worker_daemon")
        for pid in workers[-1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_events_meet_the_subscriptions_of_their_moment_while_slices_are_cut_anew_and_tasks_die(
    tmp_path: Path,
) -> None:
    """First by hash at three matchers; after a restart in other ways, while all goes on and workers die."""
    data, calls = tmp_path / "data", []
    with running_service(data, maintenance_s=0.5, **HASH) as service:
        for space in SPACES[1:]:
            Api(service.url).create_space(space)
        folder = service.folder
        watcher = RegistryWatcher(folder)
        calls += change_under_load(service, 300, seed=61)
        until(lambda: service.heartbeat.get("state") == "running")
        assert shape(folder) == {"default": 3, "alpha": 3, "beta": 1}
    with running_service(data, maintenance_s=0.5, **SPACE) as service:
        stop = threading.Event()
        killer = threading.Thread(target=kill_workers, args=(service, stop))
        killer.start()
        try:
            calls += change_under_load(service, 600, seed=62)
        finally:
            stop.set()
            killer.join()
        until(lambda: shape(folder) == {"default": 2, "alpha": 4, "beta": 2}, 120)
        calls += change_under_load(service, 100, seed=63)
        wait_matched(folder)
        measured = until(lambda: read_beat(folder.slices).get("spaces"))
    changes = watcher.changes()
    check_answers(calls, changes)
    comparison = compare(folder, versions_of(changes))
    print(f"{len(calls)} calls, {len(changes)} changes: {comparison}")
    assert comparison.differences == []
    assert comparison.matches > comparison.events
    spaces = newest(folder).spaces
    assert isinstance(spaces["default"].partitioning, AttributeSpace)
    assert measured.keys() == {"default", "alpha", "beta"}
    assert any(load[1] > 0 for load in measured["default"]["loads"]), "nothing was measured"
    said = folder.log_of("indexer").read_text()
    assert len(re.findall(r"space default is cut anew: \d+ slices, AttributeSpace", said)) >= 1


class Quotes:
    """Ranges of one attribute, and events on it that are remembered."""

    def __init__(self, seed: int) -> None:
        print(f"seed {seed}")
        self.random = Random(seed)
        spread = [(low, low + 5) for low in self.some(0, 1000, 150)]
        self.ranges = [*spread, *((low, low + 1) for low in self.some(0, 9, 150))]
        self.published: list[tuple[int, np.ndarray[Any, Any]]] = []

    def some(self, low: float, high: float, count: int) -> list[float]:
        return [round(self.random.uniform(low, high), 3) for _ in range(count)]

    def subscribe(self, api: Api) -> None:
        for place, (low, high) in enumerate(self.ranges):
            api.create("default", f"s{place}", f"data.x BETWEEN {low} AND {high}")

    def publish(self, api: Api, low: float, high: float) -> None:
        """More events than a measurement takes."""
        for _ in range(3):
            values = self.some(low, high, 3_000)
            events = [cloud_event(str(n), {"x": value}) for n, value in enumerate(values)]
            self.published.append((api.publish("default", events), np.array(values)))

    def check(self, folder: DataFolder) -> None:
        matches = open_match_log(folder.matches_url).partition(0)
        registry = open_registry(folder.registry_url)
        numbers = [version.number for version in registry.versions(registry.revision(), 0)]
        found: list[set[tuple[int, int]]] = [set() for _ in self.ranges]
        at = 0
        while (block := matches.block_at(at)) is not None:
            for own, number in zip(found, numbers, strict=True):
                offsets, places = block.matches_of(number, at)
                mine = list(zip(offsets.tolist(), places.tolist(), strict=True))
                assert own.isdisjoint(mine)
                own.update(mine)
            at = block.end
        for own, (low, high) in zip(found, self.ranges, strict=True):
            assert own == {
                (offset, int(place))
                for offset, values in self.published
                for place in np.flatnonzero((values >= low) & (values <= high))
            }


@pytest.mark.slow
def test_a_space_is_cut_anew_by_itself_when_its_events_drift_to_one_matcher(tmp_path: Path) -> None:
    """All of a sudden every quote is of a few shares, which one matcher has: the service shares them out."""
    data, quotes = tmp_path / "data", Quotes(71)
    with running_service(data) as service:
        api = Api(service.url)
        quotes.subscribe(api)
        quotes.publish(api, 0, 1000)
        wait_matched(service.folder)
    with running_service(data, partitioning="single_attribute", matchers=2) as service:
        api, folder = Api(service.url), service.folder

        def measured() -> int:
            wait_matched(folder)
            return int(read_beat(folder.slices).get("spaces", {}).get("default", {}).get("number", 0))

        def observe(low: float, high: float) -> None:
            """Publish until it is measured, and the indexer has seen it."""
            before = measured()
            quotes.publish(api, low, high)
            until(lambda: measured() > before)
            seen_ms = read_beat(folder.heartbeat_of("indexer"))["time_ms"]
            until(lambda: read_beat(folder.heartbeat_of("indexer"))["time_ms"] > seen_ms + 1_000)

        until(lambda: shape(folder) == {"default": 2})
        cut = newest(folder).spaces["default"].partitioning
        assert isinstance(cut, AttributeSpace)
        for _ in range(2):
            observe(0, 1000)
        assert newest(folder).spaces["default"].partitioning == cut
        for _ in range(3):
            observe(0, 10)
        anew = until(lambda: (now := newest(folder).spaces["default"].partitioning) != cut and now, 60)
        assert isinstance(anew, AttributeSpace)
        observe(0, 10)
        quotes.check(folder)
