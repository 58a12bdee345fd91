"""A data directory with files from different moments, after a copy was restored."""

from __future__ import annotations

import json
import shutil
import sqlite3

import pytest
from gateway_support import event, run, running

from fieldfare.model import Cursor, Position
from fieldfare.pipeline.manifest import Manifest
from fieldfare.storage.errors import RegistryError
from fieldfare.storage.files.index_store import FileIndexStore
from fieldfare.storage.folder import DataFolder


async def pull_all(r, id: str, wait_s: float = 0) -> list[str]:
    """The positions of all messages that there are."""
    found: list[str] = []
    while messages := await r.pull(id, max=50, wait_s=wait_s):
        found += [message["position"] for message in messages]
    return found


async def publish_and_match(r, count: int, x: int) -> None:
    for i in range(count):
        await r.publish(event(i, {"x": x}))
        r.pipeline.step()
    r.pipeline.beat()


def copy_of(data, name: str, to) -> None:
    with sqlite3.connect(data / name) as source, sqlite3.connect(to) as target:
        source.backup(target)
    source.close()
    target.close()


def put_back(copy, data, name: str) -> None:
    for suffix in ("", "-wal", "-shm"):
        (data / f"{name}{suffix}").unlink(missing_ok=True)
    shutil.copy(copy, data / name)


async def _with_an_old_log(tmp_path) -> None:
    """Ten records are matched and delivered; the restored log has the first three."""
    async with running(tmp_path / "data") as r:
        await r.subscribe("read", "data.x = 1")
        await r.subscribe("behind", "data.x = 1")
        await publish_and_match(r, 3, 1)
        copy_of(tmp_path / "data", "log.db", tmp_path / "old.db")
        await publish_and_match(r, 7, 1)
        await r.subscribe("late", "data.x = 2")
        await r.ack("read", *(await pull_all(r, "read")))
    put_back(tmp_path / "old.db", tmp_path / "data", "log.db")


@pytest.mark.parametrize("killed", [False, True])
def test_an_older_log_put_back_gives_its_old_matches_and_cursors_to_no_new_event(
    tmp_path, caplog, monkeypatch, killed
):
    """New events got the offsets of lost ones, and with them their matches and their acks."""

    async def work() -> None:
        await _with_an_old_log(tmp_path)
        if killed:
            with monkeypatch.context() as patch:
                patch.setattr("fieldfare.storage.sqlite.log.SqliteEventLog.raise_end", _die)
                with pytest.raises(KeyboardInterrupt):
                    async with running(tmp_path / "data"):
                        pass
        async with running(tmp_path / "data") as r:
            assert "log.db ends at record 3, although records up to 10 existed" in caplog.text
            await publish_and_match(r, 2, 2)
            assert (await r.client.get("/v1/stats")).json()["matched_end"] == 12
            assert await pull_all(r, "late") == ["0-10-0", "0-11-0"]
            assert await pull_all(r, "read") == []
            assert await pull_all(r, "behind") == ["0-0-0", "0-1-0", "0-2-0"]
            await publish_and_match(r, 1, 1)
            assert await pull_all(r, "read") == ["0-12-0"]
            r.gateway.maintenance.round(1)

    run(work)


def _die(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_older_log_and_match_log_put_back_go_on_behind_what_the_registry_knows(tmp_path):
    """A subscription made at record 10 would not have met the new records 3 to 9."""

    async def work() -> None:
        await _with_an_old_log(tmp_path)
        data = tmp_path / "data"
        shutil.rmtree(DataFolder(data).matches)
        DataFolder(data).heartbeat.unlink()
        async with running(data) as r:
            assert r.gateway.log.end() == 10
            while r.pipeline.step() < 10:
                pass
            await publish_and_match(r, 2, 2)
            assert await pull_all(r, "late") == ["0-10-0", "0-11-0"]
            assert await pull_all(r, "behind") == ["0-0-0", "0-1-0", "0-2-0"]

    run(work)


def test_an_older_match_log_put_back_is_said_and_matched_again(tmp_path, caplog):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await publish_and_match(r, 6, 1)
            for path in DataFolder(tmp_path).matches.rglob("*.arrow"):
                if int(path.name[:16]) >= 4:
                    path.unlink()
        async with running(tmp_path) as r:
            assert "matches/ ends at record 4, although records up to 6 were matched" in caplog.text
            r.pipeline.step()
            assert len(await pull_all(r, "a")) == 6

    run(work)


def test_an_older_registry_put_back_does_not_meet_the_filters_of_lost_subscriptions(tmp_path, caplog):
    """New subscriptions got the numbers of lost ones, whose filters still stood in the index."""

    async def work() -> None:
        data = tmp_path / "data"
        async with running(data) as r:
            await r.subscribe("a", "data.x = 1")
            copy_of(data, "registry.db", tmp_path / "old.db")
            for id in "bcd":
                await r.subscribe(id, "data.x = 2")
            FileIndexStore(DataFolder(data).index).write_manifest(Manifest(1, r.gateway.registry.revision()))
        put_back(tmp_path / "old.db", data, "registry.db")
        async with running(data) as r:
            assert "registry.db is at revision 1, although revision 4 existed" in caplog.text
            new = await r.subscribe("e", "data.x = 3")
            registry = r.gateway.registry
            assert registry.revision() > 4
            with pytest.raises(RegistryError):
                list(registry.changes(4, registry.revision()))
            assert {version.filter for version in registry.versions(registry.revision(), 0)} == {
                "data.x = 1",
                "data.x = 3",
            }
            assert new["filter"] == "data.x = 3"

    run(work)


def test_a_cursor_behind_the_logs_end_is_set_back_to_it(tmp_path):
    """A client once acked a position that no event had: the subscription would never have got anything."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await publish_and_match(r, 2, 1)
            number = r.gateway.registry.get("default", "a").number
            r.gateway.registry.save_cursors([(number, Cursor((Position(0, 70_000, 3),)))])
        async with running(tmp_path) as r:
            await publish_and_match(r, 1, 1)
            assert await pull_all(r, "a") == ["0-2-0"]

    run(work)


def test_a_directory_that_fits_together_is_left_alone(tmp_path, caplog):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await publish_and_match(r, 3, 1)
            await r.ack("a", *(await pull_all(r, "a")))
        files = sorted(str(path) for path in tmp_path.rglob("*.arrow"))
        heartbeat = json.loads(DataFolder(tmp_path).heartbeat.read_text())
        assert heartbeat["offset"] == 3
        caplog.clear()
        async with running(tmp_path) as r:
            assert r.gateway.log.end() == 3
            assert await pull_all(r, "a") == []
        assert sorted(str(path) for path in tmp_path.rglob("*.arrow")) == files
        assert "older copy" not in caplog.text and "skip these records" not in caplog.text

    run(work)


def test_a_heartbeat_of_any_bytes_keeps_no_gateway_from_starting(tmp_path):
    """A power failure may leave what was in the sector before; the pipeline's next beat replaces it."""

    async def work() -> None:
        for torn in (
            b"",
            b"\0" * 1024,
            b'{"pid": 1, "state": "\xff',
            b'{"pid": 1, "state": "\xff", "time_ms": 1}',
        ):
            folder = DataFolder(tmp_path)
            folder.make()
            for name in ("pipeline", "indexer"):
                folder.heartbeat_of(name).write_bytes(torn)
            async with running(tmp_path) as r:
                r.gateway.maintenance.round(0)
                assert (await r.client.get("/readyz")).status_code == 503

    run(work)


def test_a_filter_made_in_an_older_registry_does_not_meet_records_from_before_it(tmp_path, caplog):
    """Without an index only the stamps of records showed that later revisions had been assigned before."""

    async def work() -> None:
        data = tmp_path / "data"
        async with running(data) as r:
            await r.subscribe("a", "data.x = 1")
            copy_of(data, "registry.db", tmp_path / "old.db")
            for id in "bcd":
                await r.subscribe(id, "data.x = 1")
            await r.publish(event(1, {"x": 1}))
        put_back(tmp_path / "old.db", data, "registry.db")
        async with running(data) as r:
            assert "registry.db is at revision 1, although revision 4 existed" in caplog.text
            new = await r.subscribe("e", "data.x = 1")
            assert new["revision"] > 4
            await r.publish(event(2, {"x": 1}))
            r.pipeline.step()
            assert await pull_all(r, "a") == ["0-0-0", "0-1-0"]
            assert await pull_all(r, "e") == ["0-1-0"]

    run(work)
