"""``fieldfare quarantine``: list records that could not be matched, and publish them again."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from fieldfare.cli.connection import connect
from fieldfare.cli.output import JsonOption, UrlOption, out, print_json

app = typer.Typer(
    help="Quarantined records, which could not be matched: list them, or publish them again.",
    no_args_is_help=True,
)


@app.command("list")
def list_all(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List the quarantined records, oldest first, with the errors. They were delivered to no subscriber."""
    with connect(url) as client:
        records = client.quarantine()
    if as_json:
        print_json(records)
        return
    for record in records:
        head = f"{record['position']}  {record['space']}  {record['events']} events"
        out().print(Text(f"{head}\n  {record['error']}"))
    if not records:
        out().print("no quarantined records")


@app.command(epilog="Example: `fieldfare quarantine retry 0-17-0`")
def retry(
    positions: Annotated[
        list[str],
        typer.Argument(
            metavar="POSITION...", help="Positions of the records, as `quarantine list` shows them."
        ),
    ],
    url: UrlOption = None,
) -> None:
    """Publish quarantined records again, at new positions and for current subscriptions.

    Do this once the cause of the failure is fixed.
    """
    with connect(url) as client:
        for position in positions:
            place = client.retry_quarantined(position)
            out().print(Text(f"{position} is published again at 0-{place['offset']}-0"))
