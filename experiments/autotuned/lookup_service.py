"""Figures 3, 12, 13, 14: a trace of the Simple Lookup Service, in real time and 50 times as fast.

The paper's trace is not available. Instead, this uses the times at which records of real perfSONAR lookup
services were last written (2018-05-22, 6,640 writes in 2.4 hours): the file sls_write_times_2018-05-22.csv.gz
in the folder that --data or FIELDFARE_SHARED_DATA names. Without the file the program prints a message and
ends.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import altair as alt
from client_tuner import ClientPublisher
from support import (
    CLIENT,
    FIXED,
    OURS,
    PAPER,
    as_data,
    draw_boxes,
    keep,
    read_table,
    summarise,
    write_picture,
    write_table,
)

from fieldfare.publishing.autotuned import AutotunedKnobs, AutotunedPublisher
from fieldfare.publishing.machine import PublishingMachine
from fieldfare.publishing.windowed import WindowedPublisher
from fieldfare_lab.publishing import FixedPublisher
from fieldfare_lab.simulation.publishing import Run, SystemModel, simulate

FILE = "sls_write_times_2018-05-22.csv.gz"
DEFAULT_FOLDER = Path(__file__).parents[3] / "shared" / "data"
BATCHES = (1, 10, 50)
SPEEDS = (1, 50)
AVERAGED_WRITES = 100


def read_times(path: Path) -> list[float]:
    """Seconds since the first write, ascending."""
    with gzip.open(path, "rt", newline="") as file:
        moments = sorted(
            datetime.fromisoformat(row["written_at"]).timestamp() for row in csv.DictReader(file)
        )
    return [moment - moments[0] for moment in moments]


def cases() -> list[tuple[str, str, Callable[[], PublishingMachine]]]:
    found: list[tuple[str, str, Callable[[], PublishingMachine]]] = []
    for size in BATCHES:
        found.append((FIXED, f"fixed N = {size}", lambda size=size: FixedPublisher(size, 0.050)))
    found.append((FIXED, "fixed N = 50, T_poll = 1 s", lambda: FixedPublisher(50, 1.0)))
    for size in BATCHES:
        knobs = AutotunedKnobs(first_batch_messages=size)
        found.append((PAPER, f"{PAPER}, N = {size} at first", lambda knobs=knobs: AutotunedPublisher(knobs)))
    found.append((OURS, OURS, WindowedPublisher))
    found.append((CLIENT, CLIENT, ClientPublisher))
    return found


def draw_rates(times: list[float]) -> Any:
    """Figure 3: the rate over 100 writes each."""
    rows = [
        {
            "hour": round(times[at] / 3600, 4),
            "rate_per_s": round(AVERAGED_WRITES / max(1e-3, times[at] - times[at - AVERAGED_WRITES]), 4),
        }
        for at in range(AVERAGED_WRITES, len(times), 20)
    ]
    write_table("lookup_service_rate", rows)
    return (
        alt.Chart(as_data(rows), width=640, height=180)
        .mark_line()
        .encode(
            x=alt.X("hour:Q", title="time, hours"),
            y=alt.Y("rate_per_s:Q", title="writes per second", scale=alt.Scale(type="log")),
        )
    )


def adaptation(run: Run, times: list[float]) -> list[dict[str, Any]]:
    """Figure 14: N and the load in each second."""
    sizes: dict[int, list[int]] = {}
    for poll in run.polls:
        sizes.setdefault(int(poll.now_s), []).append(poll.setting.batch_messages)
    rows: list[dict[str, Any]] = [
        {"second": second, "what": "N (paper's tuner)", "value": round(sum(found) / len(found), 2)}
        for second, found in sizes.items()
    ]
    arrived = [int(moment) for moment in times]
    rows += [
        {"second": second, "what": "requests per second", "value": arrived.count(second)}
        for second in range(arrived[-1] + 1)
    ]
    return rows


def draw_adaptation(rows: list[dict[str, Any]]) -> Any:
    """Figure 14."""
    return (
        alt.Chart(as_data(rows), width=640, height=140)
        .mark_line()
        .encode(
            x=alt.X("second:Q", title="time, s (trace 50 times as fast)"),
            y=alt.Y("value:Q", title=None),
            row=alt.Row("what:N", title=None, sort="descending"),
        )
        .resolve_scale(y="independent")
    )


def draw_latencies(rows: list[dict[str, Any]]) -> Any:
    """Figures 12 and 13: latency by setting, for both speeds."""
    order = [setting for _, setting, _ in cases()]
    boxes = [
        draw_boxes(
            [row for row in rows if row["speed"] == speed],
            f"trace {speed} times as fast" if speed > 1 else "trace at its original speed",
            sort=order,
            most_ms=200_000,
        )
        for speed in SPEEDS
    ]
    return alt.vconcat(*boxes)


def measure(times: list[float]) -> list[dict[str, Any]]:
    """All settings at both speeds; the adaptation of N at the higher one goes to a separate CSV."""
    rows: list[dict[str, Any]] = []
    for speed in SPEEDS:
        faster = [moment / speed for moment in times]
        end_s = faster[-1] + 30
        for tuner, setting, make in cases():
            model = SystemModel(receive_first=tuner != FIXED)
            run = simulate(make(), faster, end_s, model=model)
            rows.append({"speed": speed, "tuner": tuner, "setting": setting, **summarise(run, 0.0, end_s)})
            if speed == SPEEDS[-1] and setting == f"{PAPER}, N = 1 at first":
                write_table("lookup_service_adaptation", adaptation(run, faster))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    folder = Path(os.environ.get("FIELDFARE_SHARED_DATA", DEFAULT_FOLDER))
    parser.add_argument("--data", type=Path, default=folder, help="folder with the trace")
    parser.add_argument("--draw", action="store_true", help="only draw the stored results")
    path = parser.parse_args().data / FILE
    if not path.exists():
        print(f"skipped: {FILE} is not there; name its folder with --data or FIELDFARE_SHARED_DATA")
        return
    times = read_times(path)
    write_picture("lookup_service", draw_latencies(keep("lookup_service", lambda: measure(times))))
    write_picture("lookup_service_rate", draw_rates(times))
    write_picture("lookup_service_adaptation", draw_adaptation(read_table("lookup_service_adaptation")))


if __name__ == "__main__":
    main()
