"""``fieldfare brokers``: the links of a broker, the other sites that it reaches; leaving and removing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from fieldfare.cli.connection import connect
from fieldfare.cli.output import JsonOption, UrlOption, known_form, out, print_json, printable

app = typer.Typer(help="Show a broker's links and all sites that it reaches; leave the sites, or remove one.")

AGAIN_S = 0.5
"""Pause between two looks at a broker that is leaving, in seconds."""

WAITS = {
    "requests": "requests that publish",
    "moves": "moves of subscriptions",
    "delayed_records": "delayed records",
    "unmatched_records": "records that are not forwarded yet",
    "subscriptions": "subscriptions with a backlog",
    "messages": "messages of these",
    "uncounted_backlogs": "backlogs that are not counted",
    "outbox_entries": "entries in outboxes",
    "inbox_bytes": "bytes in the inbox",
    "kept_entries": "entries that wait for receipts",
    "receiving": "batches that are being received",
}
"""Names for the numbers of a departure, by key."""


@app.callback(invoke_without_command=True)
def brokers(context: typer.Context, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show a broker's links, its neighbours and the other sites that it reaches.

    For each link: whether it is up, what waits in its outbox, and the number of the last entry received. For
    each other broker: the next hop, its filters here, and the entries with events sent to it and received.

    Example:
    ```
    fieldfare brokers --url http://localhost:7737
    ```
    """
    if context.invoked_subcommand is not None:
        return
    with connect(url) as client:
        state = client.brokers()
    if as_json:
        print_json(state)
        return
    with known_form():
        _show(printable(state))


def _show(state: Mapping[str, Any]) -> None:
    notes = {"staying": "", "relay": ", a relay"}
    leaving = notes.get(state.get("state", "staying"), f", {state.get('state')} (it leaves)")
    out().print(Text(f"broker {state['broker']}, routing {state['routing']}{leaving}"))
    for link in state["links"]:
        out().print(Text(_link(link)))
    for each in state["brokers"]:
        if each["name"] != state["broker"]:
            out().print(Text(_broker(each)))
        for space, filter in each.get("advertised", {}).items():
            out().print(Text(f"{each['name']} publishes in {space}: {filter}"))
        if each.get("advertised_left_out"):
            count = each["advertised_left_out"]
            out().print(Text(f"{each['name']}: the filters of {count} more spaces are not shown"))
    for line in _troubles(state):
        out().print(Text(line))


@app.command(epilog="Example: `fieldfare brokers remove oslo`")
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the broker, as `brokers` shows it.")],
    url: UrlOption = None,
) -> None:
    """Remove a broker that is gone for good, from this site and all that it reaches.

    Its filters are deleted, no events are kept for it, and all other brokers refuse it from then on.
    """
    with connect(url) as client:
        client.remove_broker(name)
    out().print(Text(f"removed the broker {name}"))


@app.command(epilog="Example: `fieldfare brokers leave --timeout 600`")
def leave(
    force: Annotated[
        bool, typer.Option("--force", help="Leave even if other brokers can then no longer reach each other.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel leaving: the broker stays.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0, help="Maximum time to wait for the end.")
    ] = 3600.0,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let this broker leave the sites without losing events, before it is shut down.

    It accepts no new events and filters, sends all events that wait for other brokers, and delivers what its
    subscribers still have to get. Then all other brokers are told that it has left. The command shows the
    progress until then. If it is interrupted or times out, the broker continues to leave: run it again to
    watch.
    """
    with connect(url) as client, known_form():
        state = client.stay() if cancel else client.leave(force=force)
        until_s, shown = time.monotonic() + timeout, ""
        while True:
            line = describe_departure(printable(state))
            if line != shown and not as_json:
                out().print(Text(line))
            shown = line
            is_over = state["state"] == "staying" or (state["state"] == "left" and not state["untold"])
            if is_over or time.monotonic() >= until_s:
                break
            time.sleep(AGAIN_S)
            state = client.get_leave()
    if as_json:
        print_json(state)
    if not (cancel or is_over):
        raise typer.Exit(1)


def describe_departure(state: dict[str, Any]) -> str:
    """Return the progress of a broker's departure, and what it waits for."""
    name = state["broker"]
    if state["state"] == "staying":
        return f"the broker {name} stays"
    if state["state"] == "left":
        if state["untold"]:
            return f"the broker {name} has left; not told yet: {', '.join(state['untold'])}"
        return f"the broker {name} has left: stop it"
    waits = [f"{count} {WAITS.get(kind, kind)}" for kind, count in state["waits_for"].items()]
    if state["state"] == "withdrawn" and state["sites"]:
        waits.append(f"confirmations of {', '.join(state['sites'])}")
    return f"the broker {name} is leaving" + (f"; waits for {', '.join(waits)}" if waits else "")


def _link(link: dict[str, Any]) -> str:
    line = (
        f"link to {link['peer']}: {'up' if link['is_up'] else 'down'},"
        f" {link['outbox_entries']} entries ({link['outbox_bytes']} bytes) in the outbox,"
        f" {link['unacknowledged']} of them sent; received up to entry {link['received_to']}"
    )
    return f"{line}; {link['trouble']}" if link["trouble"] else line


def _broker(broker: dict[str, Any]) -> str:
    if broker["is_removed"]:
        return f"{broker['name']}: removed"
    way = f"via {broker['next_hop']}" if broker["next_hop"] else "no path"
    if broker.get("is_relay"):
        return f"{broker['name']}: {way}, a relay"
    held_back = ""
    if broker.get("held_back_filters"):
        held_back = f"; {broker['held_back_filters']} filters of this site can match none of its events"
    way += ", leaving" if broker.get("is_leaving") else ""
    return (
        f"{broker['name']}: {way}, {broker['filters']} filters known here,"
        f" {broker['events_sent']} entries with events sent to it, {broker['events_received']} received;"
        f" subscriptions up to revision {broker['counts_through']} count there{held_back}"
    )


def _troubles(state: Mapping[str, Any]) -> list[str]:
    said = []
    if state["without_path"]:
        said.append(f"{state['without_path']} entries wait for a path to their destinations")
    if state.get("not_kept_entries"):
        said.append(
            f"{state['not_kept_entries']} entries were not kept until their destinations confirm them: they"
            " are lost if a broker between is removed"
        )
    for each in state["brokers"]:
        if each.get("missing_entries") or each.get("waits_for_filters"):
            what = f"{each['missing_entries']} entries with events" if each["missing_entries"] else ""
            what += (" and " if what else "") + ("changes of filters" if each["waits_for_filters"] else "")
            said.append(f"{what} of {each['name']} have not arrived, although later ones have")
    if state.get("dropped_events"):
        said.append(
            f"{state['dropped_events']} events of others were left out: they are not valid, a link's filter"
            " has kept them back, or their space does not exist here"
        )
    if state.get("refused_filters"):
        said.append(
            f"{state['refused_filters']} filters of others were refused: of another version, or too many"
        )
    twice = [each["name"] for each in state["brokers"] if each.get("sent_twice")]
    if twice:
        said.append(
            f"entries came twice from {', '.join(twice)}: the repeats were ignored, but this is a fault"
        )
    return said
