"""``fieldfare filter``: check, explain, test and convert filters before they are used."""

from __future__ import annotations

import itertools
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from fieldfare.cli import converting
from fieldfare.cli.connection import connect
from fieldfare.cli.event_files import EventsOption, read_events
from fieldfare.cli.filter_texts import FileOption, FilterArgument, compile_text, read_filter
from fieldfare.cli.output import (
    EXIT_FAILED,
    EXIT_USAGE,
    DialectOption,
    JsonOption,
    UrlOption,
    fail,
    out,
    print_json,
    print_json_line,
)
from fieldfare.filters.help import check as check_filter
from fieldfare.filters.help import explain as explain_filter
from fieldfare.filters.help import trace
from fieldfare.filters.help.documents import (
    check_document,
    explanation_document,
    step_document,
    trace_document,
)
from fieldfare.filters.help.tracing import tree_lines

SAMPLE_EVENTS_MAX = 10_000
"""Maximum events of a file that ``explain`` uses as its sample; the rest is not read."""

app = typer.Typer(
    help="Check, explain, test and convert filters.",
    epilog="Example: `fieldfare filter test 'data.price < 18.5' --events quotes.jsonl`",
    no_args_is_help=True,
)

DataOption = Annotated[
    bool, typer.Option("--data", help="Each line of the events is an event's data, not a complete event.")
]


class Expected(StrEnum):
    """Values of ``--expect``."""

    MATCH = "match"
    NO_MATCH = "no-match"


@app.command()
def check(
    filter: FilterArgument = None,
    file: FileOption = None,
    dialect: DialectOption = "sql",
    as_json: JsonOption = False,
) -> None:
    """Report all errors and warnings of a filter. The exit status is 1 if there are errors.

    Example:
    ```
    fieldfare filter check "data.price => 5 AND data.symbol = NULL"
    ```
    """
    found = check_filter(read_filter(filter, file, dialect), dialect)
    if as_json:
        print_json(check_document(found))
    else:
        _print_text(str(found))
    if not found.is_valid:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def explain(
    filter: FilterArgument = None,
    file: FileOption = None,
    dialect: DialectOption = "sql",
    events: EventsOption = None,
    as_data: DataOption = False,
    space: Annotated[
        str | None,
        typer.Option(
            "--space", metavar="NAME", help="Measure its selectivity on this space's newest events."
        ),
    ] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain what a filter matches, which parts the index uses, and what is probably a mistake.

    With --events, or with --space and a running service, also show how selective it is.

    Examples:
    ```
    fieldfare filter explain "data.symbol = 'YHOO' AND data.price < 18.5" --events quotes.jsonl
    fieldfare filter explain "data.symbol = 'YHOO' AND data.price < 18.5" --space default
    ```
    """
    if events is not None and space is not None:
        fail("--events and --space cannot be combined", EXIT_USAGE)
    text = read_filter(filter, file, dialect, events)
    compiled = compile_text(text, dialect)
    if space is not None:
        with connect(url, space) as client:
            document = client.explain_filter(compiled.text, dialect)
    else:
        sample = None
        if events is not None:
            found = itertools.islice(read_events(events, as_data=as_data), SAMPLE_EVENTS_MAX)
            sample = [event for _, event in found]
        document = msgspec.to_builtins(explanation_document(explain_filter(compiled, sample)))
    if as_json:
        print_json(document)
    else:
        _print_text(str(document["text"]))


@app.command()
def test(
    filter: FilterArgument = None,
    events: EventsOption = None,
    file: FileOption = None,
    dialect: DialectOption = "sql",
    as_data: DataOption = False,
    tree: Annotated[
        bool, typer.Option("--tree", help="Show the value of each part of the filter, also for matches.")
    ] = False,
    expect: Annotated[
        Expected | None,
        typer.Option("--expect", help="Exit with 1 unless all events have this result."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per event.")] = False,
) -> None:
    """Test a filter on sample events: show which match, and which part of the filter the others fail.

    Examples:
    ```
    fieldfare filter test "data.price < 18.5" --events quotes.jsonl
    fieldfare filter test --file late.sql --events late.jsonl --expect match
    ```
    """
    if events is None:
        fail("no events to test with: give --events FILE", EXIT_USAGE)
    compiled = compile_text(read_filter(filter, file, dialect, events), dialect)
    matched = total = 0
    for number, event in read_events(events, as_data=as_data):
        total += 1
        found = trace(compiled, event)
        matched += found.matches
        if as_json:
            document: dict[str, Any] = {"line": number, **msgspec.to_builtins(trace_document(found))}
            if tree:
                document["tree"] = step_document(found.root)
            print_json_line(document)
            continue
        if found.matches or not tree:
            lines = str(found).split("\n")
        else:
            lines = ["no match"]
        if tree:
            lines += tree_lines(found.root)
        _print_text("\n".join([f"event {number}: {lines[0]}", *lines[1:]]))
    if not as_json:
        _print_text(f"{matched:,} of {total:,} {'event matches' if total == 1 else 'events match'}")
    wanted = {None: None, Expected.MATCH: total, Expected.NO_MATCH: 0}[expect]
    if wanted is not None and matched != wanted:
        raise typer.Exit(EXIT_FAILED)


app.command()(converting.convert)

_STYLES = {
    "warning:": "yellow",
    "hint:": "cyan",
    "error:": "red",
    "match": "green",
    "no match": "bold",
}


def _print_text(text: str) -> None:
    """Print text; on a terminal, colour warnings, hints and carets."""
    console = out()
    for line in text.split("\n"):
        console.print(Text(line, style=_style_of(line)))


def _style_of(line: str) -> str:
    bare = line.strip()
    if bare and not bare.strip("^"):
        return "red"
    return next((style for start, style in _STYLES.items() if bare.startswith(start)), "")
