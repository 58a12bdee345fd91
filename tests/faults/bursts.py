"""Kills in quick succession: most of them strike a service that is getting over those before.

When each comes, whom it is for and how many die of it is drawn beforehand. Of whom it is for there may be
nobody at that moment (where there is no driver there are no tasks): then it strikes the next on its list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from accidents import kill, present
from scene import Scene
from service_support import is_running, until

STRIKES = (5, 40)
"""How many a burst has, at least and at most."""

PAUSE_MAX_S = 6.0
"""Between two strikes: mostly far less. A driver needs about as long until it is ready."""

TWO_AT_ONCE, ONE_OF_MANY, SUPERVISOR = 0.25, 0.5, 0.03
"""The share of strikes that kill processes of two kinds; one task of several; the supervisor first of all."""

WEIGHTS = {"task": 4, "snapshot": 3, "gateway": 2, "indexer": 2, "driver": 1, "java": 1}
"""Who is struck how often. A driver's death ends its tasks and its source, and those are back last."""

SPARES = 0.6
"""The share of bursts that leave Spark itself alone: its tasks and its source are then struck all along."""

SPARK_ITSELF = ("driver", "java")
ORPHANS_S = 180.0


@dataclass(frozen=True)
class Strike:
    """One moment of a burst.

    Attributes
    ----------
    wanted
        Kinds of processes: the first that are there are struck.
    kinds
        How many of them.
    one_of
        Of several processes of a kind only this one dies, counted round and round; None for all of them.
    pause_s
        How long until the next.
    """

    wanted: tuple[str, ...]
    kinds: int
    one_of: int | None
    pause_s: float


def draw(random: Random) -> list[Strike]:
    """The strikes of one burst."""
    spared = SPARK_ITSELF if random.random() < SPARES else ()
    return [_draw_one(random, spared) for _ in range(random.randint(*STRIKES))]


def _draw_one(random: Random, spared: tuple[str, ...]) -> Strike:
    order = sorted(WEIGHTS, key=lambda kind: random.expovariate(WEIGHTS[kind]))
    wanted = tuple(kind for kind in order if kind not in spared)
    kinds = 1 + (random.random() < TWO_AT_ONCE)
    one_of = random.randrange(100) if random.random() < ONE_OF_MANY else None
    pause_s = PAUSE_MAX_S * random.random() ** 3
    if not spared and random.random() < SUPERVISOR:
        wanted = ("supervisor", *wanted)
    return Strike(wanted, kinds, one_of, pause_s)


def burst(played: Scene, strikes: Sequence[Strike], killed: Counter[str]) -> None:
    """Strike, whatever state the service is in; counts, by kind, each time when somebody did die of it."""
    orphans: list[int] = []
    for strike in strikes:
        victims = _victims(played, strike)
        if "supervisor" in victims:
            orphans += played.service.processes("")
        ended = kill([pid for pids in victims.values() for pid in pids])
        killed.update(kind for kind, pids in victims.items() if not ended.isdisjoint(pids))
        if "supervisor" in victims:
            played.service.process.wait()
            played.restart(ready=False)
        played.linger(strike.pause_s)
    until(lambda: not any(map(is_running, orphans)), ORPHANS_S, "(a killed supervisor's children end)")


def _victims(played: Scene, strike: Strike) -> dict[str, list[int]]:
    victims: dict[str, list[int]] = {}
    for kind in strike.wanted:
        if len(victims) == strike.kinds:
            break
        service = played.service
        found = [service.process.pid] if kind == "supervisor" else present(service, kind)
        if found:
            victims[kind] = found if strike.one_of is None else [found[strike.one_of % len(found)]]
    return victims
