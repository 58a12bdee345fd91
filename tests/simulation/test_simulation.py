"""Whatever the order of small steps, and wherever processes end between them, the service keeps its promises.

A seed that fails is told of with how to run it alone, and with what befell the machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from doses import drawn

from .mutations import MUTATIONS, mutated
from .simulation import report, simulate_all, simulated

ALL_SEEDS = 10_000
SEEDS_BATCH_SIZE = 250
"""Of one test: several run beside each other."""

CAUGHT_WITHIN = 1_000
"""So many seeds find any of the mistakes."""

QUICKLY = (
    "versions count for every stamp",
    "acks are answered before they are saved",
    "letters are not saved",
)


@pytest.fixture(autouse=True, scope="module")
def the_service() -> Iterator[None]:
    with simulated():
        yield


def run_seeds(seeds: range) -> Counter[str]:
    """Run seeds; what happened in them."""
    happened: Counter[str] = Counter()
    for outcome in simulate_all(seeds):
        assert not outcome.said, report(outcome)
        happened += outcome.counts
    return happened


def test_some_seeds_keep_every_promise() -> None:
    happened = run_seeds(range(drawn(100)))
    assert happened["delivered"] > 20 and happened["gateway"] > 0, "the test is of something"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, ALL_SEEDS, SEEDS_BATCH_SIZE))
def test_ten_thousand_seeds_keep_every_promise(first: int) -> None:
    happened = run_seeds(range(first, first + SEEDS_BATCH_SIZE))
    for kind in ("gateway", "indexer", "driver", "power", "task", "clock", "deleted spaces"):
        assert happened[kind] > 0, f"no {kind} in so many seeds"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [name if name in QUICKLY else pytest.param(name, marks=pytest.mark.slow) for name in MUTATIONS]
)
def test_a_mistake_is_found_within_some_seeds(name: str) -> None:
    """The simulation can fail: with a mistake in the service a seed says so, and soon."""
    with mutated(name):
        found = next((each for each in simulate_all(range(CAUGHT_WITHIN)) if each.said), None)
    assert found is not None, f"{CAUGHT_WITHIN} seeds did not notice that {name}"
    assert f"--seed {found.seed}" in report(found)


def test_a_seed_is_the_same_whenever_it_is_run() -> None:
    first, again = ([(o.steps, o.trace, o.counts) for o in simulate_all(range(3, 7))] for _ in range(2))
    assert first == again
