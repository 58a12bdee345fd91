"""``fieldfare delayed``: what was published for later, and how it is taken back."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from fieldfare.cli.connection import connect
from fieldfare.cli.output import JsonOption, SpaceOption, UrlOption, out, print_json

app = typer.Typer(
    help="Events that wait for their time: list them, take them back.",
    no_args_is_help=True,
)


@app.command("list")
def list_all(url: UrlOption = None, space: SpaceOption = None, as_json: JsonOption = False) -> None:
    """List what was published for later, soonest first."""
    with connect(url, space) as client:
        waiting = list(client.delayed())
    if as_json:
        print_json([{"id": each.id, "due": each.due.isoformat(), "events": each.count} for each in waiting])
        return
    for each in waiting:
        out().print(Text(f"{each.id}  {each.due.isoformat()}  {each.count} events"))
    if not waiting:
        out().print("nothing waits for its time")


@app.command(epilog="Example: `fieldfare delayed cancel 12`")
def cancel(
    ids: Annotated[list[str], typer.Argument(metavar="ID...")],
    url: UrlOption = None,
    space: SpaceOption = None,
) -> None:
    """Take events back whose time has not come."""
    with connect(url, space) as client:
        for id in ids:
            client.cancel_delayed(id)
            out().print(Text(f"{id} does not come"))
