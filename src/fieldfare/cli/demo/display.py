"""The demo's display: bars and live figures in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from fieldfare.cli.demo.figures import DemoFigures

LINE_EVERY_S = 2.0

Advance = Callable[[int], None]
Show = Callable[[DemoFigures], None]


class Display(Protocol):
    """Shows the demo's progress."""

    def say(self, text: str) -> None:
        """Show a text permanently."""

    def step(self, title: str, total: int | None = None) -> AbstractContextManager[Advance]:
        """Show a step while the block runs; yields a function that advances its progress by a number."""

    def replay(self, title: str) -> AbstractContextManager[Show]:
        """Show live figures while the block runs; yields a function that updates them."""

    def table(self, title: str, rows: list[tuple[str, str]]) -> None:
        """Show a short table of names and values."""


def make_display(stream: TextIO) -> Display:
    """Return bars for a terminal, lines for a file or a pipe."""
    console = Console(file=stream)
    return TerminalDisplay(console) if console.is_terminal else LineDisplay(stream)


class TerminalDisplay:
    """Moving bars and figures, with rich."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False)

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Advance]:
        columns = [SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), BarColumn()]
        if total is not None:
            columns.append(MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=self._console) as progress:
            task = progress.add_task(title, total=total)
            yield lambda more: progress.advance(task, more)
            if total is None:
                progress.update(task, total=1, completed=1)

    @contextmanager
    def replay(self, title: str) -> Iterator[Show]:
        progress = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        published, matched = progress.add_task("published"), progress.add_task("matched")
        with Live(progress, console=self._console, refresh_per_second=4) as live:

            def show(figures: DemoFigures) -> None:
                progress.update(published, total=figures.events, completed=figures.published)
                progress.update(matched, total=figures.events, completed=figures.matched)
                live.update(Group(title, progress, _figures_table(figures)))

            yield show

    def table(self, title: str, rows: list[tuple[str, str]]) -> None:
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
        table.add_column()
        table.add_column(justify="right")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)


def _figures_table(figures: DemoFigures) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0))
    for name, _ in figure_texts(figures):
        table.add_column(name, justify="right", style="bold")
    table.add_row(*(value for _, value in figure_texts(figures)))
    return table


def figure_texts(figures: DemoFigures) -> list[tuple[str, str]]:
    """Return the figures as names and values."""
    return [
        ("events/s", f"{figures.events_per_s:,.0f}"),
        ("matches/s", f"{figures.matches_per_s:,.0f}"),
        ("lag", f"{figures.lag:,}"),
        ("delivered", f"{figures.delivered:,}"),
        ("latency p50", latency_text(figures.latency_p50_ms)),
        ("p99", latency_text(figures.latency_p99_ms)),
    ]


def latency_text(latency_ms: float | None) -> str:
    """Write a latency; a dash where nothing has arrived."""
    return "-" if latency_ms is None else f"{latency_ms:,.0f} ms"


class LineDisplay:
    """Plain lines, for logs and tests."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Advance]:
        started_s = said_s = time.monotonic()
        done = 0

        def advance(more: int) -> None:
            nonlocal done, said_s
            done += more
            now_s = time.monotonic()
            if total and now_s - said_s >= LINE_EVERY_S:
                said_s = now_s
                self.say(f"{title}: {done:,} of {total:,}")

        self.say(f"{title} ...")
        yield advance
        amount = f"{total:,}, " if total else ""
        self.say(f"{title}: done ({amount}{time.monotonic() - started_s:.1f} s)")

    @contextmanager
    def replay(self, title: str) -> Iterator[Show]:
        said_s = time.monotonic()

        def show(figures: DemoFigures) -> None:
            nonlocal said_s
            now_s = time.monotonic()
            if now_s - said_s >= LINE_EVERY_S:
                said_s = now_s
                texts = ", ".join(f"{name} {value}" for name, value in figure_texts(figures))
                self.say(
                    f"{title}: {figures.published:,} of {figures.events:,} published, "
                    f"{figures.matched:,} matched; {texts}"
                )

        self.say(f"{title} ...")
        yield show

    def table(self, title: str, rows: list[tuple[str, str]]) -> None:
        self.say(title)
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            self.say(f"  {name:<{width}}  {value}")
