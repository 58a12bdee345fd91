"""The tables of docs/papers/ddbr_merc-figures.md, from the CSVs."""

from __future__ import annotations

from typing import Any

from overlay_runs import (
    COUNTED,
    OVERLAYS,
    PROTOCOLS,
    RESULTS,
    SET_UPS,
    calibration,
    spread,
)
from routing_summary import Claim, by_seed, claims, rates, ratios

Table = tuple[list[str], list[list[object]]]


def claims_table() -> Table:
    """The paper's claims about 100 brokers in each set-up."""
    found = {set_up: claims(*set_up) for set_up in SET_UPS}
    rows: list[list[object]] = []
    for number, claim in enumerate(found[SET_UPS[0]]):
        rows.append([claim.text, claim.paper, *(_verdict(each[number]) for each in found.values())])
    header = ["", "the paper", *(f"{overlay}, {counted}" for overlay, counted in SET_UPS)]
    return header, rows


def _verdict(claim: Claim) -> str:
    if not claim.values:
        return "overloaded: **no**"
    if len(claim.values) == 2:
        low, high = claim.values
        words = f"{low:{claim.form}} to {high:{claim.form}}"
    else:
        words = spread(claim.values, claim.form)
    return f"{words}: {'yes' if claim.holds else '**no**'}"


def throughput() -> Table:
    """The constants that are set, and throughput."""
    rows: list[list[object]] = []
    for overlay, counted in SET_UPS:
        base = rates(overlay, counted, "FBR")
        cells: list[object] = []
        for name in PROTOCOLS:
            mine = rates(overlay, counted, name)
            cells.append(spread(mine, ",.0f"))
            if name != "FBR":
                cells.append(spread(ratios(mine, base), ".1f"))
        given = calibration(overlay)
        rows.append([f"{overlay}, {counted}", f"{given['entry_us'][counted]:.0f}", *cells])
    header = ["", "µs an entry (set)", "FBR, events/min", "D-DBR, events/min", "over FBR"]
    return [*header, "MERC, events/min", "over FBR"], rows


def overhead() -> Table:
    """The work for an event."""
    fields = ["copies_an_event", "matching_brokers_an_event"]
    fields += [f"{counted}_an_event" for counted in COUNTED]
    fields += [f"busiest_{counted}_an_event" for counted in COUNTED]
    fields.append("remote_entries_a_broker")
    rows: list[list[object]] = []
    for overlay in OVERLAYS:
        for name in PROTOCOLS:
            cells = [
                spread(by_seed("general_overhead", field, name, overlay=overlay), ",.0f") for field in fields
            ]
            rows.append([overlay, name, *cells])
    header = ["overlay", "protocol", "copies on links", "brokers that match"]
    header += ["entries held", "examined", "compared"]
    header += ["held at the busiest broker", "examined there", "compared there"]
    return [*header, "remote entries per broker"], rows


def limitations() -> Table:
    """The four limitations."""
    rows: list[list[object]] = []
    for kind in ("acyclic", "cyclic"):
        for name in PROTOCOLS:

            def cell(field: str, form: str = ",.0f", name: str = name, kind: str = kind) -> str:
                return spread(by_seed("limitations", field, name, overlay=kind), form)

            late = ratios(*(by_seed("limitations", each, name, overlay=kind) for each in ("late", "due")))
            ends = [
                sum(by_seed("limitations", each, name, overlay=kind))
                for each in ("lost", "doubled", "foreign")
            ]
            rows.append(
                [
                    kind,
                    name,
                    f"{cell('hops_a_delivery', '.1f')}; {cell('shortest_hops', '.1f')}",
                    cell("remote_entries_a_broker"),
                    cell("matchings_an_event", ".1f"),
                    "; ".join(cell(f"{counted}_an_event") for counted in COUNTED),
                    cell("topology_messages"),
                    spread([100 * each for each in late], ".0f") + " %",
                    ", ".join(f"{each:g}" for each in ends),
                ]
            )
    header = ["overlay", "protocol", "hops of a delivery; shortest", "remote entries per broker"]
    header += ["matchings per event", "entries held; examined; compared", "messages about the cut link"]
    return [*header, "deliveries waiting for the link", "lost, doubled, foreign"], rows


def maintenance() -> Table:
    """Topology maintenance."""
    fields = ("rows_a_broker", "messages_a_change", "brokers_reached", "reached_outside_the_cluster")
    rows: list[list[object]] = []
    for size in dict.fromkeys(row["brokers"] for row in RESULTS.read("maintenance")):
        for name in PROTOCOLS[1:]:
            cells: list[Any] = [
                spread(by_seed("maintenance", field, name, brokers=size), ",.0f") for field in fields
            ]
            rows.append([f"{size:,}", name, *cells])
    header = ["brokers", "protocol", "rows of the TRT per broker", "messages per link cut", "brokers reached"]
    return [*header, "outside the link's cluster"], rows


def list_bytes() -> Table:
    """The size of destination lists."""
    found = RESULTS.read("list_bytes")
    rows: list[list[object]] = [
        ["bytes as a bitmap, mean", *(f"{row['bitmap_bytes_mean']:.0f}" for row in found)],
        ["the longest", *(row["bitmap_bytes_max"] for row in found)],
    ]
    return ["destinations", *(f"{row['destinations']:,}" for row in found)], rows
