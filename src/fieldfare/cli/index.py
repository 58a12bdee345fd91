"""``fieldfare subscriptions explain``: how the index stores the filters of a space, or one of them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fieldfare.cli.output import JsonOption, SpaceOption, fail, need_packages, out, print_json
from fieldfare.cli.service import find_missing

if TYPE_CHECKING:
    from fieldfare.matching.explanation import IndexExplanation
    from fieldfare.runtimes.spark.index_report import SlicesReport, SubscriptionReport

PACKAGES = ("numpy", "numba", "pyarrow", "sqlalchemy")


def explain(
    id: Annotated[
        str | None, typer.Argument(metavar="ID", help="One subscription; default: the complete index.")
    ] = None,
    data: Annotated[
        Path,
        typer.Option("--data", envvar="FIELDFARE_DATA", metavar="DIR", help="The service's data directory."),
    ] = Path("fieldfare-data"),
    space: SpaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain how the index finds the filters of a space (by keys, texts, tiles), or where one of them is.

    For a space in several slices, it also shows the matcher and the measured search speed of each slice.

    It reads the index files, whether or not the service is running. To explain what a filter means, use
    `fieldfare filter explain`.

    Examples:
    ```
    fieldfare subscriptions explain --data ./fieldfare-data
    fieldfare subscriptions explain cheap --data ./fieldfare-data
    ```
    """
    if missing := find_missing(PACKAGES):
        need_packages("subscriptions explain", "server", missing)
    from fieldfare.matching.files import IndexFileError
    from fieldfare.runtimes.spark.index_report import IndexReader
    from fieldfare.storage.errors import StorageError
    from fieldfare.storage.folder import DataFolder

    name = space or "default"
    try:
        reader = IndexReader(DataFolder.at(data))
        if id is None:
            _print_index(name, reader.explain(name), reader.slices(name), as_json)
            return
        found = reader.explain_subscription(name, id)
    except (StorageError, IndexFileError) as error:
        fail(f"{error}\nhint: --data is the data directory of `fieldfare serve`")
    if found is None:
        fail(f"there is no subscription {id!r} in the space {name!r}")
    _print_subscription(found, reader.revision, as_json)


def _print_index(space: str, explanation: IndexExplanation, slices: SlicesReport, as_json: bool) -> None:
    if as_json:
        print_json({"space": space, **asdict(slices), **explanation.document()})
        return
    console = out()
    if len(slices.slices) > 1:
        count, matchers = len(slices.slices), slices.matchers
        console.print(Text(f"{count} slices at {matchers} matchers, by {slices.partitioning}"))
    for number, each in enumerate(slices.slices if len(slices.slices) > 1 else ()):
        speed = "" if each.events_per_s is None else f", {each.events_per_s:,.0f} events/s when searched"
        console.print(
            Text(f"  slice {number} at {each.matcher}: {each.subscriptions:,} subscriptions{speed}")
        )
    console.print(Text(str(explanation)))


def _print_subscription(found: SubscriptionReport, revision: int, as_json: bool) -> None:
    subscription, places = found.subscription, found.places
    if as_json:
        rows = None if places is None else [place.document() for place in places]
        print_json({"id": subscription.id, "revision": subscription.revision, "rows": rows})
        return
    console = out()
    console.print(Text(f"{subscription.id}: {subscription.filter}"))
    if places is None:
        console.print(
            f"  not in the index yet: the index is at revision {revision:,}, this filter has revision "
            f"{subscription.revision:,}. The service indexes it before it matches later events."
        )
    elif not places:
        console.print("  no event can match this filter, so the index has no row for it")
    for place in places or ():
        console.print(Text(f"  {place}"))
