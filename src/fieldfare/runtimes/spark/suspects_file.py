"""A file of the records that are being tried one by one: a process that they kill cannot remember them.

It holds the suspects of each partition that has some; those of the first are tried, the others wait.
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
    """The file of suspects: written before suspected records are tried, and absent otherwise."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> tuple[tuple[Suspects, ...], bool]:
        """Return the suspects, and whether an attempt was begun and its end not noted."""
        try:
            written = msgspec.json.decode(self._path.read_bytes(), type=_Written)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            return (), False
        return written.suspects, written.trying

    def save(self, suspects: tuple[Suspects, ...], *, trying: bool = False) -> None:
        """Write the suspects durably; remove the file if there are none."""
        if not suspects:
            self._path.unlink(missing_ok=True)
            return
        document = msgspec.json.encode(_Written(suspects, trying))
        write_file(self._path, lambda file: file.write(document))
