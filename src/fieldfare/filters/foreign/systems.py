"""The table of systems, and the conversion of documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fieldfare.filters.errors import FilterError
from fieldfare.filters.foreign.eventbridge import convert_pattern, read_rules
from fieldfare.filters.foreign.items import DocumentError, Item, Options, subscription_id
from fieldfare.filters.foreign.jms import convert_selector, read_selectors
from fieldfare.filters.foreign.knative import convert_trigger, read_triggers
from fieldfare.filters.foreign.rabbitmq import convert_arguments, read_definitions
from fieldfare.filters.foreign.sns import convert_policy, read_subscriptions
from fieldfare.filters.foreign.topics import AMQP, MQTT, NATS, convert_topic, read_topics


@dataclass(frozen=True, slots=True)
class System:
    """A system whose filters are converted.

    Attributes
    ----------
    convert
        Converts one filter to a filter and its dialect; raises FilterError.
    read
        Reads the filters of a document, whose name is the second argument; raises DocumentError.
    options
        The fields of `Options` that it uses.
    """

    convert: Callable[[str, Options], tuple[str, str]]
    read: Callable[[str, str, Options], list[Item]]
    options: frozenset[str]


SYSTEMS: dict[str, System] = {
    "eventbridge": System(
        convert_pattern, read_rules, frozenset({"names", "source", "disabled", "plain_values"})
    ),
    "sns": System(
        convert_policy,
        read_subscriptions,
        frozenset({"at", "names", "body", "scope", "source", "plain_values"}),
    ),
    "knative": System(convert_trigger, read_triggers, frozenset({"source"})),
    "jms": System(convert_selector, read_selectors, frozenset({"at", "names"})),
    "rabbitmq": System(convert_arguments, read_definitions, frozenset({"at", "names", "topic", "source"})),
    "mqtt": System(convert_topic(MQTT), read_topics(MQTT), frozenset({"topic"})),
    "nats": System(convert_topic(NATS), read_topics(NATS), frozenset({"topic"})),
    "amqp": System(convert_topic(AMQP), read_topics(AMQP), frozenset({"topic"})),
}
"""The systems, by name."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A filter that was converted, with the id of its subscription."""

    id: str
    name: str
    place: str
    filter: str
    dialect: str


@dataclass(frozen=True, slots=True)
class Unconverted:
    """A filter that was rejected or left out, and the reason."""

    name: str
    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of converting documents."""

    converted: tuple[Converted, ...]
    refused: tuple[Unconverted, ...]
    skipped: tuple[Unconverted, ...]


def convert_documents(
    system: System, documents: Iterable[tuple[str, str, str]], options: Options, prefix: str = ""
) -> Conversion:
    """Convert the filters of documents.

    Parameters
    ----------
    system
        Where they come from.
    documents
        For each its text, its name for messages, and the name of a filter that has none.
    options
        The mapping of messages to events, and which filters are wanted.
    prefix
        Text before the names, for the ids.

    Raises
    ------
    DocumentError
        A document cannot be read, no document has a filter, or the filters are of several sources and none
        was chosen.
    """
    items: list[tuple[str, Item]] = []
    files = []
    for text, file, name in documents:
        files.append(file)
        try:
            items += [(file, item) for item in system.read(text, name, options)]
        except DocumentError as error:
            raise DocumentError(f"{file}: {error}") from None
    if not items:
        where = "this file" if len(files) == 1 else "these files"
        raise DocumentError(f"{', '.join(files)}: there are no filters in {where}")
    items = _of_one_source(items, options)
    ids: dict[str, int] = {}
    for _, item in items:
        if not item.skipped:
            id = subscription_id(item.name, prefix)
            ids[id] = ids.get(id, 0) + 1
    converted: list[Converted] = []
    refused: list[Unconverted] = []
    skipped: list[Unconverted] = []
    for file, item in items:
        place = f"{file}, {item.place}" if item.place else file
        if item.skipped:
            skipped.append(Unconverted(item.name, place, item.skipped))
            continue
        id = subscription_id(item.name, prefix)
        try:
            if ids[id] > 1:
                reason = (
                    f"{ids[id]} filters have the id {id}: rename them, or import them apart with --prefix"
                )
                refused.append(Unconverted(item.name, place, reason))
                continue
            converted.append(Converted(id, item.name, place, *item.convert()))
        except FilterError as error:
            refused.append(Unconverted(item.name, place, str(error)))
    return Conversion(tuple(converted), tuple(refused), tuple(skipped))


def _of_one_source(items: list[tuple[str, Item]], options: Options) -> list[tuple[str, Item]]:
    """Return the items of the wanted source; raise DocumentError if it is not clear which that is."""
    sources = sorted({item.source for _, item in items if not item.skipped})
    if options.source is not None:
        wanted = [pair for pair in items if pair[1].source == options.source]
        if not wanted:
            known = ", ".join(map(repr, sources[:20])) or "none"
            raise DocumentError(f"there is nothing of {options.source!r}; there are {known}")
        return wanted
    if len(sources) > 1:
        shown = ", ".join(map(repr, sources[:20]))
        raise DocumentError(
            f"the filters select from {len(sources)} sources ({shown}), whose messages differ:"
            " choose one with --source"
        )
    return items
