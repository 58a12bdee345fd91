"""``fieldfare subscriptions import``: subscriptions for the filters that another system has."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fieldfare.cli import foreign
from fieldfare.cli.connection import connect
from fieldfare.cli.output import (
    EXIT_FAILED,
    EXIT_USAGE,
    JsonOption,
    SpaceOption,
    UrlOption,
    fail,
    out,
    print_json,
)
from fieldfare.client.errors import ApiError, SubscriptionsRefused
from fieldfare.client.synchronous.client import Client
from fieldfare.filters.foreign.systems import SYSTEMS, Converted, Unconverted

LOOKED_UP_MAX = 200
"""Maximum subscriptions that are looked up one by one; for more, all of the space are listed."""

_OTHER = "there is a subscription {} with another filter: pass --replace, or --prefix for other ids"


def import_(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Files as the system exports them; -: standard input."),
    ],
    system: foreign.FromOption = None,
    prefix: Annotated[str, typer.Option(help="Prefix of the ids, before the filters' names.")] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace subscriptions with these ids and other filters.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only report what would be created, replaced or refused.")
    ] = False,
    at: foreign.AtOption = None,
    names: foreign.MapOption = None,
    body: foreign.BodyOption = None,
    topic: foreign.TopicOption = None,
    scope: foreign.ScopeOption = None,
    source: foreign.SourceOption = None,
    disabled: foreign.DisabledOption = False,
    plain_values: foreign.PlainValuesOption = False,
    url: UrlOption = None,
    space: SpaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create subscriptions for the filters of another system. Importing the same file again changes nothing.

    A filter that cannot be converted exactly is refused, and no subscription is created for it; all refused
    ones are reported, and the exit status is then 1.

    Examples:
    ```
    fieldfare subscriptions import rules.json --from eventbridge --dry-run
    fieldfare subscriptions import triggers.yaml --from knative --prefix knative-
    ```
    """
    if system is None:
        fail(f"give --from SYSTEM\nhint: there are {', '.join(SYSTEMS)}", EXIT_USAGE)
    options = foreign.read_options(
        system,
        at=at,
        names=names,
        body=body,
        topic=topic,
        scope=scope,
        source=source,
        disabled=disabled,
        plain_values=plain_values,
    )
    found = foreign.read_documents(files, foreign.chosen_system(system), options, prefix)
    with connect(url, space) as client:
        results, refused = _carry_out(client, found.converted, replace, dry_run)
    refused = [*found.refused, *refused]
    if as_json:
        print_json(
            {
                **{word: [each.id for each in some] for word, some in results.items()},
                "refused": foreign.unconverted_document(refused),
                "skipped": foreign.unconverted_document(found.skipped),
            }
        )
    else:
        foreign.report(refused, found.skipped)
        counts = [f"{len(some):,} {word}" for word, some in results.items()]
        counts.append(f"{len(refused):,} refused")
        out().print(("a dry run: " if dry_run else "") + ", ".join(counts))
    if refused:
        raise typer.Exit(EXIT_FAILED)


def _carry_out(
    client: Client, converted: tuple[Converted, ...], replace: bool, dry_run: bool
) -> tuple[dict[str, list[Converted]], list[Unconverted]]:
    """Create and replace subscriptions; return what became of each filter, and those that were refused."""
    stored = _stored(client, converted)
    results: dict[str, list[Converted]] = {"created": [], "replaced": [], "unchanged": []}
    refused = []
    for each in converted:
        known = stored.get(each.id)
        if known is None:
            results["created"].append(each)
        elif known == (each.filter, each.dialect):
            results["unchanged"].append(each)
        elif replace:
            results["replaced"].append(each)
        else:
            refused.append(Unconverted(each.name, each.place, _OTHER.format(each.id)))
    if not dry_run:
        failed = _create(client, results["created"], replace) + _create(client, results["replaced"], True)
        refused += [Unconverted(each.name, each.place, reason) for each, reason in failed]
        ids = {each.id for each, _ in failed}
        results = {word: [each for each in some if each.id not in ids] for word, some in results.items()}
    return results, refused


def _stored(client: Client, wanted: tuple[Converted, ...]) -> dict[str, tuple[str, str]]:
    """Return the filters and dialects of the subscriptions that have the ids already."""
    ids = {each.id for each in wanted}
    if len(ids) > LOOKED_UP_MAX:
        return {info.id: (info.filter, info.dialect) for info in client.subscriptions() if info.id in ids}
    stored = {}
    for id in ids:
        try:
            info = client.get_subscription(id)
        except ApiError as error:
            if error.status != 404:
                raise
        else:
            stored[id] = (info.filter, info.dialect)
    return stored


def _create(client: Client, wanted: list[Converted], replace: bool) -> list[tuple[Converted, str]]:
    """Create or replace subscriptions; return those that the service refused, with the reasons.

    Without ``replace``, a subscription that was created meanwhile is refused, too, if it differs.
    """
    items: list[dict[str, Any]] = [
        {"id": each.id, "filter": each.filter, "dialect": each.dialect} for each in wanted
    ]
    if not items:
        return []
    try:
        client.create_subscriptions(items, replace=replace)
    except SubscriptionsRefused as error:
        return [(wanted[refusal.index], refusal.detail) for refusal in error.refused]
    return []
