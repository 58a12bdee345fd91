"""``fieldfare subscriptions``: create, list, get, configure and delete subscriptions."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fieldfare.cli import importing, index, moving
from fieldfare.cli.connection import connect
from fieldfare.cli.labels import labels_text, read_labels, wanted_labels
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
    report_warning,
)
from fieldfare.client.errors import SubscriptionsRefused
from fieldfare.client.records import SubscriptionInfo
from fieldfare.model import Backlog, SubscriptionBacklog, positions_text
from fieldfare.runtimes.files.lines import open_stream
from fieldfare.runtimes.files.subscriptions import NAMES, read_subscriptions
from fieldfare.units import parse_size, parse_time

app = typer.Typer(
    help="Create, import, list, get, configure, move and delete subscriptions.",
    epilog="Example: `fieldfare subscriptions create cheap 'data.price < 18.5'`",
    no_args_is_help=True,
)
app.command("explain")(index.explain)
app.command("import")(importing.import_)
app.command("move")(moving.move)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The subscription's id.")]
OwnerOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The team or person that is responsible for it.")
]
RemoveLabelOption = Annotated[
    list[str] | None, typer.Option(metavar="KEY", help="A label to remove; may be repeated.")
]
LabelOption = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="A label; the option may be repeated.")
]


@app.command()
def create(
    id: Annotated[str | None, typer.Argument(metavar="ID", help="The subscription's id.")] = None,
    filter: Annotated[str | None, typer.Argument(metavar="FILTER", help="The filter.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="JSON lines, CSV, Parquet or Arrow file with id, filter (and dialect, delivery, owner,"
            " labels); -: JSON lines on standard input.",
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the filter if the id exists.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Where it begins: earliest, a position, or a time (2026-07-01T12:00:00Z). Default: now.",
        ),
    ] = None,
    owner: OwnerOption = None,
    label: LabelOption = None,
    dialect: DialectOption = "sql",
    url: UrlOption = None,
    space: SpaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create one subscription, or many from a file. Events published from then on are matched against it.

    Examples:
    ```
    fieldfare subscriptions create cheap "data.price < 18.5"
    fieldfare subscriptions create cheaper "data.price < 10" --start earliest
    fieldfare subscriptions create dear "data.price > 90" --owner ann --label team=sales --label env=prod
    fieldfare subscriptions create --file alerts.jsonl
    ```
    """
    if file is not None:
        if id is not None or replace or start is not None or owner is not None or label:
            what = "ID, FILTER, --replace, --start, --owner or --label"
            fail(f"--file cannot be combined with {what}", EXIT_USAGE)
        _create_many(file, dialect, url, space, as_json)
        return
    if id is None or filter is None:
        fail("give an ID and a FILTER, or --file", EXIT_USAGE)
    if replace and start is not None:
        fail("--start is for new subscriptions: it cannot be combined with --replace", EXIT_USAGE)
    labels = read_labels(label) if label else None
    with connect(url, space) as client:
        if replace:
            info = client.replace_subscription(id, filter, dialect, owner=owner, labels=labels)
        else:
            info = client.create_subscription(filter, id, dialect, start=start, owner=owner, labels=labels)
    for warning in info.warnings:
        report_warning(warning.detail, warning.hint)
    if as_json:
        print_json(_describe(info))
        return
    begins = info.valid_from if info.start is None else info.start
    out().print(Text(f"created {info.id}, valid from {positions_text(begins)}"))
    if not all(info.sites.values()):
        out().print(Text(f"does not count yet for events of {_names(info, counts=False)}"))


class Sort(StrEnum):
    """Orders of the list of subscriptions."""

    ID = "id"
    BACKLOG = "backlog"


@app.command("list", epilog="Example: `fieldfare subscriptions list --sort backlog --limit 20`")
def list_all(
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Maximum number to list; default: all.")
    ] = None,
    sort: Annotated[Sort, typer.Option(help="Order: by id, or the greatest backlog first.")] = Sort.ID,
    owner: Annotated[str | None, typer.Option(metavar="NAME", help="Only those with this owner.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY[=VALUE]", help="Only those with this label; repeated: with all of them."),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only those with this text in id, filter, owner or label."),
    ] = None,
    url: UrlOption = None,
    space: SpaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """List the subscriptions of a space, by id or by backlog: all, or those with an owner or labels."""
    rows: list[tuple[str, ...]] = []
    tags: list[tuple[str, str]] = []
    count = 0
    wanted = wanted_labels(label or ())
    with connect(url, space) as client:
        for info in client.subscriptions(
            min(limit or 1000, 1000), sort.value, search=search, owner=owner, labels=wanted
        ):
            count += 1
            if as_json:
                print_json_line(_describe(info))
            elif info.backlog is not None:
                rows.append((info.id, *_backlog_cells(info.backlog), one_line(info.filter)))
            else:
                rows.append((info.id, positions_text(info.valid_from), info.dialect, one_line(info.filter)))
            tags.append((info.owner or "", labels_text(info.labels)))
            if count == limit:
                break
    if count and not as_json:
        names = BACKLOG_COLUMNS if sort is Sort.BACKLOG else COLUMNS
        if any(map(any, tags)):
            names = (*names[:-1], "owner", "labels", names[-1])
            rows = [(*row[:-1], *more, row[-1]) for row, more in zip(rows, tags, strict=True)]
        _print_rows(rows, names)
    elif not count and not as_json:
        out().print("no subscriptions")


COLUMNS = ("id", "valid from", "dialect", "filter")
BACKLOG_COLUMNS = ("id", "pending", "in flight", "oldest", "dead", "readers", "filter")


def _backlog_cells(backlog: SubscriptionBacklog) -> tuple[str, ...]:
    """Return the cells of `BACKLOG_COLUMNS` between id and filter; an estimate begins with ~."""
    return (
        f"{'' if backlog.is_exact else '~'}{backlog.pending:,}",
        f"{backlog.in_flight:,}",
        "-" if backlog.oldest_s is None else f"{backlog.oldest_s:,.0f} s",
        f"{backlog.dead_letters:,}",
        f"{backlog.readers:,}",
    )


def _print_rows(rows: list[tuple[str, ...]], names: tuple[str, ...]) -> None:
    """Print a table that fits the terminal; in a pipe or file, one line per row, of any length."""
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
    """Show one subscription: its filter, settings, state and backlog."""
    with connect(url, space) as client:
        info = client.get_subscription(id)
        backlog = client.backlog(id)
    _show(info, as_json, backlog)


def _show(info: SubscriptionInfo, as_json: bool, backlog: Backlog | None = None) -> None:
    described = _describe(info)
    if backlog is not None:
        counts = asdict(backlog) | {"cursor": positions_text(backlog.cursor)}
        described["backlog"] = counts if as_json else _backlog_text(backlog)
    if as_json:
        print_json(described)
        return
    if info.labels:
        described["labels"] = labels_text(info.labels)
    delivery = described.pop("delivery", {})
    if info.sites:
        described["sites"] = {
            "counts at": _names(info, counts=True),
            "not yet at": _names(info, counts=False),
        }
    past = described.pop("past", None)
    if past is not None:
        described["past"] = f"matched from {past['kept_from']} to {past['matched_to']} of {past['to']}"
    lines = []
    for name, value in (*described.items(), *delivery.items()):
        inner = value.items() if isinstance(value, dict) else (("", value),)
        for part, shown in inner:
            listed = ", ".join(map(str, shown)) if isinstance(shown, list | tuple) else shown
            lines.append((f"{name} {part}".strip().replace("_", " "), listed))
    width = max(len(label) for label, _ in lines) + 2
    for label, shown in lines:
        out().print(Text(f"{label:<{width}}{shown}"))


def _backlog_text(backlog: Backlog) -> str:
    about = "" if backlog.is_exact else "about "
    parts = [f"{about}{backlog.pending:,} pending", f"{backlog.in_flight:,} in flight"]
    parts += [f"{backlog.redeliveries:,} to redeliver", _plural(backlog.dead_letters, "dead letter")]
    parts += [_plural(backlog.readers, "reader"), f"cursor {positions_text(backlog.cursor)}"]
    if backlog.oldest_s is not None:
        parts.append(f"oldest {backlog.oldest_s:,.1f} s")
    return ", ".join(parts)


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


PushSecretsOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="File with the secrets that requests are signed with, one per line."),
]
PushAuthorizationOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="File with the value of the header Authorization."),
]


AckDeadlineOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Time until an unacked message is redelivered.")
]
RetryDelaysOption = Annotated[
    str | None,
    typer.Option(metavar="TIME,...", help="Redelivery delays of a failed message, by attempt."),
]
OrderByOption = Annotated[
    str | None,
    typer.Option(
        metavar="ATTRIBUTE", help="Deliver events with the same value of this attribute one at a time."
    ),
]
InFlightBytesOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="Approximate maximum bytes of unacked messages, for all readers together."
    ),
]


@app.command("set", epilog="Example: `fieldfare subscriptions set cheap --max-attempts 5`")
def change(
    id: IdArgument,
    owner: OwnerOption = None,
    label: LabelOption = None,
    remove_label: RemoveLabelOption = None,
    ack_deadline: AckDeadlineOption = None,
    max_attempts: Annotated[
        str | None, typer.Option(help="Delivery attempts before a message becomes a dead letter.")
    ] = None,
    retry_delays: RetryDelaysOption = None,
    max_in_flight: Annotated[
        str | None, typer.Option(help="Maximum messages in flight, for all readers together.")
    ] = None,
    max_in_flight_bytes: InFlightBytesOption = None,
    dead_letter: Annotated[
        bool | None,
        typer.Option("--dead-letter/--no-dead-letter", help="Whether to keep dead letters in a list."),
    ] = None,
    order_by: OrderByOption = None,
    max_age: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Age at which an event is no longer delivered."),
    ] = None,
    expires_unused: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time after which an unused subscription is removed."),
    ] = None,
    pinned: Annotated[
        bool | None,
        typer.Option("--pinned/--not-pinned", help="Whether it stays at this broker when load is balanced."),
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="URL", help="Webhook: address to send messages to.")
    ] = None,
    push_mode: Annotated[
        str | None, typer.Option(metavar="MODE", help="Webhook: structured, binary or batch.")
    ] = None,
    push_batch: Annotated[str | None, typer.Option(help="Webhook: maximum events per batch.")] = None,
    push_requests: Annotated[str | None, typer.Option(help="Webhook: maximum requests in flight.")] = None,
    push_secrets: PushSecretsOption = None,
    push_authorization: PushAuthorizationOption = None,
    url: UrlOption = None,
    space: SpaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a subscription's delivery settings, owner and labels; "none" resets a setting to its default.

    Times are seconds, or have a unit: ms, s, min, h or d. Sizes are bytes, or have a unit such as kB or MiB.
    """
    settings = {
        "ack_deadline_s": _amount(ack_deadline, parse_time),
        "max_attempts": _number(max_attempts),
        "retry_delays_s": _times(retry_delays),
        "max_in_flight": _number(max_in_flight),
        "max_in_flight_bytes": _amount(max_in_flight_bytes, parse_size),
        "dead_letter": dead_letter,
        "order_by": None if order_by is None else _none(order_by) or order_by,
        "max_age_s": _amount(max_age, parse_time),
        "expires_unused_s": _amount(expires_unused, parse_time),
        "pinned": pinned,
        "push": _push(push, push_mode, push_batch, push_requests, push_secrets, push_authorization),
        "owner": owner,
        "labels": {**read_labels(label or ()), **dict.fromkeys(remove_label or ())} or None,
    }
    given = {name: None if value == _NONE else value for name, value in settings.items() if value is not None}
    if not given:
        fail("nothing to set: give at least one option, see --help", EXIT_USAGE)
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
    """Return the changed webhook settings. Secrets are read from files, as arguments are visible to all."""
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
        return open_stream(file)[0].read().decode().removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {file}: {getattr(error, 'strerror', None) or error}")


def _none(text: str) -> str | None:
    return _NONE if text == _NONE else None


def _number(text: str | None) -> Any:
    return _amount(text, _parse_number)


def _times(text: str | None) -> Any:
    if text is None or text == _NONE:
        return text
    return [_amount(each, parse_time) for each in text.split(",")]


def _amount(text: str | None, parse: Callable[[str], int | float]) -> Any:
    """A finite number, "none", or None where nothing was given."""
    if text is None or text == _NONE:
        return text
    try:
        value = parse(text)
    except ValueError as error:
        fail(str(error), EXIT_USAGE)
    if not math.isfinite(value):
        fail(f"{text!r} is not finite", EXIT_USAGE)
    return int(value) if float(value).is_integer() else value


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


@app.command(epilog="Example: `fieldfare subscriptions delete cheap`")
def delete(id: IdArgument, url: UrlOption = None, space: SpaceOption = None) -> None:
    """Delete a subscription. Events published from then on are not matched against it."""
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
        what = "subscription" if stored == 1 else "subscriptions"
        out().print(f"stored {stored:,} {what}" + (f", {len(refused):,} refused" if refused else ""))
    if refused:
        raise typer.Exit(1)


def _read_items(file: Path, dialect: str) -> list[dict[str, Any]]:
    """Read the subscriptions of a file; an error names the line, and nothing has been sent."""
    items = []
    for found in read_subscriptions(file, with_ids=False):
        said = {name: getattr(found, name) for name in NAMES}
        items.append(
            {"dialect": dialect, **{name: value for name, value in said.items() if value is not None}}
        )
    return items


def _names(info: SubscriptionInfo, *, counts: bool) -> str:
    """Return the names of the sites where a subscription counts, or of those where it does not yet."""
    return ", ".join(name for name, at_site in info.sites.items() if at_site == counts) or "-"


def _describe(info: SubscriptionInfo) -> dict[str, Any]:
    return dict(info.document)
