"""``fieldfare keys``: create, list and revoke API keys."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from fieldfare.cli import space_keys
from fieldfare.cli.connection import connect
from fieldfare.cli.output import JsonOption, UrlOption, one_line, out, print_json, say

app = typer.Typer(
    help="Create, list and revoke API keys; manage keys of encrypted spaces.", no_args_is_help=True
)
app.add_typer(space_keys.app, name="space")


@app.command(epilog="Example: `fieldfare keys create publish subscribe --space trading >trading.key`")
def create(
    rights: Annotated[
        list[str],
        typer.Argument(
            metavar="RIGHT...",
            help="publish, subscribe, manage (for a space); watch, admin, broker (for the service).",
        ),
    ],
    space: Annotated[
        str | None, typer.Option("--space", metavar="NAME", help="The space that the rights are for.")
    ] = None,
    note: Annotated[str, typer.Option("--note", help="A description of the key.")] = "",
    url: UrlOption = None,
) -> None:
    """Create a key and print it. It is shown only this once."""
    with connect(url) as client:
        made = client.create_key(rights, space=space, note=note)
    say(f"key {made.info.id}: store it where only its program can read it: it is not shown again")
    out().print(Text(made.key))


@app.command("list")
def list_all(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List the valid keys, with their rights, space, creation time and creator."""
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
def revoke(
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Ids of the keys, as `keys list` shows them.")
    ],
    url: UrlOption = None,
) -> None:
    """Revoke keys; open streams that use them are closed."""
    with connect(url) as client:
        for id in ids:
            client.revoke_key(id)
            out().print(Text(f"revoked the key {id}"))
