"""Lines of JSON from a file or a stream: decompressed, without byte order marks; an array's items are lines.

=====================  ============================================================================
input                  what is read
=====================  ============================================================================
gzip, bzip2, xz, zstd  the decompressed content, detected by the first bytes
a byte order mark      skipped at the start of every line: files may have been concatenated
carriage returns       spaces: in JSON they stand between values only
a JSON array           a line for each item
a value over lines     one line
blank lines            skipped, but counted
=====================  ============================================================================
"""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from fieldfare.encodings import zstd
from fieldfare.runtimes.files.kinds import START_BYTES, FileError, kind_by_start

STANDARD_INPUT = "-"
PIECE_BYTES = 4 << 20
"""Bytes of lines that are read together; a longer line makes a longer piece."""

_MARK = b"\xef\xbb\xbf"
_PACKINGS: tuple[tuple[bytes, Callable[..., Any] | None], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
    (b"\x28\xb5\x2f\xfd", None if zstd is None else zstd.open),
)
UNPACKING_ERRORS = (
    *(OSError, EOFError, zlib.error, lzma.LZMAError),
    *(() if zstd is None else (zstd.ZstdError,)),
)


def open_stream(file: str | Path) -> tuple[BinaryIO, str]:
    """Open a file, or standard input for ``-``; return its bytes, and its name for messages."""
    if str(file) != STANDARD_INPUT:
        try:
            return open(file, "rb"), str(file)
        except OSError as error:
            raise FileError(f"cannot read {file}: {error.strerror}") from None
    if sys.stdin is None:
        raise FileError("standard input is closed: give a file, or a pipe")
    return sys.stdin.buffer, "standard input"


def unpacked(stream: BinaryIO, name: str) -> tuple[BinaryIO, bool]:
    """Return the decompressed content of a stream, and whether it was compressed."""
    peeking: Any = stream if hasattr(stream, "peek") else io.BufferedReader(stream)
    start = peeking.peek(START_BYTES)[:START_BYTES]
    for known, opener in _PACKINGS:
        if start.startswith(known):
            if opener is None:
                raise FileError(f"{name} is compressed with zstd: pip install 'fieldfare[zstd]', or use gzip")
            return io.BufferedReader(opener(peeking)), True
    return peeking, False


class LineReader:
    """The JSON lines of a stream; can be read once, by iterating or in pieces.

    Parameters
    ----------
    stream
        Bytes, compressed or not.
    name
        Name of the stream in messages.

    Attributes
    ----------
    is_plain
        Whether the lines are ranges of the stream's own bytes: not compressed, and not an array.

    Raises
    ------
    FileError
        The stream is of a kind that has no lines, or its compressed content is damaged.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._name = name
        self._items: list[bytes] | None = None
        try:
            self._stream, is_packed = unpacked(stream, name)
            self._head, is_document = self._read_head()
            if is_document:
                self._items = self._read_items()
        except UNPACKING_ERRORS as error:
            raise self._damage(error) from None
        self.is_plain = self._items is None and not is_packed

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yield each line and its number, from 1."""
        try:
            lines = itertools.chain(self._head, self._stream) if self._items is None else iter(self._items)
            for number, line in enumerate(lines, 1):
                line = _plain(line.removeprefix(_MARK)).strip()
                if line:
                    yield number, line
        except UNPACKING_ERRORS as error:
            raise self._damage(error) from None

    def pieces(self) -> Iterator[tuple[bytes, int]]:
        """Yield bytes of complete lines, and the number of the first line."""
        first = 1
        try:
            for piece in self._pieces():
                yield piece, first
                first += piece.count(b"\n")
        except UNPACKING_ERRORS as error:
            raise self._damage(error) from None

    def _pieces(self) -> Iterator[bytes]:
        if self._items is not None:
            items = iter(self._items)
            while some := list(itertools.islice(items, 1000)):
                yield b"".join(item + b"\n" for item in some)
            return
        while piece := b"".join(self._head) + self._stream.read(PIECE_BYTES):
            self._head = []
            yield piece if piece.endswith(b"\n") else piece + self._stream.readline()

    def _read_head(self) -> tuple[list[bytes], bool]:
        """Read lines until it is clear whether all is one document: an array, or a value over lines."""
        kind = kind_by_start(self._stream.peek(START_BYTES)[:START_BYTES], self._name)  # type: ignore[attr-defined]
        if kind is not None:
            raise FileError(
                f"{self._name} holds {kind.value}: pass the file itself, by name and uncompressed"
            )
        head: list[bytes] = []
        first = self._next_line(head)
        if _is_complete(first) and not first.startswith(b"["):
            return head, False
        second = self._next_line(head)
        if _is_complete(first):
            return head, not second
        # A corrupt line before another one; no value over several lines continues with a brace.
        return head, bool(first) and not (first.startswith(b"{") and second.startswith(b"{"))

    def _next_line(self, head: list[bytes]) -> bytes:
        """Return the next line that is not blank, and append it with those before; empty at the end."""
        for line in self._stream:
            head.append(line)
            if text := line.removeprefix(_MARK).strip():
                return text
        return b""

    def _read_items(self) -> list[bytes]:
        content = b"".join(self._head) + self._stream.read()
        text = _plain(content.lstrip().removeprefix(_MARK)).lstrip()
        try:
            if text.startswith(b"["):
                items = msgspec.json.decode(text, type=list[msgspec.Raw])
            else:
                items = [msgspec.json.decode(text, type=msgspec.Raw)]
        except (ValueError, RecursionError):
            return content.split(b"\n")  # Lines after all; the corrupt ones get their errors.
        return [msgspec.json.format(bytes(item), indent=-1) for item in items]

    def _damage(self, error: Exception) -> FileError:
        return FileError(f"cannot read {self._name}: {getattr(error, 'strerror', None) or error}")


def whole_lines(piece: bytes, first_line: int) -> tuple[bytes, list[int] | range]:
    """Return a piece's lines as `LineReader` yields them, each ended by a line feed, and their numbers."""
    if _MARK in piece:
        piece = piece.removeprefix(_MARK).replace(b"\n" + _MARK, b"\n")
    piece = _plain(piece)
    if not piece.endswith(b"\n"):
        piece += b"\n"
    if b"\n\n" not in piece and b"\n " not in piece and not piece.startswith((b"\n", b" ")):
        return piece, range(first_line, first_line + piece.count(b"\n"))
    kept = [(line, text) for line, text in enumerate(piece.split(b"\n"), first_line) if text.strip()]
    return b"".join(text + b"\n" for _, text in kept), [line for line, _ in kept]


def _plain(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\r", b" ") if b"\r" in text else text


def _is_complete(line: bytes) -> bool:
    """Return whether a line is a complete JSON value; not if it nests too deeply to be read."""
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except (ValueError, RecursionError):
        return False
    return True
