"""The tables of docs/papers/ddbr_merc.md, from the CSVs."""

from __future__ import annotations

from typing import Any

from overlay_runs import (
    DDBR_MEAN_MS,
    DDBR_RATE,
    FBR_MEAN_MS,
    FBR_NEXT_MS,
    FBR_NEXT_RATE,
    FBR_RATE,
    LISTS,
    PROTOCOLS,
    RESULTS,
    spread,
)
from routing_summary import by_seed, ratios

Table = tuple[list[str], list[list[object]]]


def latency() -> Table:
    """Mean latency by publishing rate."""
    paper = {
        ("FBR", FBR_RATE): FBR_MEAN_MS,
        ("FBR", FBR_NEXT_RATE): FBR_NEXT_MS,
        ("D-DBR", DDBR_RATE): DDBR_MEAN_MS,
    }
    rates = list(dict.fromkeys(row["rate_per_min"] for row in RESULTS.read("general_latency")))
    rows: list[list[object]] = []
    for rate in rates:
        row: list[object] = [f"{rate:,}"]
        for name in PROTOCOLS:
            found = spread(by_seed("general_latency", "mean_ms", name, rate_per_min=rate), ",.0f")
            point = paper.get((name, rate))
            row.append(f"{found}; the paper: {point:,}" if point else found)
        rows.append(row)
    return ["events per minute", *(f"{name}, mean latency in ms" for name in PROTOCOLS)], rows


def general() -> Table:
    """Throughput, overhead and lists on general topologies."""
    base = by_seed("general_throughput", "throughput_per_min", "FBR")
    rows: list[list[object]] = []
    for name in PROTOCOLS:
        rates = by_seed("general_throughput", "throughput_per_min", name)
        fields = (
            "copies_an_event",
            "matching_brokers_an_event",
            "examined_an_event",
            "remote_entries_a_broker",
        )
        cells = [spread(by_seed("general_overhead", field, name), ",.0f") for field in fields]
        lists = spread(by_seed("general_overhead", "list_mean", name), ".2f")
        brokers = by_seed("general_lists", "list_mean", name)
        paper = f"; the paper: {LISTS[name]}" if name in LISTS else ""
        gain = spread(ratios(rates, base), ".1f")
        rows.append(
            [
                name,
                spread(rates, ",.0f"),
                gain,
                *cells,
                f"{lists}{paper}",
                f"{min(brokers):.1f} to {max(brokers):.1f}",
            ]
        )
    header = ["protocol", "events per minute, at most", "over FBR", "copies on links", "brokers that match"]
    header += ["entries examined", "remote entries per broker", "mean list", "the brokers' means"]
    return header, rows


def linear() -> Table:
    """Lines: throughput over FBR's."""
    sizes = list(dict.fromkeys(row["brokers"] for row in RESULTS.read("linear")))
    counts = list(dict.fromkeys(row["subscriptions"] for row in RESULTS.read("linear")))
    rows: list[list[object]] = []
    for name in PROTOCOLS[1:]:
        for count in counts:
            cells: list[object] = []
            for size in sizes:
                mine, base = (
                    by_seed("linear", "throughput_per_min", each, brokers=size, subscriptions=count)
                    for each in (name, "FBR")
                )
                cells.append(spread(ratios(mine, base), ".1f"))
            rows.append([name, f"{count:,}", *cells])
    return ["protocol", "subscriptions", *(f"{size} brokers" for size in sizes)], rows


def limitations() -> Table:
    """The four limitations."""
    rows: list[list[object]] = []
    for kind in ("acyclic", "cyclic"):
        for name in PROTOCOLS:

            def cell(field: str, form: str = ",.0f", name: str = name, kind: str = kind) -> str:
                return spread(by_seed("limitations", field, name, overlay=kind), form)

            late = ratios(*(by_seed("limitations", each, name, overlay=kind) for each in ("late", "due")))
            ends = [sum(by_seed("limitations", each, name, overlay=kind)) for each in ("lost", "doubled")]
            rows.append(
                [
                    kind,
                    name,
                    cell("remote_entries_a_broker"),
                    cell("matchings_an_event", ".1f"),
                    cell("examined_an_event"),
                    cell("topology_messages"),
                    spread([100 * each for each in late], ".0f") + " %",
                    f"{ends[0]:g}, {ends[1]:g}",
                ]
            )
    header = ["overlay", "protocol", "remote entries per broker", "matchings per event", "entries examined"]
    return [*header, "messages about the cut link", "deliveries waiting for the link", "lost, doubled"], rows


def maintenance() -> Table:
    """Topology maintenance."""
    rows: list[list[object]] = []
    for size in dict.fromkeys(row["brokers"] for row in RESULTS.read("maintenance")):
        for name in PROTOCOLS[1:]:
            fields = ("rows_a_broker", "messages_a_change", "brokers_reached")
            cells: list[Any] = [
                spread(by_seed("maintenance", field, name, brokers=size), ",.0f") for field in fields
            ]
            rows.append([f"{size:,}", name, *cells])
    return [
        "brokers",
        "protocol",
        "rows of the TRT per broker",
        "messages per link cut",
        "brokers reached",
    ], rows
