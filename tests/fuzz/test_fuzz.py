"""Any text is either a filter or refused, quickly. A small dose; ``make fuzz`` is the large one."""

from __future__ import annotations

import pytest
from tests.doses import drawn

from fieldfare.filters import FilterError, compile_filter
from fieldfare.filters.filter import DIALECTS

from .fuzzing import fuzz
from .inputs import CORPUS, corpus_of

ALL_INPUTS = 1_000_000


@pytest.mark.long
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_few_thousand_inputs_raise_nothing_but_filter_errors(dialect: str) -> None:
    report = fuzz(dialect, drawn(3_000), seed=4)
    assert not report.failures
    assert report.valid > report.inputs / 5


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_million_inputs_raise_nothing_but_filter_errors(dialect: str) -> None:
    report = fuzz(dialect, ALL_INPUTS // len(DIALECTS) + 1, seed=40)
    assert not report.failures


@pytest.mark.parametrize("dialect", [dialect for dialect in DIALECTS if (CORPUS / f"{dialect}.txt").exists()])
def test_the_corpus_is_of_valid_filters(dialect: str) -> None:
    refused = []
    for text in corpus_of(dialect):
        try:
            compile_filter(text, dialect)
        except FilterError as error:
            refused.append(str(error))
    assert not refused
