"""The command line application: the list of commands, and error handling."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from fieldfare import __version__
from fieldfare.cli.output import EXIT_INTERRUPTED, fail, leave_closed_pipe
from fieldfare.runtimes.files.kinds import FileError

COMMANDS = {
    "serve": ("service:serve", "Run the service: the HTTP gateway and the Spark pipeline, until Ctrl-C."),
    "restart": (
        "restart:restart",
        "Restart a running service almost without a pause, for a new version or changed settings.",
    ),
    "relay": (
        "relay:relay",
        "Run a relay until Ctrl-C: a broker between sites that only passes their events on.",
    ),
    "publish": ("publishing:publish", "Publish events, and report how many are durable."),
    "subscribe": (
        "follow:subscribe",
        "Print the events that match a filter as they arrive, one per line, until Ctrl-C.",
    ),
    "match": (
        "job:match",
        "Match a file of events against a file of filters: one Spark job on this machine, no service needed.",
    ),
    "top": ("watch:top", "Watch the service: rates, lag, latency, subscriptions. Ctrl-C ends."),
    "trace": ("trace:trace", "Show how long each step from publishing to delivery takes."),
    "demo": (
        "demo:demo",
        "Match a year of real departures against 100,000 travellers' alerts, and check the results.",
    ),
    "subscriptions": (
        "subscriptions:app",
        "Create, import, list, get, configure, move and delete subscriptions.",
    ),
    "dead-letters": (
        "delivery:app",
        "Dead letters of a subscription: list, retry or clear them.",
    ),
    "seek": (
        "delivery:seek",
        "Move a subscription's cursor to a time, a position, or either end of the log.",
    ),
    "pause": ("delivery:pause", "Pause the delivery of a subscription; matching events are kept."),
    "resume": ("delivery:resume", "Resume the delivery of a paused subscription."),
    "delayed": ("delayed:app", "Delayed events: list or cancel them."),
    "scale": (
        "scaling:scale",
        "Show an elastic service's hosts, slices and loads, and why it grew or shrank.",
    ),
    "brokers": (
        "brokers:app",
        "Show a broker's links and all sites that it reaches; leave the sites, or remove one.",
    ),
    "balance": (
        "balance:balance",
        "Show the loads of all brokers, and which subscriptions this one would move where, and why.",
    ),
    "spaces": (
        "spaces:app",
        "Create, list and delete spaces (tenants), set their quotas, and state what they publish.",
    ),
    "filter": ("filters:app", "Check, explain, test and convert filters."),
    "keys": ("keys:app", "Create, list and revoke API keys; manage keys of encrypted spaces."),
    "quarantine": (
        "quarantine:app",
        "Quarantined records, which could not be matched: list them, or publish them again.",
    ),
    "config": (
        "configuration:app",
        "Settings of the service: show them with their origins, or check a file.",
    ),
    "doctor": (
        "doctor:doctor",
        "Check all data in a data directory against its checksums, and report damage and what to do.",
    ),
    "backup": (
        "backup:backup",
        "Copy a data directory, also of a running service.",
    ),
    "restore": ("backup:restore", "Create a data directory from a backup."),
    "verify": ("backup:verify", "Check all files of a backup against their checksums."),
}
"""The module and object of each command, and its help text. Only the command that runs is imported."""

_CONTEXT = {"help_option_names": ["-h", "--help"]}


class FieldfareCommand(TyperCommand):
    """A command whose help text has whole names, also in a narrow terminal."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from fieldfare.cli.help import whole_words  # late: it is slow to import

        with whole_words():
            super().format_help(ctx, formatter)


class LazyCommand(TyperCommand):
    """An entry in the list of commands; the command is imported when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return load_command(str(self.name)).make_context(info_name, args, parent, **extra)


def load_command(name: str) -> Any:
    """Import a command or a group of commands, and return it."""
    module, attribute = COMMANDS[name][0].split(":")
    found = getattr(import_module(f"fieldfare.cli.{module}"), attribute)
    alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    alone.callback()(lambda: None)
    if isinstance(found, typer.Typer):
        for registered in _registered_commands(found):
            registered.cls = FieldfareCommand
        alone.add_typer(found, name=name)
    else:
        alone.command(name, cls=FieldfareCommand)(found)
    return typer.main.get_command(alone).commands[name]  # type: ignore[attr-defined]


def _registered_commands(group: typer.Typer) -> Iterator[Any]:
    """Yield the commands of a group and of the groups in it."""
    yield from group.registered_commands
    for each in group.registered_groups:
        if each.typer_instance is not None:
            yield from _registered_commands(each.typer_instance)


class FieldfareGroup(TyperGroup):
    """Converts errors that a user can cause to a message and an exit code; only bugs show a traceback."""

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
        if isinstance(error.__context__, BrokenPipeError):  # rich exits with 1 on a closed pipe.
            leave_closed_pipe()
        raise
    except OSError as error:
        what = error.strerror or str(error)
        fail(f"{error.filename}: {what}" if error.filename else what)
    except FileError as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except UnicodeEncodeError as error:
        if not any("\ud800" <= char <= "\udfff" for char in error.object[error.start : error.end]):
            raise
        fail("an argument is not valid UTF-8")
    except Exception as error:
        errors = sys.modules.get("fieldfare.client.errors")  # Not imported: none of these was raised.
        if errors is None or not isinstance(error, errors.FieldfareError):
            raise
        fail(str(error))


app = typer.Typer(
    name="fieldfare",
    cls=FieldfareGroup,
    help="Content-based publish/subscribe: each subscriber gets exactly the events that match its filter.",
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


@app.command(cls=FieldfareCommand)
def version() -> None:
    """Print the version, and those of Python and of the packages that matching is built on."""
    typer.echo(f"fieldfare {__version__}")
    metadata = import_module("importlib.metadata")  # late: it is slow to import
    parts = [f"Python {platform.python_version()}"]
    for package in ("pyspark", "pyarrow", "numpy", "numba"):
        try:
            parts.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            parts.append(f"no {package}")
    typer.echo(", ".join(parts))


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
            help="File with the API key; default: FIELDFARE_API_KEY, else the file FIELDFARE_API_KEY_FILE.",
        ),
    ] = None,
    ca_file: Annotated[
        str | None,
        typer.Option(
            "--ca-file",
            envvar="FIELDFARE_CA_FILE",
            metavar="FILE",
            help="Authority certificates (PEM) to verify the service with, instead of the system's.",
        ),
    ] = None,
    space_key: Annotated[
        str | None,
        typer.Option(
            "--space-key",
            envvar="FIELDFARE_SPACE_KEY",
            metavar="FILE",
            help="Key of an encrypted space, to encrypt and decrypt with; see `keys space`.",
        ),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(
            "--certificate",
            envvar="FIELDFARE_CERTIFICATE",
            metavar="FILE",
            help="Client certificate and its private key (PEM), for a service that requires one.",
        ),
    ] = None,
) -> None:
    """Options before the command."""
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
