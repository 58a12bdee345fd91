"""Figure 8: end-to-end latency without auto-tuning, for N and T_poll, at the paper's four loads.

The paper shows T_poll = 50 ms; the sweep over T_poll finds the best fixed setting, with which the tuners are
compared.
"""

from __future__ import annotations

from typing import Any

import altair as alt
from client_tuner import ClientPublisher
from support import CLIENT, DURATION_S, FIXED, OURS, PAPER, as_data, keep, run_load, write_picture

from fieldfare.publishing.autotuned import AutotunedPublisher
from fieldfare.publishing.machine import PublishingMachine
from fieldfare.publishing.windowed import WindowedKnobs, WindowedPublisher
from fieldfare_lab.publishing import FixedPublisher
from fieldfare_lab.simulation.publishing import SystemModel

BATCHES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50)
POLLS_MS = (10, 25, 50, 100, 200)
PAPERS_POLL_MS = 50
DRAWN_MS = 900
"""Maximum latency in the picture; higher values are cut off, which the panel's title says."""
UNTUNED = SystemModel(receive_first=False)
"""Without tuning requests have no priority (section V.B.3)."""
PAPERS_BEST = {1.75: (1, 222), 35.0: (10, 14)}
"""The best N according to the paper's text, section V.B.1: 1 at 1.75 requests/s, about 10 at 35; and the
height in the picture at which the label fits."""


def sweep() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for load_per_s in DURATION_S:
        for poll_ms in POLLS_MS:
            for batch_messages in BATCHES:
                machine = FixedPublisher(batch_messages, poll_ms / 1000)
                measured = run_load(machine, load_per_s, model=UNTUNED)
                rows.append({"batch_messages": batch_messages, "poll_ms": poll_ms, **measured})
    return rows


def compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tuners, the best fixed setting of the whole sweep, and the best one with the paper's T_poll."""
    table: list[dict[str, Any]] = []

    def add(tuner: str, poll_ms: int, setting: str, row: dict[str, Any], best: dict[str, Any]) -> None:
        ratios = {
            "latency_to_best": round(row["latency_mean_ms"] / best["latency_mean_ms"], 3),
            "throughput_to_best": round(row["delivered_per_s"] / best["delivered_per_s"], 3),
        }
        measured = {key: row[key] for key in ("latency_mean_ms", "latency_p95_ms", "delivered_per_s")}
        table.append(
            {
                "load_per_s": row["load_per_s"],
                "least_poll_ms": poll_ms,
                "tuner": tuner,
                "setting": setting,
                **measured,
                **ratios,
            }
        )

    for load_per_s in DURATION_S:
        for least_ms in (PAPERS_POLL_MS, min(POLLS_MS)):
            here = [row for row in rows if row["load_per_s"] == load_per_s and row["poll_ms"] >= least_ms]
            best = min(here, key=lambda row: row["latency_mean_ms"])
            add(FIXED, least_ms, f"N = {best['batch_messages']}, {best['poll_ms']} ms", best, best)
            tuners: list[tuple[str, PublishingMachine]] = [
                (OURS, WindowedPublisher(WindowedKnobs(min_poll_s=least_ms / 1000))),
                (CLIENT, ClientPublisher(least_ms / 1000)),
            ]
            if least_ms == PAPERS_POLL_MS:
                tuners.append((PAPER, AutotunedPublisher()))
            for name, machine in tuners:
                add(name, least_ms, "auto", run_load(machine, load_per_s), best)
    return table


def draw(rows: list[dict[str, Any]], table: list[dict[str, Any]]) -> Any:
    """Latencies up to `DRAWN_MS`, which include the best settings; a small N at a high load is far above."""
    panels = []
    x = alt.X("batch_messages:Q", title="N (fixed)", scale=alt.Scale(type="log", domain=[1, 50]))
    for load_per_s in DURATION_S:
        here = [row for row in rows if row["load_per_s"] == load_per_s]
        top_ms = min(DRAWN_MS, 1.1 * max(row["latency_mean_ms"] for row in here))
        scale = alt.Scale(domain=[250, top_ms], nice=False)
        above = max(row["latency_mean_ms"] for row in here)
        title = f"{load_per_s:g} requests/s"
        if above > DRAWN_MS:
            title += f" (a small N: up to {above / 1000:,.0f} s, above the picture)"
        y = alt.Y("latency_mean_ms:Q", title="mean latency, ms", scale=scale)
        lines = (
            alt.Chart(as_data(here), title=title, width=330, height=230)
            .mark_line(point=alt.OverlayMarkDef(size=20, clip=True), clip=True)
            .encode(
                x=x,
                y=y,
                color=alt.Color("poll_ms:O", title="T_poll, ms", scale=alt.Scale(scheme="viridis")),
            )
        )
        tuned = [
            row
            for row in table
            if row["load_per_s"] == load_per_s
            and row["tuner"] != FIXED
            and row["least_poll_ms"] == PAPERS_POLL_MS
        ]
        rules = (
            alt.Chart(as_data(tuned))
            .mark_rule(strokeWidth=1.5)
            .encode(y=y, strokeDash=alt.StrokeDash("tuner:N", title="tuned, polls from 50 ms"))
        )
        layers = [lines, rules]
        if load_per_s in PAPERS_BEST:
            best_n, height = PAPERS_BEST[load_per_s]
            best = alt.Chart(as_data([{"batch_messages": best_n}])).encode(x=x)
            word = best.mark_text(align="left", dx=5, color="firebrick", text="best N, says the paper")
            layers += [best.mark_rule(strokeWidth=2, color="firebrick"), word.encode(y=alt.value(height))]
        panels.append(alt.layer(*layers))
    return alt.vconcat(alt.hconcat(*panels[:2]), alt.hconcat(*panels[2:]))


def main() -> None:
    rows = keep("fixed_settings", sweep)
    table = keep("tuners_and_best_fixed", lambda: compare(rows))
    write_picture("fixed_settings", draw(rows, table))


if __name__ == "__main__":
    main()
