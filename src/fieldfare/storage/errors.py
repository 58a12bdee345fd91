"""What storage raises: every message names the file or the address that is meant."""

from __future__ import annotations


class StorageError(Exception):
    """Something durable could not be read or written."""


class EventLogError(StorageError):
    """The event log could not be read or written."""


class TrimmedError(EventLogError):
    """The records asked for were removed by retention."""


class RegistryError(StorageError):
    """The registry could not be read or written."""


class DiskFullError(EventLogError, RegistryError):
    """There is no space left to write to; what was asked for was not done, and may be asked for again."""


class FormatError(EventLogError, RegistryError):
    """A file is no log or registry, or of a format that this program does not read: waiting does not help."""


class UnknownSpaceError(RegistryError):
    """A space was named that does not exist."""

    def __init__(self, space: str) -> None:
        super().__init__(f"there is no space {space!r}")
        self.space = space


class SpaceExistsError(RegistryError):
    """A space was to be created that exists."""

    def __init__(self, space: str) -> None:
        super().__init__(f"there is a space {space!r} already")
        self.space = space


class MatchLogError(StorageError):
    """A block of the match log could not be read or written."""


class BrokenBlockError(MatchLogError):
    """A block, given by its partition and its range, does not hold what it should."""

    def __init__(self, partition: int, block: tuple[int, int], reason: str) -> None:
        super().__init__(reason)
        self.partition = partition
        self.block = block


class DelayedError(StorageError):
    """Records that wait for their time could not be read or written."""


class ElsewhereError(StorageError):
    """A file was to be opened on another machine than the one that has it."""


class IndexStoreError(StorageError):
    """A manifest or an index file could not be read or written."""
