"""Records that could not be matched are listed, and tried again exactly once."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from gateway_support import SUBSCRIPTIONS, event, run, running

from fieldfare.storage.folder import DataFolder
from fieldfare.storage.quarantine import DIED, Quarantine, QuarantinedRecord

ERROR = 'a.RecordsError: records 0 to 0 of partition 0 cannot be matched: ValueError: no: {"patient": "Doe"}'


def test_a_record_set_aside_is_listed_and_its_retry_is_delivered_once(tmp_path: Path) -> None:
    """The bug is mended; two people retry at the same time, and the gateway is killed in between."""

    async def work() -> None:
        async with running(tmp_path) as r:
            assert (await r.client.get("/v1/quarantine")).json() == {"quarantine": []}
            await r.subscribe("a", "data.x = 1")
            offset = (await r.publish(event("odd", {"x": 1}), event("even", {"x": 2})))["offset"]
            quarantine = Quarantine(DataFolder(tmp_path).quarantine)
            quarantine.add(QuarantinedRecord(offset, "default", 2, ERROR, 5))
            empty_block(r, offset)
            (listed,) = (await r.client.get("/v1/quarantine")).json()["quarantine"]
            position = listed["position"]
            assert listed == {
                "position": f"0-{offset}-0", "space": "default", "events": 2,
                "error": "matching it raised ValueError", "set_aside_ms": 5,
            }  # fmt: skip
            assert (await r.client.get("/v1/stats")).json()["quarantined_records"] == 1
            copy = shutil.copytree(DataFolder(tmp_path).quarantine, tmp_path / "copy")
            path = f"/v1/quarantine/{position}/retry"
            answers = await asyncio.gather(*(r.client.post(path) for _ in range(5)))
            assert {answer.status_code for answer in answers} <= {200, 404}
            assert {a.json()["offset"] for a in answers if a.status_code == 200} == {offset + 1}
            # Killed before the file was removed, and tried again.
            shutil.copytree(copy, DataFolder(tmp_path).quarantine, dirs_exist_ok=True)
            answer = await r.client.post(path)
            assert answer.json() == {
                "partition": 0,
                "offset": offset + 1,
                "count": 2,
                "stamp": 1,
                "duplicate": True,
            }
            assert (await r.client.post(path)).status_code == 404
            r.pipeline.step()
            assert [m["event"]["id"] for m in await r.pull("a", max=10)] == ["odd"]
            assert r.gateway.log.end() == offset + 2

    run(work)


def test_a_position_of_another_partition_names_no_record_set_aside(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            offset = (await r.publish(event("odd", {"x": 1})))["offset"]
            Quarantine(DataFolder(tmp_path).quarantine).add(QuarantinedRecord(offset, "default", 1, ERROR, 5))
            assert (await r.client.post(f"/v1/quarantine/1-{offset}-0/retry")).status_code == 404
            assert (await r.client.post(f"/v1/quarantine/0-{offset}-0/retry")).status_code == 200

    run(work)


def empty_block(r, offset: int) -> None:
    """The block that the pipeline writes in place of a record."""
    import numpy as np

    from fieldfare.storage import NewMatchBlock

    counts, indptr = np.array([2], np.int32), np.zeros(3, np.int64)
    block = NewMatchBlock.by_event(offset, offset + 1, counts, indptr, np.zeros(0, np.uint32))
    r.gateway.match_log.write(block)


def test_a_position_that_is_none_or_of_no_such_record_is_said_so(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            for position, status in [
                ("x", 400), ("0-1", 400), ("0-1-0", 404), (f"0-{9**99}-0", 400), (f"0-{'9' * 5000}-0", 400),
            ]:  # fmt: skip
                answer = await r.client.post(f"/v1/quarantine/{position}/retry")
                assert answer.status_code == status, position
                assert answer.headers["content-type"] == "application/problem+json"
            assert (await r.client.get(f"{SUBSCRIPTIONS}")).status_code == 200

    run(work)


def test_what_retention_has_taken_is_forgotten(tmp_path: Path) -> None:
    """Otherwise the list would grow for years, and a retry would find nothing."""

    async def work() -> None:
        async with running(tmp_path) as r:
            for _ in range(3):
                await r.publish(event())
            quarantine = Quarantine(DataFolder(tmp_path).quarantine)
            for offset in (0, 1, 2):
                quarantine.add(QuarantinedRecord(offset, "default", 1, "e", 1))
            r.pipeline.step()
            r.gateway.log.trim(1)
            assert (await r.client.post("/v1/quarantine/0-0-0/retry")).status_code == 404
            r.gateway.log.trim(2)
            r.gateway.maintenance.round(1.0)
            assert quarantine.offsets(0) == [2]

    run(work)


@pytest.mark.parametrize("content", [b"", '{"error": "für"}'.encode("latin-1")])
def test_a_note_that_is_torn_or_edited_still_names_its_record(tmp_path: Path, content: bytes) -> None:
    quarantine = Quarantine(DataFolder(tmp_path).quarantine)
    assert quarantine.places() == []
    quarantine.add(QuarantinedRecord(7, "s", 1, "e", 1))
    (DataFolder(tmp_path).quarantine / f"{7:016d}.json").write_bytes(content)
    found = quarantine.get(0, 7)
    assert found is not None and (found.offset, "cannot be read" in found.error) == (7, True)


def test_the_list_quotes_no_event(tmp_path: Path) -> None:
    """A library's error contains the value that it could not read, from an event of another space."""
    errors = {
        ERROR: "matching it raised ValueError",
        "RecordsError: record 1 of partition 0 cannot be matched: Doe is ill": "it could not be matched",
        "SparkException: Python worker exited unexpectedly (crashed): Doe": (
            "the worker process that matched it ended unexpectedly"
        ),
        f"{DIED}; Doe": DIED,
        "Doe": "it could not be matched",
    }

    async def work() -> None:
        async with running(tmp_path) as r:
            for offset, error in enumerate(errors):
                Quarantine(DataFolder(tmp_path).quarantine).add(
                    QuarantinedRecord(offset, "secret", 1, error, 1)
                )
            (DataFolder(tmp_path).quarantine / f"{9:016d}.json").write_text("Doe")
            listed = (await r.client.get("/v1/quarantine")).json()["quarantine"]
            assert [record["error"] for record in listed] == [*errors.values(), "it could not be matched"]
            assert [record["position"] for record in listed][-1] == "0-9-0"

    run(work)
