"""The filter that a command is given: as an argument, in a file, or on standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fieldfare.cli.output import EXIT_FAILED, EXIT_USAGE, fail, report_error
from fieldfare.filters import Filter, FilterError, compile_filter
from fieldfare.filters.filter import DIALECTS
from fieldfare.runtimes.files.lines import open_stream

FILTER_BYTES_MAX = 16 << 20
"""Maximum bytes read of a filter; the limits of filters are far below."""

FilterArgument = Annotated[
    str | None, typer.Argument(metavar="FILTER", help="The filter; default, or -: standard input.")
]
FileOption = Annotated[
    Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the filter from a file.")
]


def read_filter(filter: str | None, file: Path | None, dialect: str, events: str | None = None) -> str:
    """Return the filter's text: from the argument, a file, or standard input."""
    if dialect not in DIALECTS:
        try:
            compile_filter("", dialect)
        except FilterError as error:
            problem = error.problems[0]
            fail(f"{problem.message}\nhint: {problem.hint}", EXIT_USAGE)
    if filter is not None and file is not None:
        fail("give FILTER or --file, not both", EXIT_USAGE)
    if filter is not None and filter != "-":
        return filter
    if file is None or str(file) == "-":
        if events == "-":
            fail("the filter and the events cannot both come from standard input", EXIT_USAGE)
        if filter is None and file is None and (sys.stdin is None or sys.stdin.isatty()):
            fail("give a FILTER, --file, or the filter on standard input", EXIT_USAGE)
        file = None
    try:
        content = open_stream(file or "-")[0].read(FILTER_BYTES_MAX)
    except OSError as error:
        fail(f"cannot read {file or 'standard input'}: {error.strerror}")
    try:
        return content.decode().removeprefix("\ufeff").rstrip()
    except UnicodeDecodeError:
        fail(f"the filter in {file or 'standard input'} is not UTF-8")


def compile_text(text: str, dialect: str) -> Filter:
    """Compile a filter; exit with its errors if it is not valid."""
    try:
        return compile_filter(text, dialect)
    except FilterError as error:
        report_error(f"the filter cannot be used\n{error}")
        raise typer.Exit(EXIT_FAILED) from None
