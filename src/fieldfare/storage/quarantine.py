"""The records that were set aside because matching them failed: a small file for each, named by its place.

A file says why; the events themselves stay in the event log, and retention takes both. The pipeline writes
the files; the gateway lists them, and removes one when its record was published again.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from fieldfare.files import sync_folder, write_file
from fieldfare.model import Offsets
from fieldfare.storage.errors import StorageError

DIED = "the process ended while the record was matched"
"""How the error begins of a record whose processes died without a word."""

_SUFFIX = ".json"
_PLACE = re.compile(r"(?:([0-9]+)-)?([0-9]+)\.json")
_RAISED = re.compile(r"cannot be matched: ([A-Za-z_]\w{0,63})(?::|$)")
"""The name of the error that matching raised; what it says comes behind, and may quote events."""


def brief(error: str) -> str:
    """Why records could not be matched, for anybody: without the error's words, which may quote events."""
    if error.startswith(DIED):
        return DIED
    if raised := _RAISED.search(error):
        return f"matching it raised {raised[1]}"
    if "Python worker exited unexpectedly" in error:
        return "the worker process that matched it ended unexpectedly"
    return "it could not be matched"


class SetAside(msgspec.Struct, frozen=True):
    """A record whose events nobody was given.

    Attributes
    ----------
    partition, offset : int
        The record's place in the event log.
    space : str
        Whose events it holds; empty when the record cannot be read.
    events : int
        How many those are.
    error : str
        Why it could not be matched, in the words of the error, which may quote events.
    set_aside_ms : int
        When that was decided, in milliseconds since 1970.
    """

    offset: int
    space: str
    events: int
    error: str
    set_aside_ms: int
    partition: int = 0


class Quarantine:
    """The records set aside, in a folder that is made with the first."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def add(self, record: SetAside) -> None:
        """Remember a record, durably; one that is there already is written again."""
        path = self._path(record.partition, record.offset)
        try:
            write_file(path, lambda file: file.write(msgspec.json.encode(record) + b"\n"))
        except OSError as error:
            raise StorageError(f"{path} could not be written: {error}") from error

    def get(self, partition: int, offset: int) -> SetAside | None:
        """What is known of a record; None when it is not set aside."""
        if not (0 <= offset < 1 << 63 and 0 <= partition < 1 << 31):
            return None
        try:
            return msgspec.json.decode(self._path(partition, offset).read_bytes(), type=SetAside)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            # Somebody edited it, or the disk lost it: its name says which record it is.
            return SetAside(offset, "", 0, f"unknown: the file cannot be read: {error}", 0, partition)

    def places(self) -> list[tuple[int, int]]:
        """The records set aside, by partition and offset, oldest first."""
        try:
            found = [_PLACE.fullmatch(path.name) for path in self.folder.glob(f"*{_SUFFIX}")]
        except FileNotFoundError:
            return []
        return sorted((int(place[1] or 0), int(place[2])) for place in found if place)

    def offsets(self, partition: int) -> list[int]:
        """Those of one partition."""
        return [offset for number, offset in self.places() if number == partition]

    def remove(self, partition: int, offset: int) -> None:
        """Forget a record, durably."""
        self._path(partition, offset).unlink(missing_ok=True)
        if self.folder.is_dir():
            sync_folder(self.folder)

    def forget_before(self, starts: Offsets) -> None:
        """Forget the records that the event log does not keep any more."""
        for partition, offset in self.places():
            if partition < len(starts) and offset < starts[partition]:
                self.remove(partition, offset)

    def _path(self, partition: int, offset: int) -> Path:
        # Where there is one partition its number says nothing.
        return self.folder / f"{f'{partition}-' if partition else ''}{offset:016d}{_SUFFIX}"
