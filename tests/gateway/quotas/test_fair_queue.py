"""A space's backlog does not delay others: waiting items are served in turn by space, and capacity is
shared."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

import pytest
from gateway_support import run
from hypothesis import given, settings
from hypothesis import strategies as st

from doses import drawn
from fieldfare.gateway.fair_queue import FairQueue, SharedCapacity
from fieldfare.gateway.writer import Writer, WriterOverloaded
from fieldfare.storage import open_event_log, open_registry
from fieldfare.storage.event_log import NewRecord

NAMES = st.sampled_from("abcd")


@settings(max_examples=drawn(200))
@given(st.lists(st.one_of(NAMES, st.none()), max_size=80))
def test_spaces_are_served_in_turn_and_each_in_order(steps: list[str | None]) -> None:
    """A space that begins to wait is served before any other space is served twice more."""
    turns: FairQueue[tuple[str, int]] = FairQueue()
    waiting: dict[str, deque[int]] = {}
    served_since: dict[str, list[str]] = {}
    for number, whose in enumerate(steps):
        if whose is not None:
            turns.add(whose, (whose, number))
            waiting.setdefault(whose, deque()).append(number)
            served_since.setdefault(whose, [])
        elif turns:
            who, found = turns.next()
            assert found == waiting[who].popleft()
            for other, served in served_since.items():
                if other != who:
                    served.append(who)
                    assert served.count(who) <= 1
            served_since.pop(who)
            if waiting[who]:
                served_since[who] = []
            else:
                del waiting[who]
    assert bool(turns) == bool(waiting)


@settings(max_examples=drawn(200))
@given(st.lists(st.tuples(st.sampled_from(["add", "next", "hold", "release", "sift"]), NAMES), max_size=80))
def test_a_held_space_is_skipped_and_keeps_its_order(steps: list[tuple[str, str]]) -> None:
    """Its items are not returned meanwhile, whatever is added, and none is lost except those that are
    removed."""
    turns: FairQueue[tuple[str, int]] = FairQueue()
    waiting: dict[str, deque[int]] = {name: deque() for name in "abcd"}
    held: set[str] = set()
    for number, (step, whose) in enumerate(steps):
        mine = waiting[whose]
        if step == "add":
            turns.add(whose, (whose, number))
            mine.append(number)
        elif step == "next" and turns:
            first = turns.first
            who, found = turns.next()
            assert first == (who, found) and who not in held
            assert found == waiting[who].popleft()
        elif step == "hold" and mine and whose not in held:
            turns.suspend(whose)
            held.add(whose)
        elif step == "release":
            assert turns.release(whose) == (whose in held)
            held.discard(whose)
        elif step == "sift":
            turns.sift(whose, lambda item: item[1] % 2 == 0)
            waiting[whose] = deque(each for each in mine if each % 2 == 0)
            if not waiting[whose]:
                held.discard(whose)
        assert turns.count(whose) == len(waiting[whose])
        assert bool(turns) == any(waiting[name] for name in waiting.keys() - held)


@settings(max_examples=drawn(200))
@given(st.integers(1, 100), st.lists(st.tuples(NAMES, st.integers(0, 120), st.booleans()), max_size=60))
def test_a_space_below_its_share_is_admitted(most: int, steps: list[tuple[str, int, bool]]) -> None:
    shares, held = SharedCapacity(most), dict.fromkeys("abcd", 0)
    for whose, amount, gives_back in steps:
        if gives_back and held[whose] >= amount:
            shares.give_back(whose, amount)
            held[whose] -= amount
        elif shares.fits(whose, amount):
            shares.take(whose, amount)
            held[whose] += amount
        elif 0 < amount <= most:
            others = sum(1 for name, has in held.items() if has and name != whose)
            assert held[whose] + amount > most // (others + 1), "what it has is more than its share"
        assert shares.total == sum(held.values())
        assert all(has <= most for has in held.values())
        assert shares.total <= 3 * most, "shares of ever more spaces are ever smaller"


def test_a_single_event_is_not_delayed_by_another_spaces_backlog(tmp_path):
    """A space has megabytes waiting for the disk: another's event goes into the next group all the same."""

    async def work() -> None:
        log = open_event_log(f"sqlite:///{tmp_path}/log.db")
        registry = open_registry(f"sqlite:///{tmp_path}/registry.db")
        go_on, asked = threading.Event(), threading.Event()
        append = log.append
        groups: list[list[str]] = []

        def slowly(records: list[NewRecord]) -> object:
            asked.set()
            go_on.wait(30)
            groups.append([record.space for record in records])
            return append(records)

        log.append = slowly  # type: ignore[method-assign,assignment]
        writer = Writer(log, registry, queue_max_bytes=40 << 20)
        writer.start()
        large = b"x" * (2 << 20) + b"\n"
        flood = [asyncio.ensure_future(writer.append(NewRecord("flood", large, 1))) for _ in range(19)]
        await asyncio.to_thread(asked.wait, 30)
        with pytest.raises(WriterOverloaded):
            await writer.append(NewRecord("flood", large, 1))
        calm = asyncio.ensure_future(writer.append(NewRecord("calm", large, 1)))
        await asyncio.sleep(0)
        go_on.set()
        await calm
        assert sum(map(len, groups)) <= 6 and "calm" in groups[1]
        await asyncio.gather(*flood)
        assert writer.queued_bytes == 0
        await writer.close()

    run(work)
