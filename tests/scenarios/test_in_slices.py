"""The whole service with spaces in several slices: every event meets exactly what it must."""

from __future__ import annotations

import os
import re
import signal
import threading
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from replay import RegistryWatcher, compare, versions_of, wait_matched
from service_support import Api, RunningService, cloud_event, running_service, until
from test_validity import SPACES, change_under_load, check_answers

from fieldfare.partitioning import AttributeSpace
from fieldfare.pipeline.manifest import Manifest
from fieldfare.runtimes.process.heartbeat import read_beat
from fieldfare.storage import open_index_store
from fieldfare.storage.folder import DataFolder

pytestmark = [pytest.mark.service, pytest.mark.timeout(1200)]

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
    assert len(re.findall(r"space default is partitioned again: \d+ slices, AttributeSpace", said)) >= 1


def quotes(random: Random, low: float, high: float) -> list[dict[str, object]]:
    """Events of one attribute, fewer than a measurement takes."""
    return [cloud_event(str(n), {"x": round(random.uniform(low, high), 3)}) for n in range(3_000)]


def ranges(random: Random, low: float, high: float, width: float) -> dict[str, str]:
    lows = [round(random.uniform(low, high), 3) for _ in range(50)]
    return {f"s{high}-{n}": f"data.x BETWEEN {first} AND {first + width}" for n, first in enumerate(lows)}


@pytest.mark.slow
def test_a_space_is_cut_anew_by_itself_when_its_events_drift_to_one_matcher(tmp_path: Path) -> None:
    """All of a sudden every quote is of a few shares, which one matcher has: the service shares them out.

    Meanwhile subscriptions are replaced, and the processes in which tasks run die.
    """
    random = Random(71)
    print("seed 71")
    with running_service(tmp_path / "data", partitioning="single_attribute", matchers=2) as service:
        api, folder = Api(service.url), service.folder
        watcher = RegistryWatcher(folder)
        api.publish("default", quotes(random, 0, 1000))  # what the first cut is planned with
        filters = {**ranges(random, 0, 1000, 5), **ranges(random, 0, 9, 1)}
        api.put_all("default", filters)
        until(lambda: "default" in newest(folder).spaces, 120)
        until(lambda: isinstance(newest(folder).spaces["default"].partitioning, AttributeSpace), 120)
        names = sorted(filters)

        def observe(low: float, high: float) -> int:
            """Publish, and replace some; gives how often it was measured what matchers search."""
            for name in random.sample(names, 3):
                api.put("default", name, filters[random.choice(names)])
            api.publish("default", quotes(random, low, high))
            wait_matched(folder)
            return int(read_beat(folder.slices).get("spaces", {}).get("default", {}).get("number", 0))

        until(lambda: observe(0, 1000) >= 2, 120)
        cut = newest(folder).spaces["default"].partitioning
        stop = threading.Event()
        killer = threading.Thread(target=kill_workers, args=(service, stop))
        killer.start()
        try:
            until(lambda: observe(0, 10) and newest(folder).spaces["default"].partitioning != cut, 240)
        finally:
            stop.set()
            killer.join()
        anew = newest(folder).spaces["default"].partitioning
        assert isinstance(anew, AttributeSpace)
        observe(0, 10)
        changes = watcher.changes()
    comparison = compare(folder, versions_of(changes))
    print(comparison, anew.axes)
    assert comparison.differences == []
    assert comparison.matches > comparison.events
