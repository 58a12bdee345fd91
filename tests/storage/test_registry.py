"""The contract of a registry, for every implementation."""

from __future__ import annotations

import pickle
import random
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from fieldfare.model import (
    OPEN_END,
    Change,
    Cursor,
    DeadLetter,
    DeliverySettings,
    Position,
    PushSettings,
    Subscription,
)
from fieldfare.storage import Registry, open_keys, open_registry
from fieldfare.storage.errors import RegistryError, SpaceExistsError, UnknownSpaceError
from fieldfare.storage.keys import StoredKey
from fieldfare.storage.registry import (
    Configure,
    Conflict,
    Put,
    Remove,
    Replay,
    SpaceUsage,
    StoredSpace,
)

OpenRegistry = Callable[[], Registry]


def put(id: str, filter: str = "a = 1", space: str = "birds", *, if_absent: bool = False) -> Put:
    return Put(space, id, filter, "sql", filter.encode() + b"\0", if_absent)


def test_spaces_are_created_once(registry: Registry, open_the_registry: OpenRegistry) -> None:
    registry.create_space("ants")
    with pytest.raises(SpaceExistsError, match="'ants'"):
        registry.create_space("ants")
    other = open_the_registry()
    assert other.spaces() == ["ants", "birds"]
    assert other.has_space("ants") and not other.has_space("bees")


def test_each_change_takes_the_next_revision(registry: Registry) -> None:
    assert registry.revision() == 0
    first = Subscription("x", "birds", "a = 1", "sql", number=1, revision=1, valid_from=(5,))
    assert registry.apply([put("x"), put("y")], (5,), 0) == [
        first,
        replace(first, id="y", number=2, revision=2),
    ]
    second = replace(first, filter="a = 2", revision=3, valid_from=(6,))
    assert registry.apply([put("x", "a = 2"), Remove("birds", "y")], (6,), 0)[0] == second
    assert registry.revision() == 4
    assert registry.get("birds", "x") == second
    assert registry.get("birds", "y") is None


def test_a_removal_answers_with_what_was_removed_and_an_unknown_id_with_none(registry: Registry) -> None:
    [added] = registry.apply([put("x")], (1,), 0)
    assert registry.apply([Remove("birds", "z"), Remove("birds", "x"), Remove("birds", "x")], (2,), 0) == [
        None,
        added,
        None,
    ]
    assert registry.revision() == 2


def test_if_absent_leaves_an_existing_subscription_alone(registry: Registry) -> None:
    [added] = registry.apply([put("x")], (1,), 0)
    assert isinstance(added, Subscription)
    assert registry.apply([put("x", "a = 2", if_absent=True)], (2,), 0) == [Conflict(added)]
    assert registry.revision() == 1
    [created, conflict] = registry.apply([put("y", if_absent=True), put("y", if_absent=True)], (3,), 0)
    assert isinstance(created, Subscription) and conflict == Conflict(created)


def test_a_number_is_never_given_twice(registry: Registry, open_the_registry: OpenRegistry) -> None:
    registry.apply([put("x"), Remove("birds", "x")], (1,), 0)
    registry.purge(2)
    [again] = open_the_registry().apply([put("x")], (2,), 0)
    assert isinstance(again, Subscription)
    assert (again.number, again.revision) == (2, 3)


def test_an_unknown_space_refuses_the_whole_batch(registry: Registry) -> None:
    with pytest.raises(UnknownSpaceError, match="'bees'"):
        registry.apply([put("x"), put("y", space="bees")], (1,), 0)
    assert registry.count() == registry.revision() == 0


def test_spaces_do_not_see_each_others_subscriptions(registry: Registry) -> None:
    registry.create_space("ants")
    registry.apply([put("x"), put("x", "b = 1", "ants"), put("y", space="ants")], (1,), 0)
    assert (registry.count(), registry.count("ants"), registry.count("birds")) == (3, 2, 1)
    [ant] = [found for found in registry.list("ants") if found.id == "x"]
    assert ant.filter == "b = 1"
    registry.apply([Remove("birds", "x")], (2,), 0)
    assert registry.get("ants", "x") == ant


def test_what_each_space_has_is_known_and_so_are_its_quotas(
    registry: Registry, open_the_registry: OpenRegistry
) -> None:
    registry.create_space("ants")
    dear = replace(put("x"), cost=40)
    registry.apply([dear, put("y"), replace(put("x", space="ants"), cost=7)], (1,), 0)
    assert registry.held() == {"birds": SpaceUsage(2, 41), "ants": SpaceUsage(1, 7)}
    registry.apply([replace(dear, filter="a = 2", cost=3), Remove("birds", "y")], (2,), 0)
    registry.apply([Configure("birds", "x", DeliverySettings(paused=True))], (2,), 0)
    assert registry.held()["birds"] == SpaceUsage(1, 3)
    assert registry.costs("birds", ["y", "x", "nothing"]) == {"x": 3} and registry.costs("ants", []) == {}
    registry.set_quotas("ants", {"subscriptions": 10.0, "events_per_s": 0.5})
    with pytest.raises(UnknownSpaceError):
        registry.set_quotas("bees", {})
    assert open_the_registry().stored_spaces() == [
        StoredSpace("ants", "ants", {"subscriptions": 10.0, "events_per_s": 0.5}),
        StoredSpace("birds", "birds", {}),
    ]


def test_a_space_of_a_name_that_there_was_before_is_another_one(
    registry: Registry, open_the_registry: OpenRegistry
) -> None:
    registry.apply([put("x")], (1,), 0)
    registry.set_quotas("birds", {"subscriptions": 1})
    assert registry.delete_space("birds", 5) == "birds"
    for gone in (lambda: registry.delete_space("birds", 6), lambda: registry.apply([put("y")], (1,), 0)):
        with pytest.raises(UnknownSpaceError):
            gone()
    names = [registry.create_space("birds")]
    other = open_the_registry()
    assert other.stored_spaces() == [StoredSpace("birds", names[0], {})]
    assert other.key_of_space("birds") == names[0] and other.unfinished_spaces() == ["birds"]
    assert other.list("birds") and not other.list(names[0])
    registry.apply([put("x", space=names[0])], (2,), 0)
    registry.apply([Remove("birds", "x")], (2,), 0)
    registry.finish_space("birds")
    assert other.unfinished_spaces() == [] and other.held() == {names[0]: SpaceUsage(1, 1)}
    for _ in range(3):
        registry.delete_space("birds", 7)
        names.append(registry.create_space("birds"))
    assert len({"birds", *names}) == 5 and other.unfinished_spaces() == names[:-1]


def test_the_keys_of_a_space_are_revoked_with_it(stored_registry: Registry) -> None:
    keys = open_keys(stored_registry.url)
    for id, space in (("a", "birds"), ("b", "ants"), ("c", None)):
        keys.add(StoredKey(id, b"1" * 32, space, ("publish",), "", 1, "admin"))
    stored_registry.delete_space("birds", 5)
    assert [key.id for key in keys.keys()] == ["b", "c"]  # noqa: SIM118 - it is no mapping


def test_listing_goes_through_the_ids_page_by_page_by_code_point(registry: Registry) -> None:
    ids = sorted(["b", "a", "B", "é", "\U0001f426", "aa", "~", "a'b", "10", "9"])
    registry.apply([put(id) for id in reversed(ids)], (1,), 0)
    found: list[str] = []
    while page := registry.list("birds", found[-1] if found else None, 3):
        assert len(page) <= 3
        found += [subscription.id for subscription in page]
    assert found == ids


def test_changes_come_in_order_of_revision_and_a_replacement_is_one_put(registry: Registry) -> None:
    registry.apply([put("x"), put("y")], (5,), 0)
    registry.apply([put("x", "a = 2"), Remove("birds", "y")], (6,), 0)
    assert list(registry.changes(1, 99)) == [
        Change(2, "birds", 2, "a = 1", "sql", b"a = 1\0"),
        Change(3, "birds", 1, "a = 2", "sql", b"a = 2\0"),
        Change(4, "birds", 2, None, None, None),
    ]
    assert [change.revision for change in registry.changes(2, 3)] == [3]
    assert list(registry.changes(4, 4)) == []


class History:
    """The registry as a list of changes that is read from the start for every question."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def versions(self, revision: int, floor: int) -> list[Change]:
        known: dict[int, Change] = {}
        standing: dict[int, int] = {}
        for change in self.changes[:revision]:
            if change.number in standing:
                closed = standing.pop(change.number)
                known[closed] = replace(known[closed], closed_by=change.revision)
            if change.filter is not None:
                standing[change.number] = change.revision
                known[change.revision] = change
        return [version for version in known.values() if version.closed_by > floor]


@pytest.mark.parametrize("seed", [1, 2])
def test_history_equals_a_naive_replay_at_every_revision(registry: Registry, seed: int) -> None:
    chance = random.Random(seed)
    registry.create_space("ants")
    history, numbers, given = History(), dict[tuple[str, str], int](), 0
    for _ in range(40):
        batch: list[Put | Remove] = []
        for _ in range(chance.randint(1, 6)):
            space, id = chance.choice(["birds", "ants"]), chance.choice("uvwxyz")
            revision = len(history.changes) + 1
            if chance.random() < 0.4:
                batch.append(Remove(space, id))
                if (space, id) in numbers:
                    number = numbers.pop((space, id))
                    history.changes.append(Change(revision, space, number, None, None, None))
            else:
                change = put(id, f"a = {revision}", space)
                batch.append(change)
                if (space, id) not in numbers:
                    given += 1
                    numbers[space, id] = given
                history.changes.append(
                    Change(revision, space, numbers[space, id], change.filter, "sql", change.compiled)
                )
        registry.apply(batch, (0,), 0)
    last = registry.revision()
    assert last == len(history.changes)
    assert list(registry.changes(0, last)) == history.changes
    for revision in range(last + 1):
        floor = chance.randint(0, last + 1)
        assert list(registry.versions(revision, floor)) == history.versions(revision, floor)
        assert list(registry.changes(revision, last)) == history.changes[revision:]
    keep = last // 2
    kept_before = len(list(registry.versions(last, 0)))
    removed = registry.purge(keep)
    assert removed > 0
    assert len(list(registry.versions(last, 0))) == kept_before - removed
    for revision in range(keep, last + 1):
        later = chance.randint(keep, last + 1)
        assert list(registry.versions(revision, later)) == history.versions(revision, later)
        assert list(registry.changes(revision, last)) == history.changes[revision:]
    with pytest.raises(RegistryError, match=f"from revision {keep} on"):
        list(registry.versions(keep - 1, last))
    with pytest.raises(RegistryError, match=f"from revision {keep} on"):
        list(registry.changes(keep - 1, last))


def test_long_histories_are_read_in_pages(registry: Registry) -> None:
    ids = [f"{index:05d}" for index in range(10_000)]
    registry.apply([put(id) for id in ids], (1,), 0)
    registry.apply(
        [put(id, "a = 2") for id in ids[:5_000]] + [Remove("birds", id) for id in ids[9_000:]], (2,), 0
    )
    assert [change.revision for change in registry.changes(0, 1 << 60)] == list(range(1, 16_001))
    versions = list(registry.versions(16_000, 0))
    assert len(versions) == 15_000
    assert sum(version.closed_by == OPEN_END for version in versions) == registry.count() == 9_000


def test_cursors_are_kept_by_number_and_go_when_their_subscription_went(
    registry: Registry, open_the_registry: OpenRegistry
) -> None:
    registry.apply([put("x"), put("y")], (1,), 0)
    cursor = Cursor(
        (Position(0, 5, 2), Position(1, 0, 0)),
        ((Position(0, 5, 4), Position(0, 6, 1)), (Position(1, 7, 0), Position(1, 7, 0))),
    )
    assert registry.load_cursors([1]).get(1) is None
    registry.save_cursors([(1, Cursor((Position(0, 1, 0),))), (2, cursor), (1, cursor)])
    registry.save_cursors([(2, Cursor((Position(0, 9, 0),)))])
    registry.save_cursors([])
    other = open_the_registry()
    assert other.load_cursors([1]).get(1) == cursor
    assert other.load_cursors([2]).get(2) == Cursor((Position(0, 9, 0),))
    registry.apply([Remove("birds", "x")], (2,), 0)
    registry.purge(before=2)
    assert other.load_cursors([1]).get(1) == cursor
    registry.purge(before=99)
    assert other.load_cursors([1]).get(1) is None
    assert other.load_cursors([2]).get(2) is not None
    assert [change.revision for change in registry.changes(3, 3)] == []


def test_cursors_of_many_are_read_together_each_with_what_is_its_own(registry: Registry) -> None:
    """A starting gateway with thousands of pushed subscriptions asks for all of them."""
    saved = {
        number: Cursor((Position(0, number, 0),), attempts=((Position(0, number, 1), 7),) * (number % 3 == 0))
        for number in range(1, 1_202)
    }
    letters = (DeadLetter(Position(0, 1, 0), 1, "bad"), DeadLetter(Position(0, 1, 1), 2, "bad"))
    marks = {number: replace(each, letters=letters[: number % 3]) for number, each in saved.items()}
    registry.save_cursors(list(marks.items()))
    registry.retry_letters(800, [Position(0, 1, 1)])
    saved[800] = replace(saved[800], retried=(Position(0, 1, 1),))
    assert registry.load_cursors(range(3_000)) == saved
    counts = {number: number % 3 for number in saved if number % 3} | {800: 1}
    assert registry.count_letters(range(3_000)) == counts
    assert registry.load_cursors([]) == registry.count_letters([]) == {}


def test_delivery_begins_at_the_subscriptions_start_if_it_is_replaced_before_the_first_read(
    registry: Registry,
) -> None:
    registry.apply([put("x"), put("y")], (3,), 0)
    registry.save_cursors([(2, Cursor((Position(0, 4, 1),)))])
    registry.apply([put("x", "a = 2"), put("y", "a = 2"), put("z"), put("z", "a = 2")], (7,), 0)
    registry.apply([put("x", "a = 3")], (9,), 0)
    assert registry.load_cursors([1]).get(1) == Cursor((Position(0, 3, 0),))
    assert registry.load_cursors([2]).get(2) == Cursor((Position(0, 4, 1),))
    assert registry.load_cursors([3]).get(3) in (None, Cursor((Position(0, 7, 0),)))


def test_those_with_a_push_address_are_found_in_pages(registry: Registry) -> None:
    """A starting gateway needs them; the word "push" in a filter or an address does not make a push
    subscription."""
    registry.create_space("ants")
    pushed = DeliverySettings(push=PushSettings("https://example.com/", secrets=("whsec_x",)), paused=True)
    other = DeliverySettings(paused_because='"push":')
    changes = [
        replace(put(f"{space} {i}", f"a = '\"push\":' AND b = {i}"), space=space, delivery=delivery)
        for space in ("birds", "ants")
        for i, delivery in enumerate((pushed, None, other, pushed, DeliverySettings(paused=True)))
    ]
    registry.apply(changes, (1,), 0)
    found = list(registry.pushed())
    assert [each.id for each in found] == ["ants 0", "ants 3", "birds 0", "birds 3"]
    assert found[0].delivery == pushed and found == list(registry.pushed(("ant", "")))
    assert [each.id for each in registry.pushed(("ants", "ants 0"), 2)] == ["ants 3", "birds 0"]
    assert list(registry.pushed(("birds", "birds 3"))) == []


def test_a_registry_can_be_sent_to_another_process_and_read_there(
    stored_registry: Registry, run_program: Callable[[str], tuple[int, str]]
) -> None:
    stored_registry.apply([put("x")], (5,), 0)
    pickled = pickle.dumps(stored_registry)
    program = f"import pickle; print(pickle.loads({pickled!r}).get('birds', 'x').valid_from[0])"
    assert run_program(program) == (0, "5\n")


def test_a_killed_batch_is_there_as_a_whole_or_not_at_all(
    stored_registry: Registry, start_program: Callable[[str], subprocess.Popen[str]]
) -> None:
    program = f"""if True:
        from fieldfare.storage import open_registry
        from fieldfare.storage.registry import Put
        registry = open_registry({stored_registry.url!r})
        for offset in range(1_000_000):
            ids = [f"{{offset}}-{{index}}" for index in range(100)]
            registry.apply([Put("birds", id, "a = 1", "sql", b"") for id in ids], (offset,), 0)
            print(offset, flush=True)
    """
    process = start_program(program)
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    process.kill()
    answered = 20 + len(process.stdout.read().split())
    process.wait()
    process.stdout.close()
    revision = stored_registry.revision()
    assert stored_registry.count() == revision == len(list(stored_registry.versions(1 << 60, 0)))
    assert stored_registry.count() in (answered * 100, answered * 100 + 100)


def test_what_is_no_registry_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database\n" * 100)
    with pytest.raises(RegistryError, match=r"notes\.txt"):
        open_registry(f"sqlite:///{path}")
    with pytest.raises(ValueError, match="sqlite:///PATH"):
        open_registry("mysql://host/db")


def test_a_cursor_that_cannot_be_stored_is_an_error_that_names_it_and_changes_nothing(
    registry: Registry,
) -> None:
    for bad in (Position(0, 0, 10**30), Position(0, 1 << 63, 0), Position(0, -1, 0)):
        for cursor in (Cursor((bad,)), Cursor((Position(0, 0, 0),), ((Position(0, 0, 0), bad),))):
            with pytest.raises(ValueError, match="subscription 2 cannot be stored"):
                registry.save_cursors([(1, Cursor((Position(0, 1, 0),))), (2, cursor)])
    assert registry.load_cursors([1]).get(1) is registry.load_cursors([2]).get(2) is None


def test_cursors_that_were_saved_position_by_position_are_still_read(
    stored_registry: Registry,
) -> None:
    """A data directory from before acknowledged neighbours were kept as runs."""
    stored_registry.save_cursors([(7, Cursor((Position(0, 3, 0),)))])
    with sa.create_engine(stored_registry.url).begin() as connection:
        blob = msgspec.msgpack.encode([(0, 3, 2), (0, 9, 1)])
        connection.execute(sa.text("UPDATE cursors SET acked = :acked, checksum = NULL"), {"acked": blob})
    first, second = Position(0, 3, 2), Position(0, 9, 1)
    assert stored_registry.load_cursors([7]).get(7) == Cursor(
        (Position(0, 3, 0),), ((first, first), (second, second))
    )


def test_several_partitions_have_a_place_each(registry: Registry, open_the_registry: OpenRegistry) -> None:
    first, second = registry.apply([put("x"), put("y")], (5, 0, 7), 0)
    assert isinstance(first, Subscription) and isinstance(second, Subscription)
    assert first.valid_from == (5, 0, 7)
    other = open_the_registry()
    assert other.get("birds", "x") == first
    assert other.list("birds") == [first, second]
    assert registry.known_ends() == (5, 0, 7)
    registry.apply([put("x", "a = 2")], (6, 1, 7), 0)
    assert other.load_cursors([1]).get(1) == Cursor((Position(0, 5, 0), Position(1, 0, 0), Position(2, 7, 0)))
    acked = ((Position(0, 6, 1), Position(0, 6, 4)), (Position(2, 9, 0), Position(2, 9, 0)))
    cursor = Cursor((Position(0, 6, 0), Position(1, 3, 1), Position(2, 8, 0)), acked)
    registry.save_cursors([(2, cursor)])
    assert other.load_cursors([2]).get(2) == cursor
    assert other.known_ends() == (6, 1, 7)
    registry.apply([Remove("birds", "y")], (6, 9, 6), 0)
    assert other.known_ends() == (6, 9, 7), "an end that was known stays known"
    assert registry.set_cursors_back((6, 1, 99)) == 1
    assert other.load_cursors([2]).get(2) == Cursor(
        (Position(0, 6, 0), Position(1, 1, 0), Position(2, 8, 0)), acked
    )
    registry.purge(99)
    assert other.load_cursors([2]).get(2) is None


def test_how_messages_are_given_is_set_without_a_revision(registry: Registry) -> None:
    settings = DeliverySettings(2.5, 3, (0.0, 1.5), 7, dead_letter=False, paused=True)
    [made, other] = registry.apply([replace(put("x"), delivery=settings), put("y")], (5,), 0)
    assert isinstance(made, Subscription) and made.delivery == settings
    assert registry.get("birds", "x") == made
    fewer = replace(settings, max_attempts=None, paused=False)
    assert registry.apply([Configure("birds", "x", fewer), Configure("birds", "z", fewer)], (6,), 0) == [
        replace(made, delivery=fewer),
        None,
    ]
    assert registry.revision() == 2 and registry.get("birds", "y") == other
    [again] = registry.apply([put("x", "a = 2")], (7,), 0)
    assert isinstance(again, Subscription)
    assert (again.revision, again.delivery) == (3, fewer), "another filter leaves it"
    registry.apply([Remove("birds", "x")], (7,), 0)
    [fresh] = registry.apply([put("x")], (7,), 0)
    assert isinstance(fresh, Subscription) and fresh.delivery == DeliverySettings()


def test_for_how_long_nobody_used_what_expires_is_kept_until_it_is_changed(
    registry: Registry, open_the_registry: OpenRegistry
) -> None:
    expires = DeliverySettings(expires_unused_s=60.0)
    x, y, z = registry.apply(
        [replace(put("x"), delivery=expires), put("y"), replace(put("z"), delivery=expires)], (1,), 0
    )
    assert isinstance(x, Subscription) and isinstance(y, Subscription) and isinstance(z, Subscription)
    assert list(registry.expiring()) == [(x, 0), (z, 0)]
    registry.note_unused([(x, 45), (y, 7), (replace(z, number=99), 12)])
    registry.note_unused([])
    other = open_the_registry()
    assert list(other.expiring()) == [(x, 45), (z, 0)], "none of another number, and none that stays"
    assert list(other.expiring(("birds", "x"))) == [(z, 0)] and len(other.expiring(limit=1)) == 1
    [x] = registry.apply([Configure("birds", "x", replace(expires, paused=True))], (1,), 0)
    assert list(other.expiring()) == [(x, 0), (z, 0)], "to change it is to use it"
    registry.apply([Remove("birds", "z"), Configure("birds", "x", DeliverySettings())], (1,), 0)
    registry.note_unused([(z, 50)])
    assert list(other.expiring()) == []


def test_what_was_given_up_is_saved_with_its_cursor_and_goes_with_its_subscription(
    registry: Registry, open_the_registry: OpenRegistry
) -> None:
    registry.apply([put("x"), put("y")], (0,), 0)
    places = [Position(0, 2, 7), Position(0, 10, 0), Position(0, 10, 3)]
    letters = tuple(DeadLetter(place, n, "bad") for n, place in enumerate(places, 1))
    cursor = Cursor(
        (Position(0, 3, 0), Position(1, 4, 1)),
        given=(Position(0, 11, 0), Position(1, 4, 1)),
        attempts=((Position(0, 5, 1), 3), (Position(1, 6, 0), 0)),
    )
    registry.save_cursors([(1, replace(cursor, letters=letters[:2])), (2, Cursor((places[0],)))], 50)
    registry.save_cursors([(1, replace(cursor, letters=letters))], 60)
    other = open_the_registry()
    assert other.load_cursors([1]).get(1) == cursor
    assert list(other.letters(1)) == [replace(each, dead_ms=60) for each in letters]
    assert [each.position for each in other.letters(1, places[0], 1)] == [places[1]]
    assert list(other.letters(2)) == [] and other.count_letters([1]) == {1: 3}
    assert registry.retry_letters(1, [places[1], Position(0, 9, 9), places[1]]) == [places[1]]
    assert registry.retry_letters(2, [places[0]]) == []
    cursor = replace(cursor, retried=(places[1],))
    assert other.load_cursors([1]).get(1) == cursor and other.count_letters([1]) == {1: 2}
    for bad in (
        replace(cursor, letters=(DeadLetter(Position(0, -1, 0), 1, ""),)),
        Cursor((Position(0, -1, 0),)),
    ):
        with pytest.raises(ValueError, match="cannot be stored"):
            registry.save_cursors([(1, replace(bad, settled=(places[1],)))])
    assert other.load_cursors([1]).get(1) == cursor, "neither or both"
    registry.save_cursors([(1, replace(cursor, settled=(places[1],)))], 70)
    assert other.load_cursors([1]).get(1) == replace(cursor, retried=())
    assert registry.retry_letters(1, places[:1]) == places[:1]
    registry.save_cursors([(1, replace(cursor, letters=letters[:1]))], 80)
    assert [each.dead_ms for each in other.letters(1)] == [80, 60], "it was given up again"
    registry.retry_letters(1, places[2:])
    assert registry.clear_letters(1) == 1, "but what is to be given all the same"
    registry.apply([Remove("birds", "x")], (6,), 0)
    registry.purge(99)
    assert other.load_cursors([1]).get(1) is None and registry.retry_letters(1, places) == []


@pytest.mark.parametrize("listed", [1, 40, 400])
def test_acks_of_many_old_positions_remove_their_dead_letters_and_no_others(
    registry: Registry, listed: int
) -> None:
    rng = random.Random(listed)
    places = [Position(rng.randrange(2), rng.randrange(5), index) for index in range(1_000)]
    cursor = Cursor((Position(0, 9, 0), Position(1, 9, 0)))
    dead, acked = rng.sample(places, listed), rng.sample(places, 300)
    letters = tuple(DeadLetter(place, 1, "bad") for place in dead)
    for number in (1, 2):
        registry.save_cursors([(number, replace(cursor, letters=letters))])
    registry.save_cursors([(1, replace(cursor, settled=tuple(acked)))])
    left = sorted(set(dead) - set(acked))
    assert [each.position for each in registry.letters(1, None, 1_000)] == left
    assert registry.count_letters([2]) == {2: listed}


def test_acks_of_old_positions_that_are_no_dead_letters_cost_no_statement_each(tmp_path: Path) -> None:
    registry = open_registry(f"sqlite:///{tmp_path}/registry.db")
    place, cursor = Position(0, 3, 0), Cursor((Position(0, 9_000, 0),))
    registry.save_cursors([(1, replace(cursor, letters=(DeadLetter(place, 1, "bad"),)))])
    deleted: list[int] = []

    def note(_connection, _cursor, statement, parameters, _context, executemany) -> None:
        if statement.startswith("DELETE FROM letters"):
            deleted.append(len(parameters) if executemany else 1)

    sa.event.listen(registry._writing, "before_cursor_execute", note)
    acked = tuple(Position(0, offset, 0) for offset in range(5_000))
    registry.save_cursors([(1, replace(cursor, settled=acked))])
    assert deleted == [1] and registry.count_letters([1]) == {}


def test_a_cursor_that_is_set_back_knows_nothing_of_what_was_given_beyond(registry: Registry) -> None:
    far = Position(0, 9, 0)
    registry.save_cursors(
        [(1, Cursor((far,), given=(Position(0, 12, 0),), attempts=((Position(0, 10, 0), 3),)))]
    )
    assert registry.set_cursors_back((6,)) == 1
    assert registry.load_cursors([1]).get(1) == Cursor((Position(0, 6, 0),))


def in_the_past(id: str, *start: Position) -> Put:
    return replace(put(id, if_absent=True), start=start)


def test_what_begins_in_the_past_has_a_cursor_there_and_its_first_filter_is_kept(registry: Registry) -> None:
    [made] = registry.apply([in_the_past("x", Position(0, 3, 2))], (5, 9), 0)
    assert isinstance(made, Subscription)
    assert made.start == (Position(0, 3, 2), Position(1, 9, 0))
    assert registry.get("birds", "x") == made
    assert registry.load_cursors([1]).get(1) == Cursor((Position(0, 3, 2), Position(1, 9, 0)))
    replay = Replay(1, 1, "birds", (3, 9), "a = 1", "sql", put("x").compiled)
    assert (registry.replay(1), registry.replays(only_open=True)) == (replay, [replay])
    [replaced] = registry.apply([put("x", "a = 2")], (7, 9), 0)
    assert isinstance(replaced, Subscription) and replaced.start == made.start
    registry.apply([Configure("birds", "x", DeliverySettings(max_attempts=3))], (7, 9), 0)
    assert registry.replay(1) == replay
    registry.purge(9)
    assert registry.replay(1) == replay
    registry.mark_replay(1, matched=True)
    assert (registry.replays(only_open=True), registry.count_open_replays("birds")) == ([], 0)
    assert registry.replays() == [replace(replay, matched=True)]
    registry.mark_replay(1, matched=False)
    assert registry.count_open_replays("birds") == 1 and registry.count_open_replays("default") == 0


def test_a_past_goes_with_its_subscription_or_when_it_is_forgotten(
    registry: Registry, open_the_registry: OpenRegistry
) -> None:
    registry.apply([in_the_past(id, Position(0, 0, 0)) for id in "xyz"], (5,), 0)
    registry.apply([in_the_past("v", Position(0, 0, 0)), Remove("birds", "v"), Remove("birds", "y")], (5,), 0)
    registry.forget_replay(3)
    assert [replay.number for replay in open_the_registry().replays()] == [1]
    standing = registry.get("birds", "z")
    assert registry.replay(2) is None and standing is not None and standing.start is not None
    assert registry.apply([in_the_past("x", Position(0, 1, 0))], (5,), 0) == [
        Conflict(registry.list("birds")[0])
    ]


def test_each_part_of_the_registry_has_few_methods() -> None:
    """The registry was one protocol of forty methods, and each user depended on all of them."""
    for part in (*Registry.__bases__[:-1], Registry):
        own = [name for name, value in vars(part).items() if callable(value) and name[0] != "_"]
        assert len(own) <= 9, f"{part.__name__} has {len(own)}"
