"""How the results depend on the fixed time of a read (not in the paper, which does not give it).

The simulation's 150 ms are our choice, made so that the best fixed N at 35 requests/s is about 10, the only
number that the paper prints. Here it varies from 0 to 200 ms, and everything else is unchanged: the tuners
compared with the best fixed setting with T_poll = 50 ms, at the paper's four loads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import altair as alt
from client_tuner import ClientPublisher
from support import CLIENT, DURATION_S, FIXED, OURS, PAPER, TUNERS, as_data, keep, run_load, write_picture

from fieldfare.publishing.autotuned import AutotunedPublisher
from fieldfare.publishing.windowed import WindowedPublisher
from fieldfare_lab.publishing import FixedPublisher
from fieldfare_lab.simulation.publishing import PublisherModel, SystemModel

READS_MS = (0, 10, 25, 50, 100, 150, 200)
CHOSEN_MS = 150
GROWS = 10
"""Ratio to the best latency above which a queue grows for the whole run."""
BATCHES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50)
MAKERS = {PAPER: AutotunedPublisher, OURS: WindowedPublisher, CLIENT: ClientPublisher}


def measure(loads: Iterable[float] = DURATION_S, reads: Iterable[int] = READS_MS) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for load_per_s in loads:
        for read_ms in reads:
            model = SystemModel(publisher=PublisherModel(read_s=read_ms / 1000))
            without = replace(model, receive_first=False)
            fixed = {
                size: run_load(FixedPublisher(size, 0.050), load_per_s, model=without) for size in BATCHES
            }
            # If no message is delivered there is no latency.
            able = {size: row for size, row in fixed.items() if row["latency_mean_ms"] > 0}
            best = min(able, key=lambda size: able[size]["latency_mean_ms"])
            best_ms = fixed[best]["latency_mean_ms"]
            found = {FIXED: best_ms} | {
                name: run_load(make(), load_per_s, model=model)["latency_mean_ms"]
                for name, make in MAKERS.items()
            }
            rows += [
                {
                    "load_per_s": load_per_s,
                    "read_ms": read_ms,
                    "best_n": best,
                    "tuner": name,
                    "latency_mean_ms": latency_ms,
                    "latency_to_best": round(latency_ms / best_ms, 3),
                }
                for name, latency_ms in found.items()
            ]
    return rows


def main() -> None:
    rows = keep("read_time", measure)
    base = alt.Chart().encode(
        x=alt.X("read_ms:Q", title="fixed time of a read, ms"),
        y=alt.Y(
            "latency_to_best:Q", title="mean latency / best fixed setting's", scale=alt.Scale(zero=False)
        ),
    )
    lines = base.mark_line(point=True).encode(
        color=alt.Color("tuner:N", title=None, sort=TUNERS, scale=alt.Scale(domain=TUNERS))
    )
    chosen = alt.Chart().mark_rule(strokeDash=[3, 3]).encode(x=alt.datum(CHOSEN_MS))
    even = alt.Chart().mark_rule(color="gray").encode(y=alt.datum(1.0))
    shown = [row for row in rows if row["tuner"] != FIXED and row["latency_to_best"] < GROWS]
    chart = (
        alt.layer(even, chosen, lines, data=as_data(shown))
        .properties(width=300, height=190)
        .facet(facet=alt.Facet("load_per_s:Q", title="requests/s"), columns=2)
    )
    write_picture("read_time", chart)


if __name__ == "__main__":
    main()
