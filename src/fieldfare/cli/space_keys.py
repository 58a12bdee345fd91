"""``fieldfare keys space``: the keys of encrypted spaces, which the service never has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fieldfare.cli.output import EXIT_USAGE, SpaceOption, UrlOption, fail, out, say
from fieldfare.client.errors import ApiError
from fieldfare.client.synchronous.client import Client

if TYPE_CHECKING:
    from fieldfare.client.encryption import SpaceKey

app = typer.Typer(help="Make, show and rotate the keys of encrypted spaces.", no_args_is_help=True)

KEY_VARIABLE = "FIELDFARE_SPACE_KEY"
"""Names the file with the key that all commands encrypt and decrypt with."""

BANNER = (
    "encrypted space: protects from a curious service that knows no plaintexts, and from no more than that"
    " (docs/encrypted-spaces.md)"
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The file with the key.")]


def chosen_key() -> SpaceKey | None:
    """The key in the file that FIELDFARE_SPACE_KEY names; None if it names none."""
    path = os.environ.get(KEY_VARIABLE)
    return _read(Path(path)) if path else None


def _read(path: Path) -> SpaceKey:
    from fieldfare.client.encryption import read_key

    return read_key(path, _passphrase(confirm=False))


def _passphrase(*, confirm: bool) -> str:
    from fieldfare.client.encryption.key_file import PASSPHRASE_VARIABLE

    given = os.environ.get(PASSPHRASE_VARIABLE)
    if given is None:
        given = str(typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True))
        os.environ[PASSPHRASE_VARIABLE] = given  # a command may ask for it twice
    return given


@app.command(
    epilog="Example: `fieldfare keys space create t.key --number data.price=0:500:0.01 --text data.symbol`"
)
def create(
    file: FileArgument,
    numbers: Annotated[
        list[str] | None,
        typer.Option("--number", metavar="NAME=LOW:HIGH:STEP", help="An attribute that is a number."),
    ] = None,
    texts: Annotated[
        list[str] | None, typer.Option("--text", metavar="NAME", help="An attribute that is a text.")
    ] = None,
) -> None:
    """Make a key, in a file under a passphrase (FIELDFARE_SPACE_PASSPHRASE, or what you type)."""
    from fieldfare.client.encryption import SpaceKey, write_key

    key = SpaceKey.generate(dict(map(_grid, numbers or [])), texts or [])
    write_key(file, key, _passphrase(confirm=True))
    say(f"{file}: keep a copy of it; without it, or its passphrase, nobody reads the space")
    say(BANNER)


def _grid(text: str) -> tuple[str, tuple[str, str, str]]:
    name, is_set, grid = text.partition("=")
    parts = grid.split(":")
    if not is_set or len(parts) != 3:
        fail(
            f"{text!r} declares no number: write NAME=LOW:HIGH:STEP, such as data.price=0:500:0.01",
            EXIT_USAGE,
        )
    return name, (parts[0], parts[1], parts[2])


@app.command()
def show(file: FileArgument) -> None:
    """Show what a key declares, and its epochs."""
    key = _read(file)
    for each in key.numbers:
        out().print(Text(f"number  {each.name}  from {each.low} to {each.high} in steps of {each.step}"))
    for name in key.texts:
        out().print(Text(f"text    {name}"))
    epochs = ", ".join(str(epoch.number) for epoch in key.epochs)
    out().print(Text(f"epochs  {epochs}; events are published with {key.epoch.number}"))


@app.command()
def rotate(file: FileArgument, url: UrlOption = None, space: SpaceOption = None) -> None:
    """Begin a new epoch: encrypt the space's filters for it too, then have events published with it.

    What is killed meanwhile is taken up again by the next try. Who still has the old file goes on publishing;
    who subscribes with it has to be renewed (`renew`).
    """
    from fieldfare.client.encryption import write_key

    following = file.with_name(f"{file.name}.next")
    if not following.exists():
        write_key(following, _read(file).rotated(), _passphrase(confirm=False))
    key = _read(following)
    count = _renew(key, url, space)
    os.replace(following, file)
    say(f"{count:,} filters are encrypted for epoch {key.epoch.number}, too; give publishers the file anew")


@app.command()
def renew(file: FileArgument, url: UrlOption = None, space: SpaceOption = None) -> None:
    """Encrypt all filters of the space for the epochs that the key has."""
    say(f"{_renew(_read(file), url, space):,} filters are encrypted anew")


@app.command()
def drop(file: FileArgument, url: UrlOption = None, space: SpaceOption = None) -> None:
    """Have the newest epoch only, once the log has no events of older ones: those could not be read."""
    from fieldfare.client.encryption import write_key

    key = _read(file).without_old()
    count = _renew(_read(file), url, space, send=key)
    write_key(file, key, _passphrase(confirm=False), replace=True)
    say(f"{count:,} filters, and the key, have epoch {key.epoch.number} only")


def _renew(key: SpaceKey, url: str | None, space: str | None, send: SpaceKey | None = None) -> int:
    """Read all filters with a key, and send them encrypted with it, or with another; how many."""
    with Client(url, space, encryption=key) as reader, Client(url, space, encryption=send or key) as writer:
        found = list(reader.subscriptions())
        unread = [each.id for each in found if each.dialect == "aspe"]
        if unread:
            fail(f"the filter of {unread[0]} was encrypted with another key; {len(unread)} are")
        for id in [each.id for each in found]:
            try:
                each = reader.get_subscription(id)  # what was changed meanwhile stays changed
                writer.replace_subscription(each.id, each.filter, each.dialect)
            except ApiError as error:
                if error.status == 404:
                    continue
                fail(f"the filter of {id} was not taken: {error}; once it is, try again")
    return len(found)
