"""``fieldfare subscriptions move``: have a subscription delivered by another broker."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from fieldfare.cli.connection import connect
from fieldfare.cli.output import JsonOption, SpaceOption, UrlOption, known_form, out, print_json, printable


def move(
    id: Annotated[str, typer.Argument(metavar="ID", help="The subscription's id.")],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="BROKER",
            help="The broker to move it to; without this option, show the state.",
        ),
    ] = None,
    url: UrlOption = None,
    space: SpaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a subscription to another broker, or show the progress of its move.

    Each event is delivered by exactly one broker: up to one place by this one, after it by the other one.

    Example: `fieldfare subscriptions move cheap --to oslo`
    """
    with connect(url, space) as client:
        state = client.get_move(id) if to is None else client.move_subscription(id, to)
    if as_json:
        print_json(state)
        return
    with known_form():
        out().print(Text(f"{id}: {describe(printable(state))}"))


def describe(state: dict[str, Any]) -> str:
    """Return the state of a move as a sentence."""
    broker, reason = state.get("broker"), state.get("reason")
    said = {
        "offered": f"offered to the broker {broker}",
        "cancelled": "it stays here",
        "ending": f"the broker {broker} gets the events from here on",
        "ended": f"it moves to the broker {broker} once all messages here are settled",
        "moved": f"it has moved to the broker {broker}",
        "refused": "it has not moved",
    }.get(state["state"], f"it is arriving from the broker {broker}")
    return f"{said}: {reason}" if reason else said
