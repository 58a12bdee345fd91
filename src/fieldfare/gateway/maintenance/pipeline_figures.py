"""The state of the pipeline and of the service's processes: the document of `/v1/pipeline`."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated

import msgspec

from fieldfare.files import decode_file
from fieldfare.gateway.maintenance.figures import Figures
from fieldfare.gateway.maintenance.readiness import PIPELINE_WORKS, LastBeat
from fieldfare.gateway.maintenance.space_times import SpaceTime, SpaceTimes
from fieldfare.gateway.maintenance.supervisor import read_supervisor
from fieldfare.model import space_name
from fieldfare.storage import open_index_store
from fieldfare.storage.elastic import ElasticDocument, ElasticLoads, ElasticRecord, describe_elastic
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


class ProcessDocument(msgspec.Struct):
    """A process of the service."""

    name: Annotated[str, "Name of the process: `gateway`, `indexer` or `pipeline`."]
    pid: Annotated[int | None, "Id of the process; null before its first heartbeat."]
    state: Annotated[str | None, "Its state by its last heartbeat, such as `running` or `recovering`."]
    ready: Annotated[str, "`ready`, or why it is not."]
    started_ms: Annotated[
        int | None, "Time of its last start, in milliseconds since 1970; null if it is not known."
    ]
    heartbeat_ms: Annotated[
        int | None, "Time of its last heartbeat, in milliseconds since 1970; null for the gateway."
    ]


class SupervisorDocument(msgspec.Struct):
    """The supervisor."""

    pid: Annotated[int, "Id of the process."]
    state: Annotated[str, "`running`; during a restart of the service `checking`, `preparing`, `replacing`."]
    restarts: Annotated[int, "Number of restarts of the whole service (`fieldfare restart`)."]
    changed_ms: Annotated[int, "Time of the last change of this state, in milliseconds since 1970."]


class ActivityDocument(msgspec.Struct):
    """Activity of the pipeline, as of its last heartbeat."""

    kind: Annotated[
        str,
        msgspec.Meta(extra_json_schema={"enum": ["follows", "matches", "waits"]}),
        "What it does: it `follows` the log, `matches` a batch, or `waits` for events or the index.",
    ]
    tasks: Annotated[int, "Number of tasks that do it."]
    records: Annotated[int, "Number of records of the batch."]


class IndexDocument(msgspec.Struct):
    """The index, by the last heartbeats."""

    is_covering: Annotated[bool | None, "Whether the index covers all records of the log."]
    revision: Annotated[int | None, "Revision of the registry that the index has reached."]
    registry_revision: Annotated[int, "Revision of the registry: the number of its last change."]
    snapshot_revision: Annotated[int | None, "Revision of the oldest snapshot."]
    manifest: Annotated[int | None, "Number of the newest manifest."]


class SpaceTimeDocument(msgspec.Struct):
    """Matching time of a space."""

    space: Annotated[str, "Name of the space."]
    matching_ms_per_s: Annotated[float, "Processor time of matching, in milliseconds per second."]
    matches_per_s: Annotated[float, "Matches found per second."]


class SliceDocument(msgspec.Struct):
    """A slice of a space with several."""

    space: Annotated[str, "Name of the space."]
    slice: Annotated[int, "Number of the slice in its space."]
    matcher: Annotated[int, "Number of the matcher that holds it."]
    filters: Annotated[int, "Number of versions of filters in it."]
    arrivals_per_s: Annotated[float | None, "Events per second that it receives; null if not measured."]
    matched_per_s: Annotated[float | None, "Events that it matches per second of matching; null likewise."]


class PipelineDocument(msgspec.Struct):
    """The state of the pipeline and of the service's processes."""

    processes: Annotated[list[ProcessDocument], "The processes of the service."]
    supervisor: Annotated[
        SupervisorDocument | None, "The supervisor; null if the gateway was started by other means."
    ]
    activity: Annotated[ActivityDocument | None, "What the pipeline does now; null while it matches nothing."]
    cores: Annotated[int | None, "Maximum tasks at a time; null before the pipeline matches."]
    executors: Annotated[int | None, "Number of executors of the cluster; null on one machine."]
    matchers: Annotated[int | None, "Number of matchers that hold the index."]
    durable: Annotated[list[int], "Offset by partition up to which matches are durable."]
    index: Annotated[IndexDocument, "The index, by the last heartbeats."]
    slices: Annotated[list[SliceDocument], "The first 200 slices of the spaces that have several."]
    elastic: Annotated[
        ElasticDocument | None,
        "State of an elastic service, with its last 20 decisions and moves; null if none has run on the"
        " data directory.",
    ]
    matching_ms_per_s: Annotated[
        float, "Processor time of matching in milliseconds per second, over the last minute."
    ]
    spaces: Annotated[
        list[SpaceTimeDocument],
        "The 20 spaces that took the most time to match over the last minute, costliest first.",
    ]


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
        self._slices: tuple[int | None, list[SliceDocument]] = None, []
        """The number of a manifest, and the slices of its spaces with several."""

    async def document(self) -> PipelineDocument:
        """Return the document of ``/v1/pipeline``."""
        checks = await self._figures.checks()
        return await asyncio.to_thread(self._read, checks, *self._times.costliest(SPACES_MAX))

    def _read(self, checks: Mapping[str, str], total_ms: float, spaces: list[SpaceTime]) -> PipelineDocument:
        """Read what the document has from files."""
        pipeline = decode_file(self._folder.heartbeat, PipelineBeat)
        indexer = decode_file(self._folder.heartbeat_of("indexer"), IndexerBeat)
        of_gateway = (checks[name] for name in ("log", "registry", "disk"))
        gateway = ProcessDocument(
            name="gateway",
            pid=os.getpid(),
            state="running",
            ready=next((said for said in of_gateway if said != "ready"), "ready"),
            started_ms=self._started_ms,
            heartbeat_ms=None,
        )
        manifest = None if indexer is None else indexer.manifest
        return PipelineDocument(
            processes=[
                gateway,
                _process("indexer", indexer, checks["indexer"]),
                _process("pipeline", pipeline, checks["pipeline"]),
            ],
            supervisor=self._supervisor(),
            activity=_activity(pipeline),
            cores=None if pipeline is None else pipeline.cores,
            executors=None if pipeline is None else pipeline.executors,
            matchers=None if pipeline is None else pipeline.matchers,
            durable=[] if pipeline is None else list(pipeline.offsets(len(self._figures.log.partitions))),
            index=IndexDocument(
                is_covering=None if pipeline is None else pipeline.indexed,
                revision=None if indexer is None else indexer.revision,
                registry_revision=self._figures.writer.stamp,
                snapshot_revision=None if indexer is None else indexer.snapshot_revision,
                manifest=manifest,
            ),
            slices=self._sliced(manifest),
            elastic=self._elastic(),
            matching_ms_per_s=round(total_ms, 3),
            spaces=[
                SpaceTimeDocument(
                    space_name(each.space), round(each.ms_per_s, 3), round(each.matches_per_s, 1)
                )
                for each in spaces
            ],
        )

    def _supervisor(self) -> SupervisorDocument | None:
        """Return the supervisor's state; None if this gateway was not started by it."""
        beat = read_supervisor(self._folder)
        if beat is None:
            return None
        return SupervisorDocument(beat.pid, beat.state, beat.restarts, beat.time_ms)

    def _sliced(self, manifest: int | None) -> list[SliceDocument]:
        """Return the slices of spaces with several, with the last measured loads."""
        with self._lock:
            if manifest is not None and manifest != self._slices[0]:
                with suppress(StorageError, OSError):
                    self._slices = manifest, self._slices_of(manifest)
            slices = self._slices[1] if manifest is not None else []
        measured = decode_file(self._folder.slices, _MeasuredSlices) if slices else None
        loads = {} if measured is None else measured.spaces
        return [_with_load(each, loads.get(each.space)) for each in slices]

    def _slices_of(self, manifest: int) -> list[SliceDocument]:
        found = [
            SliceDocument(name, number, each.matcher, each.size, None, None)
            for name, space in sorted(self._store.manifest(manifest).spaces.items())
            if len(space.slices) > 1
            for number, each in enumerate(space.slices)
        ]
        return found[:SLICES_MAX]

    def _elastic(self) -> ElasticDocument | None:
        """Return the state of an elastic service; None if none has run, or its record cannot be read."""
        with suppress(StorageError):
            record = ElasticRecord.read(self._folder.elastic)
            if record.configuration is not None:
                loads = ElasticLoads.read(self._folder.elastic_loads)
                return describe_elastic(record, loads, time.time(), newest=DECISIONS_MAX)
        return None


def _with_load(each: SliceDocument, measured: _MeasuredSpace | None) -> SliceDocument:
    """Return a slice with its last measured load, and its space by name; null where none was measured."""
    loads = () if measured is None else measured.loads
    arrivals, matched = next(((load[3], load[4]) for load in loads if load[0] == each.slice), (None, None))
    space = space_name(each.space)
    return msgspec.structs.replace(each, space=space, arrivals_per_s=arrivals, matched_per_s=matched)


def _process(name: str, beat: PipelineBeat | IndexerBeat | None, ready: str) -> ProcessDocument:
    return ProcessDocument(
        name=name,
        pid=None if beat is None else beat.pid,
        state=None if beat is None else beat.state,
        ready=ready,
        started_ms=None if beat is None else beat.started_ms,
        heartbeat_ms=None if beat is None else beat.time_ms,
    )


def _activity(beat: PipelineBeat | None) -> ActivityDocument | None:
    """Return what the pipeline does now; None if it does not run."""
    if beat is None or beat.state not in PIPELINE_WORKS or beat.activity is None:
        return None
    return ActivityDocument(beat.activity, beat.tasks or 0, beat.records or 0)
