"""``fieldfare dead-letters``, ``seek``, ``pause`` and ``resume``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from fieldfare.cli.connection import connect
from fieldfare.cli.output import (
    EXIT_USAGE,
    JsonOption,
    SpaceOption,
    UrlOption,
    fail,
    one_line,
    out,
    print_json,
    print_json_line,
)
from fieldfare.client.records import DeadMessage
from fieldfare.model import Position, positions_text

app = typer.Typer(
    help="Dead letters of a subscription: list, retry or clear them.",
    no_args_is_help=True,
)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The subscription's id.")]


@app.command("list", epilog="Example: `fieldfare dead-letters list cheap`")
def list_all(
    id: IdArgument,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Maximum number to list; default: all.")
    ] = None,
    url: UrlOption = None,
    space: SpaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """List the dead letters of a subscription, ordered by position, with the reasons."""
    count = 0
    with connect(url, space) as client:
        for message in client.dead_letters(id, page_size=min(limit or 100, 100)):
            count += 1
            if as_json:
                print_json_line(_describe(message))
            else:
                out().print(Text(_line(message)))
            if count == limit:
                break
    if not count and not as_json:
        out().print("no dead letters")


@app.command(epilog="Example: `fieldfare dead-letters retry cheap 0-17-0`")
def retry(
    id: IdArgument,
    positions: Annotated[
        list[str] | None, typer.Argument(metavar="[POSITION]...", help="Positions to retry; default: all.")
    ] = None,
    url: UrlOption = None,
    space: SpaceOption = None,
) -> None:
    """Redeliver dead letters, all or some; their attempts are counted from 1 again."""
    try:
        named = [Position.parse(text) for text in positions] if positions else None
    except ValueError as error:
        fail(str(error), EXIT_USAGE)
    with connect(url, space) as client:
        count = client.retry_dead_letters(id, named)
    out().print(f"{count:,} to be redelivered")


@app.command(epilog="Example: `fieldfare dead-letters clear cheap`")
def clear(id: IdArgument, url: UrlOption = None, space: SpaceOption = None) -> None:
    """Remove all dead letters of a subscription."""
    with connect(url, space) as client:
        count = client.clear_dead_letters(id)
    out().print(f"{count:,} removed")


def seek(
    id: IdArgument,
    to: Annotated[
        str,
        typer.Argument(
            metavar="PLACE", help="earliest, latest, a position, or a time such as 2026-07-01T12:00:00Z."
        ),
    ],
    url: UrlOption = None,
    space: SpaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a subscription's cursor to a time, a position, or either end of the log.

    Matching events from there on are delivered, also those that were acked.

    Example: `fieldfare seek cheap earliest`
    """
    with connect(url, space) as client:
        cursor = positions_text(client.seek(id, to))
    if as_json:
        print_json({"cursor": cursor})
    else:
        out().print(Text(f"{id} resumes at {cursor}"))


def pause(id: IdArgument, url: UrlOption = None, space: SpaceOption = None) -> None:
    """Pause the delivery of a subscription; matching events are kept.

    They are delivered after `fieldfare resume`.

    Example: `fieldfare pause cheap`
    """
    with connect(url, space) as client:
        client.configure_subscription(id, paused=True)
    out().print(Text(f"{id} is paused"))


def resume(id: IdArgument, url: UrlOption = None, space: SpaceOption = None) -> None:
    """Resume the delivery of a paused subscription.

    Example: `fieldfare resume cheap`
    """
    with connect(url, space) as client:
        client.configure_subscription(id, paused=False)
    out().print(Text(f"{id} is resumed"))


def _line(message: DeadMessage) -> str:
    when = datetime.fromtimestamp(message.dead_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    attempts = f"{message.attempts} attempt{'s' * (message.attempts != 1)}"
    head = f"{message.position}  {when}  {attempts}  {one_line(message.reason)}"
    if message.raw is None:
        return f"{head}\n  no event: retention has removed it"
    if message.unreadable:
        return f"{head}\n  {one_line(message.unreadable)}"
    return f"{head}\n  {one_line(message.raw.decode(errors='replace'))}"


def _describe(message: DeadMessage) -> dict[str, Any]:
    return {
        "position": str(message.position),
        "attempts": message.attempts,
        "reason": message.reason,
        "dead_ms": message.dead_ms,
        "event": msgspec.Raw(message.raw) if message.raw else None,
    }
