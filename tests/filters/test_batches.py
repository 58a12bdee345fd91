"""By columns a filter matches exactly the events that it matches one by one."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fieldfare.filters import compile_filter
from fieldfare.filters import expression as ast
from fieldfare.filters.filter import Filter, Parsed
from fieldfare.matching.arrow_decoder import columns_from_arrow
from fieldfare.matching.event_columns import columns_of_events
from fieldfare.matching.evaluation import conditions
from fieldfare.matching.json_decoder import decode_json_lines
from fieldfare.matching.naive_decoder import _arrow_value

from . import strategies

Event = dict[str, Any]


def filter_of(expression: ast.Expression) -> Filter:
    return Filter("", "sql", Parsed(expression))


def one_by_one(condition: Filter, events: list[Event]) -> list[bool]:
    return [condition.matches(event) for event in events]


def as_json(value: Any) -> Any:
    """What JSON can carry: a Decimal as a float, no NaN."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return float(value) if isinstance(value, Decimal) else value


def json_line(event: Event) -> bytes:
    return json.dumps(event).replace("-Infinity", "-1e999").replace("Infinity", "1e999").encode() + b"\n"


lists_of_events = st.lists(strategies.events, min_size=1, max_size=12)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(strategies.expressions, lists_of_events)
def test_dicts_match_by_columns_as_they_do_one_by_one(e: ast.Expression, events: list[Event]) -> None:
    condition = filter_of(e)
    assert condition.matches_batch(events).tolist() == one_by_one(condition, events)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(strategies.expressions, lists_of_events)
def test_json_lines_match_by_columns_as_they_do_one_by_one(e: ast.Expression, events: list[Event]) -> None:
    condition = filter_of(e)
    lines = [json_line(as_json(event)) for event in events]
    columns = decode_json_lines(b"".join(lines), len(lines), list(condition.paths))
    expected = one_by_one(condition, list(map(json.loads, lines)))
    assert condition.matches_batch(columns).tolist() == expected
    some = [place for place in range(len(events)) if place % 3 != 1]
    rows = pa.array(some, pa.int64()).to_numpy()
    assert condition.matches_batch(columns, rows).tolist() == [expected[place] for place in some]
