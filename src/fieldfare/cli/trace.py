"""``fieldfare trace``: where the time goes between publishing and delivery."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fieldfare.cli.amounts import time_option
from fieldfare.cli.connection import connect
from fieldfare.cli.output import JsonOption, UrlOption, known_form, out, print_json

STEPS = {
    "decoded": "the request was read, and its events checked",
    "appended": "the events are durable in the event log",
    "seen": "a matching task has seen them",
    "matched": "their matches were found",
    "noticed": "the gateway has read the matches",
    "fetched": "the first subscriber's message was composed",
    "sent": "it was handed to the connection",
}
"""The steps after the request's arrival, in order."""

TRACE_MAX_S = 60
BAR_CHARS = 40


def trace(
    seconds: Annotated[
        float,
        typer.Option(
            "--for",
            parser=time_option(min=0.1, max=TRACE_MAX_S),
            metavar="TIME",
            help="How long to trace; at most 60 s.",
        ),
    ] = 5.0,
    space: Annotated[
        str | None, typer.Option("--space", metavar="SPACE", help="Trace only events of this space.")
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show how long each step from publishing to delivery takes.

    It samples the events that are published meanwhile, 200 requests per second at most, and
    publishes nothing.

    Examples:
    ```
    fieldfare trace
    fieldfare trace --for 20s --space trading --json
    ```
    """
    with connect(url) as client:
        found = client.trace(seconds, space)
    with known_form():
        summary = summarize(found["records"])
        if as_json:
            print_json({"seconds": found["seconds"], "records": len(found["records"]), "steps": summary})
        else:
            out().print(render(found["seconds"], found["records"], summary))


def summarize(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each step's quantiles in milliseconds: its duration, and the time since the request.

    A step's duration begins with the previous step that is known of the record. The last step, ``total``,
    is that from the request to the record's first delivery.
    """
    durations: dict[str, list[float]] = {name: [] for name in (*STEPS, "total")}
    since: dict[str, list[float]] = {name: [] for name in durations}
    for record in records:
        before_ms = 0.0
        for name in STEPS:
            if (at_ms := record["steps"].get(name)) is not None:
                durations[name].append(max(0.0, at_ms - before_ms))
                since[name].append(at_ms)
                before_ms = max(before_ms, at_ms)
        if (sent_ms := record["steps"].get("sent")) is not None:
            durations["total"].append(sent_ms)
            since["total"].append(sent_ms)
    return [
        {
            "step": name,
            "records": len(found),
            **{f"p{share}_ms": _quantile(found, share / 100) for share in (50, 90, 99)},
            "since_request_p50_ms": _quantile(since[name], 0.5),
        }
        for name, found in durations.items()
    ]


def _quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least this share of the values do not exceed; None for no value."""
    if not values:
        return None
    return round(sorted(values)[max(0, math.ceil(share * len(values)) - 1)], 3)


def render(
    seconds: float, records: Sequence[Mapping[str, Any]], summary: Sequence[Mapping[str, Any]]
) -> Group:
    """Return the steps as a table, with a bar from each step's median begin to its end."""
    delivered = sum("sent" in record["steps"] for record in records)
    said = Text(f"{len(records)} records were published in {seconds:g} s and traced, {delivered} delivered.")
    if not records:
        return Group(said, Text("Publish something meanwhile: `fieldfare trace` only watches."))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("step", "p50 ms", "p90 ms", "p99 ms", ""):
        table.add_column(name, justify="right" if name.startswith("p") else "left")
    table.add_column("until", style="dim", overflow="fold")
    longest_ms = max((step["since_request_p50_ms"] or 0.0 for step in summary), default=0.0)
    for step in summary:
        name = step["step"]
        quantiles = ("-" if (ms := step[f"p{share}_ms"]) is None else f"{ms:.2f}" for share in (50, 90, 99))
        table.add_row(name, *quantiles, _bar(step, longest_ms), STEPS.get(name, "from the request on"))
    return Group(said, table)


def _bar(step: Mapping[str, Any], longest_ms: float) -> Text:
    """Draw a step as a bar that ends at its median time since the request."""
    end_ms, length_ms = step["since_request_p50_ms"], step["p50_ms"]
    if end_ms is None or longest_ms <= 0:
        return Text(" " * BAR_CHARS)
    end = min(BAR_CHARS, max(1, round(end_ms / longest_ms * BAR_CHARS)))
    length = min(end, max(1, round(length_ms / longest_ms * BAR_CHARS)))
    return Text(" " * (end - length) + "█" * length + " " * (BAR_CHARS - end), style="green")
