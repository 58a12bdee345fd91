"""``fieldfare filter``: check, explain, test and convert filters before they are used."""

from __future__ import annotations

import itertools
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from fieldfare.cli.connection import connect
from fieldfare.cli.event_files import EventsOption, read_events
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
    report_error,
)
from fieldfare.filters import Filter, FilterError, compile_filter
from fieldfare.filters.filter import DIALECTS
from fieldfare.filters.help import check as check_filter
from fieldfare.filters.help import convert as convert_filter
from fieldfare.filters.help import explain as explain_filter
from fieldfare.filters.help import trace
from fieldfare.filters.help.documents import (
    check_document,
    explanation_document,
    step_document,
    trace_document,
)
from fieldfare.filters.help.tracing import tree_lines
from fieldfare.runtimes.files.lines import open_stream

SAMPLE_EVENTS_MAX = 10_000
"""Maximum events of a file that ``explain`` uses as its sample; the rest is not read."""

FILTER_BYTES_MAX = 16 << 20
"""Maximum bytes read of a filter; the limits of filters are far below."""

app = typer.Typer(
    help="Check, explain, test and convert filters.",
    epilog="Example: `fieldfare filter test 'data.price < 18.5' --events quotes.jsonl`",
    no_args_is_help=True,
)

FilterArgument = Annotated[
    str | None, typer.Argument(metavar="FILTER", help="The filter; default, or -: standard input.")
]
FileOption = Annotated[
    Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the filter from a file.")
]
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
    found = check_filter(_read_filter(filter, file, dialect), dialect)
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
    text = _read_filter(filter, file, dialect, events)
    compiled = _compile(text, dialect)
    if space is not None:
        with connect(url, space) as client:
            document = client.explain_filter(compiled.text, dialect)
    else:
        sample = None
        if events is not None:
            found = itertools.islice(read_events(events, as_data=as_data), SAMPLE_EVENTS_MAX)
            sample = [event for _, event in found]
        document = explanation_document(explain_filter(compiled, sample))
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
    compiled = _compile(_read_filter(filter, file, dialect, events), dialect)
    matched = total = 0
    for number, event in read_events(events, as_data=as_data):
        total += 1
        found = trace(compiled, event)
        matched += found.matches
        if as_json:
            document: dict[str, Any] = {"line": number, **trace_document(found)}
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


@app.command()
def convert(
    filter: FilterArgument = None,
    file: FileOption = None,
    dialect: DialectOption = "cesql",
    to: Annotated[str, typer.Option("--to", help="The dialect to convert to: sql.")] = "sql",
    as_json: JsonOption = False,
) -> None:
    """Convert a CESQL, Subscriptions API or EventBridge filter to sql; it matches exactly the same events.

    Example:
    ```
    fieldfare filter convert --dialect eventbridge --file pattern.json
    ```
    """
    compiled = _compile(_read_filter(filter, file, dialect), dialect)
    try:
        text = convert_filter(compiled, to)
    except ValueError as error:
        fail(str(error), EXIT_FAILED if isinstance(error, FilterError) else EXIT_USAGE)
    if as_json:
        print_json({"filter": text, "dialect": to})
    else:
        sys.stdout.write(text + "\n")


def _read_filter(filter: str | None, file: Path | None, dialect: str, events: str | None = None) -> str:
    """Return the filter's text: from the argument, a file, or standard input."""
    if dialect not in DIALECTS:
        try:
            compile_filter("", dialect)
        except FilterError as error:
            problem = error.problems[0]
            fail(f"{problem.message}\nhint: {problem.hint}", EXIT_USAGE)
    if filter is not None and file is not None:
        fail("give FILTER or --file, not both", EXIT_USAGE)
    if filter is not None and filter != "-":
        return filter
    if file is None or str(file) == "-":
        if events == "-":
            fail("the filter and the events cannot both come from standard input", EXIT_USAGE)
        if filter is None and file is None and (sys.stdin is None or sys.stdin.isatty()):
            fail("give a FILTER, --file, or the filter on standard input", EXIT_USAGE)
        file = None
    try:
        content = open_stream(file or "-")[0].read(FILTER_BYTES_MAX)
    except OSError as error:
        fail(f"cannot read {file or 'standard input'}: {error.strerror}")
    try:
        return content.decode().removeprefix("\ufeff").rstrip()
    except UnicodeDecodeError:
        fail(f"the filter in {file or 'standard input'} is not UTF-8")


def _compile(text: str, dialect: str) -> Filter:
    try:
        return compile_filter(text, dialect)
    except FilterError as error:
        report_error(f"the filter cannot be used\n{error}")
        raise typer.Exit(EXIT_FAILED) from None


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
