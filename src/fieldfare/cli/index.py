"""``fieldfare subscriptions explain``: what the index chose for the filters of a space, and for one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fieldfare.cli.output import JsonOption, SpaceOption, fail, need_packages, out, print_json
from fieldfare.cli.service import find_missing

if TYPE_CHECKING:
    from fieldfare.matching.explanation import IndexExplanation, PartExplanation, RowPlace
    from fieldfare.runtimes.spark.index_report import SubscriptionReport

PACKAGES = ("numpy", "numba", "pyarrow", "sqlalchemy")


def explain(
    id: Annotated[
        str | None, typer.Argument(metavar="ID", help="One subscription; without it the whole index.")
    ] = None,
    data: Annotated[
        Path,
        typer.Option("--data", envvar="FIELDFARE_DATA", metavar="DIR", help="The service's data directory."),
    ] = Path("fieldfare-data"),
    space: SpaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how the index finds the filters of a space, by keys, texts or in tiles; or where one of them is.

    It reads the index's files, also while the service runs. `fieldfare filter explain` says what a filter
    means.

    Examples:
    ```
    fieldfare subscriptions explain --data ./fieldfare-data
    fieldfare subscriptions explain cheap --data ./fieldfare-data
    ```
    """
    if missing := find_missing(PACKAGES):
        need_packages("subscriptions explain", "server", missing)
    from fieldfare.matching.files import IndexFileError
    from fieldfare.runtimes.spark.folder import DataFolder
    from fieldfare.runtimes.spark.index_report import IndexReader
    from fieldfare.storage.errors import StorageError

    name = space or "default"
    try:
        reader = IndexReader(DataFolder(data))
        if id is None:
            _print_index(name, reader.explain(name), as_json)
            return
        found = reader.explain_subscription(name, id)
    except (StorageError, IndexFileError) as error:
        fail(f"{error}\nhint: --data is the directory that `fieldfare serve` was given")
    if found is None:
        fail(f"there is no subscription {id!r} in the space {name!r}")
    _print_subscription(found, reader.revision, as_json)


def _print_index(space: str, explanation: IndexExplanation, as_json: bool) -> None:
    if as_json:
        parts = [_part_document(part) for part in explanation.parts]
        print_json({"space": space, "closings": explanation.closings, "parts": parts})
    else:
        out().print(Text(str(explanation)))


def _print_subscription(found: SubscriptionReport, revision: int, as_json: bool) -> None:
    subscription, places = found.subscription, found.places
    if as_json:
        rows = None if places is None else [_place_document(place) for place in places]
        print_json({"id": subscription.id, "revision": subscription.revision, "rows": rows})
        return
    console = out()
    console.print(Text(f"{subscription.id}: {subscription.filter}"))
    if places is None:
        console.print(
            f"  not in the index yet, which has revision {revision:,}; this is revision "
            f"{subscription.revision:,}. The service takes it in before it matches a later event."
        )
    elif not places:
        console.print("  no event can match it, so the index has no row for it")
    for place in places or ():
        console.print(Text(f"  {place}"))


def _part_document(part: PartExplanation) -> dict[str, Any]:
    return {
        "subscriptions": part.subscriptions,
        "attributes": part.attributes,
        "constants": part.constants,
        "rows": part.rows,
        "keys": [{"attributes": _names(key.paths), "entries": key.entries} for key in part.keys],
        "rows_in_keys": part.rows_in_keys,
        "needles": [
            {
                "attribute": _names([use.path])[0],
                "ignores_case": use.folded,
                "texts": use.needles,
                "rows": use.rows,
            }
            for use in part.needles
        ],
        "rows_in_needles": part.rows_in_needles,
        "tiles": part.tiles,
        "rows_in_tiles": part.rows_in_tiles,
        "undecided_rows": part.undecided_rows,
        "size_bytes": part.size_bytes,
    }


def _place_document(place: RowPlace) -> dict[str, Any]:
    from fieldfare.filters.help.value_words import describe_values

    document: dict[str, Any] = {"part": place.part, "exact": place.exact}
    if place.key is not None:
        return {**document, "key": _names(place.key), "entries": place.entries}
    if place.needle is not None:
        path, text = place.needle
        return {**document, "needle": {"attribute": _names([path])[0], "text": text}}
    zones = [
        {"attribute": name, "values": describe_values(values)}
        for name, (_, values) in zip(_names([path for path, _ in place.zones]), place.zones, strict=True)
    ]
    return {**document, "tile": place.tile, "tile_rows": place.tile_rows, "zones": zones}


def _names(paths: Any) -> list[str]:
    from fieldfare.filters.sql.paths import format_path

    return list(map(format_path, paths))
