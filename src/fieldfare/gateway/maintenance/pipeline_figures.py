"""The state of the pipeline and of the service's processes: the document of `/v1/pipeline`."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from fieldfare.gateway.maintenance.figures import Figures
from fieldfare.gateway.maintenance.readiness import PIPELINE_WORKS, LastBeat
from fieldfare.gateway.maintenance.space_times import SpaceTimes
from fieldfare.gateway.maintenance.supervisor import decode_file, read_supervisor
from fieldfare.model import space_name
from fieldfare.storage import open_index_store
from fieldfare.storage.elastic import ElasticLoads, ElasticRecord, describe_elastic
from fieldfare.storage.errors import StorageError
from fieldfare.storage.folder import DataFolder

SPACES_MAX = 20
"""Maximum spaces in the document, those with the most matching time; others are in the sum only."""
SLICES_MAX = 200
"""Maximum slices in the document, the first ones; others are left out."""
DECISIONS_MAX = 20
"""Maximum decisions and moves of an elastic service in the document, the newest ones."""


class PipelineBeat(LastBeat):
    """The heartbeat of the pipeline's driver."""

    started_ms: int | None = None
    indexed: bool | None = None
    matchers: int | None = None
    activity: str | None = None
    tasks: int | None = None
    records: int | None = None
    cores: int | None = None
    executors: int | None = None


class IndexerBeat(LastBeat):
    """The heartbeat of the indexer."""

    started_ms: int | None = None
    revision: int | None = None
    manifest: int | None = None


class _MeasuredSpace(msgspec.Struct):
    loads: list[tuple[int, float, float, float, float, int]] = []
    """Slice, time in seconds, queue length, arrivals and matched events per second, subscriptions."""


class _MeasuredSlices(msgspec.Struct):
    spaces: dict[str, _MeasuredSpace] = {}


class PipelineFigures:
    """Observes the processes of the service through the files that they write.

    Parameters
    ----------
    folder
        The data directory.
    figures
        The service's figures, which say what is ready.
    times
        Matching time by space.
    """

    def __init__(self, folder: DataFolder, figures: Figures, times: SpaceTimes) -> None:
        self._folder = folder
        self._figures = figures
        self._started_ms = time.time_ns() // 1_000_000
        self._times = times
        self._store = open_index_store(folder.index_url)
        self._lock = threading.Lock()
        self._slices: tuple[int | None, list[dict[str, Any]]] = None, []
        """The number of a manifest, and the slices of its spaces with several."""

    async def document(self) -> dict[str, Any]:
        """Return the document of ``/v1/pipeline``."""
        checks = await self._figures.checks()
        of_files = await asyncio.to_thread(self._read, checks)
        total_ms, spaces = self._times.costliest(SPACES_MAX)
        return {
            **of_files,
            "matching_ms_per_s": round(total_ms, 3),
            "spaces": [
                {
                    "space": space_name(each.space),
                    "matching_ms_per_s": round(each.ms_per_s, 3),
                    "matches_per_s": round(each.matches_per_s, 1),
                }
                for each in spaces
            ],
        }

    def _read(self, checks: Mapping[str, str]) -> dict[str, Any]:
        """Return the members that come from files."""
        pipeline = decode_file(self._folder.heartbeat, PipelineBeat)
        indexer = decode_file(self._folder.heartbeat_of("indexer"), IndexerBeat)
        of_gateway = (checks[name] for name in ("log", "registry", "disk"))
        gateway = {
            "name": "gateway",
            "pid": os.getpid(),
            "state": "running",
            "ready": next((said for said in of_gateway if said != "ready"), "ready"),
            "started_ms": self._started_ms,
            "heartbeat_ms": None,
        }
        manifest = None if indexer is None else indexer.manifest
        return {
            "processes": [
                gateway,
                _process("indexer", indexer, checks["indexer"]),
                _process("pipeline", pipeline, checks["pipeline"]),
            ],
            "supervisor": self._supervisor(),
            "activity": _activity(pipeline),
            "cores": None if pipeline is None else pipeline.cores,
            "executors": None if pipeline is None else pipeline.executors,
            "matchers": None if pipeline is None else pipeline.matchers,
            "durable": [] if pipeline is None else list(pipeline.offsets(len(self._figures.log.partitions))),
            "index": {
                "is_covering": None if pipeline is None else pipeline.indexed,
                "revision": None if indexer is None else indexer.revision,
                "registry_revision": self._figures.writer.stamp,
                "snapshot_revision": None if indexer is None else indexer.snapshot_revision,
                "manifest": manifest,
            },
            "slices": self._sliced(manifest),
            "elastic": self._elastic(),
        }

    def _supervisor(self) -> dict[str, Any] | None:
        """Return the supervisor's state; None if this gateway was not started by it."""
        beat = read_supervisor(self._folder)
        if beat is None:
            return None
        document = {"pid": beat.pid, "state": beat.state, "restarts": beat.restarts}
        return document | {"changed_ms": beat.time_ms}

    def _sliced(self, manifest: int | None) -> list[dict[str, Any]]:
        """Return the slices of spaces with several, with the last measured loads."""
        with self._lock:
            if manifest is not None and manifest != self._slices[0]:
                with suppress(StorageError, OSError):
                    self._slices = manifest, self._slices_of(manifest)
            slices = self._slices[1] if manifest is not None else []
        measured = decode_file(self._folder.slices, _MeasuredSlices) if slices else None
        loads = {} if measured is None else measured.spaces
        return [_with_load(each, loads.get(each["space"])) for each in slices]

    def _slices_of(self, manifest: int) -> list[dict[str, Any]]:
        found = [
            {"space": name, "slice": number, "matcher": each.matcher, "filters": each.size}
            for name, space in sorted(self._store.manifest(manifest).spaces.items())
            if len(space.slices) > 1
            for number, each in enumerate(space.slices)
        ]
        return found[:SLICES_MAX]

    def _elastic(self) -> dict[str, Any] | None:
        """Return the state of an elastic service; None if none has run, or its record cannot be read."""
        with suppress(StorageError):
            record = ElasticRecord.read(self._folder.elastic)
            if record.configuration is not None:
                loads = ElasticLoads.read(self._folder.elastic_loads)
                return describe_elastic(record, loads, time.time(), newest=DECISIONS_MAX)
        return None


def _with_load(each: Mapping[str, Any], measured: _MeasuredSpace | None) -> dict[str, Any]:
    """Return a slice with its last measured load, and its space by name; null where none was measured."""
    loads = () if measured is None else measured.loads
    arrivals, matched = next(((load[3], load[4]) for load in loads if load[0] == each["slice"]), (None, None))
    load = {"arrivals_per_s": arrivals, "matched_per_s": matched}
    return {**each, **load, "space": space_name(each["space"])}


def _process(name: str, beat: PipelineBeat | IndexerBeat | None, ready: str) -> dict[str, Any]:
    return {
        "name": name,
        "pid": None if beat is None else beat.pid,
        "state": None if beat is None else beat.state,
        "ready": ready,
        "started_ms": None if beat is None else beat.started_ms,
        "heartbeat_ms": None if beat is None else beat.time_ms,
    }


def _activity(beat: PipelineBeat | None) -> dict[str, Any] | None:
    """Return what the pipeline does now; None if it does not run."""
    if beat is None or beat.state not in PIPELINE_WORKS or beat.activity is None:
        return None
    return {"kind": beat.activity, "tasks": beat.tasks or 0, "records": beat.records or 0}
