"""Filters as people write them: enough kinds of them, and DuckDB finds the same rows."""

from __future__ import annotations

import pytest
from benchmarks.people import measure

from fieldfare_lab.workloads.people import KINDS


def test_there_are_many_kinds_with_a_name_each() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 25


def test_answers_are_duckdbs(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FIELDFARE_SHARED_DATA", str(tmp_path))  # without what may be missing
    result = measure(rows=1500, filters=120, seed=3, by_kind=False)
    assert result["tables"] == ["flights"]
    assert result["matches"] > 100
    assert result["differences"] == 0


def test_kinds_are_measured_by_name(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FIELDFARE_SHARED_DATA", str(tmp_path))
    result = measure(rows=50, filters=len(KINDS), seed=3, by_kind=True)
    assert set(result["kinds"]) == {kind.name for kind in KINDS if kind.table == "flights"}
    assert result["worst_kind_over_duckdb"] == pytest.approx(
        min(kind["speed_over_duckdb"] for kind in result["kinds"].values())
    )
