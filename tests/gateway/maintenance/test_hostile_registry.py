"""A gateway starts with any content of its registry: it leaves out unusable rows, and reports them.

SQLite accepts any value in any column, and a version must handle the data stored by another one. One row must
not end the service at every start, or affect other rows.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from gateway_support import SUBSCRIPTIONS, run, running, until_async
from test_keys import ADMIN, admin_file, bearer

from fieldfare.gateway.admission.keyring import Keyring
from fieldfare.model import Cursor, DeadLetter, DeliverySettings, Position, PushSettings
from fieldfare.storage import open_keys, open_registry
from fieldfare.storage.checksums import checksum
from fieldfare.storage.corruption import corruption_notices, note_paths
from fieldfare.storage.errors import FormatError, RegistryError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.keys import StoredKey
from fieldfare.storage.registry import Put
from fieldfare.storage.sql import keys as key_tables
from fieldfare.storage.sql import tables

ENCODED = b"\x92\x01\x90"
HOSTILE: dict[str, Any] = {
    "null": None,
    "negative": -1,
    "zero": 0,
    "largest": (1 << 63) - 1,
    "least": -(1 << 63),
    "fraction": 1.5,
    "infinite": float("inf"),
    "empty": "",
    "text": "abc",
    "number as text": "1" * 400,
    "broken json": '{"a":',
    "nested json": "[" * 100_000,
    "json of numbers": '{"expires_unused_s": 1e400, "push": {"url": "https://["}}',
    "json of lists": '[["push", "expires_unused_s"]]',
    "position": "999999999999999999-999999999999999999-999999999999999999",
    "bytes": b"\xff\x00\xc1",
    "no bytes": b"",
    "nested bytes": b"\x91" * 100_000,
    "no utf-8": "CAST(x'ff22707573682220' AS TEXT)",
}
SETTINGS = DeliverySettings(
    expires_unused_s=3600.0, retry_delays_s=(1.0,), push=PushSettings("http://127.0.0.1:9/")
)


OFTEN = {
    *(("subscriptions", "delivery"), ("subscriptions", "unused_s"), ("subscriptions", "number")),
    *(("subscriptions", "owner"), ("subscriptions", "labels"), ("labels", "number"), ("labels", "id")),
    *(("spaces", "quotas"), ("cursors", "acked"), ("api_keys", "digest")),
}
"""The columns that every run of the tests damages; the slow ones damage all."""


def columns() -> Iterator[Any]:
    for table in (*tables.metadata.sorted_tables, *key_tables._metadata.sorted_tables):
        for column in table.columns if table.name != "counters" else ():
            place = table.name, column.name
            yield pytest.param(*place, marks=() if place in OFTEN else pytest.mark.slow)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory in which each table has one row per hostile value, and one more."""
    folder = tmp_path_factory.mktemp("hostile")
    url = DataFolder(folder).registry_url
    registry, keys = open_registry(url), open_keys(url)
    registry.create_space("default")
    count = len(HOSTILE) + 1
    for n in range(count):
        registry.create_space(f"space{n}")
        registry.create_space(f"gone{n}")
        registry.set_quotas(f"space{n}", {"subscriptions": 1000.0})
        put = Put(
            *("default", f"s{n:02}", "data.x = 1", "sql", ENCODED),
            delivery=SETTINGS,
            owner="ann",
            labels=(("env", "prod"), ("team", "pay")),
        )
        replay = Put("default", f"past{n:02}", "data.x = 1", "sql", ENCODED, start=(Position(0, 0, 0),))
        registry.apply([put], (0,), 0)
        [made] = registry.apply([replay], (0,), 0)
        letters = (DeadLetter(Position(0, 0, 0), 3, "why"),)
        cursor = Cursor((Position(0, 0, 0),), attempts=((Position(0, 0, 1), 2),), letters=letters)
        registry.save_cursors([(made.number, cursor)])
        keys.add(StoredKey(f"{n:012x}", b"1" * 32, "default", ("subscribe",), "", 1, "admin"))
    for n in range(count):
        registry.delete_space(f"gone{n}", 1)
    registry.close()
    keys.close()
    return folder


def damage(data: Path, table: str, column: str) -> None:
    """Put each hostile value into a separate row; the last row is unchanged."""
    with closing(sqlite3.connect(data / "registry.db", isolation_level=None)) as registry:
        # The row is found by what stood in it: some tables have no row numbers.
        names = [row[1] for row in registry.execute(f"PRAGMA table_info({table})")]
        order = ", ".join(f'"{name}"' for name in names)
        rows = registry.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()
        assert len(rows) > len(HOSTILE)
        where = " AND ".join(f'"{name}" IS ?' for name in names)
        # As rows of older formats, which have no checksums: with one a row counts as corrupt.
        unchecked = "".join(f", {name} = NULL" for name in names if name.endswith("checksum"))
        for value, row in zip(HOSTILE.values(), rows, strict=False):
            is_raw = isinstance(value, str) and value.startswith("CAST(")
            said, values = (value, row) if is_raw else ("?", (value, *row))
            try:
                registry.execute(f'UPDATE {table} SET "{column}" = {said}{unchecked} WHERE {where}', values)
            except sqlite3.IntegrityError:
                pass  # the database itself refuses it: null, a number that is no row's


def check_serves(data: Path) -> None:
    """Start a gateway, and have it serve the subscriptions that did not change."""

    async def work() -> None:
        async with running(
            data, admin_key_file=admin_file(data), webhook_allow="127.0.0.1", maintenance_s=1e6
        ) as r:
            r.client.headers.update(bearer(ADMIN))
            made = await r.client.put(f"{SUBSCRIPTIONS}/new", json={"filter": "data.x = 1"})
            assert made.status_code == 201, made.text
            labelled = "?owner=ann&label=env=prod&label=team"
            for query in ("", "?sort=backlog", "?search=data", labelled, f"{labelled}&sort=backlog"):
                assert (await r.client.get(f"{SUBSCRIPTIONS}{query}")).status_code == 200, query
            assert (await r.client.get("/v1/backlogs")).status_code == 200
            assert (await r.client.get("/v1/keys")).status_code == 200
            assert (await r.client.get(f"{SUBSCRIPTIONS}/new/dead-letters")).status_code == 200
            for n in range(len(HOSTILE) + 1):
                answer = await r.client.get(f"{SUBSCRIPTIONS}/s{n:02}")
                assert answer.status_code in (200, 404, 503), answer.text
                answer = await r.client.post(f"{SUBSCRIPTIONS}/past{n:02}/pull", json={})
                assert answer.status_code in (200, 404, 503), answer.text
                answer = await r.client.get(f"{SUBSCRIPTIONS}/past{n:02}/dead-letters")
                assert answer.status_code in (200, 404, 503), answer.text
            await r.client.post("/v1/spaces", json={"name": "fresh"})
            await r.gateway.background.maintain()
            await r.gateway.unused.round(1.0)
            revision = r.gateway.registry.revision()
            with suppress(RegistryError):  # it says that all history is purged
                list(r.gateway.registry.changes(0, revision))
            list(r.gateway.registry.versions(revision, 0))
            assert r.gateway.pushes._finding is None or not r.gateway.pushes._finding.cancelled()
            assert (await r.client.get("/v1/stats")).status_code == 200
            assert (await r.client.delete(f"{SUBSCRIPTIONS}/new")).status_code == 204

    run(work)


@pytest.mark.long
@pytest.mark.parametrize(("table", "column"), list(columns()))
def test_a_start_survives_any_value_in_any_column(
    tmp_path: Path, template: Path, table: str, column: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(template, data)
    damage(data, table, column)
    check_serves(data)


@pytest.mark.long
@pytest.mark.parametrize("counter", [tables.REVISION, tables.NUMBER, tables.PURGED, "end 0"])
def test_a_counter_that_is_no_number_is_counted_again(tmp_path: Path, template: Path, counter: str) -> None:
    for n, value in enumerate(HOSTILE[name] for name in ("null", "negative", "largest", "text", "bytes")):
        data = tmp_path / f"data{n}"
        shutil.copytree(template, data)
        with closing(sqlite3.connect(data / "registry.db", isolation_level=None)) as registry:
            if value is None:
                registry.execute("DELETE FROM counters WHERE name = ?", (counter,))
            registry.execute("UPDATE counters SET value = ? WHERE name = ?", (value, counter))
        check_serves(data)


@pytest.mark.parametrize("value", [0, -1, 1 << 40])
def test_a_registry_of_no_known_format_is_refused_by_name(tmp_path: Path, template: Path, value: Any) -> None:
    data = tmp_path / "data"
    shutil.copytree(template, data)
    with closing(sqlite3.connect(data / "registry.db", isolation_level=None)) as registry:
        values = value, checksum("format", value)
        registry.execute("UPDATE counters SET value = ?, checksum = ? WHERE name = 'format'", values)
    with pytest.raises(FormatError, match="not a registry of format"):
        open_registry(DataFolder(data).registry_url)


@pytest.mark.parametrize("value", [None, "abc", b"\xff"])
def test_a_format_that_is_no_number_is_read_from_the_columns(
    tmp_path: Path, template: Path, value: Any
) -> None:
    data = tmp_path / "data"
    shutil.copytree(template, data)
    with closing(sqlite3.connect(data / "registry.db", isolation_level=None)) as registry:
        if value is None:
            registry.execute("DELETE FROM counters WHERE name = 'format'")
        else:
            registry.execute("UPDATE counters SET value = ? WHERE name = 'format'", (value,))
    registry_of = open_registry(DataFolder(data).registry_url)
    [notice] = corruption_notices(data)
    assert "format" in notice and registry_of.revision() > 0
    registry_of.close()
    note_paths(data)[0].unlink()
    open_registry(DataFolder(data).registry_url).close()
    assert corruption_notices(data) == []


def test_one_subscription_whose_settings_cannot_be_read_waits_for_new_ones(
    tmp_path: Path, template: Path
) -> None:
    """Its messages go nowhere, and are not lost; all others are sent as before, and a person is told."""
    data = tmp_path / "data"
    shutil.copytree(template, data)
    with closing(sqlite3.connect(data / "registry.db", isolation_level=None)) as registry:
        registry.execute(
            """UPDATE subscriptions SET delivery = '{"push": 5}', checksum = NULL WHERE id = 's00'"""
        )

    async def work() -> None:
        settings: dict[str, Any] = {"admin_key_file": admin_file(data), "webhook_allow": "127.0.0.1"}
        async with running(data, maintenance_s=1e6, **settings) as r:
            r.client.headers.update(bearer(ADMIN))
            await until_async(lambda: len(r.gateway.pushes._pushes) == len(HOSTILE))
            told = (await r.client.get(f"{SUBSCRIPTIONS}/s00")).json()
            assert told["delivery"] == {"paused": True} and "cannot be read" in told["paused_because"]
            await r.gateway.background.maintain()
            [notice] = (await r.client.get("/v1/stats")).json()["notices"]
            assert "default/s00" in notice
            assert "fieldfare_corruption_notes 1.0" in (await r.client.get("/metrics")).text
            changed = {"delivery": {"push": {"url": "http://127.0.0.1:9/"}, "paused": False}}
            assert (await r.client.patch(f"{SUBSCRIPTIONS}/s00", json=changed)).status_code == 200
            assert len(r.gateway.pushes._pushes) == len(HOSTILE) + 1

    run(work)


def test_a_subscription_whose_row_cannot_be_used_can_be_put_or_deleted(
    tmp_path: Path, template: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(template, data)
    with closing(sqlite3.connect(data / "registry.db", isolation_level=None)) as registry:
        registry.execute(
            "UPDATE subscriptions SET number = 'none', checksum = NULL WHERE id IN ('s00', 's01')"
        )

    async def work() -> None:
        async with running(data, admin_key_file=admin_file(data)) as r:
            r.client.headers.update(bearer(ADMIN))
            assert (await r.client.get(f"{SUBSCRIPTIONS}/s00")).status_code == 503
            many = [{"id": id, "filter": "data.x = 2"} for id in ("s00", "new")]
            answer = (await r.client.post(SUBSCRIPTIONS, json={"subscriptions": many})).json()
            assert answer["created"] == 2
            assert (await r.client.get(f"{SUBSCRIPTIONS}/s00")).json()["filter"] == "data.x = 2"
            await r.client.delete(f"{SUBSCRIPTIONS}/s01")
            assert (await r.client.get(f"{SUBSCRIPTIONS}/s01")).status_code == 404

    run(work)


def test_unreadable_keys_are_rejected_and_the_service_stays_closed(tmp_path: Path, template: Path) -> None:
    """With no key that can be read and no admin key the service must not be open to all."""
    data = tmp_path / "data"
    shutil.copytree(template, data)
    with closing(sqlite3.connect(data / "registry.db", isolation_level=None)) as registry:
        registry.execute("UPDATE api_keys SET digest = 'none'")

    async def work() -> None:
        async with running(data) as r:
            assert (await r.client.get(SUBSCRIPTIONS)).status_code == 401

    run(work)


def test_revoked_keys_are_forgotten_after_their_time_and_are_not_read_at_a_start(
    tmp_path: Path,
) -> None:
    """A million revoked keys took 300 MB of the registry, and 1.2 GB of memory at each start."""
    url = DataFolder(tmp_path).registry_url
    store = open_keys(url)
    for n in range(50):
        store.add(StoredKey(f"{n:012x}", b"1" * 32, None, ("watch",), "", 1, "admin"))
        if n != 20:
            store.revoke(f"{n:012x}", 1_000 + n)
    assert [key.id for key in store.keys()] == [f"{20:012x}"]  # noqa: SIM118 - it is no mapping
    assert store.forget_revoked(1_010, 1_000) == 10, "their time is over"
    assert store.forget_revoked(1_010, 1_000) == 0
    assert store.forget_revoked(1_010, 5) == 34, "there are too many"
    assert store.forget_revoked(1 << 60, 0) == 4
    assert store.has_any() and Keyring(store, None).required, "the newest stays: keys are asked for"
