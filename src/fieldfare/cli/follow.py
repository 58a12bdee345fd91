"""``fieldfare subscribe``: the events of a subscription, one a line, as they come."""

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
    say,
)
from fieldfare.cli.streams import write_bytes
from fieldfare.client.errors import ApiError, EncryptionError, FieldfareError
from fieldfare.client.message import Message
from fieldfare.client.synchronous.client import Client
from fieldfare.client.synchronous.subscriber import Subscriber

EXECUTED_WINDOW = 100
"""With --exec so few messages wait here: others that read the subscription shall have work, too."""


StartOption = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE",
        help="With --filter, of a new one: begin earlier, at earliest, a position, or a time such as"
        " 2026-07-01T12:00:00Z.",
    ),
]


def subscribe(
    id: Annotated[str | None, typer.Argument(metavar="ID", help="A subscription to follow.")] = None,
    filter: Annotated[
        str | None,
        typer.Option(
            "--filter",
            "-f",
            help="With ID: what the subscription is to have. Without: followed now, forgotten at the end.",
        ),
    ] = None,
    dialect: DialectOption = "sql",
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as its raw JSON.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="End after so many events.")
    ] = None,
    ack: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Whether what is printed is marked as done.")
    ] = True,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="Run this for each event, which is its input: status 0 marks it as done.",
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=1000, help="With --exec: so many at a time.")
    ] = 1,
    start: StartOption = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="With ID and --filter: replace the filter that ID has.")
    ] = False,
    url: UrlOption = None,
    space: SpaceOption = None,
) -> None:
    """Follow a filter live: one line for each event that matches, until Ctrl-C.

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
        fail("--start goes with a --filter; seek is for a subscription that there is", EXIT_USAGE)
    if replace and (id is None or filter is None):
        fail("--replace goes with an ID and a --filter", EXIT_USAGE)
    if command is not None and (id is None or as_json or limit is not None or not ack):
        fail("--exec goes with an ID, and not with --json, --limit or --no-ack", EXIT_USAGE)
    with connect(url, space) as client, _ended_by_signals():
        if id is None:
            assert filter is not None
            with _temporary(client, filter, dialect, start) as name:
                _follow(client.subscribe(name), as_json, limit, ack)
            return
        if filter is None:
            client.get_subscription(id)  # One that is not there is an error before anything is said.
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
    """SIGTERM and a closed terminal end the command as Ctrl-C does: what it made goes with it."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # Whoever had a signal ignored (nohup) goes on having it ignored.
    before = {number: signal.getsignal(number) for number in numbers}
    caught = [number for number in numbers if before[number] is not signal.SIG_IGN]

    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        if not ending:  # A terminal that closes sends several: the end is not to be ended.
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
    """A subscription that goes when this ends, whenever that is: its id is known before it is made."""
    id = f"temporary-{uuid.uuid4().hex}"
    refused = False
    try:
        try:
            client.create_subscription(filter, id, dialect, start=start)
        except ApiError:
            refused = True
            raise
        yield id
    finally:
        if not refused:
            _forget(client, id)


def _make_sure(client: Client, id: str, filter: str, dialect: str, replace: bool, start: str | None) -> None:
    """See to it that a subscription has this filter; one that has another is not replaced unasked."""
    try:
        present = client.get_subscription(id)
    except ApiError as error:
        if error.status != 404:
            raise
        client.create_subscription(filter, id, dialect, start=start)
        return
    if (present.filter, present.dialect) == (filter, dialect):
        return
    if not replace:
        fail(
            f"the subscription {id} has another filter: {present.filter}\n"
            "hint: --replace gives it this one; without --filter it is followed as it is"
        )
    client.replace_subscription(id, filter, dialect)


def _print(message: Message, as_json: bool) -> None:
    if as_json:
        write_bytes(message.raw + b"\n")
    else:
        sys.stdout.write(format_message(message) + "\n")
    sys.stdout.flush()


def format_message(message: Message) -> str:
    """One line for a person: position, time, type, source and data."""
    event = message.event
    data = event.get("data")
    shown = data if isinstance(data, str) else msgspec.json.encode(data).decode() if data is not None else ""
    parts = [str(message.position), event.get("time"), event.get("type"), event.get("source"), shown]
    return "  ".join(one_line(str(part)) for part in parts if part)


def _forget(client: Client, id: str) -> None:
    try:
        client.delete_subscription(id)
    except FieldfareError as error:
        if not (isinstance(error, ApiError) and error.status == 404):
            say(f"the temporary subscription {id} could not be deleted: {error}")
