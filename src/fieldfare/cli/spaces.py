"""``fieldfare spaces``: create, list and delete spaces, set their quotas, state what they publish."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from fieldfare.cli.connection import connect
from fieldfare.cli.output import (
    EXIT_USAGE,
    DialectOption,
    JsonOption,
    UrlOption,
    fail,
    known_form,
    one_line,
    out,
    print_json,
)
from fieldfare.cli.space_keys import chosen_key
from fieldfare.client.encrypting import NO_ENCRYPTION
from fieldfare.units import SIZE_RULE, parse_byte_rate

app = typer.Typer(
    help="Create, list and delete spaces (tenants), set their quotas, and state what they publish.",
    no_args_is_help=True,
)

BY_ITSELF = "default"


@app.command(epilog="Example: `fieldfare spaces create trading`")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the space.")],
    is_encrypted: Annotated[
        bool,
        typer.Option(
            "--encrypted",
            help="Accept only events and filters that are encrypted with the key of --space-key.",
        ),
    ] = False,
    url: UrlOption = None,
) -> None:
    """Create a space."""
    key = chosen_key() if is_encrypted else None
    if is_encrypted and key is None:
        fail("--encrypted needs a key: use fieldfare --space-key FILE spaces create ...", EXIT_USAGE)
    with connect(url) as client:
        client.create_space(name, encrypted=key or NO_ENCRYPTION)
    out().print(Text(f"created the space {name}"))


@app.command(epilog="Example: `fieldfare spaces delete trading --yes`")
def delete(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the space.")],
    is_meant: Annotated[bool, typer.Option("--yes", help="Confirm the deletion.")] = False,
    url: UrlOption = None,
) -> None:
    """Delete a space with its subscriptions, dead letters, keys and quotas. This cannot be undone."""
    if not is_meant:
        fail(f"the space {name} cannot be restored after its deletion: confirm with --yes")
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
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the space.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUOTA=VALUE]...",
            help="Quotas to set; 0 means no limit, `default` the service's default.",
        ),
    ] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the quotas and the usage of a space, or set quotas (with a key that has the right admin)."""
    given = dict(map(_change, changes or []))
    with connect(url) as client:
        found = client.quotas(name)
        if given:
            with known_form():
                given = {**found["set"], **given}
            found = client.set_quotas(name, given)
    if as_json:
        print_json(found)
        return
    with known_form():
        _show_quotas(found)


def _show_quotas(found: Mapping[str, Any]) -> None:
    for quota, limit in found["limits"].items():
        used = found["used"].get(quota)
        bound = "no bound" if limit is None else f"{limit:,.15g}"
        whose = ", set for this space" if quota in found["set"] else ""
        has = "" if used is None else f", used {used:,}"
        out().print(Text(f"{quota:23}{bound}{whose}{has}"))


@app.command(epilog="Example: `fieldfare spaces advertise trading \"data.country = 'NO'\"`")
def advertise(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the space.")],
    filter: Annotated[
        str | None, typer.Argument(metavar="FILTER", help="A filter that matches all events published here.")
    ] = None,
    is_all: Annotated[
        bool,
        typer.Option("--everything", help="Withdraw the advertisement: any event may be published here."),
    ] = False,
    dialect: DialectOption = "sql",
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show or state what is published in a space at this site (with a key that has the right admin).

    Other sites then send only the filters that can match these events, and other events are refused here.
    """
    if filter is not None and is_all:
        fail("give FILTER or --everything, not both", EXIT_USAGE)
    with connect(url) as client:
        if filter is None and not is_all:
            found = client.advertisement(name)
        else:
            found = client.set_advertisement(name, filter, dialect)
    if as_json:
        print_json(found)
        return
    with known_form():
        _show_advertisement(name, found)


def _show_advertisement(name: str, found: Mapping[str, Any]) -> None:
    shown = "everything" if found["filter"] is None else one_line(found["filter"])
    out().print(Text(f"{name} publishes {shown}"))
    waits = [site for site, is_confirmed in found["sites"].items() if not is_confirmed]
    if waits:
        wider = "; events that only this allows are refused until then" if found["is_pending"] else ""
        out().print(Text(f"not confirmed by {', '.join(waits)} yet{wider}"))


def _change(text: str) -> tuple[str, float | None]:
    name, is_set, value = text.partition("=")
    if is_set and value == BY_ITSELF:
        return name, None
    try:
        quota: float = parse_byte_rate(value) if "bytes" in name else float(value)
    except ValueError:
        quota = math.nan
    if not math.isfinite(quota):
        rule = f". Of bytes {SIZE_RULE}" if "bytes" in name else ""
        fail(
            f"{text!r} sets no quota: write QUOTA=VALUE, such as subscriptions=10000,"
            f" or QUOTA={BY_ITSELF}{rule}"
        )
    return name, quota
