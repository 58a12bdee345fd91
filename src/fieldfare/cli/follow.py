"""``fieldfare subscribe``: print the events of a subscription as they arrive, one per line."""

from __future__ import annotations

import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import msgspec
import typer

from fieldfare.cli.connection import connect
from fieldfare.cli.execute import execute, give_up
from fieldfare.cli.output import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    DialectOption,
    SpaceOption,
    UrlOption,
    fail,
    one_line,
    report_warning,
    say,
)
from fieldfare.cli.streams import write_bytes
from fieldfare.client.errors import ApiError, EncryptionError, FieldfareError
from fieldfare.client.message import Message
from fieldfare.client.records import SubscriptionInfo
from fieldfare.client.synchronous.client import Client
from fieldfare.client.synchronous.subscriber import Subscriber
from fieldfare.model import DeliverySettings

EXECUTED_WINDOW = 100
"""Maximum messages in flight with --exec; low, to leave messages for other readers of the subscription."""


TEMPORARY_UNUSED_S = 3600.0
"""Seconds without a reader after which the service removes a temporary subscription. An open stream counts as
read; the time is for a connection that is cut, or a machine that sleeps."""

StartOption = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE",
        help="With --filter: where a new subscription begins: earliest, a position, or a time such as"
        " 2026-07-01T12:00:00Z. Default: now.",
    ),
]
FollowedId = Annotated[
    str | None,
    typer.Argument(
        metavar="ID", help="Id of the subscription to follow; default: a temporary one with --filter."
    ),
]
FilterText = Annotated[
    str | None,
    typer.Option(
        "--filter",
        "-f",
        help="With ID: create the subscription with this filter. Without: use a temporary subscription.",
    ),
]


def subscribe(
    id: FollowedId = None,
    filter: FilterText = None,
    dialect: DialectOption = "sql",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each event as JSON, as it was published.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Exit after this number of events.")
    ] = None,
    ack: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Acknowledge events after they are printed.")
    ] = True,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="Run this shell command for each event, with the event on its standard input; exit status 0"
            " acknowledges the event.",
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=1000, help="With --exec: maximum commands at a time.")
    ] = 1,
    start: StartOption = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="With ID and --filter: replace the filter if it differs.")
    ] = False,
    url: UrlOption = None,
    space: SpaceOption = None,
) -> None:
    """Print the events that match a filter as they arrive, one per line, until Ctrl-C.

    Examples:
    ```
    fieldfare subscribe --filter "data.symbol = 'YHOO' AND data.price < 18.5"
    fieldfare subscribe cheap --filter "data.price < 18.5" --start earliest
    fieldfare subscribe cheap --json | jq .data
    fieldfare subscribe cheap --exec 'jq -r .data.symbol >> symbols.txt' --concurrency 4
    ```
    """
    if id is None and filter is None:
        fail("give the ID of a subscription or a --filter", EXIT_USAGE)
    if start is not None and filter is None:
        fail("--start needs a --filter; for an existing subscription, use `fieldfare seek`", EXIT_USAGE)
    if replace and (id is None or filter is None):
        fail("--replace needs an ID and a --filter", EXIT_USAGE)
    if command is not None and (id is None or as_json or limit is not None or not ack):
        fail("--exec needs an ID, and cannot be combined with --json, --limit or --no-ack", EXIT_USAGE)
    if command is not None and not command.strip():
        fail("--exec is empty, which would ack every message: name a shell command", EXIT_USAGE)
    with connect(url, space) as client, _ended_by_signals():
        if id is None:
            assert filter is not None
            with _temporary(client, filter, dialect, start) as name:
                _follow(client.subscribe(name), as_json, limit, ack)
            return
        if filter is None:
            client.get_subscription(id)  # Fail before any output if it does not exist.
        else:
            _make_sure(client, id, filter, dialect, replace, start)
        if command is not None:
            execute(client.subscribe(id, window=EXECUTED_WINDOW), command, concurrency)
        _follow(client.subscribe(id), as_json, limit, ack)


def _follow(subscriber: Subscriber, as_json: bool, limit: int | None, ack: bool) -> None:
    count = 0
    try:
        with subscriber:
            say(f"following {subscriber.id}; Ctrl-C ends")
            for count, message in enumerate(subscriber, start=1):
                try:
                    _print(message, as_json)
                except EncryptionError as error:
                    give_up(message, error, ack)
                else:
                    if ack:
                        message.ack()
                if count == limit:
                    break
    except KeyboardInterrupt:
        say(f"{count:,} {'event' if count == 1 else 'events'} received")
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the command as Ctrl-C does, so that it cleans up."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # A signal that is ignored (nohup) stays ignored.
    before = {number: signal.getsignal(number) for number in numbers}
    caught = [number for number in numbers if before[number] is not signal.SIG_IGN]

    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        if not ending:  # A closing terminal sends several signals: do not interrupt the cleanup.
            ending = True
            raise SystemExit(128 + number)

    for number in caught:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, before[number])


@contextmanager
def _temporary(client: Client, filter: str, dialect: str, start: str | None) -> Iterator[str]:
    """Create a temporary subscription and delete it at the end.

    Its id is chosen here, so that it can be deleted even if the answer to its creation was lost. If the
    program is killed, or the service cannot be reached, it expires after `TEMPORARY_UNUSED_S` without a
    reader.
    """
    id = f"temporary-{uuid.uuid4().hex}"
    delivery = DeliverySettings(expires_unused_s=TEMPORARY_UNUSED_S)
    is_made, refused = False, False
    try:
        try:
            _warn(client.create_subscription(filter, id, dialect, delivery, start))
            is_made = True
        except ApiError:
            refused = True
            raise
        yield id
    finally:
        if not refused:
            _forget(client, id, is_made)


def _make_sure(client: Client, id: str, filter: str, dialect: str, replace: bool, start: str | None) -> None:
    """Create a subscription unless it exists; replace a different filter only with ``replace``, else fail."""
    try:
        present = client.get_subscription(id)
    except ApiError as error:
        if error.status != 404:
            raise
        _warn(client.create_subscription(filter, id, dialect, start=start))
        return
    if (present.filter, present.dialect) == (filter, dialect):
        return
    if not replace:
        fail(
            f"the subscription {id} has another filter: {present.filter}\n"
            "hint: use --replace to replace it, or leave out --filter to keep it"
        )
    _warn(client.replace_subscription(id, filter, dialect))


def _warn(stored: SubscriptionInfo) -> None:
    for warning in stored.warnings:
        report_warning(warning.detail, warning.hint)


def _print(message: Message, as_json: bool) -> None:
    if as_json:
        write_bytes(message.raw + b"\n")
    else:
        sys.stdout.write(format_message(message) + "\n")
    sys.stdout.flush()


def format_message(message: Message) -> str:
    """Format a message as one line of text: position, time, type, source and data."""
    event = message.event
    data = event.get("data")
    shown = data if isinstance(data, str) else msgspec.json.encode(data).decode() if data is not None else ""
    parts = [str(message.position), event.get("time"), event.get("type"), event.get("source"), shown]
    return "  ".join(one_line(str(part)) for part in parts if part)


def _forget(client: Client, id: str, is_made: bool) -> None:
    """Delete a temporary subscription that was created, or may have been if the answer was lost."""
    try:
        client.delete_subscription(id)
    except FieldfareError as error:
        if is_made and not (isinstance(error, ApiError) and error.status == 404):
            after = f"it expires {TEMPORARY_UNUSED_S / 60:g} minutes after it was last read"
            say(f"the temporary subscription {id} could not be deleted: {error}; {after}")
