"""``fieldfare top``: show the service's figures, live."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fieldfare.cli.amounts import time_option
from fieldfare.cli.connection import connect
from fieldfare.cli.output import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    JsonOption,
    UrlOption,
    fail,
    known_form,
    out,
    print_json,
)
from fieldfare.client.errors import ApiError, ConnectionFailed
from fieldfare.client.synchronous.client import Client

HISTORY = 60
WORST = 5
"""Spaces and subscriptions with the greatest backlogs that are shown; others are only in the sum."""
_BARS = "▁▂▃▄▅▆▇█"


def top(
    once: Annotated[bool, typer.Option("--once", help="Print the figures once and exit.")] = False,
    as_json: JsonOption = False,
    every_s: Annotated[
        float,
        typer.Option(
            "--every",
            parser=time_option(min=0.1, max=86_400),
            metavar="TIME",
            help="Interval between updates.",
        ),
    ] = 1.0,
    url: UrlOption = None,
) -> None:
    """Watch the service: rates, lag, latency, subscriptions. Ctrl-C ends.

    Examples:
    ```
    fieldfare top
    fieldfare top --once --json
    ```
    """
    if as_json and not once:
        fail("--json needs --once", EXIT_USAGE)
    with connect(url) as client:
        figures = _read(client)
        if once:
            with known_form():
                print_json(figures) if as_json else out().print(render(figures, History()))
            return
        try:
            with known_form():
                _watch(client, figures, every_s)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None


def _read(client: Client) -> dict[str, Any]:
    """Return the figures, with ``backlogs`` unless the service has none to tell now."""
    figures = client.stats()
    try:
        return {**figures, "backlogs": client.backlogs(WORST)}
    except ApiError:  # it has just started, or is an older one
        return figures


class History:
    """The last values of the changing figures, for sparklines."""

    def __init__(self) -> None:
        self._values: dict[str, deque[float]] = {}

    def add(self, figures: Mapping[str, Any]) -> None:
        for name in ("events_per_s", "matches_per_s", "lag_events"):
            self._values.setdefault(name, deque(maxlen=HISTORY)).append(float(figures.get(name) or 0))

    def line(self, name: str) -> str:
        """Return a sparkline of one figure; empty with fewer than two values."""
        return draw_sparkline(list(self._values.get(name, ())))


def draw_sparkline(values: list[float]) -> str:
    """Return values as a line of bars, scaled from zero to the largest."""
    if len(values) < 2:
        return ""
    most = max(values)
    if most <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(int(value / most * len(_BARS)), len(_BARS) - 1)] for value in values)


def render(figures: Mapping[str, Any], history: History, note: str = "") -> Group:
    """Return the figures as a small table."""
    latency = figures.get("match_latency_ms") or {}
    rows = [
        ("events", _rate(figures.get("events_per_s")), _total(figures.get("events_total")), "events_per_s"),
        (
            "matches",
            _rate(figures.get("matches_per_s")),
            _total(figures.get("matches_total")),
            "matches_per_s",
        ),
        ("lag", _count(figures.get("lag_events"), "events"), _range(figures), "lag_events"),
        (
            "latency",
            _milliseconds(latency.get("p50")) + " p50",
            _milliseconds(latency.get("p99")) + " p99",
            "",
        ),
        (
            "subscriptions",
            _count(figures.get("subscriptions")),
            _count(figures.get("connected"), "connected"),
            "",
        ),
        ("delivered", _count(figures.get("delivered_total"), "messages"), "", ""),
        ("log", _size(figures.get("log_bytes")), _size(figures.get("disk_free_bytes")) + " free", ""),
    ]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(justify="right", style="dim")
    table.add_column(style="green")
    for name, now, beside, spark in rows:
        table.add_row(name, now, beside, history.line(spark))
    shown: list[Table | Text] = [table]
    if (backlogs := figures.get("backlogs")) is not None:
        shown.append(_backlogs_table(backlogs))
    if note:
        shown.append(Text(note, style="yellow"))
    return Group(*shown)


def _backlogs_table(backlogs: Mapping[str, Any]) -> Table:
    """Return the sums of all spaces, then the spaces and the subscriptions with the greatest backlogs."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("backlog", "pending", "in flight", "oldest", "dead", "stored"):
        table.add_column(name, justify="left" if name == "backlog" else "right")
    spaces = [(each["space"], each) for each in backlogs["spaces"] if each["pending"] or each["dead_letters"]]
    subscriptions = [(f"{each['space']}/{each['id']}", each) for each in backlogs["subscriptions"]]
    for name, each in (("all", backlogs["total"]), *spaces, *subscriptions):
        oldest_s = each["oldest_s"]
        stored = None
        if "stored_event_bytes" in each:
            stored = each["stored_event_bytes"] + each["stored_match_bytes"]
        table.add_row(
            Text(name),
            f"{'' if each['is_exact'] else '~'}{each['pending']:,}",
            f"{each['in_flight']:,}",
            "-" if oldest_s is None else f"{oldest_s:,.0f} s",
            f"{each['dead_letters']:,}",
            "" if stored is None else _size(stored),
        )
    return table


def _watch(client: Client, figures: Mapping[str, Any], every_s: float) -> None:
    history = History()
    started_s = time.monotonic()
    looks = 0
    with Live(console=out(), auto_refresh=False, screen=False) as live:
        note = ""
        while True:
            if not note:
                history.add(figures)
            live.update(render(figures, history, note), refresh=True)
            looks += 1
            time.sleep(max(0.0, started_s + looks * every_s - time.monotonic()))
            try:
                figures, note = _read(client), ""
            except ConnectionFailed as error:
                note = f"{str(error).splitlines()[0]}; the figures are out of date, retrying"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}/s"


def _total(value: int | None) -> str:
    return "" if value is None else f"{value:,} since start"


def _count(value: int | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:,} {unit}".rstrip()


def _range(figures: Mapping[str, Any]) -> str:
    end, matched = figures.get("log_end"), figures.get("matched_end")
    if end is None or matched is None:
        return ""
    lag_s = figures.get("lag_s") or 0
    return f"record {matched:,} of {end:,}" + (f", oldest {lag_s:,.1f} s" if lag_s else "")


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} ms" if value >= 10 else f"{value:.1f} ms"


def _size(value: float | None) -> str:
    if value is None:
        return "-"
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TB"
