"""How every command speaks: results on stdout, everything else on stderr, and one form for errors."""

from __future__ import annotations

import sys
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from fieldfare.cli.streams import discard_output, write_bytes

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
    import msgspec

    write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def print_json_line(value: Any) -> None:
    """One value as a line of JSON on stdout."""
    import msgspec

    write_bytes(msgspec.json.encode(value) + b"\n")


def one_line(text: str) -> str:
    """Without line ends and other control characters, which are not for a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def leave_closed_pipe() -> NoReturn:
    """The reader of stdout has gone (``| head``): end quietly, and keep Python from complaining at exit."""
    discard_output()
    raise typer.Exit(0)


def need_packages(command: str, extra: str, missing: list[str]) -> NoReturn:
    """A command whose packages are not installed says which extra brings them."""
    fail(
        f"`fieldfare {command}` needs packages that are not installed: {', '.join(missing)}\n"
        f"hint: pip install 'fieldfare[{extra}]'"
    )
