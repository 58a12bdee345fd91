"""Li et al. 2011 (BlueDove), section III.C: maintenance of global state, from joining to matching."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2] / "lab" / "membership"))

from membership_support import PATHS, System
from naive_partitioning import route_one

from fieldfare.filters import compile_filter
from fieldfare.filters.values import ABSENT
from fieldfare.model import Path as AttributePath
from fieldfare_lab.membership import stored_of


def grown(size: int) -> tuple[System, dict[int, str]]:
    """Matchers that joined one after another, and 120 subscriptions that came in between."""
    system, texts, rng = System(11), {}, Random(5)
    for _ in range(size):
        for _ in range(120 // size):
            x, y = rng.uniform(0, 100), rng.uniform(0, 100)
            texts[len(texts)] = f"x >= {x:.1f} AND x < {x + 15:.1f} AND y BETWEEN {y:.1f} AND {y + 15:.1f}"
        for number in range(len(system.registry), len(texts)):
            system.subscribe(stored_of(number, compile_filter(texts[number]).normal_form, PATHS))
        system.run(6)
        if len(system.live()) < size:
            system.join()
    system.run(60)
    return system, texts


def test_each_candidate_matcher_finds_all_matching_subscriptions_by_the_dispatchers_table() -> None:
    """Sections III.A.1 and III.C: any dispatcher examines the global assignment, and forwards in one hop."""
    system, texts = grown(6)
    assert len(system.live()) == 6
    names = sorted(system.matchers)
    filters = {number: compile_filter(text) for number, text in texts.items()}
    rng = Random(6)
    for dispatcher in system.dispatchers.values():
        numbers = {name: i for i, name in enumerate(names)}
        space = dispatcher.partitioning(PATHS, numbers, system.now)
        for _ in range(50):
            event = {"x": rng.uniform(-5, 120), "y": rng.uniform(-5, 120)}
            expected = {number for number, found in filters.items() if found.matches(event)}

            def value_of(path: AttributePath, event: dict[str, float] = event) -> object:
                return event.get(str(path[0]), ABSENT)

            for candidate in route_one(space, value_of).candidates:
                part = space.slices[candidate]
                held = system.matchers[names[part.matcher]].holdings.sets[part.dimension or 0]
                assert {number for number in held if filters[number].matches(event)} == expected


def test_a_dispatcher_sends_no_event_to_a_spare_that_nobody_stores() -> None:
    """Section III.A, last but one paragraph, and III.C. All candidates of an event are one matcher, and that
    one has just crashed. A table that promised replicas on its neighbours sent the event to one of them,
    which had never stored any: it matched a part of its subscriptions or none, and nobody noticed. Without
    spares the event waits until somebody has taken over.
    """
    network, texts = grown(3)
    names = sorted(network.matchers)
    filters = {number: compile_filter(text) for number, text in texts.items()}
    space = network.dispatchers["d0"].partitioning(
        PATHS, {name: i for i, name in enumerate(names)}, network.now
    )
    alone = 0
    for x in range(-5, 120, 5):
        for y in range(-5, 120, 5):
            event = {"x": float(x), "y": float(y)}
            expected = {number for number, found in filters.items() if found.matches(event)}

            def value_of(path: AttributePath, event: dict[str, float] = event) -> object:
                return event.get(str(path[0]), ABSENT)

            route = route_one(space, value_of)
            alone += len({space.slices[candidate].matcher for candidate in route.candidates}) == 1
            for spare in (*route.candidates, *route.spares):
                part = space.slices[spare]
                held = network.matchers[names[part.matcher]].holdings.sets[part.dimension or 0]
                assert {number for number in held if filters[number].matches(event)} == expected
    assert alone


def test_leaving_is_simply_the_reverse_of_joining() -> None:
    """Section III.C: the segments and subscriptions are handed back to adjacent matchers."""
    system, _ = grown(3)
    before = [system.dispatchers["d0"].table.owned(i) for i in range(2)]
    name = system.join()
    system.run(40)
    assert name in system.live()
    system.leave(name)
    system.run(60)
    assert [system.dispatchers["d0"].table.owned(i) for i in range(2)] == before
