"""The record that makes matching fail is found by halving, and no other record is set aside."""

from __future__ import annotations

from collections.abc import Callable
from math import log2

from hypothesis import example, given
from hypothesis import strategies as st

from fieldfare.pipeline.suspects import DIED_ALONE_MAX, FAILED_ALONE_MAX, Suspects

Naming = Callable[[set[int]], tuple[int, int] | None]


def isolate(size: int, bad: set[int], batch: int, name: Naming = lambda bad: None) -> tuple[list[int], int]:
    """Match `size` records as the pipeline does; return the records set aside and the number of failed
    attempts."""
    tip = failures = 0
    aside: list[int] = []
    suspects: Suspects | None = None
    while tip < size:
        upto = min(size, tip + batch) if suspects is None else suspects.upto
        if not bad & set(range(tip, upto)):
            tip = upto
            suspects = suspects.passed(tip) if suspects else None
            continue
        failures += 1
        suspects = (suspects or Suspects(0, tip, upto, upto)).failed(
            tip, "no good", name(bad & set(range(tip, upto)))
        )
        if suspects and suspects.is_proven():
            aside.append(suspects.start)
            bad = bad - {suspects.start}
            tip = suspects.start + 1
            suspects = suspects.passed(tip)
    return aside, failures


@given(st.integers(1, 300), st.sets(st.integers(0, 299), max_size=6), st.integers(1, 400))
@example(1, {0}, 1)
@example(300, set(range(6)), 300)
def test_exactly_the_bad_records_are_set_aside(size: int, bad: set[int], batch: int) -> None:
    """One event among thousands crashes the kernel: only its record is set aside."""
    bad = {place for place in bad if place < size}
    aside, failures = isolate(size, bad, batch)
    assert aside == sorted(bad)
    assert failures <= len(bad) * (log2(min(size, batch)) + 2 + FAILED_ALONE_MAX)


@given(st.integers(1, 300), st.sets(st.integers(0, 299), max_size=6), st.integers(1, 400), st.booleans())
def test_a_named_record_shortens_the_search_and_a_wrong_name_does_no_harm(
    size: int, bad: set[int], batch: int, lies: bool
) -> None:
    """A task knows which record raised; if it names the wrong one, halving continues from its last range."""
    bad = {place for place in bad if place < size}

    def name(present: set[int]) -> tuple[int, int]:
        found = min(present)
        return (max(0, found - 1), max(1, found)) if lies else (found, found + 1)

    aside, failures = isolate(size, bad, batch, name)
    assert aside == sorted(bad)
    if not lies:
        assert failures <= len(bad) * (1 + FAILED_ALONE_MAX)


@given(st.integers(0, 50), st.integers(1, 50), st.lists(st.tuples(st.booleans(), st.integers(0, 60))))
def test_the_next_attempt_is_always_within_the_suspects(
    start: int, size: int, history: list[tuple[bool, int]]
) -> None:
    """Blocks may be written beyond a failed attempt, and a passed attempt may be reported twice."""
    suspects: Suspects | None = Suspects(0, start, start + size, start + size)
    tip = start
    for failed, more in history:
        tip = tip + more if more < 10 else tip
        suspects = suspects.failed(tip, "x") if failed else suspects.passed(tip)
        if suspects is None or suspects.is_proven():
            return
        assert tip <= suspects.start < suspects.upto <= suspects.end or suspects.start <= tip < suspects.upto


def test_a_record_that_failed_once_alone_and_then_passed_is_not_set_aside() -> None:
    """A task may be killed from outside, which is not the record's fault."""
    once = Suspects(0, 5, 6, 6).failed(5, "killed")
    assert once is not None and not once.is_proven()
    assert once.passed(6) is None


def test_a_failure_together_with_other_records_does_not_count_as_alone() -> None:
    """The neighbours' blocks were written, so only this record was left; another may have crashed the
    process."""
    suspects = Suspects(0, 0, 8, 8).failed(7, "crashed")
    assert suspects == Suspects(0, 7, 8, 8, failures=0, error="crashed")


def test_a_silent_death_is_weak_evidence_against_a_record() -> None:
    """When memory is short, the kernel kills the largest process, whatever it is matching."""
    suspects: Suspects | None = Suspects(0, 0, 8, 8)
    for _ in range(3 + DIED_ALONE_MAX - 1):
        suspects = suspects.died(0, "killed") if suspects else None
        assert suspects is not None and not suspects.is_proven()
    assert suspects == Suspects(0, 0, 1, 1, deaths=DIED_ALONE_MAX - 1, error="killed")
    last = suspects.died(0, "killed")
    assert last is not None and last.is_proven() and not last.is_proven(given_up_before=1)
    assert suspects.passed(1) is None, "it was matched, so its deaths are cleared"


def test_deaths_and_failures_are_counted_separately() -> None:
    """A process killed by chance does not turn one failure of a record into two."""
    once = Suspects(0, 5, 6, 6).failed(5, "raised")
    assert once is not None
    for _ in range(DIED_ALONE_MAX - 1):
        once = once.died(5, "killed")
        assert once is not None and not once.is_proven()
    twice = once.failed(5, "raised")
    assert twice is not None and twice.is_proven()
