"""How every command speaks: results on stdout, everything else on stderr, and one form for errors."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="FIELDFARE_URL",
        metavar="URL",
        help="Where the service is.",
        show_default="http://127.0.0.1:7737",
    ),
]
SpaceOption = Annotated[
    str | None,
    typer.Option(
        "--space",
        envvar="FIELDFARE_SPACE",
        metavar="NAME",
        help="Whose events and subscriptions.",
        show_default="default",
    ),
]
DialectOption = Annotated[str, typer.Option("--dialect", help="The language of the filter.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def out() -> Console:
    """The console for results; made anew, because tests and pipes replace sys.stdout."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=True)


def err() -> Console:
    """The console for progress, notes and errors."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """A note for the person, not part of the result."""
    err().print(escape(text), style="dim")


def report_error(text: str) -> None:
    """An error in its one form: ``error: what``, then ``hint: what to do`` on a line of its own."""
    head, *rest = text.split("\n")
    console = err()
    console.print(f"[bold red]error:[/] {escape(head)}")
    for line in rest:
        if line.startswith("hint: "):
            console.print(f"[bold cyan]hint:[/] {escape(line.removeprefix('hint: '))}")
        else:
            console.print(escape(line))


def fail(text: str, code: int = EXIT_FAILED) -> NoReturn:
    """Report an error and end the command."""
    report_error(text)
    raise typer.Exit(code)


def print_json(value: Any) -> None:
    """One value as indented JSON on stdout."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def leave_closed_pipe() -> NoReturn:
    """The reader of stdout has gone (``| head``): end quietly, and keep Python from complaining at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(0)


def need_packages(command: str, extra: str, missing: list[str]) -> NoReturn:
    """A command whose packages are not installed says which extra brings them."""
    fail(
        f"`fieldfare {command}` needs packages that are not installed: {', '.join(missing)}\n"
        f"hint: pip install 'fieldfare[{extra}]'"
    )
