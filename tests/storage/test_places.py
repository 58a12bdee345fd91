"""Reads of all subscriptions of a space: where they stand, by number, by text."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from memory_registry import MemoryRegistry

from fieldfare.model import Cursor, Position, Subscription
from fieldfare.storage import open_registry
from fieldfare.storage.registry import Configure, Criteria, Put, Registry, Remove


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
        found, last = registry.search("default", None, Criteria(text), 100, 100)
        assert ([each.id for each in found], last) == (ids, None), text
    found, last = registry.search("default", None, Criteria("x"), 1, 100)
    assert (found, last) == ([], "B1"), "only the first subscription was read"


def labelled(id: str, owner: str = "", **labels: str) -> Put:
    return Put("default", id, "data.x = 1", "sql", b"", owner=owner, labels=tuple(sorted(labels.items())))


@pytest.mark.parametrize("searched", [1, 2, 100])
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_subscriptions_are_found_by_owner_and_labels(registry: Registry, searched: int, limit: int) -> None:
    registry.create_space("other")
    registry.apply(
        [
            labelled("a", "ann", team="pay", env="prod"),
            labelled("b", "bob", team="pay", env="test"),
            labelled("c", "ann", team="ship", env="prod", tier="1"),
            labelled("d", "ann"),
            labelled("e", team="pay", env="prod"),
            labelled("g", "ann", team="pay", env="prod"),
            Put("other", "a", "true", "sql", b"", owner="ann", labels=(("team", "pay"),)),
            put("z"),
        ],
        (0,),
        0,
    )
    registry.apply([Remove("default", "g"), Configure("default", "d", labels=(("env", "prod"),))], (0,), 0)

    def found(text: str | None, *labels: tuple[str, str | None]) -> str:
        ids, after = "", None
        while True:
            some, after = registry.search("default", after, Criteria(text, labels), searched, limit)
            assert len(some) <= limit
            ids += "".join(each.id for each in some)
            if after is None:
                return ids

    assert found(None, ("", "ann")) == "acd"
    assert found(None, ("team", "pay")) == "abe"
    assert found(None, ("team", None)) == "abce"
    assert found(None, ("team", "pay"), ("env", "prod")) == "ae"
    assert found(None, ("env", "prod"), ("", "ann"), ("team", None)) == "ac"
    assert found(None, ("env", "prod"), ("team", "nobody's")) == found(None, ("none", None)) == ""
    assert found("ANN") == "acd"
    assert found("team=pay") == "abe"
    assert found("ENV=PROD\nteam") == "ace", "labels are searched as lines, by key"
    assert found("c", ("env", "prod")) == "c"
    assert sorted(registry.labelled("default", Criteria(None, [("env", "prod")]), 4) or ()) == [1, 3, 4, 5]
    assert registry.labelled("default", Criteria(None, [("env", "prod")]), 3) is None
    assert registry.labelled("default", Criteria(None, [("env", "prod"), ("tier", "1")]), 3) == [3]
    among = registry.labelled(
        "default", Criteria(None, [("env", "prod"), ("", "ann")]), 0, [1, 2, 4, 6, 8, 99]
    )
    assert sorted(among or ()) == [1, 4]


def test_owner_and_labels_stay_with_a_new_filter_and_need_no_revision(registry: Registry) -> None:
    (first,) = registry.apply([labelled("a", "ann", env="prod", team="pay")], (0,), 0)
    (second,) = registry.apply([put("a", "data.x = 2")], (0,), 0)
    (third,) = registry.apply([Configure("default", "a", owner="", labels=(("team", "pay"),))], (0,), 0)
    assert isinstance(first, Subscription) and isinstance(second, Subscription)
    assert (second.owner, second.labels) == ("ann", (("env", "prod"), ("team", "pay")))
    assert isinstance(third, Subscription) and third.revision == second.revision == first.revision + 1
    assert registry.get("default", "a") == third
    assert (third.owner, third.labels) == ("", (("team", "pay"),))
    assert registry.search("default", None, Criteria(None, [("", "ann")]), 9, 9) == ([], None)
    registry.apply([Remove("default", "a"), put("a")], (0,), 0)
    assert registry.search("default", None, Criteria(None, [("team", None)]), 9, 9) == ([], None)


def test_lost_and_foreign_rows_of_labels_are_made_again(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    registry.create_space("default")
    registry.apply(
        [labelled("a", "ann", team="pay", env="prod"), labelled("b", env="prod"), put("c")], (0,), 0
    )
    assert not registry.has_vanished()
    found = Criteria(None, [("env", "prod")])
    for damage in (
        "DELETE FROM labels",
        "DELETE FROM labels WHERE id = 'b'",
        "INSERT INTO labels VALUES ('default', 'env', 'c', 'prod', 3)",
    ):
        with closing(sqlite3.connect(tmp_path / "registry.db")) as connection:
            connection.execute(damage)
            connection.commit()
        ids = [each.id for each in registry.search("default", None, found, 9, 9)[0]]
        assert "c" not in ids, "a subscription without the label is not shown, whatever the table says"
        registry.apply([labelled("c", env="test"), Configure("default", "c", labels=())], (0,), 0)
        registry.mend_vanished()
        assert not registry.has_vanished()
        assert [each.id for each in registry.search("default", None, found, 9, 9)[0]] == ["a", "b"]
    registry.close()


def test_labels_that_a_disk_has_changed_are_noticed(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    registry.create_space("default")
    for column, value in (("labels", "'env=dev'"), ("labels", "NULL"), ("owner", "'eve'"), ("owner", "NULL")):
        registry.apply([Remove("default", "a"), labelled("a", "ann", env="prod")], (0,), 0)
        with closing(sqlite3.connect(tmp_path / "registry.db")) as connection:
            connection.execute(f"UPDATE subscriptions SET {column} = {value}")
            connection.commit()
        assert registry.list("default") == []
    registry.close()
