"""``fieldfare subscriptions``: create, list, get and delete standing filters."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from fieldfare.cli import index
from fieldfare.cli.connection import connect
from fieldfare.cli.output import (
    EXIT_USAGE,
    DialectOption,
    JsonOption,
    SpaceOption,
    UrlOption,
    fail,
    one_line,
    out,
    print_json,
    print_json_line,
    report_error,
)
from fieldfare.client.errors import SubscriptionsRefused
from fieldfare.client.records import SubscriptionInfo
from fieldfare.model import positions_text

app = typer.Typer(help="Create, list, get and delete standing filters.", no_args_is_help=True)
app.command("explain")(index.explain)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The subscription's id.")]


@app.command()
def create(
    id: Annotated[str | None, typer.Argument(metavar="ID", help="Its id.")] = None,
    filter: Annotated[str | None, typer.Argument(metavar="FILTER", help="The filter.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help='JSON lines, each {"id": ..., "filter": ...}; - is standard input.'
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the filter if the id exists.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Begin earlier: earliest, a position, or a time such as 2026-07-01T12:00:00Z.",
        ),
    ] = None,
    dialect: DialectOption = "sql",
    url: UrlOption = None,
    space: SpaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Store one filter, or many from a file. Events published from then on are matched against it.

    Examples:
    ```
    fieldfare subscriptions create cheap "data.price < 18.5"
    fieldfare subscriptions create cheaper "data.price < 10" --start earliest
    fieldfare subscriptions create --file alerts.jsonl
    ```
    """
    if file is not None:
        if id is not None or replace or start is not None:
            fail("--file goes without ID, FILTER, --replace and --start", EXIT_USAGE)
        _create_many(file, dialect, url, space, as_json)
        return
    if id is None or filter is None:
        fail("give an ID and a FILTER, or --file", EXIT_USAGE)
    if replace and start is not None:
        fail("--start is of a new subscription: it goes without --replace", EXIT_USAGE)
    with connect(url, space) as client:
        if replace:
            info = client.replace_subscription(id, filter, dialect)
        else:
            info = client.create_subscription(filter, id, dialect, start=start)
    if as_json:
        print_json(_describe(info))
        return
    begins = info.valid_from if info.start is None else info.start
    out().print(Text(f"created {info.id}, valid from {positions_text(begins)}"))


@app.command("list", epilog="Example: `fieldfare subscriptions list --limit 20`")
def list_all(
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many.")] = None,
    url: UrlOption = None,
    space: SpaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """List the filters of a space in the order of their ids."""
    rows: list[tuple[str, ...]] = []
    count = 0
    with connect(url, space) as client:
        for info in client.subscriptions(page_size=min(limit or 1000, 1000)):
            count += 1
            if as_json:
                print_json_line(_describe(info))
            else:
                rows.append((info.id, positions_text(info.valid_from), info.dialect, one_line(info.filter)))
            if count == limit:
                break
    if count and not as_json:
        _print_rows(rows)
    elif not count and not as_json:
        out().print("no subscriptions")


def _print_rows(rows: list[tuple[str, ...]]) -> None:
    """A table that fits a terminal; for a program or a file a line each, however long."""
    names = ("id", "valid from", "dialect", "filter")
    console = out()
    if console.is_terminal:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in names:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
        return
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    for *first, last in (names, *rows):
        cells = [cell.ljust(width) for cell, width in zip(first, widths, strict=False)]
        sys.stdout.write("  ".join([*cells, last]) + "\n")


@app.command(epilog="Example: `fieldfare subscriptions get cheap`")
def get(
    id: IdArgument, url: UrlOption = None, space: SpaceOption = None, as_json: JsonOption = False
) -> None:
    """Show one filter as it stands."""
    with connect(url, space) as client:
        info = client.get_subscription(id)
    _show(info, as_json)


def _show(info: SubscriptionInfo, as_json: bool) -> None:
    described = _describe(info)
    if as_json:
        print_json(described)
        return
    delivery = described.pop("delivery", {})
    past = described.pop("past", None)
    if past is not None:
        described["past"] = f"matched from {past['kept_from']} to {past['matched_to']} of {past['to']}"
    lines = [*described.items(), *delivery.items()]
    width = 20 if "push" in delivery else 16
    for name, value in lines:
        inner = value.items() if isinstance(value, dict) else (("", value),)
        for part, shown in inner:
            label = f"{name} {part}".strip().replace("_", " ")
            shown = tuple(shown) if isinstance(shown, list) else shown
            out().print(Text(f"{label:<{width if name in delivery or part else 12}}{shown}"))


PushSecretsOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A file with what requests are signed with, a secret a line."),
]
PushAuthorizationOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A file with what the header Authorization is to say."),
]


@app.command("set", epilog="Example: `fieldfare subscriptions set cheap --max-attempts 5`")
def change(
    id: IdArgument,
    ack_deadline: Annotated[
        str | None, typer.Option(help="Seconds until a message that was not acked comes again.")
    ] = None,
    max_attempts: Annotated[
        str | None, typer.Option(help="How often a message is given before it is given up.")
    ] = None,
    retry_delays: Annotated[
        str | None,
        typer.Option(metavar="S,S,...", help="Seconds until a message that failed comes again, by attempt."),
    ] = None,
    max_in_flight: Annotated[
        str | None, typer.Option(help="Messages that all readers together may hold unacked.")
    ] = None,
    max_in_flight_bytes: Annotated[
        str | None, typer.Option(help="Bytes of messages that all readers together may hold unacked, about.")
    ] = None,
    dead_letter: Annotated[
        bool | None,
        typer.Option("--dead-letter/--no-dead-letter", help="Whether what is given up is listed."),
    ] = None,
    order_by: Annotated[
        str | None,
        typer.Option(
            metavar="ATTRIBUTE", help="Give one event at a time of those with the same value there."
        ),
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option(metavar="S", help="Seconds after which an event is not given any more."),
    ] = None,
    expires_unused: Annotated[
        str | None,
        typer.Option(metavar="S", help="Seconds after which it is removed if nobody has used it."),
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="URL", help="An address that messages are sent to by HTTP.")
    ] = None,
    push_mode: Annotated[
        str | None, typer.Option(metavar="MODE", help="structured, binary or batch.")
    ] = None,
    push_batch: Annotated[str | None, typer.Option(help="Events of one request, in batch mode.")] = None,
    push_requests: Annotated[str | None, typer.Option(help="Requests under way at a time.")] = None,
    push_secrets: PushSecretsOption = None,
    push_authorization: PushAuthorizationOption = None,
    url: UrlOption = None,
    space: SpaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set how a subscription's messages are given; "none" makes a setting what it is by itself."""
    settings = {
        "ack_deadline_s": _number(ack_deadline),
        "max_attempts": _number(max_attempts),
        "retry_delays_s": _numbers(retry_delays),
        "max_in_flight": _number(max_in_flight),
        "max_in_flight_bytes": _number(max_in_flight_bytes),
        "dead_letter": dead_letter,
        "order_by": None if order_by is None else _none(order_by) or order_by,
        "max_age_s": _number(max_age),
        "expires_unused_s": _number(expires_unused),
        "push": _push(push, push_mode, push_batch, push_requests, push_secrets, push_authorization),
    }
    given = {name: None if value == _NONE else value for name, value in settings.items() if value is not None}
    if not given:
        fail("say what to set: see --help", EXIT_USAGE)
    with connect(url, space) as client:
        info = client.configure_subscription(id, **given)
    _show(info, as_json)


_NONE = "none"


def _push(
    url: str | None,
    mode: str | None,
    batch: str | None,
    requests: str | None,
    secrets: str | None,
    authorization: str | None,
) -> Any:
    """What is to change of where messages are sent. Secrets are read from files: all see a command."""
    if url == _NONE:
        return _NONE
    said = {
        "url": url,
        "mode": mode,
        "batch_max": _number(batch),
        "requests_max": _number(requests),
        "secrets": None if secrets is None else _none(secrets) or _read_private(secrets).split(),
        "authorization": None
        if authorization is None
        else _none(authorization) or _read_private(authorization).strip(),
    }
    given = {name: None if value == _NONE else value for name, value in said.items() if value is not None}
    return given or None


def _read_private(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {file}: {getattr(error, 'strerror', None) or error}")


def _none(text: str) -> str | None:
    return _NONE if text == _NONE else None


def _number(text: str | None) -> Any:
    return None if text is None else _none(text) or _read_number(text)


def _numbers(text: str | None) -> Any:
    return None if text is None else _none(text) or list(map(_read_number, text.split(",")))


def _read_number(text: str) -> int | float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        fail(f"{text!r} is no number", EXIT_USAGE)
    return int(value) if value.is_integer() else value


@app.command(epilog="Example: `fieldfare subscriptions delete cheap`")
def delete(id: IdArgument, url: UrlOption = None, space: SpaceOption = None) -> None:
    """Remove a filter. Events published from then on are not matched against it."""
    with connect(url, space) as client:
        client.delete_subscription(id)
    out().print(Text(f"deleted {id}"))


def _create_many(file: Path, dialect: str, url: str | None, space: str | None, as_json: bool) -> None:
    items = _read_items(file, dialect)
    refused: list[dict[str, Any]] = []
    with connect(url, space) as client:
        try:
            stored = client.create_subscriptions(items)
        except SubscriptionsRefused as error:
            stored = error.stored
            for refusal in error.refused:
                if not as_json:
                    report_error(str(refusal))
                refused.append(
                    {
                        "index": refusal.index,
                        "id": refusal.id,
                        "place": refusal.place,
                        "detail": refusal.detail,
                    }
                )
    if as_json:
        print_json({"stored": stored, "refused": refused})
    else:
        out().print(f"stored {stored:,} subscriptions" + (f", {len(refused):,} refused" if refused else ""))
    if refused:
        raise typer.Exit(1)


def _read_items(file: Path, dialect: str) -> list[dict[str, Any]]:
    """The subscriptions of a file; an error names the line, and nothing has been sent."""
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}")
    items = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            item = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            fail(f"{file}, line {number} is not JSON: {error}")
        if not isinstance(item, dict) or not isinstance(item.get("filter"), str):
            hint = '{"id": "cheap", "filter": "data.price < 18.5"}'
            fail(f"{file}, line {number} is not a subscription\nhint: one looks like {hint}")
        known = {
            name: item[name] for name in ("id", "filter", "dialect", "delivery") if item.get(name) is not None
        }
        items.append({"dialect": dialect, **known})
    return items


def _describe(info: SubscriptionInfo) -> dict[str, Any]:
    return dict(info.document)
