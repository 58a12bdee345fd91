"""``fieldfare filter convert``: filters of other dialects and of other systems, in ``sql``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldfare.cli import foreign
from fieldfare.cli.filter_texts import FileOption, FilterArgument, compile_text, read_filter
from fieldfare.cli.output import (
    EXIT_FAILED,
    EXIT_USAGE,
    DialectOption,
    JsonOption,
    fail,
    print_json,
    print_json_line,
    report_error,
)
from fieldfare.filters import Filter, FilterError, compile_filter
from fieldfare.filters.foreign.items import Options
from fieldfare.filters.foreign.systems import System, Unconverted
from fieldfare.filters.help import convert as convert_filter


def convert(
    filter: FilterArgument = None,
    file: FileOption = None,
    dialect: DialectOption = "cesql",
    system: foreign.FromOption = None,
    to: Annotated[str, typer.Option("--to", help="The dialect to convert to: sql.")] = "sql",
    at: foreign.AtOption = None,
    names: foreign.MapOption = None,
    body: foreign.BodyOption = None,
    topic: foreign.TopicOption = None,
    scope: foreign.ScopeOption = None,
    source: foreign.SourceOption = None,
    disabled: foreign.DisabledOption = False,
    plain_values: foreign.PlainValuesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Convert a filter of another dialect or system to sql; it matches exactly the same events.

    With --from, FILTER is one filter of that system, or --file names a file of filters: an export of the
    system, or names with filters. The filters of a file are printed as JSON lines, for
    `subscriptions create --file`. A filter that cannot be converted exactly is refused, and the exit status
    is 1.

    Examples:
    ```
    fieldfare filter convert --dialect eventbridge --file pattern.json
    fieldfare filter convert --from jms "color = 'red' AND weight > 2.5"
    fieldfare filter convert --from mqtt "plant/+/temperature" --attribute subject
    ```
    """
    options = {
        "at": at,
        "names": names,
        "body": body,
        "topic": topic,
        "scope": scope,
        "source": source,
        "disabled": disabled,
        "plain_values": plain_values,
    }
    if system is None:
        if any(options.values()):
            fail("this option needs --from SYSTEM", EXIT_USAGE)
        compiled = compile_text(read_filter(filter, file, dialect), dialect)
        _print_one(_in_sql(compiled, to), to, as_json)
        return
    chosen = foreign.chosen_system(system)
    read = foreign.read_options(system, **options)  # type: ignore[arg-type]
    if file is not None:
        if filter is not None:
            fail("give FILTER or --file, not both", EXIT_USAGE)
        _convert_file(file, chosen, read, to, as_json)
        return
    try:
        compiled = compile_filter(*chosen.convert(read_filter(filter, None, "sql"), read))
    except FilterError as error:
        report_error(f"the filter cannot be converted\n{error}")
        raise typer.Exit(EXIT_FAILED) from None
    _print_one(_in_sql(compiled, to), to, as_json)


def _in_sql(compiled: Filter, to: str) -> str:
    try:
        return convert_filter(compiled, to)
    except ValueError as error:
        fail(str(error), EXIT_FAILED if isinstance(error, FilterError) else EXIT_USAGE)


def _print_one(text: str, dialect: str, as_json: bool) -> None:
    if as_json:
        print_json({"filter": text, "dialect": dialect})
    else:
        sys.stdout.write(text + "\n")


def _convert_file(file: Path, system: System, options: Options, to: str, as_json: bool) -> None:
    found = foreign.read_documents([str(file)], system, options)
    converted: list[dict[str, Any]] = []
    refused = list(found.refused)
    for each in found.converted:
        try:
            text = convert_filter(compile_filter(each.filter, each.dialect), to)
        except FilterError as error:
            refused.append(Unconverted(each.name, each.place, str(error)))
        except ValueError as error:
            fail(str(error), EXIT_USAGE)
        else:
            converted.append({"id": each.id, "filter": text, "dialect": to})
    if as_json:
        skipped = foreign.unconverted_document(found.skipped)
        print_json(
            {"converted": converted, "refused": foreign.unconverted_document(refused), "skipped": skipped}
        )
    else:
        foreign.report(refused, found.skipped)
        for document in converted:
            print_json_line(document)
    if refused:
        raise typer.Exit(EXIT_FAILED)
