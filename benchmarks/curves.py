"""Matching speed against the number of subscriptions: ``python benchmarks/curves.py``.

Runs ``benchmarks/matching.py`` for each workload and size, one after another, each several times, and
uses the median. Writes ``matching_speed.csv`` and draws ``matching_speed.svg`` into docs/images. With
``--peers FILE``, the output of ``python benchmarks/peers/run.py --json``, other engines are drawn too. With
``--figures FILE``, the output of ``python benchmarks/matching.py --json``, its points are added: building ten
million subscriptions takes minutes and 5.5 GB. With ``--keep``, the points of the last picture are kept.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import altair as alt

HERE = Path(__file__).resolve().parent
BENCHMARK = HERE / "matching.py"
SIZES = {
    "range": [1000, 10_000, 100_000, 1_000_000, 10_000_000],
    "eq": [1000, 10_000, 100_000, 1_000_000],
    "bluedove": [1000, 10_000, 100_000, 1_000_000],
    "mixed": [1000, 10_000, 100_000],
}
FIELDS = [
    "engine",
    "workload",
    "subscriptions",
    "events_per_s",
    "matches_per_event",
    "build_s",
    "index_bytes",
]
LIMIT_S = 1800


def measured(workload: str, size: int, events: int, rounds: int) -> dict[str, Any]:
    """The median of several runs, each in a separate process."""
    command = [sys.executable, str(BENCHMARK), "--workload", workload, "--subscriptions", str(size)]
    command += ["--from", "columns"]
    runs = []
    for _ in range(rounds):
        done = subprocess.run(
            [*command, "--events", str(events), "--json"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
        runs.append(json.loads(done.stdout))
    figures = {name: median(run[name] for run in runs) for name in FIELDS[3:]}
    return {"engine": "fieldfare", "workload": workload, "subscriptions": size, **figures}


def of_peers(file: Path) -> list[dict[str, Any]]:
    """The results of other engines, without runs that failed."""
    rows = [json.loads(line) for line in file.read_text().splitlines() if line.startswith("{")]
    return [row for row in rows if "failed" not in row and row["engine"] != "fieldfare"]


def of_matching(file: Path) -> list[dict[str, Any]]:
    """Output of `benchmarks/matching.py`: for each workload and size the median of its runs."""
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for line in file.read_text().splitlines():
        if line.startswith("{"):
            run = json.loads(line)
            runs.setdefault((run["workload"], run["subscriptions"]), []).append(run)
    rows = []
    for (workload, size), found in runs.items():
        figures: dict[str, Any] = {}
        for name in FIELDS[3:]:
            known = [run[name] for run in found if run[name] is not None]  # a saved part has no build_s
            figures[name] = median(known) if known else ""
        figures["index_bytes"] = round(figures["index_bytes"])
        rows.append({"engine": "fieldfare", "workload": workload, "subscriptions": size, **figures})
    return rows


def of_last(file: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points of the last picture that are not among some rows."""
    new = {(row["engine"], row["workload"], int(row["subscriptions"])) for row in rows}
    with file.open(newline="") as lines:
        last = list(csv.DictReader(lines))
    return [row for row in last if (row["engine"], row["workload"], int(row["subscriptions"])) not in new]


def place(row: dict[str, Any]) -> tuple[bool, str, int, int]:
    """Sort key of rows: by engine with fieldfare first, then by workload and size."""
    workload = list(SIZES).index(row["workload"])
    return row["engine"] != "fieldfare", row["engine"], workload, int(row["subscriptions"])


def drawn(rows: list[dict[str, Any]]) -> alt.LayerChart:
    """Speed against subscriptions, both logarithmic: one panel per workload, one line per engine."""
    axes = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X("subscriptions:Q", scale=alt.Scale(type="log"), axis=alt.Axis(format="~s", tickCount=4)),
        y=alt.Y(
            "events_per_s:Q",
            scale=alt.Scale(type="log"),
            axis=alt.Axis(format="~s", tickCount=6),
            title="events per second, one core",
        ),
        color=alt.Color("engine:N", sort=["fieldfare"], title=None),
    )
    panel = alt.layer(axes.mark_line(), axes.mark_point(filled=True, size=40)).properties(
        width=200, height=240
    )
    return panel.facet(column=alt.Column("workload:N", title=None)).configure_view(stroke="#ddd")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", nargs="*", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--largest", type=int, default=1_000_000, help="leave out larger sizes")
    parser.add_argument("--events", type=int, default=40_960)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--figures", type=Path)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "images")
    options = parser.parse_args()
    rows = []
    for workload in options.workloads:
        for size in SIZES[workload]:
            if size <= options.largest:
                rows.append(measured(workload, size, options.events, options.rounds))
                print(json.dumps(rows[-1]), flush=True)
    if options.peers:
        rows += of_peers(options.peers)
    if options.figures:
        rows += of_matching(options.figures)
    if options.keep:
        rows += of_last(options.out / "matching_speed.csv", rows)
        rows.sort(key=place)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "matching_speed.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, extrasaction="ignore", restval="")
        writer.writeheader()
        writer.writerows(rows)
    drawn(rows).save(options.out / "matching_speed.svg")


if __name__ == "__main__":
    main()
