"""Which records are being tried one by one, in a file: a process that they kill cannot remember it.

Of each partition that has some; those of the first are tried, and the others wait for their turn.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from fieldfare.files import write_file
from fieldfare.pipeline.suspects import Suspects


class _Written(msgspec.Struct):
    suspects: tuple[Suspects, ...]
    trying: bool


class SuspectsFile:
    """Written before records under suspicion are tried, and never while all goes well."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> tuple[tuple[Suspects, ...], bool]:
        """The suspects, and whether an attempt was begun whose end nobody has noted."""
        try:
            written = msgspec.json.decode(self._path.read_bytes(), type=_Written)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            return (), False
        return written.suspects, written.trying

    def save(self, suspects: tuple[Suspects, ...], *, trying: bool = False) -> None:
        """Write them, durably; the file goes when there are none any more."""
        if not suspects:
            self._path.unlink(missing_ok=True)
            return
        document = msgspec.json.encode(_Written(suspects, trying))
        write_file(self._path, lambda file: file.write(document))
