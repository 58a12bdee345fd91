"""The folder for an experiment's results: CSVs that can be read again, and pictures."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt


def value_of(text: str) -> Any:
    """The value of a cell: a number if it is one."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text) if "." in text or "n" in text else int(text)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class ResultsFolder:
    """A folder ``results``."""

    path: Path

    def keep(self, name: str, measure: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """The rows of NAME.csv: measured now, or, with ``--draw``, the existing ones."""
        if "--draw" in sys.argv:
            return self.read(name)
        rows = measure()
        self.write(name, rows)
        return rows

    def read(self, name: str) -> list[dict[str, Any]]:
        """Read the rows that `write` wrote."""
        with (self.path / f"{name}.csv").open(newline="") as file:
            return [{key: value_of(text) for key, text in row.items()} for row in csv.DictReader(file)]

    def write(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows."""
        self.path.mkdir(exist_ok=True)
        with (self.path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(f"results/{name}.csv: {len(rows)} rows")

    def draw(self, name: str, chart: Any) -> None:
        """Write a picture."""
        chart.save(self.path / f"{name}.png", scale_factor=2)
        print(f"results/{name}.png")


def as_data(rows: Sequence[Mapping[str, Any]]) -> alt.InlineData:
    """Rows in Altair's format, without a data frame."""
    return alt.InlineData(values=[dict(row) for row in rows])
