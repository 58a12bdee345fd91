"""The tables of docs/papers/padres-figures.md, from the CSVs."""

from __future__ import annotations

from balancing_runs import CAPACITIES, RESULTS, SEEDS, VARIANTS, spread
from balancing_summary import Claim, claims, estimation_percent
from estimation_samples import summary_rows

from fieldfare.balancing.load import Metric

Table = tuple[list[str], list[list[object]]]


def claims_table() -> Table:
    """The paper's claims and this project's goals, for both variants."""
    found = [claims(variant) for variant in VARIANTS]
    rows: list[list[object]] = [
        [each[0].text, each[0].paper, each[0].goal, *(_verdict(claim) for claim in each)]
        for each in zip(*found, strict=True)
    ]
    return ["", "the paper", "goal", "the paper's rules here", "ours"], rows


def _verdict(claim: Claim) -> str:
    return f"{spread(claim.values, claim.form)}: {'yes' if claim.holds else '**no**'}"


def subscribers() -> Table:
    """Figure 6e: the shares of the subscribers beside the capacities, when balanced."""
    rows: list[list[object]] = [["capacity (set), B1 = 1", *CAPACITIES.values()]]
    total = sum(CAPACITIES.values())
    for variant in VARIANTS:
        cells: list[object] = []
        for broker in CAPACITIES:
            shares = [
                row["subscriptions"] * total / 2_000
                for seed in SEEDS
                for row in RESULTS.read("local_loads")
                if (row["variant"], row["seed"], row["broker"], row["at_s"]) == (variant, seed, broker, 2_800)
            ]
            cells.append(spread(shares, ".1f"))
        rows.append([f"subscribers, {variant}", *cells])
    return ["", *CAPACITIES], rows


def samples() -> Table:
    """Figure 7b: the error of the estimated input utilisation."""
    rows: list[list[object]] = [
        [
            row["sampling"],
            f"{row['samples']:,}",
            row["sessions"],
            f"{row['mean']:+.1f}",
            f"{row['deviation']:.1f}",
        ]
        for row in summary_rows()
    ]
    return ["sampling", "samples", "estimations", "mean error, %", "standard deviation"], rows


def scalability() -> Table:
    """Figures 6g and 8d."""
    found: dict[tuple[str, int], list[float]] = {}
    for row in RESULTS.read("scalability"):
        found.setdefault((row["figure"], row["size"]), []).append(row["delay_ms"])
    sizes = sorted({size for _, size in found})
    rows: list[list[object]] = [
        [
            words,
            *(spread(found[figure, size], ",.0f") if (figure, size) in found else "" for size in sizes),
        ]
        for figure, words in (("6g", "edge brokers in one cluster"), ("8d", "clusters of two in a chain"))
    ]
    return ["delivery delay, ms", *map(str, sizes)], rows


def disturbances() -> Table:
    """Beyond the paper."""
    rows: list[list[object]] = []
    for row in RESULTS.read("disturbances"):
        spans = "; ".join(f"{row[f'span_{metric.value}']:.2f}" for metric in Metric)
        lost = f"{row['lost']}, {row['doubled']}"
        rows.append(
            [row["kind"], f"{row['moves']:,}", row["moves_max"], row["last_move_s"] or "-", spans, lost]
        )
    header = ["disturbance, from 1,500 s on", "moves", "most moves of one subscriber", "last move, s"]
    return [*header, "median differences: input; output; delay", "lost, doubled"], rows


def estimations() -> Table:
    """The accuracy of estimations of each metric, local and global."""
    rows: list[list[object]] = []
    for variant in VARIANTS:
        for name in ("local", "global"):
            cells = [f"{estimation_percent(variant, metric.value, (name,)):.1f}" for metric in Metric]
            rows.append([variant, name, *cells])
    return ["variant", "", *(f"{metric.value}, %" for metric in Metric)], rows
