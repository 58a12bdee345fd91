"""What is durable: event log, registry, match log and index files; opened by address."""

from __future__ import annotations

from pathlib import Path

from fieldfare.storage.event_log import EventLog
from fieldfare.storage.index_store import IndexStore
from fieldfare.storage.match_block import MatchBlock, NewMatchBlock
from fieldfare.storage.match_log import MatchLog
from fieldfare.storage.registry import Registry

__all__ = [
    "EventLog",
    "IndexStore",
    "MatchBlock",
    "MatchLog",
    "NewMatchBlock",
    "Registry",
    "open_event_log",
    "open_registry",
]


def open_event_log(url: str) -> EventLog:
    """Open the event log at an address, ``sqlite:///path``; a file that does not exist is created.

    Raises
    ------
    ValueError
        The address is of no kind that is known.
    EventLogError
        The file cannot be opened, or is not an event log.
    """
    from fieldfare.storage.sqlite_log import SqliteEventLog

    return SqliteEventLog(_sqlite_path(url, "event log"))


def open_registry(url: str) -> Registry:
    """Open the registry at an address, ``sqlite:///path``; a file that does not exist is created.

    Raises
    ------
    ValueError
        The address is of no kind that is known.
    RegistryError
        The file cannot be opened, or is not a registry.
    """
    # Tasks that only read the log need not wait for SQLAlchemy to load.
    from fieldfare.storage.sql_registry import SqlRegistry

    return SqlRegistry(f"sqlite:///{Path(_sqlite_path(url, 'registry')).absolute()}")


def _sqlite_path(url: str, what: str) -> str:
    scheme, separator, path = url.partition(":///")
    if scheme != "sqlite" or not separator or not path:
        raise ValueError(f"the address of the {what} is sqlite:///PATH, not {url!r}")
    return path
