"""CESQL's conformance tests, through the public function. Skipped if their files are missing."""

from __future__ import annotations

import pytest
from tests.filters.cesql.conformance import FOLDER, Case, cases

from fieldfare.filters import FilterError, compile_filter

CASES = cases()

pytestmark = pytest.mark.skipif(not CASES, reason=f"the conformance kit is not in {FOLDER}")


def test_the_conformance_files_are_complete() -> None:
    assert len(CASES) == 275


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file}: {case.name}")
def test_the_conformance_cases_pass(case: Case) -> None:
    if case.error == "parse":
        with pytest.raises(FilterError):
            compile_filter(case.expression, "cesql")
        return
    found = compile_filter(case.expression, "cesql")
    value, errors = found.evaluate(case.event).value, found.evaluate(case.event).errors
    assert errors == (() if case.error is None else (case.error,))
    assert case.has_result
    assert (type(value), value) == (type(case.result), case.result)
    assert found.matches(case.event) is (value is True and not errors)
