"""Matchers' measurements from batch to batch: the driver collects them, and they direct the next batch.

    M's tasks ─▶ rows of WORK ─▶ driver: MeasuredLoads ─▶ run/slices.json ─▶ planner: a Routing ─▶ AP's tasks
                                                          └─▶ indexer: does it still fit how the space is cut?

The file is JSON::

    {"manifest": 12, "spaces": {"market": {"cut": 7, "number": 3, "share": 0.1, "loads": [[0, 1.5, ...]]}}}

`manifest` is the one that the last batch was matched with. Times are seconds of the machine's monotonic
clock, which its processes share. If the file is missing or from before a restart of the machine, loads are
estimated from the slices' sizes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fieldfare.files import replace_file
from fieldfare.forwarding import LoadMeter, LoadReport, LoadTable
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.partitioning import NO_SLICE
from fieldfare.pipeline.manifest import Manifest, SpaceManifest
from fieldfare.pipeline.slices import cut_of
from fieldfare.storage import IndexSource
from fieldfare.storage.errors import IndexStoreError

WINDOW_EVENTS = 8_192
"""Events of a space after which its matchers' searching is reported."""
EVENT_COST = 20.0
"""Cost of receiving an event at a matcher, in subscriptions searched; see `PlanSettings`."""


class MatcherWork(NamedTuple):
    """The work of a matcher for a block on one slice; a row of ``range_task.WORK``."""

    matcher: int
    space: str
    slice: int
    events: int
    seconds: float
    sent_bytes: int
    cpu_s: float = 0.0
    executor: str = ""


class SpaceRouting(msgspec.Struct, frozen=True):
    """A space's cut when a batch was planned, and the loads by which its events are forwarded."""

    cut: int
    loads: tuple[LoadReport, ...]

    def table(self) -> LoadTable:
        """Return the loads as policies need them."""
        table = LoadTable(len(self.loads))
        table.take(self.loads)
        return table


class Routing(msgspec.Struct, frozen=True):
    """The routing that all AP tasks of a batch use, whenever they run: events take the same way again.

    A space that is not named is matched where its records are read.
    """

    now_s: float = 0.0
    spaces: dict[str, SpaceRouting] = {}


def encode_routing(routing: Routing) -> str:
    return msgspec.json.encode(routing).decode()


def decode_routing(text: str | None) -> Routing:
    return msgspec.json.decode(text, type=Routing) if text else Routing()


class _MeasuredSpace(msgspec.Struct):
    cut: int
    number: int
    share: float
    loads: tuple[LoadReport, ...]


class _SlicesFile(msgspec.Struct):
    manifest: int = 0
    spaces: dict[str, _MeasuredSpace] = {}

    def loads(self, name: str, space: SpaceManifest) -> tuple[LoadReport, ...]:
        known = self.spaces.get(name)
        is_it = known is not None and known.cut == cut_of(space.partitioning)
        if known is not None and is_it and len(known.loads) == len(space.slices):
            return known.loads
        return tuple(LoadReport(n, 0.0, 0.0, 0.0, 0.0, part.size) for n, part in enumerate(space.slices))


def routing_of(manifest: Manifest, path: Path, now_s: float) -> Routing:
    """Return the routing of a batch that is matched with a manifest, by the last measurements."""
    measured = _read(path)
    return Routing(
        now_s,
        {
            name: SpaceRouting(cut_of(space.partitioning), measured.loads(name, space))
            for name, space in manifest.spaces.items()
            if len(space.slices) > 1
        },
    )


def planned_routing(store: IndexSource, measured: Path, number: int) -> str | None:
    """Return how events are routed to several matchers, encoded, by a manifest; None without an index.

    Parameters
    ----------
    measured : Path
        The file with the last measurements.
    number : int
        The manifest's number; if it was removed, the newest one is used, as the tasks do.
    """
    try:
        manifest: Manifest | None = store.manifest(number)
    except IndexStoreError:
        manifest = store.newest()
    if manifest is None:
        return None
    return encode_routing(routing_of(manifest, measured, time.monotonic()))


def last_loads(name: str, space: SpaceManifest, path: Path) -> tuple[LoadReport, ...]:
    """Return the last measured loads of a space's slices; for unmeasured slices, their sizes."""
    return _read(path).loads(name, space)


def _read(path: Path) -> _SlicesFile:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_SlicesFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return _SlicesFile()


@dataclass(slots=True)
class _Window:
    """Events per slice since the last report, and the last report."""

    visits: dict[int, int] = field(default_factory=dict)
    number: int = 0
    share: float = 0.0

    def add(self, visits: Mapping[int, int], space: SpaceManifest) -> None:
        for slice_, events in visits.items():
            self.visits[slice_] = self.visits.get(slice_, 0) + events
        routes = space.partitioning.route(ColumnBatch(0, {}))
        visited = len(routes.always) + (1 if routes.candidates.shape[1] else 0)
        count = sum(self.visits.values()) / max(1, visited)
        if count < WINDOW_EVENTS:
            return
        searched: dict[int, float] = {}
        for slice_, events in self.visits.items():
            part = space.slices[slice_]
            searched[part.matcher] = searched.get(part.matcher, 0.0) + events * (part.size + EVENT_COST)
        stored = sum(part.size for part in space.slices)
        self.share = max(searched.values()) / count / max(1, stored)
        self.number, self.visits = self.number + 1, {}


class _SpaceLoads:
    def __init__(self, space: SpaceManifest, now_s: float) -> None:
        self.cut = cut_of(space.partitioning)
        self.table = LoadTable.of_sizes([part.size for part in space.slices])
        self.meter = LoadMeter(now_s)
        self.window = _Window()

    def learn(self, work: list[MatcherWork], space: SpaceManifest, started_s: float, ended_s: float) -> None:
        visits: dict[int, int] = {}
        for done in work:
            self.meter.arrived(done.slice, done.events, started_s)
            visits[done.slice] = visits.get(done.slice, 0) + done.events
        for done in work:
            self.meter.matched(done.slice, done.events, done.seconds, ended_s)
        sizes = {number: part.size for number, part in enumerate(space.slices)}
        self.table.take(self.meter.reports(sizes, ended_s))
        self.window.add(visits, space)


class MeasuredLoads:
    """The loads of all slices, as their matchers measured them."""

    def __init__(self) -> None:
        self._spaces: dict[str, _SpaceLoads] = {}

    def _take_manifest(self, manifest: Manifest, now_s: float) -> None:
        """Note the manifest that a batch is matched with; a new cut starts without measurements."""
        cut = {name: space for name, space in manifest.spaces.items() if len(space.slices) > 1}
        for name in set(self._spaces) - set(cut):
            del self._spaces[name]
        for name, space in cut.items():
            known = self._spaces.get(name)
            if known is None or known.cut != cut_of(space.partitioning):
                self._spaces[name] = _SpaceLoads(space, now_s)

    def learn(
        self, manifest: Manifest, work: Iterable[Iterable[Any]], started_s: float, ended_s: float
    ) -> None:
        """Add the measurements of a batch that was matched with a manifest: rows of ``WORK``."""
        self._take_manifest(manifest, started_s)
        by_space: dict[str, list[MatcherWork]] = {name: [] for name in self._spaces}
        for row in work:
            done = MatcherWork(*row)
            if done.slice != NO_SLICE and done.space in by_space:
                slices = manifest.spaces[done.space].slices
                if done.slice < len(slices):
                    by_space[done.space].append(done)
        for name, rows in by_space.items():
            self._spaces[name].learn(rows, manifest.spaces[name], started_s, ended_s)

    def save(self, path: Path, manifest: int) -> None:
        """Write the file for the other processes; not synced, since lost loads are estimated."""
        spaces = {
            name: _MeasuredSpace(each.cut, each.window.number, each.window.share, reports_of(each.table))
            for name, each in self._spaces.items()
        }
        replace_file(path, msgspec.json.encode(_SlicesFile(manifest, spaces)))


def reports_of(table: LoadTable) -> tuple[LoadReport, ...]:
    """Return a table's rows, from which an equal table can be made."""
    columns = (table.at_s, table.queue_length, table.arrivals_per_s, table.measured_per_s)
    rows = zip(
        *(column.tolist() for column in columns), table.subscriptions.astype(int).tolist(), strict=True
    )
    return tuple(LoadReport(number, *row) for number, row in enumerate(rows))
