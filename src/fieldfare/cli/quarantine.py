"""``fieldfare quarantine``: the records that could not be matched, and another try."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from fieldfare.cli.connection import connect
from fieldfare.cli.output import JsonOption, UrlOption, out, print_json

app = typer.Typer(
    help="Records that were set aside because matching them failed: list them, publish them again.",
    no_args_is_help=True,
)


@app.command("list")
def list_all(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List the records that nobody was given, oldest first, and why."""
    with connect(url) as client:
        records = client.quarantine()
    if as_json:
        print_json(records)
        return
    for record in records:
        head = f"{record['position']}  {record['space']}  {record['events']} events"
        out().print(Text(f"{head}\n  {record['error']}"))
    if not records:
        out().print("no record is set aside")


@app.command(epilog="Example: `fieldfare quarantine retry 0-17-0`")
def retry(
    positions: Annotated[list[str], typer.Argument(metavar="POSITION...")], url: UrlOption = None
) -> None:
    """Publish records again, when the cause is mended: at new positions, for who subscribes now."""
    with connect(url) as client:
        for position in positions:
            place = client.retry_quarantined(position)
            out().print(Text(f"{position} is published again at 0-{place['offset']}-0"))
