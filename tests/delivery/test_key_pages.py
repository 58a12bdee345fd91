"""Keys in pages, against a plain list and a plain set."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldfare.delivery.in_flight_window import InFlightWindow
from fieldfare.delivery.pages import PAGE_KEYS, KeyQueue, KeySet

few = st.integers(0, 5)
some = st.one_of(few, st.integers(PAGE_KEYS - 2, PAGE_KEYS + 2), st.integers(0, 3 * PAGE_KEYS))
key = st.integers(0, 8 * PAGE_KEYS)


@given(st.lists(st.tuples(st.sampled_from(("extend", "drop")), some)), st.lists(key, max_size=9), some)
def test_a_queue_of_keys_is_a_list(steps: list[tuple[str, int]], looked: list[int], count: int) -> None:
    queue, naive, next_key = KeyQueue(), list[int](), 0
    for step, size in steps:
        if step == "extend":
            fresh = [next_key + 2 * at for at in range(size)]
            next_key += 2 * size
            queue.extend(fresh)
            naive += fresh
        else:
            queue.drop(min(size, len(naive)))
            del naive[:size]
        assert len(queue) == len(naive)
        assert queue.first(count) == naive[:count]
    assert [queue[at] for at in range(len(queue))] == naive
    for each in looked:
        assert queue.place(each) == bisect_left(naive, each)
        assert queue.behind(each) == bisect_right(naive, each)


@given(st.lists(st.tuples(st.booleans(), key), max_size=400), st.booleans())
def test_a_set_of_keys_is_a_set(steps: list[tuple[bool, int]], is_full: bool) -> None:
    naive = set(range(0, 8 * PAGE_KEYS, 3)) if is_full else set[int]()
    keys = KeySet()
    for each in sorted(naive, key=lambda each: each % 7):
        keys.add(each)
    for is_added, each in steps:
        assert (each in keys) == (each in naive)
        if not is_added:
            assert keys.remove(each) == (each in naive)
            naive.discard(each)
        elif each not in naive:
            keys.add(each)
            naive.add(each)
        assert len(keys) == len(naive)
    assert list(keys) == sorted(naive)


class NaiveInFlightWindow:
    def __init__(self) -> None:
        self.acked: dict[int, bool] = {}

    def extend(self, keys: list[int]) -> None:
        self.acked |= dict.fromkeys(keys, False)

    def is_open(self, key: int) -> bool:
        return self.acked.get(key) is False

    def ack(self, key: int) -> bool:
        found = self.is_open(key)
        if found:
            self.acked[key] = True
            self.pass_front()
        return found

    def ack_up_to(self, key: int) -> list[int]:
        found = [each for each, acked in self.acked.items() if each <= key and not acked]
        self.acked |= dict.fromkeys(found, True)
        self.pass_front()
        return found

    def pass_front(self) -> None:
        while self.acked and (first := next(iter(self.acked))) is not None and self.acked[first]:
            del self.acked[first]

    def runs(self) -> set[tuple[int, int]]:
        runs, last = dict[int, int](), None
        for key, acked in self.acked.items():
            if acked:
                last = key if last is None else last
                runs[last] = key
            else:
                last = None
        return set(runs.items())


@given(
    st.lists(st.tuples(st.sampled_from(("extend", "ack", "ack_up_to")), st.integers(0, 300)), max_size=300)
)
def test_what_was_given_is_a_list_with_flags(steps: list[tuple[str, int]]) -> None:
    given_keys, naive, next_key = InFlightWindow(), NaiveInFlightWindow(), 0
    for step, number in steps:
        if step == "extend":
            fresh = [next_key + 3 * at for at in range(number % (2 * PAGE_KEYS))]
            next_key += 3 * len(fresh) + 1
            given_keys.extend(fresh)
            naive.extend(fresh)
        else:
            at = number * max(next_key, 1) // 300
            verb = getattr(given_keys, step)(at)
            assert verb == getattr(naive, step)(at)
        left = list(naive.acked)
        assert given_keys.every(3, next_key) == left[2::3]
        assert len(given_keys) == len(left)
        assert given_keys.front == (left[0] if left else None)
        assert given_keys.end == (left[-1] + 1 if left else 0)
        assert set(given_keys.runs()) == naive.runs()
        assert given_keys.is_open(number) == naive.is_open(number)


@pytest.mark.parametrize("size", [0, 1, PAGE_KEYS - 1, PAGE_KEYS, PAGE_KEYS + 1, 10 * PAGE_KEYS])
def test_a_full_page_has_no_room_for_more(size: int) -> None:
    queue, keys = KeyQueue(), KeySet()
    for each in range(size):
        queue.extend((each,))
        keys.add(each)
    for pages in (queue._pages, keys._pages):
        for page in pages[: size // PAGE_KEYS]:
            assert page.__sizeof__() == page[:].__sizeof__()
