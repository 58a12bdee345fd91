"""Reads of all subscriptions of a space: where they stand, by number, by text."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from memory_registry import MemoryRegistry

from fieldfare.model import Cursor, Position
from fieldfare.storage import open_registry
from fieldfare.storage.registry import Put, Registry, Remove


def opened(folder: Path) -> Registry:
    return open_registry(f"sqlite:///{folder / 'registry.db'}")


@pytest.fixture(params=["sqlite", "memory"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    registry: Registry = MemoryRegistry() if request.param == "memory" else opened(tmp_path)
    registry.create_space("default")
    yield registry
    registry.close()


def put(id: str, filter: str = "data.x = 1") -> Put:
    return Put("default", id, filter, "sql", b"")


def has_index(folder: Path) -> bool:
    with closing(sqlite3.connect(folder / "registry.db")) as connection:
        names = [row[1] for row in connection.execute("PRAGMA index_list(subscriptions)")]
    return "subscription_numbers" in names


def test_a_database_of_an_earlier_version_gets_the_index_by_number(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    registry.create_space("default")
    registry.apply([put("a"), put("b"), put("c"), Remove("default", "b")], (0,), 0)
    registry.close()
    assert has_index(tmp_path)
    with closing(sqlite3.connect(tmp_path / "registry.db")) as connection:
        connection.execute("DROP INDEX subscription_numbers")
    registry = opened(tmp_path)
    assert {number: each.id for number, each in registry.by_number([3, 2, 1, 9]).items()} == {1: "a", 3: "c"}
    registry.close()
    assert has_index(tmp_path)


def test_a_place_is_the_saved_cursor_or_else_the_begin(registry: Registry) -> None:
    registry.apply([put("a"), put("b"), put("c")], (5, 7), 0)
    acked = ((Position(1, 9, 0), Position(1, 9, 2)),)
    registry.save_cursors([(2, Cursor((Position(0, 6, 3),))), (3, Cursor((Position(1, 8, 0),), acked))])
    (a,) = registry.places("default", None, 1)
    assert (a.number, a.positions, a.is_plain) == (1, (Position(0, 5, 0), Position(1, 7, 0)), True)
    b, c = registry.places("default", "a", 9)
    assert b.positions == (Position(0, 6, 3), Position(1, 7, 0)) and b.is_plain
    assert c.positions == (Position(0, 5, 0), Position(1, 8, 0)) and not c.is_plain
    assert registry.places("default", "c", 9) == []


def test_subscriptions_are_found_by_number_and_by_text(registry: Registry) -> None:
    registry.apply([put("a"), put("B1", "data.Y = 2"), put("c"), Remove("default", "c")], (0,), 0)
    assert {number: each.id for number, each in registry.by_number([1, 2, 3]).items()} == {1: "a", 2: "B1"}
    for text, ids in (("data.", ["B1", "a"]), ("b1", ["B1"]), ("Y = 2", ["B1"]), ("%", [])):
        found, last = registry.search("default", None, text, 100, 100)
        assert ([each.id for each in found], last) == (ids, None), text
    found, last = registry.search("default", None, "x", 1, 100)
    assert (found, last) == ([], "B1"), "only the first subscription was read"
