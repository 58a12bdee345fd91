"""``fieldfare subscribe``: the events of a subscription, one a line, as they come."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from fieldfare.cli.connection import connect
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
from fieldfare.client.errors import FieldfareError
from fieldfare.client.message import Message
from fieldfare.client.synchronous.client import Client
from fieldfare.client.synchronous.subscriber import Subscriber


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
    url: UrlOption = None,
    space: SpaceOption = None,
) -> None:
    """Follow a filter live: one line for each event that matches, until Ctrl-C.

    Examples:
    ```
    fieldfare subscribe --filter "data.symbol = 'YHOO' AND data.price < 18.5"
    fieldfare subscribe cheap --json | jq .data
    ```
    """
    if id is None and filter is None:
        fail("give the ID of a subscription or a --filter", EXIT_USAGE)
    count = 0
    with connect(url, space) as client:
        if id is not None and filter is None:
            client.get_subscription(id)  # One that is not there is an error before anything is said.
        subscriber = client.subscribe(id, filter, dialect=dialect)
        temporary = id is None
        try:
            with subscriber:
                say(f"following {subscriber.id}; Ctrl-C ends")
                for count, message in enumerate(subscriber, start=1):
                    _print(message, as_json)
                    if ack:
                        message.ack()
                    if count == limit:
                        break
        except KeyboardInterrupt:
            say(f"{count:,} {'event' if count == 1 else 'events'} received")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        finally:
            if temporary:
                _forget(client, subscriber)


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


def _forget(client: Client, subscriber: Subscriber) -> None:
    try:
        client.delete_subscription(subscriber.id)
    except FieldfareError as error:
        say(f"the temporary subscription {subscriber.id} could not be deleted: {error}")
