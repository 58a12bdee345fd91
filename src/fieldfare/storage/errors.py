"""The errors that storage raises; every message names the file or address concerned."""

from __future__ import annotations


class StorageError(Exception):
    """Durable data could not be read or written."""


class EventLogError(StorageError):
    """The event log could not be read or written."""


class TrimmedError(EventLogError):
    """The records asked for were removed by retention."""


class CorruptLogError(EventLogError):
    """A page of the event log is corrupt: the disk returns other bytes than were written."""


class RegistryError(StorageError):
    """The registry could not be read or written."""


class DiskFullError(EventLogError, RegistryError):
    """The disk is full; nothing was written, and the operation may be retried."""


class FormatError(EventLogError, RegistryError):
    """A file is not a log or registry, or has a format that this version cannot read; do not retry."""


class UnknownSpaceError(RegistryError):
    """The space does not exist."""

    def __init__(self, space: str) -> None:
        super().__init__(f"there is no space {space!r}")
        self.space = space


class SpaceExistsError(RegistryError):
    """The space to create exists already."""

    def __init__(self, space: str) -> None:
        super().__init__(f"there is a space {space!r} already")
        self.space = space


class MatchLogError(StorageError):
    """A block of the match log could not be read or written."""


class CorruptBlockError(MatchLogError):
    """A block, identified by its partition and range, is corrupt."""

    def __init__(self, partition: int, block: tuple[int, int], reason: str) -> None:
        super().__init__(reason)
        self.partition = partition
        self.block = block


class DelayedError(StorageError):
    """Delayed records could not be read or written."""


class OtherMachineError(StorageError):
    """The file is on another machine and cannot be opened here."""


class IndexStoreError(StorageError):
    """A manifest or an index file could not be read or written."""
