"""Covering, intersection and hulls of filters: proofs hold for all events, and are mostly found."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn
from tests.yardstick import slowness

from fieldfare.filters import compile_filter
from fieldfare.filters import expression as ast
from fieldfare.filters.covering import FilterRegion, covers, intersects, region_of
from fieldfare_lab.routing.filter_sets import EVERYTHING, covering_set, merge
from fieldfare_lab.routing.hulls import CONJUNCTIONS_MAX, CUTS_MAX
from fieldfare_lab.routing.region_set import RegionSet

from . import strategies as some
from .cesql import strategies as cesql
from .eventbridge.generators import Generator
from .test_batches import filter_of

Event = dict[str, Any]


def region(text: Any, dialect: str = "sql") -> FilterRegion:
    return region_of(compile_filter(text, dialect))


EQUAL = [
    ("a > 5", "NOT a <= 5"),
    ("a IN (1, 2, 3)", "a = 3 OR a = 1 OR a = 2"),
    ("a BETWEEN 1 AND 5", "a >= 1 AND a <= 5"),
    ("a = 1.50", "a = 15e-1"),
    ("a = 1", "a = 1.0"),
    ("a LIKE 'ab%'", "a >= 'ab' AND a < 'ac'"),
    ("a < 5 OR a >= 5 AND b = 1", "a < 5 OR b = 1 AND a IS NOT NULL AND a >= 5"),
    ("a < 1 OR a > 0", "a BETWEEN -1e9 AND 1e9 OR a < 0 OR a > 0"),
    ("a = TRUE OR a = FALSE", "a IN (TRUE, FALSE)"),
    ("a = 1 AND b = 2 OR a = 1 AND (b = 2) IS NOT TRUE", "a = 1"),
    ("a > 5 AND a < 5", "FALSE"),
    ("data[0] = 1 AND data = 'x'", "FALSE"),
    ("title LIKE '%a_b%' AND x = 1", "x = 1 AND title LIKE '%a_b%'"),
    ("a + b > 2", "NOT (a + b <= 2)"),
    ("a < b", "b > a"),
    ("ANY x IN l SATISFIES (x > 1 AND x < b)", "ANY x IN l SATISFIES (x > 1 AND x < b)"),
    ("NOT title LIKE '%a_b%' OR x = 1", "x = 1 OR NOT title LIKE '%a_b%'"),
]
"""Different texts of filters that match the same events."""

WIDER = [
    ("a > 5", "a > 6"),
    ("a > 5", "a >= 5.0000000000000000000001"),
    ("a >= 5", "a = 5"),
    ("a <> 5", "a = 6"),
    ("a <> 5", "a IN (1, 2, 6)"),
    ("TRUE", "a = 1"),
    ("a = 1", "FALSE"),
    ("a = 1", "a = 1 AND b = 2"),
    ("a = 1 OR b = 2", "a = 1"),
    ("a = 1 OR b = 2", "b = 2 AND c = 3"),
    ("a IN (1, 2, 3)", "a IN (1, 3)"),
    ("a IN (1, 'x', TRUE)", "a = 'x'"),
    ("a < 5 OR a >= 5 AND b = 1", "a < 7 AND b = 1"),
    ("a < 5 OR a >= 5 AND b = 1 OR a >= 5 AND b = 2", "a > 3 AND b IN (1, 2)"),
    ("a <= 3 AND b <= 3 OR a > 3 AND b <= 3 OR a <= 3 AND b > 3", "a <= 3 AND EXISTS(b) AND b <> 0"),
    ("EXISTS(a)", "a IS NULL AND EXISTS(a)"),
    ("a IS NULL", "NOT EXISTS(a)"),
    ("a IS NOT NULL", "a = 'x'"),
    ("a IS UNKNOWN", "NOT EXISTS(a)"),
    ("(a = 1) IS NOT TRUE", "a = 'x'"),
    ("(a = 1) IS NOT TRUE", "NOT EXISTS(a)"),
    ("NOT EXISTS(data.x)", "data = 5"),
    ("NOT EXISTS(data.x)", "NOT EXISTS(data)"),
    ("NOT EXISTS(data[2])", "data = 'x'"),
    ("EXISTS(data)", "data.x = 1"),
    ("EXISTS(data)", "data.x.y[3] LIKE '%z'"),
    ("a LIKE 'a%'", "a LIKE 'ab%'"),
    ("a LIKE 'a%'", "a IN ('ab', 'a')"),
    ("a LIKE '%or%'", "a LIKE '%storm%'"),
    ("a LIKE '%or%'", "a = 'storm'"),
    ("a LIKE '%or%'", "a LIKE 'storm%'"),
    ("a LIKE '%rm'", "a LIKE '%storm'"),
    ("a LIKE '%a_b%'", "a LIKE '%a_b%' AND b = 1"),
    ("a LIKE '%a_b%' OR c = 5", "a LIKE '%a_b%' AND b = 1 OR c = 5 AND d = 1"),
    ("a LIKE '%a_b%' AND b > 1", "b > 2 AND a LIKE '%a_b%' AND c = 1"),
    ("LOWER(a) = 'x'", "LOWER(a) = 'x' AND b = 1"),
    ("a + b > 2", "a + b > 3"),
    ("HOUR(time) BETWEEN 3 AND 9", "HOUR(time) = 5 AND type = 'x'"),
    ("DISTANCE_KM(lat, lon, 1, 2) < 9", "DISTANCE_KM(lat, lon, 1, 2) < 8"),
    ("a IS NOT NULL", "a + b > 3"),
    ("ANY x IN l SATISFIES (x > b)", "ANY x IN l SATISFIES (x > b) AND a = 1"),
    ("ANY x IN l SATISFIES (x > b) AND a > 1", "a > 2 AND ANY x IN l SATISFIES (x > b)"),
    ("ANY x IN l SATISFIES (x = 2) OR a = 1", "a = 1 AND NOT EXISTS(l)"),
]
"""Filters of which the first matches more events than the second."""

OVERLAPPING = [
    ("a > 5", "a < 7"),
    ("a > 5", "b > 5"),
    ("a IN (1, 2)", "a IN (2, 3)"),
    ("a LIKE 'a%'", "a > 'ab'"),
    ("a LIKE '%x'", "a LIKE 'y%'"),
    ("a < 5 OR a > 5", "a BETWEEN 5 AND 6"),
    ("a = 1 OR b = 1", "a = 2 OR b = 2"),
    ("data.x = 1", "data.y = 1"),
    ("a < 5 OR a >= 5 AND b = 1", "a < 7"),
    ("NOT a LIKE '%a_b%'", "b = 1"),
]
"""Filters that match a common event; neither covers the other."""

DISJOINT = [
    ("a > 5", "a <= 5"),
    ("a > 5", "a = 'x'"),
    ("a = 1", "a = 2 AND b = 1"),
    ("a = 1 AND b = 1", "a = 2 AND b = 1 OR a = 1 AND b = 2"),
    ("a IS NULL", "a = 1"),
    ("EXISTS(a)", "NOT EXISTS(a)"),
    ("data.x = 1", "data = 1"),
    ("data.x = 1", "data IS NULL"),
    ("EXISTS(data.x.y)", "data.x = 5"),
    ("a LIKE 'ab%'", "a LIKE 'b%'"),
    ("a LIKE 'ab%'", "a IN ('b', 'ac', 'a')"),
    ("a LIKE '%storm%'", "a IN ('sun', 'rain')"),
    ("a LIKE '%a_b%' AND c = 1", "NOT a LIKE '%a_b%' AND d = 1"),
    ("a = 0.1", "a = 0.10000000000000000000000000001"),
    ("a < b", "a >= b"),
    ("a + b > 3", "a + b < 3"),
    ("a + b > 3", "a = 'x'"),
    ("HOUR(time) < 5", "HOUR(time) > 5"),
    ("HOUR(time) < 5", "time IS NULL"),
    ("a = TRUE", "a = FALSE"),
    ("a = TRUE", "a = 1"),
]
"""Filters that match no common event."""


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_equal_filters_cover_each_other(one: str, other: str) -> None:
    a, b = region(one), region(other)
    assert (covers(a, b), covers(b, a)) == (True, True)
    assert intersects(a, b) == bool(a.outer)


@pytest.mark.parametrize(("wide", "narrow"), WIDER)
def test_a_wider_filter_covers_a_narrower_one(wide: str, narrow: str) -> None:
    a, b = region(wide), region(narrow)
    assert (covers(a, b), covers(b, a)) == (True, False)
    assert intersects(a, b) == intersects(b, a) == (narrow != "FALSE")


@pytest.mark.parametrize(("one", "other"), OVERLAPPING)
def test_overlapping_filters_do_not_cover_each_other(one: str, other: str) -> None:
    a, b = region(one), region(other)
    assert (covers(a, b), covers(b, a)) == (False, False)
    assert intersects(a, b) and intersects(b, a)


@pytest.mark.parametrize(("one", "other"), DISJOINT)
def test_disjoint_filters_do_not_intersect(one: str, other: str) -> None:
    a, b = region(one), region(other)
    assert not intersects(a, b) and not intersects(b, a)
    assert (covers(a, b), covers(b, a)) == (False, False)


@pytest.mark.parametrize(
    ("dialect", "wide", "narrow", "disjoint"),
    [
        ("cesql", "type LIKE 'com.%'", "type = 'com.x' AND source = 'a'", "type = 'org.x'"),
        ("cesql", "EXISTS type", "type = 'x'", "NOT EXISTS type"),
        (
            "subscriptions",
            {"prefix": {"type": "com."}},
            {"exact": {"type": "com.x"}},
            {"exact": {"type": "x"}},
        ),
        (
            "subscriptions",
            {"any": [{"exact": {"type": "a"}}, {"suffix": {"type": "b"}}]},
            {"all": [{"exact": {"type": "a"}}, {"exact": {"source": "s"}}]},
            {"exact": {"type": "c"}},
        ),
        (
            "eventbridge",
            {"type": [{"prefix": "com."}]},
            {"type": ["com.x"], "source": ["a"]},
            {"type": ["org.x"]},
        ),
    ],
)
def test_filters_of_each_dialect_are_compared(dialect: str, wide: Any, narrow: Any, disjoint: Any) -> None:
    a, b, c = region(wide, dialect), region(narrow, dialect), region(disjoint, dialect)
    assert (covers(a, b), covers(b, a)) == (True, False)
    assert (intersects(a, b), intersects(a, c)) == (True, False)


def test_filters_of_different_dialects_are_compared() -> None:
    wide = region("type LIKE 'com.%'")
    for narrow in (
        region("type = 'com.x'", "cesql"),
        region({"exact": {"type": "com.x"}}, "subscriptions"),
        region({"type": ["com.x"]}, "eventbridge"),
    ):
        assert covers(wide, narrow) and not covers(narrow, wide) and intersects(wide, narrow)


def check(a: FilterRegion, b: FilterRegion, events: list[Event]) -> None:
    """Check for events that what was answered about two filters, and about their hull, is true."""
    hull = merge([a, b])
    for each in (a, b):
        assert covers(each, each) and covers(hull, each) and covers(EVERYTHING, each)
    matched = [(a.matches(event), b.matches(event), hull.matches(event)) for event in events]
    a_covers_b, b_covers_a, meet = covers(a, b), covers(b, a), intersects(a, b)
    assert meet == intersects(b, a)
    for by_a, by_b, by_hull in matched:
        assert by_a or not (by_b and a_covers_b)
        assert by_b or not (by_a and b_covers_a)
        assert meet or not (by_a and by_b)
        assert by_hull or not (by_a or by_b)


def related(draw: Callable[..., Any], expression: ast.Expression, other: ast.Expression) -> ast.Expression:
    """Return an expression that is near another one, so that covering and intersection are likely."""
    made: list[ast.Expression] = [
        other,
        ast.And((expression, other)),
        ast.Or((expression, other)),
        ast.Or((other, ast.And((expression, other)))),
        ast.Not(expression),
        ast.And((ast.Not(expression), other)),
        ast.IsTruth(expression, None),
    ]
    found: ast.Expression = draw(st.sampled_from(made))
    return found


@st.composite
def pairs(draw: Callable[..., Any]) -> tuple[ast.Expression, ast.Expression]:
    one = draw(some.expressions)
    return one, related(draw, one, draw(some.expressions))


@settings(max_examples=drawn(400))
@given(pairs(), st.lists(some.events, min_size=1, max_size=8))
def test_answers_hold_for_random_filters_and_events(
    pair: tuple[ast.Expression, ast.Expression], events: list[Event]
) -> None:
    check(region_of(filter_of(pair[0])), region_of(filter_of(pair[1])), events)


@settings(max_examples=drawn(100))
@given(cesql.filters(), cesql.filters(), st.lists(cesql.events, min_size=1, max_size=8))
def test_answers_hold_for_random_filters_of_cesql(
    one: tuple[Any, str], other: tuple[Any, str], events: list[Event]
) -> None:
    check(region(one[1], "cesql"), region(other[1], "cesql"), events)


def test_answers_hold_for_random_patterns_of_eventbridge() -> None:
    generator = Generator(random.Random(5))
    for _ in range(drawn(60)):
        check(
            region(generator.pattern(), "eventbridge"),
            region(generator.pattern(), "eventbridge"),
            [generator.event() for _ in range(8)],
        )


CONSTANTS = ["0", "1", "1.5", "2", "'a'", "'ab'", "'b'", "TRUE", "NULL"]
VALUES = [
    -1,
    0,
    0.5,
    1,
    1.3,
    1.5,
    1.7,
    2,
    3,
    "",
    "a",
    "aa",
    "ab",
    "abc",
    "b",
    "bc",
    True,
    False,
    None,
    [],
    "absent",
]


def _predicate(rng: random.Random) -> str:
    name, constant, other = rng.choice(["a", "a.x", "b"]), rng.choice(CONSTANTS), rng.choice(CONSTANTS)
    return rng.choice(
        [
            f"{name} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {constant}",
            f"{name} IN ({constant}, {other})",
            f"{name} LIKE '{rng.choice(['a%', 'ab%', 'b%', '%'])}'",
            f"{name} IS {rng.choice(['', 'NOT '])}NULL",
            f"EXISTS({name})",
        ]
    )


def _filter(rng: random.Random, depth: int = 2) -> str:
    if depth == 0 or rng.random() < 0.25:
        return rng.choice(["", "", "NOT "]) + _predicate(rng)
    joined = rng.choice([" AND ", " OR "]).join(_filter(rng, depth - 1) for _ in range(rng.randint(2, 3)))
    return f"({joined})" + rng.choice(["", "", "", " IS NOT TRUE"])


def _events() -> list[Event]:
    tops = [{} if value == "absent" else {"a": value} for value in VALUES]
    tops += [{"a": {} if value == "absent" else {"x": value}} for value in VALUES]
    return [{**top, **({} if b == "absent" else {"b": b})} for top in tops for b in VALUES]


def test_answers_about_comparisons_are_mostly_exact() -> None:
    """Enumerated events show what is true of filters over few values; hardly any answer is "not proved"."""
    rng, events = random.Random(7), _events()
    covered = missed = apart = perhaps = 0
    for _ in range(drawn(200)):
        a, b = region(_filter(rng)), region(_filter(rng))
        check(a, b, events)
        by_a, by_b = ({n for n, event in enumerate(events) if each.matches(event)} for each in (a, b))
        if by_b and by_b <= by_a:
            covered += covers(a, b)
            missed += not covers(a, b)
        if by_a and by_b and not by_a & by_b:
            apart += not intersects(a, b)
            perhaps += intersects(a, b)
    # The events are samples: a filter may cover another for these, but not for all events.
    assert missed <= 0.1 * covered + 1 and perhaps <= 0.1 * apart + 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a > 5", "a > 5 AND ANY x IN l SATISFIES (x > b)"),
        ("ANY x IN l SATISFIES (x > b)", "ANY x IN l SATISFIES (x > b) AND c LIKE '%a_b%'"),
    ],
)
def test_a_filter_that_gives_up_on_large_arrays_is_covered(one: str, other: str) -> None:
    assert covers(region(one), region(other))


def test_a_filter_that_may_give_up_where_another_does_not_covers_nothing_by_its_parts() -> None:
    """It is given up for an event with a large array, even where its other alternative is true."""
    pairs = "ANY x IN l SATISFIES (ANY y IN l SATISFIES (x = y + 1))"
    wide, narrow = region(f"a LIKE '%a_b%' OR {pairs}"), region("a LIKE '%a_b%'")
    event = {"a": "xaxb", "l": [1] * 3_000}
    assert narrow.matches(event) and not wide.matches(event)
    assert not covers(wide, narrow)


def test_a_hull_is_bounded_and_keeps_what_all_members_have() -> None:
    texts = [f"type = 't{i % 3}' AND x IN ({i}, {i + 0.5}) AND y{i % 7} = {i}" for i in range(500)]
    members = [region(text) for text in texts]
    hull = merge(members)
    assert len(hull.form.conjunctions) <= CONJUNCTIONS_MAX
    assert all(
        len(values.numbers.cuts) + len(values.strings.cuts) <= CUTS_MAX
        for each in hull.form.conjunctions
        for _, values in each.constraints
    )
    assert all(covers(hull, member) for member in members)
    assert not intersects(hull, region("type = 't3'")) and not intersects(hull, region("x > 500"))
    assert not hull.matches({"type": "t1"}) and hull.matches({"type": "t1", "x": 1, "y1": 1})


def test_the_hull_of_one_filter_is_the_filter_and_of_none_is_nothing() -> None:
    one, nothing = region("a > 5 AND b LIKE '%x%'"), merge([])
    hull = merge([one])
    assert covers(one, hull) and covers(hull, one)
    assert covers(one, nothing) and not intersects(one, nothing) and not nothing.matches({})


def test_a_hull_closes_narrow_gaps_first() -> None:
    numbers = [*range(0, 2_000, 2), 10_000]
    hull = merge([region(f"a IN ({', '.join(map(str, numbers))})")])
    assert not hull.matches({"a": 5_000}) and hull.matches({"a": 10_000}) and hull.matches({"a": 0})
    words = ", ".join(f"'w{number:05}'" for number in numbers)
    hull = merge([region(f"a IN ({words})")])
    assert not hull.matches({"a": "w10001"}) and hull.matches({"a": "w10000"})


def test_the_covering_set_of_filters_covers_them_all() -> None:
    texts = ["a > 5", "a > 6", "b = 1", "a > 3", "b = 1 AND c = 2", "NOT a <= 3", "a > 3 OR b = 1 AND c = 1"]
    regions = [region(text) for text in texts]
    kept = covering_set(regions)
    assert [texts[number] for number in kept] == ["b = 1", "a > 3 OR b = 1 AND c = 1"]
    assert all(any(covers(regions[number], each) for number in kept) for each in regions)


def _region_of_stocks(rng: random.Random) -> FilterRegion:
    low, symbols = rng.randrange(1_000), rng.sample(range(50), rng.randint(1, 2))
    names = ", ".join(f"'S{each}'" for each in symbols)
    return region(f"x.symbol IN ({names}) AND x.price BETWEEN {low} AND {low + 100} AND x.volume > {low}")


def test_a_set_of_filters_finds_what_comparing_all_pairs_finds() -> None:
    rng = random.Random(3)
    regions = [region(_filter(rng)) for _ in range(60)] + [_region_of_stocks(rng) for _ in range(60)]
    regions += [
        region("a = 1"),
        region("a = ''"),
        region("FALSE"),
        region("TRUE"),
        region("a = 1.0 AND b = 2"),
    ]
    found = RegionSet()
    for number, each in enumerate(regions):
        found.add(number, regions[0])
        found.add(number, each)
    for number in range(0, len(regions), 7):
        found.discard(number)
        found.discard(number)
    kept = {number: each for number, each in enumerate(regions) if number % 7}
    assert len(found) == len(kept) and all(found[number] is each for number, each in kept.items())
    for asked in regions:
        assert set(found.intersecting(asked)) == {n for n, each in kept.items() if intersects(each, asked)}
        for answers, question in (
            (found.covering(asked), lambda each, asked=asked: covers(each, asked)),
            (found.covered_by(asked), lambda each, asked=asked: covers(asked, each)),
        ):
            expected = {n for n, each in kept.items() if question(each)}
            assert set(answers) <= expected
            assert all(not kept[n].outer for n in expected - set(answers))


SEARCH_S = 1.0
"""Maximum seconds for a thousand searches in a set of a thousand filters, on an idle machine."""


def test_a_thousand_subscriptions_meet_a_thousand_advertisements_quickly() -> None:
    rng = random.Random(4)
    advertised = RegionSet()
    for number in range(1_000):
        advertised.add(number, _region_of_stocks(rng))
    subscriptions = [_region_of_stocks(rng) for _ in range(1_000)]
    limit_s = SEARCH_S * slowness()
    start_s = time.thread_time()
    pairs = sum(len(advertised.intersecting(each)) for each in subscriptions)
    assert time.thread_time() - start_s < limit_s and pairs > 1_000


_LISTS = [", ".join(str(number * step) for number in range(8_000)) for step in (2, 3)]
_OR = " OR "
HOSTILE = [
    ([f"a IN ({each})" for each in _LISTS]),
    ([_OR.join(f"(a > {i} AND b < {i} AND c{i} = 1)" for i in range(first, 300)) for first in (0, 1)]),
    ([" AND ".join(f"(a{i} = 1 OR b{i} = 2)" for i in range(first, 20)) for first in (0, 1)]),
    ([_OR.join(f"a LIKE '%{'ab' * 80}{i}%'" for i in range(first, 60)) for first in (0, 1)]),
    (
        [
            _OR.join(f"(a LIKE '%{i}' AND b IN ('{'x' * 2_000}{i}'))" for i in range(first, 20))
            for first in (0, 1)
        ]
    ),
    ([" AND ".join(f"a{i} <> {i}" for i in range(first, 600)) for first in (0, 1)]),
    ([" AND ".join(f"NOT (a{i} = 1 AND b{i} LIKE '%a_{i}%')" for i in range(first, 60)) for first in (0, 1)]),
    ([("NOT " * 90) + f"(a = {i} AND b LIKE '%a_b%')" for i in (0, 1)]),
]
"""Pairs of filters that are large, or whose boxes split each other many times."""

PAIR_S = 0.25
"""Maximum seconds of the two questions about two filters, on an idle machine."""


@pytest.mark.parametrize("texts", HOSTILE, ids=lambda texts: texts[0][:24])
def test_hostile_filters_are_compared_in_bounded_time(texts: list[str]) -> None:
    one, other = map(region, texts)
    merge([one, other])
    covers(one, other)  # compiles what is compiled at the first use
    limit_s = PAIR_S * slowness()
    for question in (covers, intersects):
        start_s = time.thread_time()
        for a, b in ((one, other), (other, one), (one, one)):
            question(a, b)
        assert time.thread_time() - start_s < 3 * limit_s, question
    assert covers(one, one) and intersects(one, one)
