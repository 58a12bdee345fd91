"""The registry on a disk that returns changed bytes."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from test_registry import put

from fieldfare.matching.libraries import PLAIN
from fieldfare.model import OPEN_END, Change, Cursor, DeadLetter, Position
from fieldfare.storage import Registry, open_keys, open_registry
from fieldfare.storage.corruption import corruption_notices
from fieldfare.storage.keys import StoredKey
from fieldfare.storage.registry import Remove
from fieldfare.storage.sql.counting import SKIPPED


@pytest.fixture
def path(tmp_path: Path) -> Path:
    registry = open_registry(f"sqlite:///{tmp_path}/registry.db")
    registry.create_space("birds")
    registry.apply([put("x", "a = 1"), put("y", "a = 2"), put("z", "a = 3")], (3,), 0)
    registry.save_cursors([(n, Cursor((Position(0, 4, n),))) for n in (1, 2, 3)])
    registry.close()
    return tmp_path / "registry.db"


def tamper(path: Path, *statements: str) -> Registry:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return open_registry(f"sqlite:///{path}")


def test_a_changed_compiled_filter_is_compiled_again_from_its_text(path: Path) -> None:
    """It matched other events than its text says: some were lost, others delivered, without a word."""
    registry = tamper(path, "UPDATE versions SET compiled = X'00' WHERE revision = 2")
    wanted = PLAIN.compile("a = 2", "sql")
    assert {change.number: change.compiled for change in registry.changes(0, 9)}[2] == wanted
    assert {version.number: version.compiled for version in registry.versions(3, 0)}[2] == wanted
    [notice] = corruption_notices(path.parent)
    assert "compiled again, and nothing is lost" in notice


@pytest.mark.parametrize("change", ["filter = 'a = 7'", "dialect = 'cesql'", "number = 3", "space = 'fish'"])
def test_a_changed_version_is_taken_from_the_subscription_that_stands(path: Path, change: str) -> None:
    before = list(open_registry(f"sqlite:///{path}").versions(3, 0))
    registry = tamper(path, f"UPDATE versions SET {change} WHERE revision = 2")
    found = list(registry.versions(3, 0))
    assert [(v.number, v.space, v.filter, v.dialect) for v in found] == [
        (v.number, v.space, v.filter, v.dialect) for v in before
    ]
    both = tamper(path, "UPDATE subscriptions SET cost = 77 WHERE id = 'y'")
    assert [version.number for version in both.versions(3, 0)] == [1, 3]
    assert [change.number for change in both.changes(0, 3)] == [1, 3]
    assert any("matches no events (revision 2)" in notice for notice in corruption_notices(path.parent))


@pytest.mark.parametrize("change", ["filter = 'a = 7'", "delivery = '{\"order_by\":1}'", "number = 1"])
def test_a_changed_subscription_is_left_out_and_can_be_put_again(path: Path, change: str) -> None:
    registry = tamper(path, f"UPDATE subscriptions SET {change} WHERE id = 'y'")
    assert registry.get("birds", "y") is None
    assert [each.id for each in registry.list("birds")] == ["x", "z"]
    assert list(registry.pushed()) == [] and list(registry.expiring()) == []
    [notice] = corruption_notices(path.parent)
    assert "the subscription 'y' of the space 'birds' has changed on the disk" in notice
    registry.apply([put("y", "a = 5")], (3,), 0)
    assert registry.get("birds", "y").filter == "a = 5"  # type: ignore[union-attr]
    registry.apply([Remove("birds", "y")], (3,), 0)
    assert [each.id for each in registry.list("birds")] == ["x", "z"]


@pytest.mark.parametrize("change", ['UPDATE cursors SET "offset" = 4711', "DELETE FROM cursors"])
def test_a_cursor_that_has_changed_or_vanished_goes_on_from_an_earlier_place(path: Path, change: str) -> None:
    """One that vanished was not named; events from before the filter was put again were left out."""
    registry = open_registry(f"sqlite:///{path}")
    for offset in (9, 12, 7, 8):
        registry.save_cursors([(2, Cursor((Position(0, offset, 2), Position(1, offset, 0))))])
    registry.apply([put("y", "a = 5")], (90, 90), 0)
    registry.close()
    registry = tamper(path, f'{change} WHERE number = 2 AND "partition" = 0')
    found = registry.load_cursors([1, 2, 3])
    assert found[2].positions == (Position(0, 7, 0), Position(1, 8, 0)) and set(found) == {1, 2, 3}
    [notice] = corruption_notices(path.parent)
    assert "subscription number 2 in partition 0" in notice and "may be redelivered" in notice
    registry.set_cursors_back((5, 5))
    assert registry.load_cursors([2])[2].positions == (Position(0, 5, 0), Position(1, 5, 0))


def test_a_changed_cursor_without_a_copy_begins_again_and_takes_no_other_with_it(path: Path) -> None:
    registry = tamper(
        path, "DELETE FROM cursor_copies", 'UPDATE cursors SET "offset" = 4711 WHERE number = 2'
    )
    assert set(registry.load_cursors([1, 2, 3])) == {1, 3}
    [notice] = corruption_notices(path.parent)
    assert "messages may be redelivered" in notice
    registry.save_cursors([(2, Cursor((Position(0, 9, 0),)))])
    assert registry.load_cursors([2])[2] == Cursor((Position(0, 9, 0),))


def test_a_registry_that_is_closed_leaves_nothing_in_its_wal(path: Path) -> None:
    wal = Path(f"{path}-wal")
    assert not wal.exists() or wal.stat().st_size == 0


@pytest.mark.parametrize("counter", ["revision", "number", "purged", "format"])
def test_a_counter_that_is_lost_is_counted_again(path: Path, counter: str) -> None:
    """Its name had changed, and each start ended."""
    registry = tamper(path, f"UPDATE counters SET name = 'x{counter}' WHERE name = '{counter}'")
    assert registry.revision() == (3 + SKIPPED if counter == "revision" else 3)
    registry.apply([put("new", "a = 4")], (3,), 0)
    number = registry.get("birds", "new").number  # type: ignore[union-attr]
    assert number == (4 + SKIPPED if counter == "number" else 4)
    assert any("counted again" in notice for notice in corruption_notices(path.parent))


@pytest.mark.parametrize("counter", ["revision", "number", "purged", "format", "end 0"])
@pytest.mark.parametrize("bit", [0, 1, 3, 31])
def test_a_bit_of_a_counter_that_flips_is_put_back(path: Path, counter: str, bit: int) -> None:
    """A lower one gave a revision and a number out twice; a higher end made records of the log be lost."""
    with sqlite3.connect(path) as connection:
        before = dict(connection.execute("SELECT name, value FROM counters"))
    flipped = before[counter] ^ 1 << bit
    registry = tamper(path, f"UPDATE counters SET value = {flipped} WHERE name = '{counter}'")
    assert (registry.revision(), registry.known_ends()) == (3, (3,))
    with sqlite3.connect(path) as connection:
        assert dict(connection.execute("SELECT name, value FROM counters")) == before
    [notice] = corruption_notices(path.parent)
    assert f"table counters, row {counter}" in notice and "nothing is lost" in notice


@pytest.mark.parametrize("counter", ["revision", "number"])
def test_a_counter_that_changes_while_the_service_runs_gives_no_number_twice(
    path: Path, counter: str
) -> None:
    registry = open_registry(f"sqlite:///{path}")
    registry.apply([Remove("birds", "z")], (3,), 0)
    registry.purge(4)  # no row has its number any more
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE counters SET value = 0, checksum = 1 WHERE name = '{counter}'")
    connection.close()
    registry.apply([put("new", "a = 4")], (3,), 0)
    new = registry.get("birds", "new")
    assert new is not None and new.number > 3 and new.revision > 4
    assert registry.revision() == new.revision
    [notice] = corruption_notices(path.parent)
    assert f"row {counter}" in notice and "counted again" in notice


def test_a_subscription_that_has_vanished_is_named_and_its_version_ends(path: Path) -> None:
    """Its subscriber got 404 without a reason."""
    registry = tamper(path, "DELETE FROM subscriptions WHERE id = 'y'")
    registry.mend_vanished()
    [notice] = corruption_notices(path.parent)
    assert "subscription number 2, has vanished" in notice and "'a = 2'" in notice
    revision = registry.revision()
    assert [version.number for version in registry.versions(revision, revision)] == [1, 3]
    assert list(registry.changes(3, revision)) == [Change(4, "birds", 2, None)]
    registry.mend_vanished()
    assert registry.revision() == revision
    registry.apply([put("y", "a = 2")], (3,), 0)
    assert [each.id for each in registry.list("birds")] == ["x", "y", "z"]


@pytest.mark.parametrize(
    "change",
    ["DELETE FROM versions WHERE revision = 2", "UPDATE versions SET closed_revision = 1 WHERE number = 2"],
)
def test_a_version_that_has_vanished_is_made_again(path: Path, change: str) -> None:
    """Its subscription stood, and matched nothing."""
    before = list(open_registry(f"sqlite:///{path}").versions(3, 0))
    registry = tamper(path, change)
    registry.mend_vanished()
    wanted = PLAIN.compile("a = 2", "sql")
    assert list(registry.versions(3, 0)) == [before[0], replace(before[1], compiled=wanted), before[2]]
    [notice] = corruption_notices(path.parent)
    assert "was restored; nothing is lost" in notice


def test_a_space_that_has_vanished_is_made_again_for_its_subscriptions(path: Path) -> None:
    registry = tamper(path, "DELETE FROM spaces")
    registry.mend_vanished()
    assert registry.spaces() == ["birds"] and registry.key_of_space("birds") == "birds"
    [notice] = corruption_notices(path.parent)
    assert "the space 'birds' was lost" in notice


@pytest.mark.parametrize(
    "change",
    ["rights = 'publish subscribe'", "space = NULL", "digest = zeroblob(32)", "revoked_ms = NULL"],
)
def test_a_changed_api_key_is_rejected(path: Path, change: str) -> None:
    """It had rights that it was not given, or was valid again after it had been revoked."""
    keys = open_keys(f"sqlite:///{path}")
    for id in ("a" * 12, "b" * 12, "c" * 12):
        keys.add(StoredKey(id, bytes(31) + id[:1].encode(), "birds", ("subscribe",), "", 1, "admin"))
    keys.revoke("b" * 12, 5)
    keys.close()
    changed = "b" * 12 if change.startswith("revoked") else "a" * 12
    tamper(path, f"UPDATE api_keys SET {change} WHERE id = '{changed}'")
    keys = open_keys(f"sqlite:///{path}")
    valid = keys.keys()
    assert [key.id for key in valid] == [each * 12 for each in "ac" if each * 12 != changed]
    [notice] = corruption_notices(path.parent)
    assert changed in notice and "cannot be used" in notice


def test_a_changed_space_keeps_its_subscriptions_and_loses_its_quotas(path: Path) -> None:
    registry = open_registry(f"sqlite:///{path}")
    registry.set_quotas("birds", {"subscriptions": 1000.0})
    assert registry.stored_spaces()[0].quotas == {"subscriptions": 1000.0}
    registry.close()
    registry = tamper(path, """UPDATE spaces SET quotas = '{"subscriptions":9000.0}'""")
    [space] = registry.stored_spaces()
    assert (space.name, space.key, space.quotas) == ("birds", "birds", {})
    [notice] = corruption_notices(path.parent)
    assert "has no quotas of its own" in notice
    registry.set_quotas("birds", {"subscriptions": 5.0})
    assert registry.stored_spaces()[0].quotas == {"subscriptions": 5.0}


@pytest.mark.parametrize("change", ['"offset" = "offset" + 5', "reason = 'other'"])
def test_a_changed_dead_letter_gives_no_other_event(path: Path, change: str) -> None:
    """Retried, it gave the subscriber an event that its filter had never matched."""
    registry = open_registry(f"sqlite:///{path}")
    letters = tuple(DeadLetter(Position(0, offset, 0), 3, "why") for offset in (1, 2, 3))
    registry.save_cursors([(2, Cursor((Position(0, 4, 0),), letters=letters))])
    registry.retry_letters(2, [Position(0, 3, 0)])
    registry.close()
    registry = tamper(path, f'UPDATE letters SET {change} WHERE "offset" > 1')
    assert [letter.position.offset for letter in registry.letters(2)] == [1]
    assert registry.load_cursors([2])[2].retried == ()
    assert len(corruption_notices(path.parent)) == 2


@pytest.mark.parametrize("change", ["name = 'birdt'", "key = 'bizds'"])
def test_a_space_whose_name_or_key_has_changed_gets_it_back(path: Path, change: str) -> None:
    """The start ended, or made an empty space of that name, and all subscriptions answered 404."""
    registry = tamper(path, f"UPDATE spaces SET {change}")
    registry.mend_vanished()
    assert registry.spaces() == ["birds"] and registry.key_of_space("birds") == "birds"
    assert [each.id for each in registry.list("birds")] == ["x", "y", "z"]
    [notice] = corruption_notices(path.parent)
    assert "the space 'birds' was lost" in notice


def test_a_space_whose_key_has_become_that_of_another_takes_nothing_from_it(path: Path) -> None:
    registry = open_registry(f"sqlite:///{path}")
    registry.create_space("fish")
    registry.apply([put("f", "a = 9", space="fish")], (3,), 0)
    registry.close()
    registry = tamper(path, "UPDATE spaces SET key = 'fish' WHERE name = 'birds'")
    registry.mend_vanished()
    assert [(each.name, each.key) for each in registry.stored_spaces()] == [
        ("birds", "birds"),
        ("fish", "fish"),
    ]


def deleted_space(path: Path) -> None:
    """Delete the space birds with its subscriptions, and create another of its name."""
    registry, keys = open_registry(f"sqlite:///{path}"), open_keys(f"sqlite:///{path}")
    registry.delete_space("birds", 5)
    registry.finish_space("birds")
    registry.create_space("birds")
    registry.close()
    keys.close()


@pytest.mark.parametrize(
    "change",
    ["key = 'birdr'", "name = 'cirds'", "finished = 0", "checksum = checksum + 1 - 2 * (checksum & 1)"],
)
def test_a_bit_of_a_deleted_space_that_flips_is_put_back(path: Path, change: str) -> None:
    deleted_space(path)
    query = "SELECT * FROM gone_spaces"
    with sqlite3.connect(path) as connection:
        [before] = connection.execute(query)
    registry = tamper(path, f"UPDATE gone_spaces SET {change}")
    with sqlite3.connect(path) as connection:
        assert connection.execute(query).fetchall() == [before]
    assert registry.unfinished_spaces() == []
    [notice] = corruption_notices(path.parent)
    assert "nothing is lost" in notice


@pytest.mark.parametrize("change", ["key = 'fish'", "name = 'fish'", "key = 'fish', name = 'fish'"])
def test_the_key_of_a_deleted_space_whose_row_has_changed_is_not_used_again(path: Path, change: str) -> None:
    """A later space of the same name got data of the deleted one that was still in the log and the index."""
    deleted_space(path)
    registry = tamper(path, f"UPDATE gone_spaces SET {change}")
    [notice] = corruption_notices(path.parent)
    assert "all keys that it may have had stay reserved" in notice
    before = set(registry.unfinished_spaces())
    assert [space.key for space in registry.stored_spaces()] == ["birds#1"] and "birds#1" not in before
    assert change.startswith("key = 'fish', name") or "birds" in before
    registry.close()
    assert set(open_registry(f"sqlite:///{path}").unfinished_spaces()) == before
    assert len(corruption_notices(path.parent)) == 1


@pytest.mark.parametrize("change", ["space = 'birdr'", "ended_ms = 4", "space = 'fish'", "ended_ms = 88"])
def test_tokens_of_a_deleted_space_stay_refused_when_its_end_has_changed(path: Path, change: str) -> None:
    """An earlier end let tokens of the deleted space into the one that has its name now."""
    deleted_space(path)
    tamper(path, f"UPDATE ended_spaces SET {change}").close()
    ended = open_keys(f"sqlite:///{path}").ended_spaces()
    [notice] = corruption_notices(path.parent)
    is_restored = change in ("space = 'birdr'", "ended_ms = 4")
    assert ended["birds"] == (5 if is_restored else OPEN_END)
    assert ("nothing is lost" if is_restored else "older tokens are refused") in notice
