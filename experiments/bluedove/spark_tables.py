"""Summaries of several runs of ``on_spark.py``: median, minimum and maximum."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

KEY = ("spark", "workload", "form", "partitioning", "policy")
FIGURES = ("messages_per_s", "busy_us", "imbalance", "searched")


def summarise(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each system: the median of each figure; ``*_least`` and ``*_most`` have the others."""
    runs: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        runs.setdefault(tuple(row[field] for field in KEY), []).append(row)
    summary = []
    for key, found in runs.items():
        first = found[0]
        row: dict[str, Any] = dict(zip(KEY, key, strict=True))
        row |= {field: first[field] for field in ("copies", "shuffled_bytes")}
        row |= {
            "runs": len(found),
            "matches_an_event": round(first["matches_per_s"] / first["messages_per_s"]),
        }
        for field in FIGURES:
            values = [each[field] for each in found if each[field] != ""]
            middle = statistics.median(values)
            row |= {field: middle, f"{field}_least": min(values), f"{field}_most": max(values)}
        summary.append(row)
    return summary


def spread(row: dict[str, Any], field: str, form: str = ",") -> str:
    """The median, with minimum and maximum in brackets if they differ."""
    middle, least, most = (format(row[name], form) for name in (field, f"{field}_least", f"{field}_most"))
    return middle if least == most else f"{middle} ({least} to {most})"


def print_table(summary: Sequence[dict[str, Any]]) -> None:
    """Print for reading; ``experiments/tables.py`` makes the tables of the documentation from the CSVs."""
    for row in summary:
        figures = [f"{field} {spread(row, field)}" for field in FIGURES]
        print(*(row[field] for field in KEY), *figures, sep=", ", flush=True)
