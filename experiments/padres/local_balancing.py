"""Section 6.2: one cluster of four unlike edge brokers. Figures 6a to 6f, 6h and 7a.

``--draw`` draws from the CSVs that are there.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import altair as alt
from balancing_runs import (
    B1_EMPTY_S,
    BALANCED_AGAIN_S,
    LOCAL_CONVERGED_S,
    PROCESSES,
    RESULTS,
    SEEDS,
    STEP_S,
    UNBALANCED,
    VARIANTS,
    as_data,
    delay_rows,
    estimation_rows,
    has_quotes,
    last_move_s,
    load_rows,
    message_rows,
    moves_max,
    overhead_percent,
    run,
    spans,
    variant_of,
)

from fieldfare_lab.simulation.balancing.setups import LOCAL, LOCAL_SET_UP
from fieldfare_lab.simulation.balancing.system import BalancedBrokers

JOINED_S = LOCAL_SET_UP.joins_s[1]
END_S = LOCAL_SET_UP.until_s
SHOWN_SEED = 1
PARTS = ("loads", "delays", "messages", "estimations")
Rows = list[dict[str, Any]]


def run_of(arguments: tuple[str, int]) -> dict[str, Rows]:
    """Run a variant with a seed."""
    variant, seed = arguments
    brokers = run(variant_of(LOCAL_SET_UP, variant), seed)
    parts = {
        "loads": load_rows(brokers),
        "delays": delay_rows(brokers),
        "messages": message_rows(brokers),
        "estimations": estimation_rows(brokers),
        "runs": [outcome(brokers)],
    }
    found = {
        name: [{"variant": variant, "seed": seed, **row} for row in rows] for name, rows in parts.items()
    }
    print(found["runs"][0], flush=True)
    return found


def outcome(brokers: BalancedBrokers) -> dict[str, Any]:
    """Return the figures of a run."""
    names = list(LOCAL[0].edges)
    before, after = spans(brokers, names, 2_000, STEP_S - 20), spans(brokers, names, 3_600, 4_000)
    still_s = last_move_s(brokers, JOINED_S, STEP_S)
    return {
        "converged_s": round(still_s),
        "after_step_s": round(last_move_s(brokers, STEP_S, 1e9) - STEP_S),
        "moves": len(brokers.records.moves),
        "moves_max_joining": moves_max(brokers, 0, JOINED_S),
        "moves_max_still": moves_max(brokers, JOINED_S, STEP_S),
        "moves_max_after_step": moves_max(brokers, STEP_S, 1e9),
        "sessions": len(brokers.records.sessions),
        "overhead_percent": round(overhead_percent(brokers, 1_000, 2_000), 4),
        "overhead_after_percent": round(overhead_percent(brokers, 2_000, STEP_S), 4),
        **{f"span_{name}": value for name, value in before.items()},
        **{f"span_after_{name}": value for name, value in after.items()},
        "lost": brokers.lost(),
        "doubled": brokers.doubled_or_foreign(),
    }


def measure() -> None:
    """Run all variants, and write the CSVs."""
    wanted = [(UNBALANCED, SHOWN_SEED)] + [(variant, seed) for seed in SEEDS for variant in VARIANTS]
    with ProcessPoolExecutor(PROCESSES) as pool:
        found = list(pool.map(run_of, wanted))
    for part in (*PARTS, "runs"):
        rows = [row for each in found for row in each[part] if part != "runs" or row["variant"] != UNBALANCED]
        if part in ("messages", "estimations"):
            rows = [row for row in rows if row["variant"] != UNBALANCED]
        RESULTS.write(f"local_{part}", rows)


def _rows(part: str, variant: str, seed: int | None = SHOWN_SEED) -> Rows:
    return [
        row
        for row in RESULTS.read(f"local_{part}")
        if row["variant"] == variant and (seed is None or row["seed"] == seed) and row["at_s"] < END_S
    ]


def _points(at: dict[int, str]) -> Any:
    data = as_data([{"at_s": second, "words": words} for second, words in at.items()])
    base = alt.Chart(data).encode(x="at_s:Q")
    return base.mark_rule(color="red", strokeDash=[4, 3]) + base.mark_text(
        color="red", align="left", dx=3, angle=270, fontSize=9, baseline="bottom"
    ).encode(y=alt.value(80), text="words:N")


PAPERS = {
    1_010: "all have joined",
    B1_EMPTY_S: "paper: B1 is empty",
    LOCAL_CONVERGED_S: "paper: balanced",
    STEP_S: "step",
    BALANCED_AGAIN_S: "paper: balanced again",
}


def lines(field: str, title: str, variant: str) -> Any:
    """Return a metric of the brokers over time."""
    base = alt.Chart(as_data(_rows("loads", variant)), width=420, height=170, title=f"{title}, {variant}")
    x = alt.X("at_s:Q", title="s", scale=alt.Scale(domain=[0, END_S]))
    chart = base.mark_line(strokeWidth=1.2).encode(
        x=x, y=alt.Y(f"{field}:Q", title=title), color=alt.Color("broker:N", title=None)
    )
    return chart + _points(PAPERS)


def loads_chart() -> Any:
    """Return Figures 6a, 6b, 6c and 6e."""
    figures = {
        "input_ratio": "6a: input utilisation",
        "output_ratio": "6b: output utilisation",
        "matching_ms": "6c: matching delay, ms",
        "subscriptions": "6e: subscribers",
    }
    rows = [
        alt.hconcat(*(lines(field, title, variant) for variant in VARIANTS))
        for field, title in figures.items()
    ]
    return alt.vconcat(*rows)


def delays_chart() -> Any:
    """Return Figure 6d."""
    rows = [row for variant in (UNBALANCED, *VARIANTS) for row in _rows("delays", variant)]
    for row in rows:
        row["delay_ms"] = max(1.0, row["delay_ms"])
    chart = alt.Chart(as_data(rows), width=640, height=220, title="6d: delivery delay (means of 10 s)")
    return chart.mark_line(strokeWidth=1).encode(
        x=alt.X("at_s:Q", title="s", scale=alt.Scale(domain=[0, END_S])),
        y=alt.Y("delay_ms:Q", title="ms", scale=alt.Scale(type="log")),
        color=alt.Color("variant:N", title="balancing", sort=[UNBALANCED, *VARIANTS]),
    ) + _points(PAPERS)


def overhead_chart() -> Any:
    """Return Figure 6f."""
    rows = []
    for variant in VARIANTS:
        for row in _rows("messages", variant):
            share = 100 * row["control"] / max(1, row["control"] + row["events"])
            rows.append({"at_s": row["at_s"], "variant": variant, "percent": max(0.001, share)})
    chart = alt.Chart(as_data(rows), width=640, height=220, title="6f: control messages, % of all messages")
    return chart.mark_line(strokeWidth=1).encode(
        x=alt.X("at_s:Q", title="s", scale=alt.Scale(domain=[0, END_S])),
        y=alt.Y("percent:Q", title="%", scale=alt.Scale(type="log")),
        color=alt.Color("variant:N", title=None),
    ) + _points(PAPERS)


def differences_chart() -> Any:
    """Return Figure 6h: the largest difference between two brokers."""
    charts = []
    for variant in VARIANTS:
        found: dict[int, Rows] = {}
        for row in _rows("loads", variant):
            found.setdefault(row["at_s"], []).append(row)
        rows = [
            {
                "at_s": at,
                "metric": name,
                "difference": max(r[field] for r in rows) - min(r[field] for r in rows),
            }
            for at, rows in found.items()
            for field, name in (("input_ratio", "input"), ("output_ratio", "output"))
        ]
        base = alt.Chart(as_data(rows), width=420, height=170, title=f"6h: largest difference, {variant}")
        chart = base.mark_line(strokeWidth=1.2).encode(
            x=alt.X("at_s:Q", title="s", scale=alt.Scale(domain=[0, END_S])),
            y=alt.Y("difference:Q", title=None),
            color=alt.Color("metric:N", title=None),
        )
        bound = alt.Chart(as_data([{"y": 0.1}])).mark_rule(color="black", strokeDash=[2, 2]).encode(y="y:Q")
        charts.append(chart + bound + _points(PAPERS))
    return alt.hconcat(*charts)


def group_of(row: dict[str, Any]) -> str:
    """Return the kind of point of Figure 7a."""
    if row["at_s"] > JOINED_S + 60:
        return "offloading broker" if row["role"] == "offloading" else "load-accepting broker"
    if row["broker"] == "B1":
        return "B1 itself, while subscribers join"
    return "B1's load-accepting broker, while subscribers join"


def estimation_chart() -> Any:
    """Return Figure 7a, and the same of the other metrics."""
    charts = []
    for variant in VARIANTS:
        for metric in ("input", "output", "delay"):
            rows = [
                {**row, "group": group_of(row)}
                for row in _rows("estimations", variant, None)
                if row["metric"] == metric
            ]
            most = max((max(row["estimated"], row["measured"]) for row in rows), default=1.0)
            ends = as_data([{"x": 0, "y": 0}, {"x": most, "y": most}])
            title = f"7a: {metric}, {variant}"
            points = (
                alt.Chart(as_data(rows), width=260, height=230, title=title)
                .mark_point(size=16)
                .encode(
                    x=alt.X("measured:Q", title="measured after the session"),
                    y=alt.Y("estimated:Q", title="estimated"),
                    color=alt.Color("group:N", title=None, legend=alt.Legend(labelLimit=400)),
                )
            )
            charts.append(points + alt.Chart(ends).mark_line(color="gray").encode(x="x:Q", y="y:Q"))
    return alt.vconcat(alt.hconcat(*charts[:3]), alt.hconcat(*charts[3:]))


def draw() -> None:
    """Draw the figures."""
    RESULTS.draw("figure_6abce", loads_chart())
    RESULTS.draw("figure_6d", delays_chart())
    RESULTS.draw("figure_6f", overhead_chart())
    RESULTS.draw("figure_6h", differences_chart())
    RESULTS.draw("figure_7a", estimation_chart())


def main() -> None:
    if "--draw" not in sys.argv:
        if not has_quotes():
            return
        measure()
    draw()


if __name__ == "__main__":
    main()
