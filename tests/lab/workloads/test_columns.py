"""The synthetic filters as text and as columns are the same filters."""

from __future__ import annotations

import numpy as np
import pytest

from fieldfare.filters import compile_filter
from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare_lab.workloads.columns import columns_of, range_columns, text_of
from fieldfare_lab.workloads.predicate_columns import build_part_from_columns
from fieldfare_lab.workloads.synthetic import WORKLOADS


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_texts_and_columns_say_what_the_normal_forms_say(name: str) -> None:
    forms = list(WORKLOADS[name].normal_forms(400, 3))
    assert [compile_filter(text_of(form)).normal_form for form in forms] == forms
    part = build_part(IndexEntry(n, n, 0, OPEN_END, form, "", "sql") for n, form in enumerate(forms))
    paths, predicates, count = columns_of(forms)
    other = build_part_from_columns(paths, predicates, np.arange(count))
    events = WORKLOADS[name].events(100, 4)
    offsets = np.zeros(100, np.int64)
    assert Index((other,)).match(events, offsets).lists() == Index((part,)).match(events, offsets).lists()


def test_ranges_drawn_as_columns_match_as_often_as_they_should() -> None:
    paths, predicates, count = range_columns(100_000, 5)
    part = build_part_from_columns(paths, predicates, np.arange(count))
    found = Index((part,)).match(WORKLOADS["range"].events(500, 6), np.zeros(500, np.int64))
    assert 9.5 < len(found.subscriptions) / 500 < 11.5
