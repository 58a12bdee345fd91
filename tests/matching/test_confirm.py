"""The last step of a match: each pair is evaluated once, in the cheapest way."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from fieldfare.filters import Filter, compile_filter
from fieldfare.matching.evaluation.batches import BatchFilter
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.events.event_columns import columns_of_events
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.plain.search.confirm import LARGE_PAIRS_MIN, Confirmer
from fieldfare.matching.versions import NO_OVERLAY, IndexEntry
from fieldfare.model import OPEN_END

Event = dict[str, Any]

NESTED = "ANY x IN data.a SATISFIES (ANY y IN data.a SATISFIES (x + y = {}))"
SEVERAL = " AND ".join(f"(data.a{k} LIKE '%a_{{0}}%' OR data.b{k} LIKE '%_{{0}}_%')" for k in range(6))


def pattern(number: int, fields: int = 230) -> str:
    """An event pattern of about 80 bytes per field."""
    return json.dumps(
        {"data": {f"f{k}": [{"wildcard": f"*a{k}_{number}*b*"}, {"prefix": f"p{k}x"}] for k in range(fields)}}
    )


def build(texts: list[str], dialect: str = "sql") -> Part:
    entries = []
    for number, text in enumerate(texts):
        form = compile_filter(text, dialect).normal_form
        entries.append(IndexEntry(number + 1, number, 0, OPEN_END, form, text, dialect))
    return build_part(entries)


class Watched:
    """A filter that counts its evaluations in Python."""

    evaluations = 0

    def __init__(self, filter: Filter) -> None:
        self.expression, self.work, self._filter = filter.expression, filter.work, filter
        self.column_paths = filter.column_paths

    def decides(self, get: Any) -> bool:
        Watched.evaluations += 1
        return self._filter.decides(get)


def confirmed(texts: list[str], dialect: str, events: list[Event], rounds: int = 1) -> tuple[Any, int]:
    """The matches of all events and filters, and the number of evaluations in Python."""
    filters = [compile_filter(text, dialect) for text in texts]
    paths = sorted({path for each in filters for path in each.column_paths}, key=repr)
    columns: ColumnBatch = columns_of_events(events, paths)
    confirmer = Confirmer(
        len(texts), lambda place: (texts[place], dialect), lambda *text: Watched(compile_filter(*text))
    )
    Watched.evaluations = 0
    pairs = np.array([(e, f) for e in range(len(events)) for f in range(len(texts))], np.int64)
    for _ in range(rounds):
        found = confirmer.confirm(columns, pairs[:, 0].copy(), pairs[:, 1].copy())
    expected = [filters[f].matches(events[e]) for e, f in pairs.tolist()]
    assert found.tolist() == expected
    return expected, Watched.evaluations


def test_a_filter_of_several_conjunctions_is_a_candidate_once_for_an_event() -> None:
    """Each of the 64 conjunctions holds; the filter was once evaluated 64 times for each event."""
    part = build([SEVERAL.format(number) for number in range(20)])
    data = {**{f"a{k}": "xaby1" for k in range(6)}, **{f"b{k}": "x_1_" for k in range(6)}}
    columns = columns_of_events([{"data": data}] * 5, part.paths)
    found = part.find(columns, np.zeros(5, np.int64), 0, 5, NO_OVERLAY, 1 << 20)
    assert sorted(map(tuple, found.pairs.tolist())) == sorted(
        {(event, ~number) for event in range(5) for number in range(20)}
    )
    assert part.confirm(columns, found).pairs.tolist() == [[event, 1] for event in range(5)]


def test_candidates_of_single_conjunctions_are_not_checked_for_repeats() -> None:
    part = build([f"data.x >= {number} AND data.y LIKE '%a_b%c_d%'" for number in range(20)])
    assert part.confirms
    assert part.filters._has_several_rows is None  # type: ignore[attr-defined]


def test_a_single_pair_of_many_steps_is_evaluated_by_columns() -> None:
    """In Python six such filters took five seconds for an event of 3.5 KB: forty times as long."""
    event = {"data": {"a": list(range(100))}}
    found, evaluations = confirmed([NESTED.format(n) for n in (197, 500)], "sql", [event])
    assert found == [True, False]
    assert evaluations == 0


def test_a_single_pair_of_few_steps_is_evaluated_in_python() -> None:
    found, evaluations = confirmed([NESTED.format(3)], "sql", [{"data": {"a": [1, 2]}}])
    assert found == [True]
    assert evaluations == 1


def test_a_large_pattern_is_not_prepared_for_few_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing a pattern of 21 KB for eight candidates delayed all events for seconds, in each worker."""
    prepared = _count_prepared(monkeypatch)
    matching = {"data": {f"f{k}": f"p{k}x" for k in range(230)}}
    _, evaluations = confirmed([pattern(0)], "eventbridge", [matching, {"data": {"f0": "p0"}}] * 4)
    assert evaluations == 8
    assert prepared == []


def test_a_large_pattern_is_prepared_after_many_evaluations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared = _count_prepared(monkeypatch)
    events = [{"data": {f"f{k}": f"p{k}x" for k in range(40)}}, {"data": {"f0": "p0"}}] * 32
    _, evaluations = confirmed([pattern(0, 40)], "eventbridge", events, rounds=LARGE_PAIRS_MIN // 64 + 2)
    assert evaluations == LARGE_PAIRS_MIN
    assert len(prepared) == 1


def _count_prepared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    prepared: list[Any] = []

    def batch_filter(filter: Any) -> BatchFilter:
        prepared.append(filter)
        return BatchFilter(filter)

    where = "fieldfare.matching.plain.search.confirm"
    monkeypatch.setattr(f"{where}.BatchFilter", batch_filter)
    monkeypatch.setattr(f"{where}.Shape", lambda form: pytest.fail("a large filter shares no shape"))
    return prepared
