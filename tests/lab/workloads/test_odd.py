"""Workloads of filters as people write them: seeded, valid, and matched as the evaluator says."""

from __future__ import annotations

import numpy as np
import pytest
from naive_library import match_naive

from fieldfare.filters import compile_filter
from fieldfare.matching.events.event_columns import columns_of_events
from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare_lab.workloads.odd import TEXT_WORKLOADS


@pytest.mark.parametrize("name", TEXT_WORKLOADS)
def test_the_index_finds_what_the_evaluator_finds(name: str) -> None:
    workload = TEXT_WORKLOADS[name]
    filters = [compile_filter(text) for text in workload.filters(400, seed=3)]
    events = workload.events(40, seed=4)
    part = build_part(
        IndexEntry(n, n, 0, OPEN_END, filter.normal_form, filter.text, "sql")
        for n, filter in enumerate(filters)
    )
    columns = columns_of_events(events, part.paths)
    expected = match_naive(events, list(enumerate(filters)))
    assert sum(map(len, expected)) > 0
    assert Index((part,)).match(columns, np.zeros(len(events), np.int64)).lists() == expected


@pytest.mark.parametrize("name", TEXT_WORKLOADS)
def test_the_same_seed_gives_the_same_workload(name: str) -> None:
    workload = TEXT_WORKLOADS[name]
    assert workload.filters(20, 1) == workload.filters(20, 1) != workload.filters(20, 2)
    assert workload.events(20, 1) == workload.events(20, 1) != workload.events(20, 2)
