"""``fieldfare demo``: the whole service on real data, checked at the end against a naive evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    events: Annotated[
        int | None, typer.Option(min=1, help="Replay only so many departures, the earliest of the year.")
    ] = None,
    alerts: Annotated[int, typer.Option(min=1, help="How many travellers' alerts stand.")] = 100_000,
    subscribers: Annotated[
        int, typer.Option(min=0, help="How many of them have a connected subscriber who receives live.")
    ] = 40,
    data: Annotated[
        Path | None,
        typer.Option(help="Keep the service's data in this new directory.", show_default="a temporary one"),
    ] = None,
    port: Annotated[int, typer.Option(help="Where the service listens; 0 for a free port.")] = 0,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Keep events and matches in new topics of Kafka, of one partition: kafka://HOST:PORT/TOPIC.",
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Match on a Spark cluster, spark://HOST:PORT; without --log, one of this machine.",
        ),
    ] = None,
    index_store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where the cluster's machines read the index; see serve."),
    ] = None,
    encrypted: Annotated[
        bool,
        typer.Option("--encrypted", help="Publish and subscribe in a space that the service cannot read."),
    ] = False,
) -> None:
    """Match a year of real departures against 100,000 travellers' alerts, and check every word.

    Starts a service of its own, registers the alerts, replays the 336,776 departures of New York's
    airports in 2013 through the HTTP API while subscribers receive live, compares what came out with a
    naive evaluator, and stops. Takes a few minutes on two cores. Exits with 0 only if all is equal.
    """
    if subscribers > alerts:
        raise typer.BadParameter(f"{subscribers} subscribers need as many alerts, not {alerts}")
    if log is not None and "?" not in log:
        log += "?partitions=1"
    if data is not None and data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise typer.BadParameter(f"{data} exists and is not an empty directory; the demo needs a new one")
    try:
        from fieldfare.cli.demo.scenario import DemoSettings
        from fieldfare.cli.demo.service import ServicePlaces
        from fieldfare.cli.demo.story import tell
    except ImportError as error:
        typer.echo(
            f"the demo needs all parts of fieldfare ({error}): pip install 'fieldfare[demo]'", err=True
        )
        raise typer.Exit(1) from None
    places = ServicePlaces(data, port, log, master, index_store)
    settings = DemoSettings(events, alerts, subscribers, encrypted=encrypted)
    raise typer.Exit(tell(settings, places))
