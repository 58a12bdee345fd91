"""The tables of figures in docs/, from the CSVs: ``python experiments/tables.py``.

A table is between ``<!-- table: NAME -->`` and ``<!-- end of table -->``. Run this after an experiment
has written its CSVs; a test fails if a page and the CSVs differ.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDERS = ("bluedove", "autotuned", "estreamhub", "routing", "padres", "scaling")
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path += [str(HERE / folder) for folder in FOLDERS]

import balancing_tables  # noqa: E402
import elastic_runs  # noqa: E402
import http_tables  # noqa: E402
import routing_tables  # noqa: E402
import scaling_tables  # noqa: E402
import support  # noqa: E402
import systems  # noqa: E402
from paper_points import CAPACITY_GAINS, GAINS  # noqa: E402
from read_time import GROWS  # noqa: E402
from spark_tables import spread, summarise  # noqa: E402

PAGES = [
    ROOT / f"docs/{name}.md"
    for name in (
        *("comparisons", "papers/autotuned", "papers/autotuned-http"),
        *("papers/bluedove-figures", "papers/bluedove-on-spark"),
        *(
            "papers/estreamhub-figures",
            "papers/estreamhub-on-spark",
            "papers/ddbr_merc-figures",
            "papers/padres-figures",
            "scaling",
        ),
    )
]
MARKED = re.compile(r"(<!-- table: ([a-z0-9-]+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
WORKLOADS = {
    "paper": "the paper's: every range 250 wide, inside the axis",
    "uncropped": "centres may leave the axis: a fifth of the subscriptions can never match",
}
NAMES = {
    "attribute_space": "attribute space",
    "single_attribute": "single attribute",
    "subscription_count": "subscription count",
    "response_time": "response time",
}


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def thousands(row: dict[str, Any]) -> str:
    """Messages per second, rounded to a thousand, or to a hundred below 100,000."""
    digits = -3 if row["messages_per_s"] >= 100_000 else -2
    fields = ("messages_per_s", "messages_per_s_least", "messages_per_s_most")
    return spread({name: round(row[name], digits) for name in fields}, "messages_per_s")


def pipeline() -> str:
    rows = []
    for workload, words in WORKLOADS.items():
        found = summarise(systems.read_csv(f"on_spark_pipeline_{workload}"))
        here = {row["form"]: row for row in found}
        busy = spread(here["json"], "busy_us", ".1f")
        rows.append([words, here["json"]["matches_an_event"], *map(thousands, here.values()), busy])
    header = ["subscriptions", "matches a message", "messages/s, JSON", "messages/s, Arrow", "busy, µs"]
    return markdown(header, rows)


def system_of(row: dict[str, Any]) -> str:
    """The words for a row."""
    partitioning, policy = (NAMES.get(row[key], row[key]) for key in ("partitioning", "policy"))
    if policy == "fused":
        return f"{partitioning}, fused (nothing is sent)"
    return partitioning if partitioning in ("hash", "single attribute") else f"{partitioning}, {policy}"


def spread_over_matchers(name: str, kinds: Sequence[str]) -> str:
    """The systems of a workload, grouped by `name`; imbalance and searched are those of the first kind."""
    found = {
        kind: {system_of(row): row for row in summarise(systems.read_csv(f"on_spark_{name}_{kind}"))}
        for kind in kinds
    }
    rows = []
    for system, row in found[kinds[0]].items():
        rates = [thousands(found[kind][system]) for kind in kinds]
        imbalance = "-" if row["policy"] == "fused" else spread(row, "imbalance", ".2f")
        rows.append(
            [system, *rates, imbalance, spread(row, "searched"), f"{row['copies']:g}", row["shuffled_bytes"]]
        )
    words = {"local": "local[2]", "cluster": "local-cluster"}
    header = ["partitioning, policy", *(f"messages/s, {words[kind]}" for kind in kinds)]
    return markdown([*header, "imbalance", "searched", "copies", "bytes shuffled"], rows)


def gains() -> str:
    """Figure 6: BlueDove's rate, and its number of subscriptions, divided by the others'."""
    rates = {(row["search"], row["system"], row["matchers"]): row for row in systems.read_csv("figure_6a")}
    capacity = {(row["system"], row["matchers"]): row for row in systems.read_csv("figure_6b")}
    searches = list(dict.fromkeys(search for search, _, _ in rates))
    rows = []
    for name, points in GAINS.items():
        for matchers, gain in points.items():
            ours = [
                rates[search, "BlueDove", matchers]["messages_per_s"]
                / rates[search, name, matchers]["messages_per_s"]
                for search in searches
            ]
            rows.append(
                [f"6(a): messages/s, over {name}", matchers, f"{gain:g}", *(f"{each:.1f}" for each in ours)]
            )
    for name, points in CAPACITY_GAINS.items():
        for matchers, gain in points.items():
            ours_b = (
                capacity["BlueDove", matchers]["subscriptions"] / capacity[name, matchers]["subscriptions"]
            )
            rows.append([f"6(b): subscriptions, over {name}", matchers, f"{gain:g}", f"{ours_b:.1f}", ""])
    return markdown(["BlueDove's", "matchers", "the paper", "linear search", "fieldfare's engine"], rows)


def calibration() -> str:
    found = json.loads((HERE / "bluedove" / "calibration.json").read_text())["engine"]
    sizes = [f"{row['subscriptions']:,}" for row in found]
    return markdown(
        ["subscriptions", *sizes], [["µs an event", *(f"{row['event_us']:.2f}" for row in found)]]
    )


def tuners() -> str:
    """Every tuner compared with the best fixed setting."""
    found: dict[tuple[float, int], dict[str, dict[str, Any]]] = {}
    for row in support.read_table("tuners_and_best_fixed"):
        found.setdefault((row["least_poll_ms"], row["load_per_s"]), {})[row["tuner"]] = row
    rows = []
    for (poll_ms, load_per_s), row in sorted(found.items(), key=lambda item: (-item[0][0], item[0][1])):
        best = row[support.FIXED]
        cells = [
            f"{row[name]['latency_mean_ms']:.0f} ({row[name]['latency_to_best']:.2f})" if name in row else ""
            for name in (support.OURS, support.CLIENT, support.PAPER)
        ]
        rows.append(
            [f"{load_per_s:g}", f"{poll_ms} ms", best["setting"], f"{best['latency_mean_ms']:.0f}", *cells]
        )
    header = ["load, requests/s", "polls from", "best fixed", "its mean latency, ms"]
    return markdown([*header, "our tuner", "client's tuner", "paper's tuner"], rows)


def read_time() -> str:
    """Each tuner's latency divided by the best fixed setting's: minimum and maximum of the four loads."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in support.read_table("read_time"):
        found.setdefault(row["read_ms"], []).append(row)
    rows = []
    for read_ms, here in found.items():
        cells = []
        for name in (support.PAPER, support.OURS, support.CLIENT):
            ratios = {row["load_per_s"]: row["latency_to_best"] for row in here if row["tuner"] == name}
            able = {load: ratio for load, ratio in ratios.items() if ratio < GROWS}
            low, high = min(able.values()), max(able.values())
            words = f"{low:.2f} to {high:.2f}" if len(able) > 1 else f"{low:.2f}"
            lost = ", ".join(f"{load:g}" for load in ratios if load not in able)
            cells.append(f"{words}; grows without end at {lost}/s" if lost else words)
        best = ", ".join(str(row["best_n"]) for row in here if row["tuner"] == support.FIXED)
        rows.append([read_ms, best, *cells])
    return markdown(["a read takes, ms", "best N at the four loads", *support.TUNERS], rows)


def by_seeds(name: str, *keys: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """The rows of a CSV of E-StreamHub's, grouped if they differ only in the seed."""
    runs: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in elastic_runs.RESULTS.read(name):
        runs.setdefault(tuple(row[key] for key in keys), []).append(row)
    return runs


def elastic_loads() -> str:
    """Figures 8 and 9: the median of each figure over the seeds, with minimum and maximum."""
    rows = []
    spread = elastic_runs.spread
    for name, what, figure in (("figure_8_runs", "subscriptions", "8"), ("figure_9_runs", "day", "9")):
        for (which, policy), runs in by_seeds(name, what, "policy").items():
            words = f"{which:,} subscriptions" if what == "subscriptions" else which
            counts = [spread(runs, field) for field in ("hosts_max", "host_seconds", "migrations")]
            mean = spread(runs, "delay_mean_s", ".2f")
            p99, top = spread(runs, "delay_p99_s", ".1f"), spread(runs, "period_max_s", ".1f")
            rows.append([figure, words, policy, *counts, mean, p99, top, spread(runs, "late_periods")])
    header = ["figure", "run", "policy", "hosts, maximum", "host-seconds", "migrations", "mean delay, s"]
    return markdown([*header, "p99, s", "highest mean of 30 s", "periods over 1 s"], rows)


def predictive_enforcer() -> str:
    """Figure 9's days: the predictive enforcer compared with the paper's."""
    runs = by_seeds("figure_9_runs", "day", "policy")
    spread = elastic_runs.spread
    rows = []
    for day in elastic_runs.MARKET_DAYS[1:]:
        papers, ours, without_days = (
            runs[day, policy] for policy in (elastic_runs.PAPERS, "predictive", "predictive, no earlier days")
        )
        all_s = statistics.median(run["host_seconds"] for run in papers)
        cells: list[object] = [day, spread(papers, "delay_p99_s", ".1f")]
        for some in (ours, without_days):
            share = spread(some, "host_seconds", ".0f", 100 / all_s)
            cells += [f"{share} %", spread(some, "delay_p99_s", ".1f")]
        rows.append(cells)
    header = ["", "the paper's rules: p99", "predictive: host-seconds", "p99"]
    return markdown([*header, "no earlier days: host-seconds", "p99"], rows)


def migration_times() -> str:
    """Table I: the mean of 25 moves for each seed."""
    rows = []
    spread = elastic_runs.spread
    for (operator, size), runs in by_seeds("table_1", "operator", "subscriptions_a_slice").items():
        paper = f"{runs[0]['paper_ms']:,}" if runs[0]["paper_ms"] else ""
        cells = [spread(runs, f"{field}_ms") for field in ("move_mean", "move_deviation", "stopped_mean")]
        rows.append([operator, f"{size:,}", paper, *cells])
    header = ["operator", "subscriptions per matcher slice", "the paper, ms", "ours, mean of 25 moves, ms"]
    return markdown([*header, "standard deviation", "of it stopped, ms"], rows)


def static_throughput() -> str:
    """Figure 6: the highest rates, and the number of matching hosts that limit them."""
    rates = by_seeds("figure_6", "slices", "hosts")
    slices = list(dict.fromkeys(name for name, _ in rates))
    hosts = list(dict.fromkeys(count for _, count in rates))
    rows: list[list[object]] = [["the paper", *(f"{422 * count / 12:.0f}" for count in hosts)]]
    for name in slices:
        rows.append(
            [name, *(elastic_runs.spread(rates[name, count], "publications_per_s") for count in hosts)]
        )
    return markdown(["publications/s", *(f"{count} hosts" for count in hosts)], rows)


def moves_on_spark() -> str:
    """Table I on a real cluster."""
    paper = {
        row["subscriptions_a_slice"]: row["paper_ms"]
        for row in elastic_runs.RESULTS.read("table_1")
        if row["operator"] == "M" and row["paper_ms"]
    }
    rows = []
    for row in elastic_runs.RESULTS.read("table_1_on_spark"):
        pairs = ("move", "longest", "rest_longest", "delay")
        delays = [f"{row[f'{name}_p50_ms']:.0f} ({row[f'{name}_p99_ms']:.0f})" for name in pairs]
        slice_ = f"{row['subscriptions_a_slice']:,}"
        paper_ms = f"{paper[row['subscriptions_a_slice']]:,}" if row["subscriptions_a_slice"] in paper else ""
        ends = [f"{row['lost']}, {row['doubled']}", f"{row['granted']:.0%}"]
        deviation = f" ({row['took_deviation_ms']:.0f})" if row["took_deviation_ms"] else ""
        took = f"{row['took_p50_ms']:.0f}{deviation}"
        rows.append([row["kind"], slice_, str(row["matchers"]), paper_ms, took, *delays, *ends])
    header = ["kind", "subscriptions a slice", "slices", "the paper's move, ms"]
    header += ["ours, p50 (deviation)", "events later by, p50 (p99)", "longest delay in a move"]
    header += ["longest delay at rest", "delay at rest"]
    return markdown([*header, "lost, doubled", "tasks on the requested executor"], rows)


def decided_on_spark() -> str:
    """Figure 5 on a real cluster: the loads of its hosts."""
    loads: dict[str, dict[str, float]] = {}
    for row in elastic_runs.RESULTS.read("figure_5_on_spark"):
        its = loads.setdefault(row["host"], dict.fromkeys(("before", "decided", "after"), 0.0))
        its[row["moment"]] += row["cpu"]
    rows = [[host, *(f"{cpu:.0f}" for cpu in its.values())] for host, its in sorted(loads.items())]
    return markdown(["host", "CPU before, %", "as it was decided", "after the moves"], rows)


def grown_on_spark() -> str:
    """Figure 8 on a real cluster: the decisions."""
    rows = []
    for row in elastic_runs.RESULTS.read("figure_8_on_spark_decisions"):
        executors = row["new_hosts"] - row["released"]
        rows.append(
            [f"{row['time_s']:.0f}", row["reason"], row["moves"], f"{executors:+d}" if executors else ""]
        )
    return markdown(["at, s", "rule", "slices that move", "executors"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "pipeline": pipeline,
    "spread-40000": lambda: spread_over_matchers("40000_paper", ["local", "cluster"]),
    "spread-traffic": lambda: spread_over_matchers("40000_traffic", ["local"]),
    "spread-1000000": lambda: spread_over_matchers("1000000_paper", ["local", "cluster"]),
    "gains": gains,
    "calibration": calibration,
    "tuners": tuners,
    "read-time": read_time,
    "http-steps": lambda: markdown(*http_tables.steps()),
    "http-slow": lambda: markdown(*http_tables.slow()) + http_tables.note("http_slow_subscriber"),
    "http-trace": lambda: markdown(*http_tables.trace()) + http_tables.note("http_trace"),
    "elastic-loads": elastic_loads,
    "predictive-enforcer": predictive_enforcer,
    "migration-times": migration_times,
    "static-throughput": static_throughput,
    "moves-on-spark": moves_on_spark,
    "decided-on-spark": decided_on_spark,
    "grown-on-spark": grown_on_spark,
    "routing-claims": lambda: markdown(*routing_tables.claims_table()),
    "routing-throughput": lambda: markdown(*routing_tables.throughput()),
    "routing-overhead": lambda: markdown(*routing_tables.overhead()),
    "routing-limitations": lambda: markdown(*routing_tables.limitations()),
    "routing-maintenance": lambda: markdown(*routing_tables.maintenance()),
    "routing-list-bytes": lambda: markdown(*routing_tables.list_bytes()),
    "padres-claims": lambda: markdown(*balancing_tables.claims_table()),
    "padres-estimations": lambda: markdown(*balancing_tables.estimations()),
    "padres-samples": lambda: markdown(*balancing_tables.samples()),
    "padres-subscribers": lambda: markdown(*balancing_tables.subscribers()),
    "padres-scalability": lambda: markdown(*balancing_tables.scalability()),
    "padres-disturbances": lambda: markdown(*balancing_tables.disturbances()),
    "scaling-steps": lambda: markdown(*scaling_tables.steps()),
    "scaling-machines": lambda: markdown(*scaling_tables.machines()),
    "scaling-months": lambda: markdown(*scaling_tables.months()),
    "scaling-delays": lambda: markdown(*scaling_tables.delays()),
}


def renewed(text: str) -> str:
    """A page with all its tables generated again."""
    return MARKED.sub(lambda found: found[1] + TABLES[found[2]]() + found[4], text)


def stale() -> Iterator[str]:
    """The tables that differ from the CSVs."""
    for page in PAGES:
        text = page.read_text()
        for found in MARKED.finditer(text):
            if found[3] != TABLES[found[2]]():
                yield f"{page.relative_to(ROOT)}: {found[2]}"


def main() -> None:
    for page in PAGES:
        page.write_text(renewed(page.read_text()))


if __name__ == "__main__":
    main()
