"""Ready means that events are really matched; checking readiness puts no load on the writer."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

from gateway_support import event, run, running

from fieldfare.gateway.maintenance import figures, readiness
from fieldfare.gateway.maintenance.readiness import PipelineWatch
from fieldfare.storage.errors import EventLogError
from fieldfare.storage.folder import DataFolder

DAY_MS = 86_400_000


class Watched:
    """A pipeline's heartbeat and progress; the time is moved by hand."""

    def __init__(self, folder: Path, stale_s: float = 5.0) -> None:
        self._path = folder / "pipeline.json"
        self._watch = PipelineWatch(self._path, stale_s)
        self._count = 0

    def beat(self, **beat: Any) -> None:
        self._count += 1
        self._path.write_text(
            json.dumps({"pid": 1, "state": "running", "time_ms": 0, **beat, "n": self._count})
        )

    def state(self, now_s: float, tip: int = 0, log_end: int = 0, now_ms: int = 0) -> str:
        self._watch.read_heartbeat(tip, log_end, now_s, now_ms)
        return self._watch.state(now_s)


def test_a_pipeline_that_says_it_runs_but_matches_nothing_is_not_ready(tmp_path: Path) -> None:
    """Its planning process was stopped with SIGSTOP, and it stayed ready for ever."""
    watched = Watched(tmp_path)
    for second in range(20):
        watched.beat()
        state = watched.state(second, tip=3, log_end=3 if second < 10 else 8)
        assert state == "ready" if second <= 15 else "5 records wait" in state
    watched.beat()
    assert watched.state(20, tip=4, log_end=9) == "ready"


def test_the_time_counts_from_when_events_began_to_wait(tmp_path: Path) -> None:
    """After a quiet night the first event must not find the service not ready."""
    watched = Watched(tmp_path)
    watched.beat()
    assert watched.state(0) == "ready"
    watched.beat()
    assert watched.state(30_000, tip=0, log_end=1) == "ready"


def test_a_clock_that_jumps_neither_hides_a_dead_pipeline_nor_a_living_one(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for second, jump_ms in enumerate((0, DAY_MS, -DAY_MS, 7 * DAY_MS, 0)):
        watched.beat(time_ms=jump_ms)
        assert watched.state(second, now_ms=-jump_ms) == "ready"
    # It died; the clock is put back to the time of its last heartbeat, again and again.
    assert watched.state(9, now_ms=0) == "ready"
    assert watched.state(10, now_ms=0) == "the pipeline's last heartbeat is 6 s old"


def test_an_old_heartbeat_that_a_starting_gateway_finds_is_old(tmp_path: Path) -> None:
    """For any clock: a heartbeat from the future was not written by a running process."""
    for age_ms in (6_000, -6_000):
        watched = Watched(tmp_path)
        watched.beat(time_ms=DAY_MS - age_ms)
        assert "not given a heartbeat since" in watched.state(0, now_ms=DAY_MS)
        watched.beat(time_ms=DAY_MS - age_ms)
        assert watched.state(1, now_ms=DAY_MS) == "ready"


def test_a_pipeline_that_takes_long_to_start_is_said_to_start(tmp_path: Path) -> None:
    """Kernels are compiled, minutes long: "last heartbeat is 204 s old" was said of one that never ran."""
    watched = Watched(tmp_path)
    watched.beat(state="starting")
    assert watched.state(0) == "the pipeline is starting"
    assert watched.state(204) == "the pipeline has been starting for 204 s or longer"
    watched.beat()
    assert watched.state(205) == "ready"


def test_waiting_events_are_said_by_the_route(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, pipeline_stale_s=0.3, stats_s=0.02) as r:
            beats = 0

            async def checks(ready: bool) -> dict[str, str]:
                nonlocal beats
                while True:
                    beats += 1
                    now_ms = time.time_ns() // 1_000_000
                    beat = {"pid": 1, "state": "running", "time_ms": now_ms, "n": beats}
                    for who in ("pipeline", "indexer"):
                        r.gateway.settings.folder.heartbeat_of(who).write_text(json.dumps(beat))
                    answer = await r.client.get("/readyz")
                    if (answer.status_code == 200) == ready:
                        return dict(answer.json()["checks"])
                    await asyncio.sleep(0.01)

            await checks(ready=True)
            await r.publish(event())
            assert "1 records wait" in (await checks(ready=False))["pipeline"]
            r.pipeline.step()
            await checks(ready=True)

    run(work)


def test_a_full_disk_is_not_ready_without_a_reserve_too(tmp_path: Path, monkeypatch: Any) -> None:
    """Everything was matched, but publishing was impossible: a service without a reserve said ready."""

    async def work() -> None:
        async with running(tmp_path, disk_free_min_bytes=0) as r:
            assert (await r.client.get("/readyz")).json()["checks"]["disk"] == "ready"
            monkeypatch.setattr(figures, "disk_free_bytes", lambda path: 4096)
            answer = await r.client.get("/readyz")
            assert answer.status_code == 503
            needed = "0 MiB are free, and 1 MiB are needed (FIELDFARE_DISK_FREE_MIN_BYTES)"
            assert answer.json()["checks"]["disk"] == needed

    run(work)


def test_asking_for_readiness_never_fills_the_writers_queue(tmp_path: Path, monkeypatch: Any) -> None:
    """The log's disk hangs, and ten monitors ask every second."""
    monkeypatch.setattr(readiness, "PROBE_S", 0.05)

    async def work() -> None:
        async with running(tmp_path) as r:
            log, held, release = r.gateway.log, threading.Event(), threading.Event()

            def hold() -> None:
                with sqlite3.connect(log.path, isolation_level=None) as connection:
                    connection.execute("BEGIN IMMEDIATE")
                    held.set()
                    release.wait(60)
                connection.close()

            holder = threading.Thread(target=hold)
            holder.start()
            await asyncio.to_thread(held.wait)
            asked = 0
            probe = r.gateway.writer.probe

            async def counted() -> None:
                nonlocal asked
                asked += 1
                await probe()

            monkeypatch.setattr(r.gateway.writer, "probe", counted)
            try:
                for _ in range(3):
                    answers = await asyncio.gather(*(r.client.get("/readyz") for _ in range(20)))
                    assert {answer.status_code for answer in answers} == {503}
                    assert {"no answer" in answer.json()["checks"]["log"] for answer in answers} == {True}
                assert asked == 1
            finally:
                release.set()
                await asyncio.to_thread(holder.join)
            while (await r.client.get("/readyz")).json()["checks"]["log"] != "ready":
                await asyncio.sleep(0.01)

    run(work)


def test_a_log_that_cannot_be_read_is_told_in_time_and_nothing_else_is_blamed(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """The broker is down: asking the log for its end takes ten seconds until the error."""
    monkeypatch.setattr(readiness, "PROBE_S", 2.0)

    async def work() -> None:
        async with running(tmp_path) as r:
            gives_up, asked = threading.Event(), 0

            def ends(log: object) -> tuple[int, ...]:
                nonlocal asked
                asked += 1
                gives_up.wait(60)
                raise EventLogError("no broker answers")

            async def checks() -> dict[str, str]:
                return (await r.client.get("/readyz")).json()["checks"]

            ready = await checks()
            with monkeypatch.context() as patched:
                patched.setattr(figures, "ends_of", ends)
                for told in await asyncio.gather(*(checks() for _ in range(20))):
                    assert told == ready | {"log": "the log cannot be read: no answer for 2 s"}
                seen, _ = asked, gives_up.set()
                assert seen <= 2  # readiness, and who keeps the figures
                while (told := await checks())["log"] != "the log cannot be read: no broker answers":
                    assert told["log"].startswith("the log cannot be read")
            while await checks() != ready:
                await asyncio.sleep(0.01)

    run(work)


def test_a_registry_that_hangs_is_told_and_events_are_taken_all_the_same(tmp_path: Path, monkeypatch) -> None:
    """A backup tool keeps registry.db locked: subscribing is impossible, but publishing continues."""
    monkeypatch.setattr(readiness, "PROBE_S", 2.0)

    async def work() -> None:
        async with running(tmp_path) as r:
            with sqlite3.connect(DataFolder(tmp_path).registry_path, isolation_level=None) as connection:
                connection.execute("BEGIN IMMEDIATE")
                checks = (await r.client.get("/readyz")).json()["checks"]
                assert checks["log"] == "ready"
                assert "the registry cannot be written: no answer" in checks["registry"]
                assert (await r.publish(event(1)))["stamp"] == 0
                connection.execute("ROLLBACK")
            connection.close()
            while (await r.client.get("/readyz")).json()["checks"]["registry"] != "ready":
                await asyncio.sleep(0.01)

    run(work)
