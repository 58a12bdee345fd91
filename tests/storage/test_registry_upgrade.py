"""Registries of older formats are upgraded when they are opened, whole or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from test_registry import put

from doses import SHARE
from fieldfare.model import Cursor, Position
from fieldfare.storage import Registry, open_registry
from fieldfare.storage.checksums import checksum
from fieldfare.storage.errors import RegistryError
from fieldfare.storage.registry import Configure, Criteria, Remove, SpaceUsage, StoredSpace
from fieldfare.storage.sql import tables

FORMAT_10 = f"""
DROP TABLE labels;
ALTER TABLE subscriptions DROP COLUMN owner;
ALTER TABLE subscriptions DROP COLUMN labels;
UPDATE counters SET value = 10, checksum = {checksum("format", 10)} WHERE name = 'format';
"""
"""Statements that turn today's tables into those of format 10."""

FORMAT_9 = f"""
{FORMAT_10}
ALTER TABLE versions DROP COLUMN destination;
UPDATE counters SET value = 9, checksum = {checksum("format", 9)} WHERE name = 'format';
"""
"""Statements that turn today's tables into those of format 9."""

FORMAT_8 = (
    FORMAT_9
    + """
ALTER TABLE gone_spaces DROP COLUMN checksum;
ALTER TABLE counters DROP COLUMN checksum;
DROP TABLE cursor_copies;
UPDATE counters SET value = 8 WHERE name = 'format';
"""
)
"""Statements that turn today's tables into those of format 8."""

FORMAT_7 = (
    FORMAT_8
    + """
ALTER TABLE spaces DROP COLUMN checksum;
ALTER TABLE letters DROP COLUMN checksum;
UPDATE counters SET value = 7 WHERE name = 'format';
"""
)
"""Statements that turn today's tables into those of format 7."""

FORMAT_6 = (
    FORMAT_7
    + """
ALTER TABLE subscriptions DROP COLUMN checksum;
ALTER TABLE versions DROP COLUMN checksum;
ALTER TABLE versions DROP COLUMN compiled_checksum;
ALTER TABLE cursors DROP COLUMN checksum;
ALTER TABLE pasts DROP COLUMN checksum;
ALTER TABLE pasts DROP COLUMN compiled_checksum;
UPDATE counters SET value = 6 WHERE name = 'format';
"""
)
"""Statements that turn today's tables into those of format 6."""

FORMAT_5 = (
    FORMAT_6
    + """
ALTER TABLE spaces DROP COLUMN encryption;
UPDATE counters SET value = 5 WHERE name = 'format';
"""
)
"""Statements that turn today's tables into those of format 5."""

FORMAT_4 = (
    FORMAT_5
    + """
ALTER TABLE subscriptions DROP COLUMN unused_s;
UPDATE counters SET value = 4 WHERE name = 'format';
"""
)
"""Statements that turn today's tables into those of format 4."""

FORMAT_1 = (
    FORMAT_4
    + """
CREATE TABLE cursors_1 (number BIGINT NOT NULL PRIMARY KEY, "partition" BIGINT NOT NULL,
    "offset" BIGINT NOT NULL, "index" BIGINT NOT NULL, acked BLOB NOT NULL);
INSERT INTO cursors_1 SELECT number, "partition", "offset", "index", acked FROM cursors;
DROP TABLE cursors;
ALTER TABLE cursors_1 RENAME TO cursors;
DROP TABLE letters;
DROP TABLE pasts;
ALTER TABLE subscriptions DROP COLUMN start;
ALTER TABLE spaces DROP COLUMN quotas;
ALTER TABLE spaces DROP COLUMN key;
DROP TABLE gone_spaces;
ALTER TABLE subscriptions DROP COLUMN cost;
ALTER TABLE subscriptions DROP COLUMN delivery;
ALTER TABLE subscriptions DROP COLUMN further;
DELETE FROM counters WHERE name LIKE 'end %';
UPDATE counters SET value = 1 WHERE name = 'format';
"""
)
"""Statements that turn today's tables into those of format 1."""

FORMAT_2 = (
    FORMAT_4
    + """
DROP TABLE letters;
DROP TABLE pasts;
ALTER TABLE subscriptions DROP COLUMN start;
ALTER TABLE cursors DROP COLUMN attempts;
ALTER TABLE spaces DROP COLUMN quotas;
ALTER TABLE spaces DROP COLUMN key;
DROP TABLE gone_spaces;
ALTER TABLE subscriptions DROP COLUMN cost;
ALTER TABLE subscriptions DROP COLUMN delivery;
UPDATE counters SET value = 2 WHERE name = 'format';
"""
)
"""Statements that turn today's tables into those of format 2."""

FORMAT_3 = (
    FORMAT_4
    + """
DROP TABLE pasts;
ALTER TABLE subscriptions DROP COLUMN start;
ALTER TABLE spaces DROP COLUMN quotas;
ALTER TABLE spaces DROP COLUMN key;
DROP TABLE gone_spaces;
ALTER TABLE subscriptions DROP COLUMN cost;
UPDATE counters SET value = 3 WHERE name = 'format';
"""
)
"""And for the third."""


OLDER = {
    "first": FORMAT_1,
    "second": FORMAT_2,
    "third": FORMAT_3,
    "fourth": FORMAT_4,
    "fifth": FORMAT_5,
    "sixth": FORMAT_6,
    "seventh": FORMAT_7,
    "eighth": FORMAT_8,
    "ninth": FORMAT_9,
    "tenth": FORMAT_10,
}


@pytest.fixture(params=OLDER.values(), ids=OLDER)
def old_registry(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A registry of an older format, with three subscriptions, one of them removed, and a cursor."""
    url = f"sqlite:///{tmp_path}/old.db"
    registry = open_registry(url)
    registry.create_space("birds")
    registry.apply([put("x"), put("y"), put("z")], (3,), 0)
    registry.apply([Remove("birds", "z")], (8,), 0)
    registry.save_cursors([(1, Cursor((Position(0, 4, 1),), ((Position(0, 5, 0), Position(0, 6, 2)),)))])
    registry.close()
    with sqlite3.connect(tmp_path / "old.db") as old:
        old.executescript(request.param)
    old.close()
    return url


def check_upgraded(registry: Registry) -> None:
    assert registry.load_cursors([1]).get(1) == Cursor(
        (Position(0, 4, 1),), ((Position(0, 5, 0), Position(0, 6, 2)),)
    )
    assert [each.valid_from for each in registry.list("birds")] == [(3,), (3,)]
    assert (registry.known_ends(), registry.revision(), registry.count()) == ((8,), 4, 2)
    assert [change.revision for change in registry.changes(0, 9)] == [1, 2, 3, 4]
    assert registry.held() == {"birds": SpaceUsage(2, 2)}
    assert registry.stored_spaces() == [StoredSpace("birds", "birds", {})]


def test_a_registry_of_an_older_format_is_upgraded_and_loses_nothing(old_registry: str) -> None:
    registry = open_registry(old_registry)
    check_upgraded(registry)
    check_upgraded(open_registry(old_registry))
    registry.apply([put("x", "a = 2")], (9, 2), 0)
    registry.save_cursors([(1, Cursor((Position(0, 9, 0), Position(1, 2, 0))))])
    registry.apply([Configure("birds", "x", owner="ann", labels=(("env", "prod"),))], (9, 2), 0)
    (found,), _ = registry.search("birds", None, Criteria(None, [("env", "prod"), ("", "ann")]), 9, 9)
    assert found.id == "x" and not registry.has_vanished()
    assert open_registry(old_registry).known_ends() == (9, 2)


def steps_from(name: str) -> list[int]:
    """How many statements each step of an upgrade from a format has."""
    first = [*OLDER].index(name) + 1
    return [len(getattr(tables, f"_FROM_{format}")) for format in range(first, tables.FORMAT)]


def moments(name: str) -> range:
    """After how many statements an upgrade is killed.

    Behind its first step it does what the upgrade from the next format does, which is killed there by itself:
    in a small dose only the longest upgrade is killed behind its first step, too.
    """
    is_whole = SHARE >= 1 or name == "first"
    return range(sum(steps_from(name)) + 1 if is_whole else steps_from(name)[0] + 1)


@pytest.mark.parametrize(
    ("old_registry", "format", "statements"),
    [
        pytest.param(OLDER[name], format, statements, id=f"{name}-{statements}")
        for format, name in enumerate(OLDER, 1)
        for statements in moments(name)
    ],
    indirect=["old_registry"],
)
def test_an_upgrade_can_be_killed_between_any_two_steps(
    old_registry: str, run_program: Callable[[str], tuple[int, str]], format: int, statements: int
) -> None:
    status, _ = run_program(f"""if True:
        import os
        from fieldfare.storage import open_registry
        from fieldfare.storage.sql import tables
        left = {statements}
        for name in [f"_FROM_{{format}}" for format in range({format}, tables.FORMAT)]:
            step = getattr(tables, name)
            setattr(tables, name, step[:left])
            left -= min(left, len(step))
        upgrade = tables.upgrade
        tables.upgrade = lambda connection, format: (upgrade(connection, format), os._exit(9))
        open_registry({old_registry!r})
    """)
    assert status == 9
    check_upgraded(open_registry(old_registry))


def test_a_registry_of_a_later_format_is_refused(old_registry: str) -> None:
    open_registry(old_registry).close()
    with sqlite3.connect(old_registry.removeprefix("sqlite:///")) as later:
        values = tables.FORMAT + 1, checksum("format", tables.FORMAT + 1)
        later.execute("UPDATE counters SET value = ?, checksum = ? WHERE name = 'format'", values)
    later.close()
    with pytest.raises(RegistryError, match="not a registry of formats 1 to 11"):
        open_registry(old_registry)
