"""``fieldfare keys space``: the keys of encrypted spaces, which the service never gets."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fieldfare.cli.output import EXIT_USAGE, SpaceOption, UrlOption, fail, out, say
from fieldfare.client.errors import ApiError
from fieldfare.client.synchronous.client import Client

if TYPE_CHECKING:
    from fieldfare.client.encryption import SpaceKey

app = typer.Typer(help="Create, show and rotate the keys of encrypted spaces.", no_args_is_help=True)

KEY_VARIABLE = "FIELDFARE_SPACE_KEY"
"""Environment variable with the name of the key file that all commands encrypt and decrypt with."""

BANNER = (
    "encrypted space: obfuscation. The service sees the order of numbers, equal texts, and which filters"
    " match which events; and values within a few per cent or less, if it guesses how they are distributed or"
    " knows some (docs/encrypted-spaces.md)"
)
FIRST_SCHEME = (
    "this key is of scheme 1: its vectors show the values of numbers to the service. To hide these, make"
    " a new key, and a space for it"
)


def say_protection(key: SpaceKey) -> None:
    """Print what encryption with this key does not protect."""
    say(BANNER)
    if key.epoch.scheme == 1:
        say(FIRST_SCHEME)


FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The file with the key.")]


def chosen_key() -> SpaceKey | None:
    """Return the key in the file that FIELDFARE_SPACE_KEY names; None if it is not set."""
    path = os.environ.get(KEY_VARIABLE)
    return _read(Path(path)) if path else None


def _read(path: Path) -> SpaceKey:
    from fieldfare.client.encryption import read_key

    path.open("rb").close()  # A file that cannot be read is reported before the passphrase is asked for.
    return read_key(path, _passphrase(confirm=False))


def _passphrase(*, confirm: bool) -> str:
    from fieldfare.client.credentials import PASSPHRASE_VARIABLE

    given = os.environ.get(PASSPHRASE_VARIABLE)
    return ask_passphrase(confirm) if given is None else given


@cache
def ask_passphrase(confirm: bool) -> str:
    """Ask for the passphrase, once per command. Unlike the environment, child processes do not inherit it."""
    return str(typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True))


@app.command(
    epilog="Example: `fieldfare keys space create t.key --number data.price=0:500:0.01 --text data.symbol`"
)
def create(
    file: FileArgument,
    numbers: Annotated[
        list[str] | None,
        typer.Option(
            "--number",
            metavar="NAME=LOW:HIGH:STEP",
            help="A number attribute, its range and its resolution; may be given several times.",
        ),
    ] = None,
    texts: Annotated[
        list[str] | None,
        typer.Option("--text", metavar="NAME", help="A text attribute; may be given several times."),
    ] = None,
) -> None:
    """Create a key file, protected by a passphrase (FIELDFARE_SPACE_PASSPHRASE, or prompted for)."""
    from fieldfare.client.encryption import SpaceKey, write_key

    key = SpaceKey.generate(dict(map(_grid, numbers or [])), texts or [])
    write_key(file, key, _passphrase(confirm=True))
    say(f"{file}: keep a copy; without the file and its passphrase the space cannot be read")
    say_protection(key)


def _grid(text: str) -> tuple[str, tuple[str, str, str]]:
    name, is_set, grid = text.partition("=")
    parts = grid.split(":")
    if not is_set or len(parts) != 3:
        fail(
            f"{text!r} is not NAME=LOW:HIGH:STEP: write data.price=0:500:0.01, for example",
            EXIT_USAGE,
        )
    return name, (parts[0], parts[1], parts[2])


@app.command()
def show(file: FileArgument) -> None:
    """Show the attributes, epochs and scheme of a key."""
    key = _read(file)
    for each in key.numbers:
        out().print(Text(f"number  {each.name}  from {each.low} to {each.high} in steps of {each.step}"))
    for name in key.texts:
        out().print(Text(f"text    {name}"))
    epochs = ", ".join(str(epoch.number) for epoch in key.epochs)
    out().print(Text(f"epochs  {epochs}; events are published with {key.epoch.number}"))
    out().print(Text(f"scheme  {key.epoch.scheme}"))
    say_protection(key)


@app.command()
def rotate(file: FileArgument, url: UrlOption = None, space: SpaceOption = None) -> None:
    """Add an epoch: encrypt the space's filters also for it, then replace the key file.

    If the command is interrupted, run it again. Publishers with the old file still work; subscriptions that
    are created with it must be encrypted again (`renew`).
    """
    from fieldfare.client.encryption import write_key

    following = file.with_name(f"{file.name}.next")
    if not following.exists():
        write_key(following, _read(file).rotated(), _passphrase(confirm=False))
    key = _read(following)
    count = _renew(key, url, space)
    os.replace(following, file)
    say(
        f"encrypted {count:,} filters also for epoch {key.epoch.number}; "
        "give the new key file to publishers and subscribers"
    )


@app.command()
def renew(file: FileArgument, url: UrlOption = None, space: SpaceOption = None) -> None:
    """Encrypt all filters of the space again, for all epochs of the key."""
    say(f"encrypted {_renew(_read(file), url, space):,} filters again")


@app.command()
def drop(file: FileArgument, url: UrlOption = None, space: SpaceOption = None) -> None:
    """Remove all epochs but the newest; events of older epochs in the log can then not be decrypted."""
    from fieldfare.client.encryption import write_key

    key = _read(file).without_old()
    count = _renew(_read(file), url, space, send=key)
    write_key(file, key, _passphrase(confirm=False), replace=True)
    say(f"{count:,} filters and the key now have epoch {key.epoch.number} only")


def _renew(key: SpaceKey, url: str | None, space: str | None, send: SpaceKey | None = None) -> int:
    """Decrypt all filters with ``key``, store them encrypted with ``send`` (or ``key``), and count them."""
    with Client(url, space, encryption=key) as reader, Client(url, space, encryption=send or key) as writer:
        found = list(reader.subscriptions())
        unread = [each.id for each in found if each.dialect == "aspe"]
        if unread:
            fail(
                f"{len(unread)} filters are encrypted with another key, the first is that of the subscription"
                f" {unread[0]}"
            )
        for id in [each.id for each in found]:
            try:
                each = reader.get_subscription(id)  # It may have changed meanwhile.
                writer.replace_subscription(each.id, each.filter, each.dialect)
            except ApiError as error:
                if error.status == 404:
                    continue
                fail(
                    f"the filter of {id} was refused: {error}\nhint: correct this, then run the command again"
                )
    return len(found)
