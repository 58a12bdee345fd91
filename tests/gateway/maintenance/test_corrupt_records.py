"""Delivery when records have changed on the disk: the others are delivered, and what is lost is named."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from gateway_support import event, run, running

from fieldfare.storage.folder import DataFolder


def test_a_changed_record_is_passed_over_and_named_to_who_watches(tmp_path: Path) -> None:
    """An event that was no longer JSON made every answer of a pull invalid JSON."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x >= 0")
            for number in range(4):
                await r.publish(event(str(number), {"x": number}))
            r.pipeline.step()
        with sqlite3.connect(tmp_path / "log.db") as log:
            log.execute("UPDATE records SET payload = X'7B0A' WHERE offset = 1")
        log.close()
        async with running(tmp_path) as r:
            messages = await r.pull("a", max=10)
            assert [message["event"]["id"] for message in messages] == ["0", "2", "3"]
            await r.ack("a", *(message["position"] for message in messages))
            await r.gateway.background.maintain()
            document = (await r.client.get("/readyz")).json()
            [notice] = document["notices"]
            assert "record 1 cannot be read" in notice
            assert "fieldfare_corruption_notes 1.0" in (await r.client.get("/metrics")).text
            assert await r.pull("a", max=10) == []
        async with running(tmp_path) as r:
            r.gateway.quarantine.folder.mkdir()
            (DataFolder(tmp_path).quarantine / f"{1:016d}.json").write_bytes(
                b'{"offset":1,"space":"default","events":1,"error":"","set_aside_ms":1}'
            )
            answer = await r.client.post("/v1/quarantine/0-1-0/retry")
            assert answer.status_code == 404 and "cannot be read" in answer.json()["detail"]

    run(work)
