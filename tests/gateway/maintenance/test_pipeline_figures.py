"""`/v1/pipeline`: what the pipeline and the service's processes write about themselves, as one document."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from gateway_support import Running, event, run, running
from jsonschema import Draft202012Validator

from fieldfare.elasticity import Configuration, Operators
from fieldfare.elasticity.messages import SliceMove
from fieldfare.gateway.maintenance.space_times import SLOT_S, WINDOW_S, SpaceTimes
from fieldfare.gateway.openapi.document import api_document
from fieldfare.partitioning import HashPartitioning
from fieldfare.pipeline.manifest import Manifest, SliceManifest, SpaceManifest
from fieldfare.storage import open_index_store
from fieldfare.storage.elastic import Decision, ElasticLoads, ElasticRecord, HostLoad, Move, SliceLoadNow
from fieldfare.storage.folder import DataFolder

DOCUMENT = api_document()

SCHEMA = {"$ref": "#/components/schemas/Pipeline", "components": DOCUMENT["components"]}


async def read(r: Running) -> dict[str, Any]:
    answer = await r.client.get("/v1/pipeline")
    assert answer.status_code == 200, answer.text
    document = dict(answer.json())
    errors = [error.message for error in Draft202012Validator(SCHEMA).iter_errors(document)]
    assert not errors, errors
    return document


def beat(folder: DataFolder, process: str, **more: Any) -> None:
    said = {"pid": 7, "state": "running", "time_ms": time.time_ns() // 1_000_000, **more}
    folder.heartbeat_of(process).write_text(json.dumps(said))


def write_elastic(folder: DataFolder) -> None:
    """Two hosts with three slices, of which one moves to a third host."""
    configuration = Configuration(Operators(0, {"M": 3}, 0), {}).begun(2)
    decisions = [
        Decision(number, f"reason {number}", [SliceMove("M:2", 0)], 1, [], True) for number in range(50)
    ]
    record = ElasticRecord(configuration, decisions, [Move("M:2", "host1", "host2", 1.0, 2.0, 3.0)])
    record.write(folder.elastic)
    hosts = [HostLoad("host1", "0", 2, True, 0.5), HostLoad("host2", "", 0, False, 0.0)]
    slices = [SliceLoadNow("M:1", "host1", 0.4, 12_300_000), SliceLoadNow("M:2", "", 0.0, 0)]
    ElasticLoads(time.time_ns() // 1_000_000, False, 1, 4, hosts, slices, 200, 199).write(
        folder.elastic_loads
    )


def test_before_anything_has_run_the_document_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            said = await read(r)
            states = {each["name"]: each["ready"] for each in said["processes"]}
            assert states == {
                "gateway": "ready",
                "indexer": "the indexer has not started yet",
                "pipeline": "the pipeline has not started yet",
            }
            assert said["activity"] is said["supervisor"] is said["elastic"] is None
            assert (said["durable"], said["spaces"], said["slices"]) == ([], [], [])

    run(work)


def test_heartbeats_say_what_the_processes_do(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            folder = r.gateway.settings.folder
            doing = {"activity": "matches", "tasks": 2, "records": 9, "cores": 2, "matchers": 1}
            beat(folder, "pipeline", **doing, offset=4, matched=[4], indexed=True, started_ms=5)
            beat(folder, "indexer", revision=1, snapshot_revision=0, manifest=3)
            beat(folder, "serve", restarts=2, pid=os.getppid())
            said = await read(r)
            assert said["activity"] == {"kind": "matches", "tasks": 2, "records": 9}
            assert (said["cores"], said["executors"], said["durable"]) == (2, None, [4])
            assert said["index"] == {
                "is_covering": True,
                "revision": 1,
                "registry_revision": 1,
                "snapshot_revision": 0,
                "manifest": 3,
            }
            assert [each["ready"] for each in said["processes"]] == ["ready"] * 3
            assert said["processes"][2]["started_ms"] == 5
            assert said["supervisor"]["restarts"] == 2
            beat(folder, "pipeline", state="recovering", error="no Java", **doing)
            beat(folder, "serve", pid=1 << 30)
            said = await read(r)
            assert said["processes"][2]["ready"] == "the pipeline is recovering: no Java"
            assert said["activity"] is said["supervisor"] is None, "that of another service"

    run(work)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b'{"pid": "x"}', b"[]"])
def test_files_that_are_not_valid_are_left_out(tmp_path: Path, text: bytes) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            folder = r.gateway.settings.folder
            for path in (*map(folder.heartbeat_of, ("pipeline", "indexer", "serve")), folder.slices):
                path.write_bytes(text)
            folder.elastic.write_bytes(text)
            said = await read(r)
            assert said["activity"] is said["elastic"] is None

    run(work)


def test_an_elastic_service_is_described_as_by_scale(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            write_elastic(r.gateway.settings.folder)
            said = (await read(r))["elastic"]
            assert said["is_running"] and said["configuration"]["hosts"] == ["host1", "host2"]
            assert [each["time_ms"] for each in said["decisions"]] == list(range(30, 50))
            assert said["loads"]["slices"][0] == {
                "slice": "M:1",
                "host": "host1",
                "cpu": 0.4,
                "memory_bytes": 12_300_000,
            }

    run(work)


def test_slices_are_shown_with_their_last_measured_loads(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            folder = r.gateway.settings.folder
            slices = tuple(SliceManifest(matcher=number, size=10 + number) for number in range(2))
            spaces = {"trading": SpaceManifest(slices, HashPartitioning(2)), "default": SpaceManifest()}
            open_index_store(folder.index_url).write_manifest(Manifest(3, 1, spaces))
            folder.slices.write_text(
                '{"manifest":3,"spaces":{"trading":{"cut":1,"number":1,"share":0.5,"loads":[[1,9.0,0.0,7.5,80.0,11]]}}}'
            )
            beat(folder, "indexer", revision=1, manifest=3)
            first, second = (await read(r))["slices"]
            assert first == {
                "space": "trading",
                "slice": 0,
                "matcher": 0,
                "filters": 10,
                "arrivals_per_s": None,
                "matched_per_s": None,
            }
            assert (second["arrivals_per_s"], second["matched_per_s"]) == (7.5, 80.0)
            beat(folder, "indexer", revision=1, manifest=4)  # which is not there any more
            assert len((await read(r))["slices"]) == 2

    run(work)


def test_matches_count_for_their_space(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await r.publish(*(event(number, {"x": 1}) for number in range(10)))
            r.pipeline.step()
            await r.gateway.tail.catch_up()
            (said,) = (await read(r))["spaces"]
            assert said["space"] == "default" and 0 < said["matches_per_s"] <= 10 / SLOT_S

    run(work)


def test_the_costliest_spaces_of_the_last_minute_are_named() -> None:
    now_s = [100.0]
    times = SpaceTimes(lambda: now_s[0])
    times.add({"a": 30.0, "b": 5.0}, {"b": 60})
    now_s[0] += 30
    times.add({"a": 30.0, "c": 90.0}, {})
    total, named = times.costliest(2)
    assert total == pytest.approx(155 / 30)
    assert [(each.space, each.ms_per_s, each.matches_per_s) for each in named] == [("c", 3, 0), ("a", 2, 0)]
    now_s[0] += WINDOW_S - 30
    total, named = times.costliest(9)
    assert total == pytest.approx(120 / WINDOW_S) and {each.space for each in named} == {"a", "c"}
    now_s[0] += WINDOW_S
    assert times.costliest(9) == (0, [])
