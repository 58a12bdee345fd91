"""``fieldfare spaces``: create and list spaces."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from fieldfare.cli.connection import connect
from fieldfare.cli.output import UrlOption, out

app = typer.Typer(help="Create and list spaces (a space is a tenant's world).", no_args_is_help=True)


@app.command(epilog="Example: `fieldfare spaces create trading`")
def create(name: Annotated[str, typer.Argument(metavar="NAME")], url: UrlOption = None) -> None:
    """Make a new space."""
    with connect(url) as client:
        client.create_space(name)
    out().print(Text(f"created the space {name}"))


@app.command("list")
def list_all(url: UrlOption = None) -> None:
    """List all spaces."""
    with connect(url) as client:
        for name in client.spaces():
            out().print(Text(name))
