"""The steps of a filter for an event are limited; they depend on both alone, and are counted beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_library import each_library
from tests.doses import drawn

from fieldfare.arrow_events.stream import write_events
from fieldfare.filters import compile_filter, work
from fieldfare.filters import expression as ast
from fieldfare.filters import values as sets
from fieldfare.filters.counted import _with_member
from fieldfare.filters.evaluator import event_getter
from fieldfare.filters.filter import Filter, Parsed
from fieldfare.filters.measuring import WORD_DIGITS, most_digits, size_of
from fieldfare.filters.values import ABSENT, ValueSet
from fieldfare.filters.work import STEPS_MAX, work_of
from fieldfare.matching.evaluation.batches import BatchFilter
from fieldfare.matching.evaluation.steps import count_steps, most_steps
from fieldfare.matching.events.event_columns import columns_of_events
from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.index import Index
from fieldfare.matching.library import Library
from fieldfare.matching.part import build_part
from fieldfare.matching.plain.building import derived
from fieldfare.matching.plain.search import confirm
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.pipeline.access_point import record_batch
from fieldfare.pipeline.exit_point import Found
from fieldfare.pipeline.match_batch import stream_matches

from . import naive
from . import strategies as some

PAIRS = "ANY i IN data.a SATISFIES (ANY j IN data.a SATISFIES (i + j = 1))"


def steps_for(text: str, event: dict[str, Any]) -> int:
    counted = compile_filter(text).work
    assert counted is not None
    return counted.steps(lambda path: event_getter(path)(event))


def test_nested_any_over_a_large_array_exceeds_the_limit_at_once() -> None:
    """One event of 400 kB took two hours for one filter, blocked every space, and again after a restart."""
    event = {"data": {"a": list(range(2, 200_000))}}
    condition = compile_filter(PAIRS)
    assert steps_for(PAIRS, event) == STEPS_MAX + 1
    assert not condition.matches(event)
    assert condition.evaluate(event).given_up and condition.evaluate(event).value is None
    line = json.dumps(event).encode() + b"\n"
    columns = decode_json_lines(line, 1, list(condition.column_paths))
    assert BatchFilter(condition).matches(columns).tolist() == [False]
    assert BatchFilter(condition).matches(pa.RecordBatch.from_pylist([event])).tolist() == [False]
    small = {"data": {"a": [3, 5, -2]}}
    assert condition.matches(small) and not condition.evaluate(small).given_up


@pytest.mark.parametrize(
    ("text", "event", "steps"),
    [
        # three parts for each of three elements, and one; no steps for 1 in the array of an object
        ("1 = ANY(a)", {"a": [1, 2, 3]}, 1 + 3 * 3),
        ("1 = ANY(a)", {"a": 5}, 0),
        ("1 = ANY(a)", {}, 0),
        ("1 = ANY(a)", {"a": {"b": 5}}, 0),
        ("ANY i IN a SATISFIES (1 = ANY(i.b))", {"a": {"b": 5}}, 0),
        ("ANY i IN a SATISFIES (1 = ANY(i.b))", {"a": {"b": [5, 6]}}, 1 + 1 + 1 + 2 * 3 + 3 // 4),
        ("1 = ANY(a)", {"a": [[1, 2], {"x": 3, "y": [4]}, 5, 6, 7]}, 1 + 5 * 3 + 10 // 4),
        ("ANY i IN a SATISFIES (ANY j IN a SATISFIES (i = j))", {"a": [1, 2]}, 1 + 2 * (0 + 1 + 1 + 2 * 3)),
        ("ANY i IN a SATISFIES (ANY j IN i.b SATISFIES (j = 1))", {"a": [{"b": [1, 2]}, {}]}, 1 + 8 + 2 + 1),
        ("ANY i IN a SATISFIES (LENGTH(i) = 1)", {"a": ["x" * 6400, "x"]}, 1 + 2 * 4 + 100),
        ("ANY i IN a SATISFIES (i LIKE '%x_y%')", {"a": ["x" * 6400]}, 1 + 2 + 5 + 6400),
    ],
)
def test_steps_are_counted_as_documented(
    text: str, event: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "FEW_ELEMENTS", -1)
    assert steps_for(text, event) == steps


@pytest.mark.parametrize(
    ("text", "is_simple"),
    [
        ("1 = ANY(a)", True),
        ("NOT (ALL i IN a SATISFIES (i LIKE 'x%' AND LENGTH(i) > 3)) OR b = 1", True),
        ("CARDINALITY(a) > 3 AND a[-1] = 'x'", True),
        ("ANY i IN a SATISFIES (i LIKE '%x_y%')", False),
        ("ANY i IN a SATISFIES (i = b)", False),
        ("ANY i IN a SATISFIES (ANY j IN a SATISFIES (j = 1))", False),
        ("ANY i IN a SATISFIES (1 = ANY(i))", False),
        (f"ANY i IN a SATISFIES ({' OR '.join(f'i = {n}' for n in range(9))})", False),
        ("1 = ANY(a) AND 2 = ANY(a) AND 3 = ANY(b)", False),
    ],
)
def test_small_arrays_take_no_steps_for_simple_conditions(text: str, is_simple: bool) -> None:
    """An event has few tags: filters on tags need no steps, whether an index decides them or not."""
    few = {"a": list(range(work.FEW_ELEMENTS)), "b": 1}
    many = {"a": list(range(work.FEW_ELEMENTS + 1)), "b": 1}
    assert (steps_for(text, few) == 0) is is_simple
    assert steps_for(text, many) > 0


def test_a_quantifier_may_be_compared_as_a_value() -> None:
    text = "ANY i IN a SATISFIES ((ANY j IN i SATISFIES (j LIKE '%x%')) = b)"
    assert steps_for(text, {"a": [["x"]], "b": True}) == 1 + (3 + 0) + (1 + 5)
    assert compile_filter(text).matches({"a": [["x"]], "b": True})


def test_filters_that_cost_little_are_not_counted() -> None:
    for text in ("a = 1", "a LIKE '%x%' AND b + c > 3", "a LIKE '%x_y%'", "LENGTH(a) > 5 OR NOT b"):
        assert compile_filter(text).work is None
    heavy = " OR ".join(f"a LIKE '%x{i}_y%'" for i in range(100))
    assert compile_filter(heavy).work is not None
    assert not compile_filter(heavy).matches({"a": "x5zy" + "z" * 1_000_000})
    assert compile_filter(heavy).matches({"a": "x5zy" + "z" * 1_000})


lists_of_events = st.lists(some.events, min_size=1, max_size=6)


@pytest.mark.long
@settings(max_examples=drawn(300))
@given(some.expressions, lists_of_events, st.integers(1, 60))
def test_the_limit_applies_equally_one_by_one_and_by_columns(
    e: ast.Expression, events: list[dict[str, Any]], limit: int
) -> None:
    """The bound by the lengths of texts is never below the counted steps either."""
    counted = work_of(e)
    lines = [json.dumps(_plain(event)).encode() + b"\n" for event in events]
    read = [json.loads(line) for line in lines]
    with pytest.MonkeyPatch.context() as patch:
        for module in ("fieldfare.filters.work", "fieldfare.matching.evaluation.steps"):
            patch.setattr(f"{module}.STEPS_MAX", limit)
        condition = Filter("", "sql", Parsed(e))
        expected = [condition.matches(event) for event in read]
        paths = list(condition.column_paths)
        for batch in (decode_json_lines(b"".join(lines), len(lines), paths), columns_of_events(read, paths)):
            assert BatchFilter(condition).matches(batch).tolist() == expected
            if counted is not None:
                rows = np.arange(len(read))
                exact = [counted.steps(lambda path, event=event: event_getter(path)(event)) for event in read]
                assert count_steps(batch, counted, rows).tolist() == exact
                assert (np.minimum(most_steps(batch, counted, rows), limit + 1) >= exact).all()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) or not isinstance(value, str | int | None) else value


def shared_by_the_filters(
    filters: list[Filter], event: dict[str, Any], limit: int, total: int
) -> tuple[list[int], list[int]]:
    """Return the filters that an event matches, and those over the limit, by the documented rules."""
    matched, given_up, spent = [], [], 0
    for number, condition in enumerate(filters):
        if not naive.candidates(condition.normal_form, event):
            continue
        if condition.work is not None:
            steps = condition.work.steps(lambda path: event_getter(path)(event))
            shares = condition.work.goes_through_arrays(lambda path: event_getter(path)(event))
            spent += min(steps, limit) if shares and spent <= total else 0
            if steps > limit or (shares and spent > total):
                given_up.append(number)
                continue
        if condition.decides(lambda path: event_getter(path)(event)):
            matched.append(number)
    return matched, given_up


TEXTS = [
    "{n} = ANY(data.a)", "data.x = {n} AND {n} < ANY(data.a)", "data.x > {n}",
    "data.x = 1 OR {n} = ANY(data.b)", "data.w LIKE '%a%' AND 1 = ANY(data.b)", "data.x + data.y > {n}",
    "ANY i IN data.a SATISFIES (ANY j IN data.b SATISFIES (i > j + {n}))",
    "ALL i IN data.a SATISFIES (i > {n} AND i < 9)", "NOT ({n} = ANY(data.b)) OR data.x = 2",
    "CARDINALITY(data.a) > {n} AND {n} = ANY(data.a)", "data.a[-1] = {n}",
]  # fmt: skip

FEW = st.sampled_from([-1, 0, 2, 4])
"""Values of FEW_ELEMENTS; arrays have up to eight elements here."""


def random_filters(random: Random, count: int) -> list[Filter]:
    """Return random filters over arrays."""
    return [compile_filter(random.choice(TEXTS).format(n=random.randrange(5))) for _ in range(count)]


def compiled_without_cache(filter_of: Callable[[str, str], Any], text: str, dialect: str) -> Any:
    """Compile without the cache: a filter's work is computed with the current bounds."""
    return filter_of(text, dialect)


@pytest.mark.long
@each_library
@settings(max_examples=drawn(120))
@given(st.integers(0, 2**32), st.integers(1, 80), st.integers(1, 250), FEW)
def test_the_filters_of_a_space_share_the_steps_of_an_event(
    library: Library, seed: int, limit: int, total: int, few: int
) -> None:
    """Equal sets of filters exceed the limit, for any division into parts and any batches of events."""
    random = Random(seed)
    filters = random_filters(random, random.randrange(1, 25))
    events = [
        {"data": {name: random_value(random) for name in ("a", "b", "x", "y", "w") if random.random() < 0.8}}
        for _ in range(random.randrange(1, 12))
    ]
    payload = "".join(json.dumps(event) + "\n" for event in events).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "STEPS_MAX", limit)
        patch.setattr(confirm, "_compiled", compiled_without_cache)
        patch.setattr(work, "EVENT_STEPS_MAX", total)
        patch.setattr(work, "FEW_ELEMENTS", few)
        expected = [shared_by_the_filters(filters, event, limit, total) for event in events]
        for parts in (1, 3):
            patch.setattr(derived, "ROWS_MIN", parts)
            index = Index([build_part(entries_of(filters)[place::parts], library) for place in range(parts)])
            for window in (1 << 14, 2):
                patch.setattr("fieldfare.matching.windows.WINDOW_EVENTS", window)
                columns = decode_json_lines(payload, len(events), index.paths)
                found = index.collect(columns, np.zeros(len(events), np.int64))
                given_up = np.concatenate([pairs.given_up for pairs in found] or [np.zeros(0)])
                assert sorted(given_up.tolist()) == sorted(n for _, some in expected for n in some)
                lists = index.match(columns, np.zeros(len(events), np.int64)).lists()
                assert lists == [matched for matched, _ in expected]


LISTS = pa.struct({"a": pa.list_(pa.int64()), "b": pa.list_(pa.int64()), "x": pa.int64()})


@each_library
@settings(max_examples=drawn(40))
@given(st.integers(0, 2**32), st.booleans(), st.integers(1, 80), st.integers(1, 250), FEW)
def test_the_limit_of_a_record_is_independent_of_other_records(
    library: Library, seed: int, in_arrow: bool, limit: int, total: int, few: int
) -> None:
    """After a restart, records are in other batches: an event must not lose a match that it had before."""
    random = Random(seed)
    filters = random_filters(random, 12)
    records = [random_record(random, offset, in_arrow) for offset in range(random.randrange(1, 5))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "STEPS_MAX", limit)
        patch.setattr(confirm, "_compiled", compiled_without_cache)
        patch.setattr(work, "EVENT_STEPS_MAX", total)
        patch.setattr(work, "FEW_ELEMENTS", few)
        patch.setattr(work, "RECORD_STEPS_MAX", 2 * total)
        patch.setattr(work, "EVENT_STEPS_MIN", total // 3)
        shares = [min(total, max(2 * total // each.count, total // 3)) for each in records]
        expected = [
            [shared_by_the_filters(filters, event, limit, share) for event in record.events]
            for record, share in zip(records, shares, strict=True)
        ]
        index = Index([build_part(entries_of(filters)[place::2], library) for place in range(2)])
        for window, cells in ((1 << 14, 1 << 23), (2, 1 << 23), (1 << 14, 3 * len(index.paths))):
            patch.setattr("fieldfare.matching.windows.WINDOW_EVENTS", window)
            patch.setattr("fieldfare.pipeline.access_point.DECODED_CELLS", cells)
            found = list(outcomes([[record] for record in records], index))
            assert found == [outcome(each) for each in expected]
            beside = list(outcomes([records], index))
            assert beside == [outcome([each for record in expected for each in record])]


def random_record(random: Random, offset: int, in_arrow: bool) -> Any:
    """Return a record of some events with arrays; no two records have the same Arrow schema."""
    events = []
    for _ in range(random.randrange(1, 6)):
        arrays = {name: random.choices(range(5), k=random.randrange(9)) for name in ("a", "b")}
        events.append({"data": {**arrays, "x": random.randrange(5)}})
    payload = "".join(json.dumps(event) + "\n" for event in events).encode()
    if in_arrow:
        payload = bytes(write_events(pa.RecordBatch.from_pylist(events, pa.schema({"data": LISTS}))))
    return SimpleNamespace(
        offset=offset, stamp=0, space="s", count=len(events), payload=payload, events=events
    )


def outcomes(batches: list[list[Any]], index: Index) -> Iterator[tuple[list[list[int]], list[int]]]:
    """Return the matches of the events of each batch of records, and the filters over the limit."""
    for records in batches:
        found = list(stream_matches(record_batch(records), {"s": index}))
        given_up = np.concatenate([pairs.given_up for pairs in found] or [np.zeros(0)])
        size = sum(record.count for record in records)
        yield Found(size, found).by_event().lists(), sorted(given_up.tolist())


def outcome(expected: list[tuple[list[int], list[int]]]) -> tuple[list[list[int]], list[int]]:
    return [matched for matched, _ in expected], sorted(n for _, given_up in expected for n in given_up)


def test_the_events_of_a_record_share_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of 8 MiB may have ten thousand events, each just within the limit of one event."""
    monkeypatch.setattr(work, "RECORD_STEPS_MAX", work.RECORD_STEPS_MAX // 100)
    text = "ANY i IN data.a SATISFIES (ANY j IN data.a SATISFIES (i = j + {n}))"
    filters = [compile_filter(text.format(n=n)) for n in (19, 1)]
    index = Index([build_part(entries_of(filters))])
    event = {"data": {"a": list(range(50))}}
    assert 12_500 < steps_for(filters[0].text, event) < 14_000
    line = json.dumps(event).encode() + b"\n"
    given_up = []
    for count in (10, 50, 80):
        record = SimpleNamespace(offset=0, stamp=0, space="s", count=count, payload=line * count)
        ((_, numbers),) = outcomes([[record]], index)
        given_up.append(numbers)
    assert given_up == [[], [1] * 50, [0] * 80 + [1] * 80]


def entries_of(filters: list[Filter]) -> list[IndexEntry]:
    return [
        IndexEntry(number, number, 0, OPEN_END, each.compiled, each.text, each.dialect)
        for number, each in enumerate(filters)
    ]


def random_value(random: Random) -> Any:
    array = [random.choice([1, 2, 3, 4.5, "a", [1], {"x": 1}]) for _ in range(random.randrange(9))]
    return random.choice([array, array, random.randrange(5), "banana", None])


def test_a_million_cheap_filters_over_arrays_are_within_the_limit() -> None:
    """Ten tags and a million subscriptions to tags are within the limit."""
    assert (
        1_000_000 * steps_for("'red' = ANY(data.tags)", {"data": {"tags": ["a"] * 10}}) < work.EVENT_STEPS_MAX
    )


def test_values_are_counted_at_any_depth_up_to_the_limit() -> None:
    assert size_of(5, 100) == size_of("text", 100) == size_of(ABSENT, 100) == 0
    assert size_of([[1, 2], {"a": [3]}, "x"], 100) == 3 + 2 + 1 + 1
    assert size_of([[0] * 1000] * 1000, 5_000) <= 7_000


SUM = "ANY i IN data.a SATISFIES (i + data.b = {n})"


@pytest.mark.parametrize(
    ("text", "event", "operators"),
    [
        # two numbers in a sum and 18 digits in a word: more than nine are long
        (SUM.format(n=1), {"a": [123456789, 0.12345678, -12345678.5], "b": 1}, 0),
        (SUM.format(n=1), {"a": [1, {"x": [0.12345678]}], "b": 1}, 0),
        (SUM.format(n=1), {"a": [1, {"x": [0.123456789]}], "b": 1}, 1),
        (SUM.format(n=1), {"a": [1], "b": 1234567890}, 1),
        (SUM.format(n=1), {"a": [1e-7], "b": 1}, 1),
        (SUM.format(n=1), {"a": [10**30], "b": 1}, 1),
        (SUM.format(n=1), {"a": [1.0, True, None, "1234567890123"], "b": 1, "c": 10**30}, 0),
        ("ANY i IN data.a SATISFIES (i + 0.12345678901 = 1)", {"a": [1]}, 1),
        ("ANY i IN data.a SATISFIES (i = 0.12345678901)", {"a": [10**30]}, 0),
        ("ANY i IN data.a SATISFIES (ROUND(i, 1) = 1 OR LENGTH(i) = 3)", {"a": [0.12345678901]}, 1),
        ("ANY i IN data.a SATISFIES (ROUND(i, 1) * -i = 1)", {"a": [0.12345678901]}, 3),
    ],
)
def test_calculating_with_long_numbers_takes_more_steps(
    text: str, event: dict[str, Any], operators: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python calculates with fractions there: two seconds for a filter that counted 450,000 steps."""
    monkeypatch.setattr(work, "FEW_ELEMENTS", -1)
    found = steps_for(text, {"data": event})
    monkeypatch.setattr(work, "LONG_STEPS", 0)
    assert found - steps_for(text, {"data": event}) == operators * 50 * len(event["a"])


@given(
    st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.decimals(-9, 9, places=3))
)
@settings(max_examples=drawn(200))
def test_digits_of_a_number_are_those_of_its_value(number: Any) -> None:
    """However it was read: an event has the same steps as columns and as Python's values."""
    exact = Decimal(repr(number)) if isinstance(number, float) else Decimal(number)
    found = most_digits([number])
    assert found == most_digits({"a": [exact, "text", 0]})
    if found <= WORD_DIGITS:
        written = f"{exact:f}".strip("-")
        shown = written.rstrip("0").rstrip(".") if "." in written else written
        assert found == len(shown.replace(".", ""))


def test_a_filter_with_long_numbers_is_not_taken_for_one_with_short_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Filters that differ in their numbers are compiled once for all: but a long one takes more steps."""
    monkeypatch.setattr(work, "EVENT_STEPS_MAX", 20_000)
    event = {"data": {"a": list(range(100))}}
    numbers = (7, 0.5, 0.1234567891, 8, 1234567891)
    filters = [compile_filter(f"ANY i IN data.a SATISFIES (i * {n} = {n + 3})") for n in numbers]
    expected = shared_by_the_filters(filters, event, STEPS_MAX, 20_000)
    index = Index([build_part(entries_of(filters))])
    record = SimpleNamespace(
        offset=0, stamp=0, space="s", count=1, payload=json.dumps(event).encode() + b"\n"
    )
    assert list(outcomes([[record]], index)) == [outcome([expected])]
    steps = [steps_for(each.text, event) for each in filters]
    assert steps[0] == steps[1] == steps[3] < steps[2] == steps[4]


steps_of_paths = st.lists(st.sampled_from(["a", "b", 0, 1]), min_size=1, max_size=3).map(tuple)
SETS = [sets.MISSING, sets.OTHER, sets.MISSING | sets.OTHER, sets.NULL]


@given(st.dictionaries(steps_of_paths, st.sampled_from(SETS), max_size=6))
@settings(max_examples=drawn(200))
def test_attributes_with_a_member_are_found_in_one_pass(atoms: dict[tuple[str | int, ...], int]) -> None:
    """A pattern of 2,000 fields compared each with each: a fifth of a second, with the interpreter's lock."""
    constraints = {path: ValueSet(of) for path, of in atoms.items()}
    expected = {
        path[:end]
        for path, of in atoms.items()
        for end in range(len(path))
        if isinstance(path[end], str) and not of & sets.MISSING
    }
    read = list[tuple[str | int, ...]]()

    class Counted(dict[tuple[str | int, ...], ValueSet]):
        def __getitem__(self, path: tuple[str | int, ...]) -> ValueSet:
            read.append(path)
            return super().__getitem__(path)

        def items(self) -> Any:
            return ((path, self[path]) for path in self)

    assert _with_member(Counted(constraints)) == expected
    assert len(read) == len(constraints)
