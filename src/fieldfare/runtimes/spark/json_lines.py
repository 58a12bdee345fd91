"""Files of JSON lines, cut into chunks that tasks read by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 4 << 20
_SUFFIXES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of a file: its bytes from `start` to `end`, the first line being `first_line` (from 1)."""

    path: str
    start: int
    end: int
    first_line: int


def json_line_files(path: Path) -> list[Path]:
    """The files that a path means: itself, or the JSON-lines files in a folder, by name."""
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
    return [path]


def chunks_of(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Cut a file at line ends into chunks of about so many bytes; lines are counted on the way."""
    with path.open("rb") as file:
        start, first_line = 0, 1
        while data := file.read(chunk_bytes):
            if not data.endswith(b"\n"):
                data += file.readline()
            yield Chunk(str(path), start, start + len(data), first_line)
            start += len(data)
            first_line += data.count(b"\n")


def read_chunk(chunk: Chunk) -> tuple[bytes, list[int] | range]:
    """A chunk's events, one a line, each ended by a line feed; and the number of each one's line in the file.

    Blank lines are left out, a missing line feed at the file's end is added.
    """
    with open(chunk.path, "rb") as file:
        file.seek(chunk.start)
        data = file.read(chunk.end - chunk.start)
    if not data.endswith(b"\n"):
        data += b"\n"
    lines = data.count(b"\n")
    if (
        b"\n\n" not in data
        and b"\r" not in data
        and b"\n " not in data
        and not data.startswith((b"\n", b" "))
    ):
        return data, range(chunk.first_line, chunk.first_line + lines)
    kept = [(line, text) for line, text in enumerate(data.split(b"\n"), chunk.first_line) if text.strip()]
    return b"".join(text + b"\n" for _, text in kept), [line for line, _ in kept]
