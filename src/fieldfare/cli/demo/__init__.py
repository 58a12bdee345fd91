"""``fieldfare demo``: the complete service on real data, checked at the end against a naive evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    events: Annotated[
        int | None, typer.Option(min=1, help="Replay only this number of departures, from the year's start.")
    ] = None,
    alerts: Annotated[int, typer.Option(min=1, help="Number of travellers' alerts.")] = 100_000,
    subscribers: Annotated[
        int, typer.Option(min=0, help="Number of alerts with a connected subscriber.")
    ] = 40,
    data: Annotated[
        Path | None,
        typer.Option(help="Keep the service's data in this new directory.", show_default="a temporary one"),
    ] = None,
    port: Annotated[int, typer.Option(help="The service's port; 0 chooses a free one.")] = 0,
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
            help="Match on a Spark cluster, spark://HOST:PORT; without --log, one on this machine.",
        ),
    ] = None,
    index_store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where the cluster's machines read the index; see serve."),
    ] = None,
    encrypted: Annotated[
        bool,
        typer.Option(
            "--encrypted", help="Publish and subscribe in an encrypted space (docs/encrypted-spaces.md)."
        ),
    ] = False,
) -> None:
    """Match a year of real departures against 100,000 travellers' alerts, and check the results.

    It starts a separate service, registers the alerts, replays the 336,776 departures of New York's airports
    in 2013 through the HTTP API while subscribers receive matches, compares the results with a naive
    evaluator, and stops the service. It takes a few minutes on two cores. The exit status is 0 only if all
    results are equal.
    """
    if subscribers > alerts:
        raise typer.BadParameter(f"{subscribers} subscribers need at least as many alerts, not {alerts}")
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
