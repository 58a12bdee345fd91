"""The quarantine: records set aside because matching them failed, one small file each, named by its place.

A file states the reason; the events themselves stay in the event log, and retention removes both. The
pipeline writes the files; the gateway lists them, and removes a file when its record is published again.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from fieldfare.files import sync_folder
from fieldfare.model import Offsets
from fieldfare.storage.checked_files import ChangedFileError, read_checked, write_checked
from fieldfare.storage.corruption import forget_note, note_corruption
from fieldfare.storage.errors import StorageError

UNKNOWN = "unknown: the file cannot be read"
"""Start of the error of a record whose quarantine file was edited or is corrupt."""

DIED = "the process ended while the record was matched"
"""Start of the error of a record whose matching process died without an error message."""

_SUFFIX = ".json"
_PLACE = re.compile(r"(?:([0-9]+)-)?([0-9]+)\.json")
_RAISED = re.compile(r"cannot be matched: ([A-Za-z_]\w{0,63})(?::|$)")
"""Matches the name of the error that matching raised; the text after it may quote events."""


def brief(error: str) -> str:
    """Return why a record could not be matched, without the error's text, which may quote events."""
    if error.startswith(DIED):
        return DIED
    if raised := _RAISED.search(error):
        return f"matching it raised {raised[1]}"
    if "Python worker exited unexpectedly" in error:
        return "the worker process that matched it ended unexpectedly"
    return "it could not be matched"


class QuarantinedRecord(msgspec.Struct, frozen=True):
    """A record set aside: its events were delivered to no subscriber.

    Attributes
    ----------
    partition, offset : int
        The record's place in the event log.
    space : str
        The space of its events; empty if the record cannot be read.
    events : int
        Number of its events.
    error : str
        Text of the error in matching, which may quote events.
    set_aside_ms : int
        Time at which it was set aside, in milliseconds since 1970.
    """

    offset: int
    space: str
    events: int
    error: str
    set_aside_ms: int
    partition: int = 0


class Quarantine:
    """The records set aside, in a folder that is created with the first one."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def add(self, record: QuarantinedRecord) -> None:
        """Add or replace a record; durable on return. StorageError if it cannot be written."""
        path = self._path(record.partition, record.offset)
        try:
            write_checked(path, record)
        except OSError as error:
            raise StorageError(f"{path} could not be written: {error}") from error

    def get(self, partition: int, offset: int) -> QuarantinedRecord | None:
        """Return a record that was set aside; None if it was not.

        If its file cannot be read, which is noted, only its place is known, and its error begins with
        `UNKNOWN`.
        """
        if not (0 <= offset < 1 << 63 and 0 <= partition < 1 << 31):
            return None
        path = self._path(partition, offset)
        noted = self.folder, path.name
        try:
            found = read_checked(path, QuarantinedRecord, noted)
            if (found.partition, found.offset) != (partition, offset):
                raise ChangedFileError("it is about another record")
            return found
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            # The file was edited or is corrupt; its name still identifies the record.
            said = (
                "the reason why the record was set aside cannot be read; publish the record again, or delete"
            )
            note_corruption(*noted, f"{path.name}: {said} the file ({error})")
            return QuarantinedRecord(offset, "", 0, f"{UNKNOWN}: {error}", 0, partition)

    def places(self) -> list[tuple[int, int]]:
        """Return the places of the records set aside: partition and offset, in this order."""
        try:
            found = [_PLACE.fullmatch(path.name) for path in self.folder.glob(f"*{_SUFFIX}")]
        except FileNotFoundError:
            return []
        return sorted((int(place[1] or 0), int(place[2])) for place in found if place)

    def offsets(self, partition: int) -> list[int]:
        """Return the offsets of the records set aside in one partition."""
        return [offset for number, offset in self.places() if number == partition]

    def remove(self, partition: int, offset: int) -> None:
        """Remove a record from the quarantine; durable on return."""
        path = self._path(partition, offset)
        path.unlink(missing_ok=True)
        forget_note(self.folder, path.name)
        if self.folder.is_dir():
            sync_folder(self.folder)

    def forget_before(self, starts: Offsets) -> None:
        """Remove the records before the given start of each partition: retention has removed their events."""
        for partition, offset in self.places():
            if partition < len(starts) and offset < starts[partition]:
                self.remove(partition, offset)

    def _path(self, partition: int, offset: int) -> Path:
        # Partition 0 has no prefix, as in a log with one partition.
        return self.folder / f"{f'{partition}-' if partition else ''}{offset:016d}{_SUFFIX}"
