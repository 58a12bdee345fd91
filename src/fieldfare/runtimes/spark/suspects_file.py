"""Which records are being tried one by one, in a file: a process that they kill cannot remember it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fieldfare.files import write_file
from fieldfare.pipeline.suspects import Suspects


class _Written(msgspec.Struct):
    suspects: Suspects
    trying: bool


class SuspectsFile:
    """Written before records under suspicion are tried, and never while all goes well."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> tuple[Suspects | None, bool]:
        """The suspects, and whether an attempt was begun whose end nobody has noted."""
        try:
            written = msgspec.json.decode(self._path.read_bytes(), type=_Written)
        except (FileNotFoundError, msgspec.DecodeError):
            return None, False
        return written.suspects, written.trying

    def save(self, suspects: Suspects | None, *, trying: bool = False) -> None:
        """Write them, durably; None when there are none any more."""
        if suspects is None:
            self._path.unlink(missing_ok=True)
            return
        document = msgspec.json.encode(_Written(suspects, trying))
        write_file(self._path, lambda file: file.write(document))
