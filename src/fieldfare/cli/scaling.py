"""``fieldfare scale``: hosts, slices and loads of an elastic service, and its scaling decisions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fieldfare.cli.output import JsonOption, fail, need_packages, out, print_json
from fieldfare.cli.service import SPARK_PACKAGES, find_missing

if TYPE_CHECKING:
    from fieldfare.storage.elastic import ElasticLoads, ElasticRecord
    from fieldfare.storage.folder import DataFolder

SHOWN = 10


def scale(
    data: Annotated[
        Path,
        typer.Option("--data", envvar="FIELDFARE_DATA", metavar="DIR", help="The service's data directory."),
    ] = Path("fieldfare-data"),
    move: Annotated[
        str | None,
        typer.Option(
            "--move", metavar="SLICE=HOST", help="Ask the running service to move a slice to a host."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show an elastic service's hosts, slices and loads, and why it grew or shrank.

    It reads the data directory, whether or not the service is running; see `fieldfare serve --elastic`.

    Examples:
    ```
    fieldfare scale --data ./fieldfare-data
    fieldfare scale --data ./fieldfare-data --move M:3=host2
    ```
    """
    if missing := find_missing(SPARK_PACKAGES):
        need_packages("scale", "server", missing)
    from fieldfare.storage.elastic import ElasticLoads, ElasticRecord, describe_elastic
    from fieldfare.storage.errors import StorageError
    from fieldfare.storage.folder import DataFolder

    folder = DataFolder(data)
    try:
        record = ElasticRecord.read(folder.elastic)
    except StorageError as error:
        fail(str(error))
    if record.configuration is None:
        fail(f"no elastic service has run on {data}\nhint: start one with fieldfare serve --elastic MIN..MAX")
    if move is not None:
        _ask_for(folder, record, move)
        return
    loads = ElasticLoads.read(folder.elastic_loads)
    if as_json:
        print_json(describe_elastic(record, loads, time.time()))
    else:
        _print(record, loads)


def _ask_for(folder: DataFolder, record: ElasticRecord, text: str) -> None:
    from fieldfare.elasticity.messages import SliceMove
    from fieldfare.storage.elastic import ElasticLoads, pending_move_request, wish

    name, _, host = text.partition("=")
    configuration = record.configuration
    assert configuration is not None
    if name not in configuration.places:
        fail(f"there is no slice {name!r}; the slices are {', '.join(configuration.places)}")
    if host not in configuration.hosts:
        fail(f"there is no host {host!r}; the hosts are {', '.join(configuration.hosts)}")
    loads = ElasticLoads.read(folder.elastic_loads)
    if loads is None or not loads.is_fresh(time.time()):
        fail("the service is not running, so it cannot move a slice: start it first")
    if loads.dry_run:
        fail("the service runs with --elastic-dry-run, so it moves no slices")
    before = pending_move_request(folder)
    wish(folder, SliceMove(name, host))
    if before is not None:
        out().print(Text(f"canceled the move of {before.slice} to {before.to}, which had not begun"))
    out().print(Text(f"requested the move of {name} to {host}"))


def _print(record: ElasticRecord, loads: ElasticLoads | None) -> None:
    configuration = record.configuration
    assert configuration is not None
    lines = []
    if loads is not None and loads.is_fresh(time.time()):
        mode = ", dry run: decisions are not carried out" if loads.dry_run else ""
        lines.append(f"{len(loads.hosts)} hosts, {loads.least} to {loads.most} allowed{mode}")
        for host in loads.hosts:
            state = f"executor {host.executor}, {host.cores:g} cores" if host.executor else "no executor yet"
            warm = "" if host.is_warm or not host.executor else ", not warm yet"
            lines.append(f"{host.host}  {host.cpu:.0%} CPU  {state}{warm}")
            lines += [
                f"  {each.slice}  {each.cpu:.1%}  {each.memory_bytes / 1e6:,.1f} MB"
                for each in loads.slices
                if each.host == host.host
            ]
        if homeless := [each.slice for each in loads.slices if not each.host]:
            lines.append(f"anywhere: {', '.join(homeless)}")
        if loads.asked:
            lines.append(
                f"{loads.granted / loads.asked:.1%} of {loads.asked:,} tasks ran on their preferred host"
            )
    else:
        lines.append("the service is not running; its last state:")
        for name in configuration.hosts:
            its = [each for each, place in configuration.places.items() if place.host == name]
            lines.append(f"{name}  {', '.join(its)}")
    if record.decisions:
        lines.append("decisions, newest first:")
    for decision in record.decisions[: -SHOWN - 1 : -1]:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(decision.time_ms / 1000))
        what = [f"{move.slice} to {_target(move.to)}" for move in decision.moves]
        what += [f"add {decision.new_hosts} hosts"] if decision.new_hosts else []
        what += [f"release {name}" for name in decision.released]
        lines.append(
            f"{when}  {decision.reason}: {', '.join(what)}{'' if decision.is_done else ' (not done)'}"
        )
    for line in lines:
        out().print(Text(line))


def _target(to: str | int) -> str:
    return to if isinstance(to, str) else f"new host {to + 1}"
