"""Every event is matched against the subscriptions exactly as they stood at its stamp."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pipeline_support import TYPED, random_event, random_filter, typed_event
from replay import RegistryWatcher, compare, versions_of, wait_matched
from service_support import Api, RunningService, cloud_event, running_service

from fieldfare.model import Change
from fieldfare.storage import open_registry
from fieldfare.storage.errors import RegistryError
from fieldfare.storage.folder import DataFolder

pytestmark = [pytest.mark.service, pytest.mark.timeout(1200)]

SPACES = ("default", "alpha", "beta")
THREADS = 6
PUBLISHERS = 2
PACE_S = 0.02
"""Each publisher pauses so long between batches: the load is to be continuous, not the machine's limit."""

EVENT_COLUMNS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("specversion", "id", "source", "type")),
        TYPED.field("data"),
    ]
)

Answer = dict[str, Any]
"""What a call that stored a filter was told."""


@dataclass(frozen=True)
class Call:
    """One answered call, between two events that its thread published around it: their offsets and stamps."""

    space: str
    id: str
    filter: str | None
    answer: Answer | None
    before: tuple[int, int]
    after: tuple[int, int]


@dataclass
class Caller:
    """A thread that changes subscriptions at random: its own, and some that all threads fight over."""

    api: Api
    name: str
    random: Random
    calls: list[Call] = field(default_factory=list)
    standing: set[tuple[str, str]] = field(default_factory=set)
    markers: int = 0

    def run(self, count: int) -> None:
        while len(self.calls) < count:
            space = self.random.choice(SPACES)
            before = self._mark(space)
            answered = self._call(space)
            after = self._mark(space)
            self.calls += [Call(space, *answer, before, after) for answer in answered]

    def _mark(self, space: str) -> tuple[int, int]:
        self.markers += 1
        event = random_event(self.random)["data"] | {"marker": self.markers}
        return self.api.append(space, [cloud_event(f"{self.name}-{self.markers}", event)])

    def _filter(self) -> str:
        """A filter that no other call sends: so its version is found in the registry by its text."""
        marker = f"data.{self.name} IS NULL AND {self.markers} = {self.markers}"
        return f"({random_filter(self.random)}) AND {marker}"

    def _call(self, space: str) -> list[tuple[str, str | None, Answer | None]]:
        chance = self.random.random()
        if chance < 0.1:
            return self._contend(space, f"shared-{self.random.randrange(3)}")
        id = f"{self.name}-{self.random.randrange(8)}"
        if chance < 0.2:
            filters = {f"{self.name}-{n}": f"{self._filter()} AND {n} = {n}" for n in range(2, 5)}
            self.api.put_all(space, filters)
            self.standing.update((space, id) for id in filters)
            return [(id, text, None) for id, text in filters.items()]
        if (space, id) not in self.standing:
            self.standing.add((space, id))
            answer = self.api.create(space, id, self._filter())
        elif chance < 0.65:
            answer = self.api.put(space, id, self._filter())
        else:
            self.standing.remove((space, id))
            assert self.api.remove(space, id)
            return [(id, None, None)]
        return [(id, answer["filter"], answer)]

    def _contend(self, space: str, id: str) -> list[tuple[str, str | None, Answer | None]]:
        if self.random.random() < 0.4:
            return [(id, None, None)] if self.api.remove(space, id) else []
        answer = self.api.put(space, id, self._filter())
        return [(id, answer["filter"], answer)]


def publish_until(stop: threading.Event, api: Api, random: Random) -> None:
    """Publish batch after batch, some as tables."""
    while not stop.wait(PACE_S):
        if random.random() < 0.3:
            rows = [
                cloud_event(str(n), typed_event(random).get("data")) for n in range(random.randrange(1, 9))
            ]
            table = pa.RecordBatch.from_pylist(rows, EVENT_COLUMNS)
            api.publish_table(random.choice(SPACES), table)
            continue
        events = [random_event(random)["data"] for _ in range(random.randrange(1, 9))]
        api.publish(random.choice(SPACES), [cloud_event(str(n), event) for n, event in enumerate(events)])


def change_under_load(service: RunningService, calls: int, seed: int) -> list[Call]:
    """Let several threads change subscriptions while others publish; gives all calls answered."""
    stop = threading.Event()
    api = Api(service.url)
    callers = [Caller(Api(service.url), f"t{n}s{seed}", Random(f"{seed}-{n}")) for n in range(THREADS)]
    with ThreadPoolExecutor(THREADS + PUBLISHERS) as pool:
        load = [pool.submit(publish_until, stop, api, Random(f"{seed}-load-{n}")) for n in range(PUBLISHERS)]
        try:
            for running in [pool.submit(caller.run, calls // THREADS + 1) for caller in callers]:
                running.result()
        finally:
            stop.set()
        for running in load:
            running.result()
    return [call for caller in callers for call in caller.calls]


def check_answers(calls: list[Call], changes: list[Change]) -> None:
    """Every call changed the registry once, between the two events that were published around it."""
    put_by = {change.filter: change for change in changes if change.filter is not None}
    owner: dict[int, tuple[str, str]] = {}
    for call in calls:
        if call.filter is not None:
            change = put_by[call.filter]
            assert change.space == call.space
            if call.answer is not None:
                assert call.answer["revision"] == change.revision
                valid_from = int(call.answer["valid_from"].split("-")[1])
                assert call.before[0] < valid_from <= call.after[0], call
            assert call.before[1] < change.revision <= call.after[1], call
            assert owner.setdefault(change.number, (call.space, call.id)) == (call.space, call.id)
    removals: dict[tuple[str, str], list[int]] = {}
    for change in changes:
        if change.filter is None and change.number in owner:
            removals.setdefault(owner[change.number], []).append(change.revision)
    for call in calls:
        if call.filter is None:
            removed = removals[call.space, call.id]
            between = [revision for revision in removed if call.before[1] < revision <= call.after[1]]
            assert between, call
            if not call.id.startswith("shared"):
                assert len(between) == 1, call


def scenario(data: Path, calls: int, seed: int) -> DataFolder:
    print(f"seed {seed}")
    # Maintenance all the time: history is purged and the match log compacted while changes go on.
    with running_service(data, maintenance_s=0.5) as service:
        for space in SPACES[1:]:
            Api(service.url).create_space(space)
        watcher = RegistryWatcher(service.folder)
        answered = change_under_load(service, calls, seed)
        wait_matched(service.folder)
        changes = watcher.changes()
    assert len(answered) >= calls
    check_answers(answered, changes)
    versions = versions_of(changes)
    comparison = compare(service.folder, versions)
    print(f"{len(answered)} calls, {len(changes)} changes: {comparison}")
    assert comparison.differences == []
    assert comparison.matches > comparison.events
    # Had every version begun one stamp later, this would have been noticed.
    late = [replace(version, revision=version.revision + 1) for version in versions]
    assert compare(service.folder, late).differences
    return service.folder


def test_every_event_meets_exactly_the_subscriptions_of_its_moment(tmp_path: Path) -> None:
    """Hundreds of changes by six threads at once, in three spaces, while others publish."""
    scenario(tmp_path / "data", calls=600, seed=2013)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_thousands_of_changes_later_every_event_still_does(tmp_path: Path) -> None:
    """So many changes that snapshots are built in the background, and old history is purged, under way."""
    folder = scenario(tmp_path / "data", calls=5000, seed=19937)
    registry = open_registry(folder.registry_url)
    with pytest.raises(RegistryError, match="keeps the history from"):
        next(registry.changes(0, 1))
    left = list(registry.versions(registry.revision(), 0))
    assert len(left) < registry.revision() / 2
