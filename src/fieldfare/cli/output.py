"""Output of all commands: results on stdout, everything else on stderr, errors in one format."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
        help="The service's address.",
        show_default="http://127.0.0.1:7737",
    ),
]
SpaceOption = Annotated[
    str | None,
    typer.Option(
        "--space",
        envvar="FIELDFARE_SPACE",
        metavar="NAME",
        help="The space to use.",
        show_default="default",
    ),
]
DialectOption = Annotated[
    str, typer.Option("--dialect", help="The filter's dialect: sql, cesql, subscriptions or eventbridge.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def out() -> Console:
    """Return the console for results; a new one each time, as tests replace sys.stdout."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=True)


def err() -> Console:
    """Return the console for progress, notes and errors."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print a note to stderr; it is not part of the result."""
    err().print(escape(text), style="dim")


def report_error(text: str) -> None:
    """Print an error to stderr: ``error: ...``, then ``hint: ...`` on a separate line."""
    head, *rest = map(one_line, text.split("\n"))
    console = err()
    console.print(f"[bold red]error:[/] {escape(head)}")
    for line in rest:
        if line.startswith("hint: "):
            console.print(f"[bold cyan]hint:[/] {escape(line.removeprefix('hint: '))}")
        else:
            console.print(escape(line))


def report_warning(text: str, hint: str | None = None) -> None:
    """Print a warning to stderr, about valid input that is probably a mistake."""
    console = err()
    console.print(f"[bold yellow]warning:[/] {escape(text)}")
    if hint:
        console.print(f"[bold cyan]hint:[/] {escape(hint)}")


def fail(text: str, code: int = EXIT_FAILED) -> NoReturn:
    """Report an error and end the command."""
    report_error(text)
    raise typer.Exit(code)


@contextmanager
def known_form() -> Iterator[None]:
    """Exit with an error if an answer of the service has not the form that is shown meanwhile."""
    from rich.errors import NotRenderableError

    from fieldfare.client.errors import UNREADABLE

    try:
        yield
    except (*UNREADABLE, NotRenderableError) as error:
        fail(
            f"the answer has an unexpected form ({type(error).__name__}: {error})\n"
            "hint: check that the URL is that of a fieldfare service of this version; --json shows the answer"
        )


def print_json(value: Any) -> None:
    """Print a value to stdout as indented JSON."""
    import msgspec

    write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def print_json_line(value: Any) -> None:
    """Print a value to stdout as one line of JSON."""
    import msgspec

    write_bytes(msgspec.json.encode(value) + b"\n")


def one_line(text: str) -> str:
    """Return the text with line ends and other control characters escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def printable(value: Any) -> Any:
    """Return a document of the service with its texts, also of other sites, as `one_line` has them."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, dict):
        return {printable(key): printable(each) for key, each in value.items()}
    return [printable(each) for each in value] if isinstance(value, list) else value


def leave_closed_pipe() -> NoReturn:
    """Exit with status 0, without an error at exit, when the reader has closed stdout (``| head``)."""
    discard_output()
    raise typer.Exit(0)


def need_packages(command: str, extra: str, missing: list[str]) -> NoReturn:
    """Exit with an error that names the missing packages and the extra that installs them."""
    fail(
        f"`fieldfare {command}` needs packages that are not installed: {', '.join(missing)}\n"
        f"hint: pip install 'fieldfare[{extra}]'"
    )
