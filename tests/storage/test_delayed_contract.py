"""The contract of delayed records, for every implementation, and a comparison of both, step by step."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from memory_delayed import Disk, MemoryDelayed

from fieldfare.storage import DelayedRecords, open_delayed
from fieldfare.storage.delayed import TAKEN_MAX_RECORDS, StoredDelayed, Waiting
from fieldfare.storage.errors import StorageError
from fieldfare.storage.event_log import NewRecord

ALL = 1 << 40
Open = Callable[[], DelayedRecords]


@pytest.fixture(params=["sqlite", "memory"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same records again with every call, like the next process."""
    if request.param == "sqlite":
        return lambda: open_delayed(f"sqlite:///{tmp_path}/delayed.db")
    disk = Disk()
    return lambda: MemoryDelayed(disk)


def record(
    text: str, space: str = "a", producer: str | None = None, sequence: int | None = None
) -> NewRecord:
    return NewRecord(space, f'"{text}"\n'.encode(), 1, producer, sequence)


def texts(store: DelayedRecords, now_ms: int, max_bytes: int = ALL) -> list[str]:
    return [each.record.payload.decode().strip('"\n') for each in store.take(now_ms, max_bytes)]


def test_what_is_due_is_taken_in_the_order_of_its_time_until_it_is_done(open_store: Open) -> None:
    store = open_store()
    assert store.next_due_ms() is None and store.take(1 << 50, ALL) == []
    kept = store.keep([(record("b"), 20), (record("a"), 10), (record("c"), 20), (record("d"), 21)], 0)
    assert [each.id for each in kept] == sorted({each.id for each in kept})
    assert store.next_due_ms() == 10 and store.take(9, ALL) == []
    assert texts(store, 20) == ["a", "b", "c"]
    again = open_store()
    assert again.next_due_ms() == 0, "what is taken is due at once"
    first = again.take(99, ALL)
    assert [each.record for each in first] == [each.record for each in open_store().take(99, ALL)]
    sequences = [each.record.sequence for each in first]
    assert sequences == sorted(sequences, key=lambda each: each or 0) and len(set(sequences)) == 3
    assert len({each.record.producer for each in first}) == 1
    again.done([first[0].id, first[1].id])
    assert texts(again, 99) == ["c"], "nothing else before all of it is done"
    again.done([first[2].id, 12345])
    (last,) = again.take(99, ALL)
    assert last.record.producer != first[0].record.producer, "a process has a name of its own"
    again.done([last.id])
    assert again.next_due_ms() is None and again.held() == {}


def test_at_most_the_limit_and_at_least_one_is_taken(open_store: Open) -> None:
    store = open_store()
    store.keep([(record(f"{n:04}"), 5) for n in range(TAKEN_MAX_RECORDS + 7)], 0)
    found = store.take(5, ALL)
    assert len(found) == TAKEN_MAX_RECORDS
    store.done([each.id for each in found])
    assert len(store.take(5, 1)) == 1
    store.done([store.take(5, 1)[0].id])
    assert len(store.take(5, 2 * len(record("0000").payload))) == 2


def test_where_more_is_due_than_is_taken_each_space_has_its_turn(open_store: Open) -> None:
    """Gigabytes of one space, due at the same moment, were appended before the one event of another."""
    store = open_store()
    store.keep([(record(f"{n:04}"), 5) for n in range(2 * TAKEN_MAX_RECORDS)], 0)
    store.keep([(record("one", "b"), 7), (record("two", "b"), 6), (record("not yet", "c"), 99)], 0)
    found = texts(store, 10)
    assert found[:4] == ["0000", "two", "0001", "one"] and len(found) <= TAKEN_MAX_RECORDS
    store.done([each.id for each in store.take(10, ALL)])
    store.keep([(record(f"b{n}", "b"), 8) for n in range(3)], 0)
    taken = []
    for _ in range(7):
        (each,) = store.take(10, 1)
        taken.append(each.record.space)
        store.done([each.id])
    assert taken == ["b", "a", "b", "a", "b", "a", "a"], "however few are taken at a time"


def test_a_repeat_is_known_whatever_became_of_the_first(open_store: Open) -> None:
    store = open_store()
    (first,) = store.keep([(record("x", "a", "p", 7), 50)], 1)
    assert first == StoredDelayed(first.id, 50, 1)
    repeat = StoredDelayed(first.id, 50, 1, duplicate=True)
    same, other = store.keep([(record("x", "a", "p", 7), 60), (record("y", "a", "p", 7), 50)], 2)
    assert (same, other) == (repeat, StoredDelayed(first.id, 50, 1, duplicate=True, differs=True))
    assert store.forget(1_000, 10) == 0, "it waits still"
    store.take(50, ALL)
    store.done([first.id])
    assert open_store().keep([(record("x", "a", "p", 7), 60)], 3) == [repeat]
    others = store.keep(
        [(record("x", "b", "p", 7), 50), (record("x", "a", "p", 8), 50), (record("x"), 50)], 4
    )
    assert not any(each.duplicate for each in others)
    both = store.keep([(record("z", "a", "q", 1), 50), (record("z", "a", "q", 1), 50)], 5)
    assert [each.duplicate for each in both] == [False, True]
    assert store.has_kept("a", "p", 7) and open_store().has_kept("a", "q", 1)
    assert not any(store.has_kept(*each) for each in (("a", "p", 6), ("a", "", 7), ("c", "p", 7)))
    assert store.forget(50, 10) == 0, "who repeats it may have waited for its time"
    assert store.forget(51, 10) == 1
    assert not store.has_kept("a", "p", 7)
    assert not store.keep([(record("x", "a", "p", 7), 60)], 6)[0].duplicate


def test_what_waits_is_listed_counted_and_cancelled_by_its_space(open_store: Open) -> None:
    store = open_store()
    size = len(record("x").payload)
    kept = store.keep([(record("x"), 30), (record("y"), 10), (record("z", "b"), 20), (record("v"), 30)], 0)
    told = [Waiting(kept[n].id, kept[n].due_ms, 1, size) for n in (1, 0, 3)]
    assert store.waiting("a", (-1, 0), 10) == told
    assert store.waiting("a", (30, kept[0].id), 10) == told[2:] and store.waiting("a", (-1, 0), 1) == told[:1]
    assert store.held() == {"a": (3, 3 * size), "b": (1, size)}
    assert store.cancel("b", kept[0].id) is None and store.cancel("a", 999) is None
    assert store.cancel("a", kept[0].id) == told[1] and store.cancel("a", kept[0].id) is None
    store.take(10, ALL)
    assert store.cancel("a", kept[1].id) is None, "its time has come"
    assert store.cancel_some("a", 10) == told[2:] and store.cancel_some("a", 10) == []
    assert open_store().held() == {"a": (1, size), "b": (1, size)}


def test_all_or_none_are_kept(open_store: Open) -> None:
    store = open_store()
    with pytest.raises(ValueError, match="lines"):
        store.keep([(record("x"), 1), (NewRecord("a", b"no line", 1), 1)], 0)
    assert store.held() == {}


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE records (x)")
    other.close()
    with pytest.raises(StorageError, match=r"other\.db holds no delayed events"):
        open_delayed(f"sqlite:///{tmp_path}/other.db")


@pytest.mark.parametrize("seed", range(20))
def test_random_steps_give_the_same_results_as_the_naive_implementation(tmp_path: Path, seed: int) -> None:
    """Records are stored, taken, done, cancelled and forgotten, and the store is reopened, in any order."""
    rng = random.Random(seed)
    disk = Disk()
    real, twin = open_delayed(f"sqlite:///{tmp_path}/delayed.db"), MemoryDelayed(disk)
    for now_ms in range(0, 600, 10):
        what = rng.randrange(7)
        if what <= 2:
            some = [
                (
                    record(
                        str(rng.randrange(3)),
                        rng.choice("ab"),
                        *rng.choice([(None, None), ("p", rng.randrange(9))]),
                    ),
                    now_ms + rng.randrange(100),
                )
                for _ in range(rng.randrange(4))
            ]
            assert real.keep(some, now_ms) == twin.keep(some, now_ms), f"seed {seed}"
        elif what == 3:
            found, wanted = real.take(now_ms, 12), twin.take(now_ms, 12)
            assert [(each.id, each.record.payload) for each in found] == [
                (each.id, each.record.payload) for each in wanted
            ], f"seed {seed}"
            ids = [each.id for each in found if rng.random() < 0.7]
            real.done(ids)
            twin.done(ids)
        elif what == 4:
            space, id = rng.choice("ab"), rng.randrange(20)
            assert real.cancel(space, id) == twin.cancel(space, id), f"seed {seed}"
        elif what == 5:
            real.close()
            real, twin = open_delayed(f"sqlite:///{tmp_path}/delayed.db"), MemoryDelayed(disk)
        else:
            assert real.forget(now_ms - 50, 100) == twin.forget(now_ms - 50, 100), f"seed {seed}"
        assert (real.held(), real.next_due_ms()) == (twin.held(), twin.next_due_ms()), f"seed {seed}"
        assert real.waiting("a", (50, 3), 5) == twin.waiting("a", (50, 3), 5), f"seed {seed}"
