"""The commands put together, and what happens when one fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from fieldfare import __version__
from fieldfare.cli.output import EXIT_INTERRUPTED, fail, leave_closed_pipe

COMMANDS = {
    "serve": ("service:serve", "Run the service: the HTTP gateway and the Spark pipeline, until Ctrl-C."),
    "publish": ("publishing:publish", "Publish events, and say how many are durable."),
    "subscribe": (
        "follow:subscribe",
        "Follow a filter live: one line for each event that matches, until Ctrl-C.",
    ),
    "match": (
        "job:match",
        "Match a file of events against a file of filters: one Spark job on this machine, no service needed.",
    ),
    "top": ("watch:top", "Watch the service: rates, lag, latency, subscriptions. Ctrl-C ends."),
    "demo": (
        "demo:demo",
        "Match a year of real departures against 100,000 travellers' alerts, and check every word.",
    ),
    "subscriptions": ("subscriptions:app", "Create, list, get and delete standing filters."),
    "dead-letters": (
        "delivery:app",
        "Messages that were given up: list them, give them all the same, clear the list.",
    ),
    "seek": ("delivery:seek", "Let a subscription go on from another place: a time, a position, an end."),
    "pause": ("delivery:pause", "Give a subscription's readers nothing for the time being."),
    "resume": ("delivery:resume", "Give a subscription's readers messages again."),
    "delayed": ("delayed:app", "Events that wait for their time: list them, take them back."),
    "scale": (
        "scaling:scale",
        "Show an elastic service's hosts, slices and loads, and why it grew or shrank.",
    ),
    "spaces": (
        "spaces:app",
        "Create, list and delete spaces (a space is a tenant's world); their quotas.",
    ),
    "filter": ("filters:app", "Check, explain, test and convert filters."),
    "keys": ("keys:app", "Make, list and revoke API keys; keys of encrypted spaces."),
    "quarantine": (
        "quarantine:app",
        "Records that were set aside because matching them failed: list them, publish them again.",
    ),
}
"""Where each command is, and its line in the list of all: what is not called is not imported."""

_CONTEXT = {"help_option_names": ["-h", "--help"]}


class LazyCommand(TyperCommand):
    """Stands in the list of commands for one that is imported when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return load_command(str(self.name)).make_context(info_name, args, parent, **extra)


def load_command(name: str) -> Any:
    """A command, or a group of them, imported."""
    module, attribute = COMMANDS[name][0].split(":")
    found = getattr(import_module(f"fieldfare.cli.{module}"), attribute)
    alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    alone.callback()(lambda: None)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name)(found)
    return typer.main.get_command(alone).commands[name]  # type: ignore[attr-defined]


class FieldfareGroup(TyperGroup):
    """Turns what a user can cause into one message and an exit code; only bugs show a traceback."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _in_words():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _in_words():
            return super().invoke(ctx)


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        leave_closed_pipe()
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich ends with 1 where a reader has gone
            leave_closed_pipe()
        raise
    except OSError as error:
        what = error.strerror or str(error)
        fail(f"{error.filename}: {what}" if error.filename else what)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except UnicodeEncodeError as error:
        if not any("\ud800" <= char <= "\udfff" for char in error.object[error.start : error.end]):
            raise
        fail("an argument is no valid UTF-8")
    except Exception as error:
        errors = sys.modules.get("fieldfare.client.errors")  # not there: none of these was raised
        if errors is None or not isinstance(error, errors.FieldfareError):
            raise
        fail(str(error))


app = typer.Typer(
    name="fieldfare",
    cls=FieldfareGroup,
    help="Content-based publish/subscribe: every event that matches a filter, and no other.",
    epilog=(
        "Start with `fieldfare serve`, then `fieldfare subscribe --filter 'data.price < 18.5'` "
        "in a second terminal, and `fieldfare publish quotes.jsonl --type quote` in a third."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings=_CONTEXT,
)

for _name, (_, _help) in COMMANDS.items():
    app.command(_name, cls=LazyCommand, help=_help)(lambda: None)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"fieldfare {__version__}")


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    key_file: Annotated[
        str | None,
        typer.Option(
            "--key-file",
            metavar="FILE",
            help="Holds the API key; else FIELDFARE_API_KEY, or what FIELDFARE_API_KEY_FILE names.",
        ),
    ] = None,
    ca_file: Annotated[
        str | None,
        typer.Option(
            "--ca-file",
            envvar="FIELDFARE_CA_FILE",
            metavar="FILE",
            help="The authority that a service with https is known by, if not one of the system's.",
        ),
    ] = None,
    space_key: Annotated[
        str | None,
        typer.Option(
            "--space-key",
            envvar="FIELDFARE_SPACE_KEY",
            metavar="FILE",
            help="The key of an encrypted space, see `keys space`: encrypt and decrypt with it.",
        ),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(
            "--certificate",
            envvar="FIELDFARE_CERTIFICATE",
            metavar="FILE",
            help="A certificate and its key, for a service that asks its clients for one.",
        ),
    ] = None,
) -> None:
    """What goes before the command."""
    for name, value in (
        ("FIELDFARE_CA_FILE", ca_file),
        ("FIELDFARE_CERTIFICATE", certificate),
        ("FIELDFARE_SPACE_KEY", space_key),
    ):
        if value is not None:
            os.environ[name] = value
    if key_file is not None:
        os.environ["FIELDFARE_API_KEY_FILE"] = key_file
        os.environ.pop("FIELDFARE_API_KEY", None)
