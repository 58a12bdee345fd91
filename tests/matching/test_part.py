"""A part finds exactly the matches of the naive evaluator, for any values and filters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matching_support as support
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from matching_support import Compiler, NormalForm, columns_of, entry, matches_of
from naive_library import each_kind
from tests.doses import drawn

from fieldfare.matching.index import Index
from fieldfare.matching.library import Library
from fieldfare.matching.part import Part, build_part


def _expected(forms: list[NormalForm], events: list[dict[Any, Any]]) -> list[list[int]]:
    return [[n for n, form in enumerate(forms) if matches_of(form, event)] for event in events]


def _part(library_of: Callable[[Compiler], Library], forms: list[NormalForm]) -> Part:
    compiler = Compiler()
    entries = [entry(n, form, text=compiler.register(form)) for n, form in enumerate(forms)]
    return build_part(entries, library_of(compiler))


@each_kind
@settings(max_examples=drawn(150))
@given(st.lists(support.normal_forms, max_size=12), st.lists(support.events, min_size=1, max_size=8))
def test_a_part_finds_the_same_as_the_naive_evaluator(
    library_of: Callable[[Compiler], Library], forms: list[NormalForm], events: list[dict[Any, Any]]
) -> None:
    part = _part(library_of, forms)
    found = Index((part,)).match(columns_of(events), np.zeros(len(events), np.int64))
    assert found.lists() == _expected(forms, events)
