"""``fieldfare delayed``: list and cancel delayed events."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from fieldfare.cli.connection import connect
from fieldfare.cli.output import JsonOption, SpaceOption, UrlOption, out, print_json

app = typer.Typer(
    help="Delayed events: list or cancel them.",
    no_args_is_help=True,
)


@app.command("list")
def list_all(url: UrlOption = None, space: SpaceOption = None, as_json: JsonOption = False) -> None:
    """List the delayed events, soonest first."""
    with connect(url, space) as client:
        waiting = list(client.delayed())
    if as_json:
        print_json([{"id": each.id, "due": each.due.isoformat(), "events": each.count} for each in waiting])
        return
    for each in waiting:
        events = "event" if each.count == 1 else "events"
        out().print(Text(f"{each.id}  {each.due.isoformat()}  {each.count} {events}"))
    if not waiting:
        out().print("no delayed events")


@app.command(epilog="Example: `fieldfare delayed cancel 12`")
def cancel(
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Ids of the delayed events, as `delayed list` shows them."),
    ],
    url: UrlOption = None,
    space: SpaceOption = None,
) -> None:
    """Cancel delayed events that are not published yet."""
    with connect(url, space) as client:
        for id in ids:
            client.cancel_delayed(id)
            out().print(Text(f"canceled {id}"))
