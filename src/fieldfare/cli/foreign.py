"""Options and documents of other systems' filters, for ``filter convert`` and ``subscriptions import``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldfare.cli.output import EXIT_USAGE, fail, one_line, report_error, say
from fieldfare.filters import FilterError
from fieldfare.filters.foreign.items import DocumentError, Options
from fieldfare.filters.foreign.systems import SYSTEMS, Conversion, System, Unconverted, convert_documents
from fieldfare.filters.sql.paths import parse_path
from fieldfare.runtimes.files.lines import STANDARD_INPUT, open_stream

DOCUMENT_BYTES_MAX = 16 << 20
"""Maximum bytes of a document with filters of another system; a larger one is rejected."""

FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="SYSTEM", help=f"The system of the filters: {', '.join(SYSTEMS)}."),
]
AtOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Path of the object in an event that holds a message's attributes, such as data.attributes.",
        show_default="the context attributes",
    ),
]
MapOption = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="NAME=PATH",
        help="Path in an event of a message's attribute NAME; may be given several times.",
    ),
]
BodyOption = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="sns: path in an event of a message's body.", show_default="data"),
]
TopicOption = Annotated[
    str | None,
    typer.Option(
        "--attribute",
        metavar="PATH",
        help="Attribute of an event that holds a message's topic, subject or routing key.",
        show_default="subject",
    ),
]
ScopeOption = Annotated[
    str | None,
    typer.Option(
        help="sns: scope of the policies, MessageAttributes or MessageBody, if the file does not name it."
    ),
]
SourceOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Use only the filters of this bus, topic, broker or exchange, if the file has several.",
    ),
]
DisabledOption = Annotated[bool, typer.Option("--disabled", help="eventbridge: include disabled rules.")]
PlainValuesOption = Annotated[
    bool,
    typer.Option(
        "--plain-values",
        help="eventbridge, sns: assume that messages have no arrays and nulls where the system does not "
        "document how these match.",
    ),
]


def chosen_system(name: str) -> System:
    """Return a system by its name; exit with a usage error if there is none."""
    if name not in SYSTEMS:
        fail(f"there is no system {name!r}\nhint: there are {', '.join(SYSTEMS)}", EXIT_USAGE)
    return SYSTEMS[name]


def read_options(
    system: str,
    *,
    at: str | None = None,
    names: Sequence[str] | None = None,
    body: str | None = None,
    topic: str | None = None,
    scope: str | None = None,
    source: str | None = None,
    disabled: bool = False,
    plain_values: bool = False,
) -> Options:
    """Return the options of a conversion; exit with a usage error if one is invalid or not the system's."""
    given: dict[str, Any] = {}
    for field, text in ("at", at), ("body", body), ("topic", topic):
        if text is not None:
            given[field] = _path(text)
    if names:
        pairs = [pair.partition("=") for pair in names]
        if not all(name and path for name, _, path in pairs):
            fail("--map takes NAME=PATH, as in --map orderId=data.orderId", EXIT_USAGE)
        given["names"] = {name: _path(path) for name, _, path in pairs}
    plain = {
        "scope": scope,
        "source": source,
        "disabled": disabled or None,
        "plain_values": plain_values or None,
    }
    given |= {field: value for field, value in plain.items() if value is not None}
    for field in given:
        if field not in chosen_system(system).options:
            option = {"names": "map", "topic": "attribute", "plain_values": "plain-values"}.get(field, field)
            fail(f"--{option} is not an option for filters from {system}", EXIT_USAGE)
    return replace(Options(), **given)


def _path(text: str) -> tuple[str | int, ...]:
    try:
        return parse_path(text)
    except FilterError as error:
        fail(f"{text} is not the name of an attribute\n{error}", EXIT_USAGE)


def read_documents(files: Sequence[str], system: System, options: Options, prefix: str = "") -> Conversion:
    """Convert the filters of files; exit with an error if a file cannot be read at all."""
    documents = []
    for file in files:
        stream, name = open_stream(file)
        content = stream.read(DOCUMENT_BYTES_MAX + 1)
        if len(content) > DOCUMENT_BYTES_MAX:
            fail(f"{name} is larger than {DOCUMENT_BYTES_MAX >> 20} MiB: split it")
        try:
            text = content.decode().removeprefix("\ufeff")
        except UnicodeDecodeError:
            fail(f"{name} is not UTF-8")
        documents.append((text, name, "filter" if file == STANDARD_INPUT else Path(file).stem))
    try:
        return convert_documents(system, documents, options, prefix)
    except DocumentError as error:
        fail(str(error))


def report(refused: Sequence[Unconverted], skipped: Sequence[Unconverted]) -> None:
    """Report the filters that were refused, and those that were left out."""
    for each in skipped:
        say(f"left out {_shown(each)}: {each.reason}")
    for each in refused:
        report_error(f"{_shown(each)}: {_with_hints(each.reason)}")


def _shown(each: Unconverted) -> str:
    return one_line(f"{each.name} ({each.place})")


def _with_hints(reason: str) -> str:
    return reason.replace("\n  hint: ", "\nhint: ")


def unconverted_document(found: Sequence[Unconverted]) -> list[dict[str, str]]:
    """Return filters that were not converted, for JSON."""
    return [{"name": each.name, "place": each.place, "reason": each.reason} for each in found]
