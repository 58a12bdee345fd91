"""``fieldfare spaces``: create, list and delete spaces, and say how much each may have."""

from __future__ import annotations

import math
from typing import Annotated

import typer
from rich.text import Text

from fieldfare.cli.connection import connect
from fieldfare.cli.output import EXIT_USAGE, JsonOption, UrlOption, fail, out, print_json
from fieldfare.cli.space_keys import chosen_key
from fieldfare.client.encrypting import PLAINLY

app = typer.Typer(
    help="Create, list and delete spaces (a space is a tenant's world); their quotas.",
    no_args_is_help=True,
)

BY_ITSELF = "default"


@app.command(epilog="Example: `fieldfare spaces create trading`")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    is_encrypted: Annotated[
        bool, typer.Option("--encrypted", help="Take only what is encrypted with the --space-key.")
    ] = False,
    url: UrlOption = None,
) -> None:
    """Make a new space."""
    key = chosen_key() if is_encrypted else None
    if is_encrypted and key is None:
        fail("an encrypted space needs its key: fieldfare --space-key FILE spaces create ...", EXIT_USAGE)
    with connect(url) as client:
        client.create_space(name, encrypted=key or PLAINLY)
    out().print(Text(f"created the space {name}"))


@app.command(epilog="Example: `fieldfare spaces delete trading --yes`")
def delete(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    is_meant: Annotated[bool, typer.Option("--yes", help="It is meant: nothing of it comes back.")] = False,
    url: UrlOption = None,
) -> None:
    """Delete a space: its subscriptions with all that was given up, its keys, its quotas."""
    if not is_meant:
        fail(f"nothing of the space {name} could be had back: say --yes if that is meant")
    with connect(url) as client:
        client.delete_space(name)
    out().print(Text(f"deleted the space {name}"))


@app.command("list")
def list_all(url: UrlOption = None) -> None:
    """List all spaces."""
    with connect(url) as client:
        for name in client.spaces():
            out().print(Text(name))


@app.command(epilog="Example: `fieldfare spaces quotas trading subscriptions=10000 events_per_s=500`")
def quotas(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUOTA=VALUE]...", help="Set these; 0 is no bound, `default` is what all spaces have."
        ),
    ] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how much a space may have, and what it has; set some of it, with an admin's key."""
    given = dict(map(_change, changes or []))
    with connect(url) as client:
        found = client.quotas(name)
        if given:
            found = client.set_quotas(name, {**found["set"], **given})
    if as_json:
        print_json(found)
        return
    for quota, limit in found["limits"].items():
        used = found["used"].get(quota)
        bound = "no bound" if limit is None else f"{limit:,.15g}"
        whose = ", set for it" if quota in found["set"] else ""
        has = "" if used is None else f", has {used:,}"
        out().print(Text(f"{quota:23}{bound}{whose}{has}"))


def _change(text: str) -> tuple[str, float | None]:
    name, is_set, value = text.partition("=")
    if is_set and value == BY_ITSELF:
        return name, None
    try:
        quota = float(value)
    except ValueError:
        quota = math.nan
    if not math.isfinite(quota):
        fail(f"{text!r} sets no quota: write QUOTA=VALUE, such as subscriptions=10000, or QUOTA={BY_ITSELF}")
    return name, quota
