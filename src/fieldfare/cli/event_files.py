"""Reading events from a file or standard input: JSON lines, a JSON array, or one JSON object."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import typer

from fieldfare.cli.output import fail

EventsOption = Annotated[
    str | None,
    typer.Option(
        "--events",
        "-e",
        metavar="FILE",
        help="Events: JSON lines, a JSON array or one JSON object; - is standard input.",
    ),
]


def open_lines(file: str) -> tuple[Iterator[bytes], int | None]:
    """The events of a file, one a line, and its size where that is known."""
    if file == "-":
        return _split(sys.stdin.buffer), None
    path = Path(file)
    try:
        return _split(path.open("rb")), path.stat().st_size
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}")


def read_events(file: str, *, as_data: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """The events of a file and the numbers of their lines; numbers in them are exact.

    With ``as_data`` each line is the data of an event.
    """
    lines, _ = open_lines(file)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            fail(f"{file}, line {number} is not JSON: {error}")
        if as_data:
            value = {"data": value}
        if not isinstance(value, dict):
            fail(
                f"{file}, line {number} is not an event: an event is a JSON object\n"
                "hint: --data takes each line as the data of an event"
            )
        yield number, value


def _split(stream: BinaryIO) -> Iterator[bytes]:
    """JSON lines as they come; a JSON array, or an object over several lines, is read as a whole."""
    first = b""
    for first in stream:
        if first.strip():
            break
    if _is_complete(first):
        return itertools.chain((first,), stream)
    content = first + stream.read()
    try:
        if content.lstrip()[:1] == b"[":
            items = msgspec.json.decode(content, type=list[msgspec.Raw])
        else:
            items = [msgspec.json.decode(content, type=msgspec.Raw)]
    except msgspec.DecodeError:
        return iter(content.splitlines(keepends=True))  # Lines after all; the broken ones get their errors.
    return (msgspec.json.format(bytes(item), indent=-1) for item in items)


def _is_complete(line: bytes) -> bool:
    """Whether the first line is a JSON value by itself and so, presumably, is every other."""
    if line.lstrip()[:1] == b"[":
        return False
    try:
        msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    return True
