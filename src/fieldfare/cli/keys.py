"""``fieldfare keys``: make, list and revoke API keys."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from fieldfare.cli import space_keys
from fieldfare.cli.connection import connect
from fieldfare.cli.output import JsonOption, UrlOption, one_line, out, print_json, say

app = typer.Typer(help="Make, list and revoke API keys; keys of encrypted spaces.", no_args_is_help=True)
app.add_typer(space_keys.app, name="space")


@app.command(epilog="Example: `fieldfare keys create publish subscribe --space trading >trading.key`")
def create(
    rights: Annotated[
        list[str],
        typer.Argument(
            metavar="RIGHT...",
            help="publish, subscribe, manage: in a space. watch, admin: of the service.",
        ),
    ],
    space: Annotated[
        str | None, typer.Option("--space", metavar="NAME", help="The space that the rights hold in.")
    ] = None,
    note: Annotated[str, typer.Option("--note", help="What it is for.")] = "",
    url: UrlOption = None,
) -> None:
    """Make a key, and print it: this is the only time that it is to be seen."""
    with connect(url) as client:
        made = client.create_key(rights, space=space, note=note)
    say(f"key {made.info.id}: keep it where only its program can read it; it is not shown again")
    out().print(Text(made.key))


@app.command("list")
def list_all(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List the keys that let somebody in: what each may, who made it, and when."""
    with connect(url) as client:
        keys = client.api_keys()
    if as_json:
        print_json(keys)
        return
    for key in keys:
        when = datetime.fromtimestamp(key.created_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
        where = "the service" if key.space is None else key.space
        note = f"  {one_line(key.note)}" if key.note else ""
        out().print(Text(f"{key.id}  {' '.join(key.rights)}  {where}  {when} by {key.created_by}{note}"))
    if not keys:
        say("there are no keys")


@app.command(epilog="Example: `fieldfare keys revoke 3f9a1c2b7d4e`")
def revoke(ids: Annotated[list[str], typer.Argument(metavar="ID...")], url: UrlOption = None) -> None:
    """Have keys let nobody in any more; streams that are open for them end."""
    with connect(url) as client:
        for id in ids:
            client.revoke_key(id)
            out().print(Text(f"revoked the key {id}"))
