"""Durable storage: event log, registry, match log and index files, with functions to open each by its URL.

The modules ``event_log``, ``delayed``, ``match_log``, ``index_store`` and ``registry`` define the interfaces.
The packages implement them: `sqlite` an event log, the delayed records and the links, `sql` the registry and
what else is in its database, `files` match log and index store, `kafka` both logs, `shared` a copy of the
index that other machines can read.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from fieldfare.storage.delayed import DelayedRecords
    from fieldfare.storage.event_log import EventLog, EventReader, EventRetention, EventWriter, LogPartition
    from fieldfare.storage.index_store import IndexSource, IndexStore
    from fieldfare.storage.match_log import MatchBlock, MatchLog, MatchPartition, NewMatchBlock
    from fieldfare.storage.registry import Registry
    from fieldfare.storage.sql.brokers import BrokerStore
    from fieldfare.storage.sql.keys import KeyStore
    from fieldfare.storage.sql.moves import MoveStore
    from fieldfare.storage.sqlite.links import LinkStore

__all__ = [
    "BrokerStore",
    "DelayedRecords",
    "EventLog",
    "EventReader",
    "EventRetention",
    "EventWriter",
    "IndexSource",
    "IndexStore",
    "KeyStore",
    "LinkStore",
    "LogPartition",
    "MatchBlock",
    "MatchLog",
    "MatchPartition",
    "MoveStore",
    "NewMatchBlock",
    "Registry",
    "load_stores",
    "open_brokers",
    "open_delayed",
    "open_event_log",
    "open_index_copy",
    "open_index_store",
    "open_keys",
    "open_links",
    "open_match_log",
    "open_moves",
    "open_registry",
]

_MODULES = {
    **dict.fromkeys(
        ("EventLog", "EventReader", "EventRetention", "EventWriter", "LogPartition"), "event_log"
    ),
    **dict.fromkeys(("MatchBlock", "MatchLog", "MatchPartition", "NewMatchBlock"), "match_log"),
    "BrokerStore": "sql.brokers",
    "DelayedRecords": "delayed",
    "IndexSource": "index_store",
    "IndexStore": "index_store",
    "KeyStore": "sql.keys",
    "LinkStore": "sqlite.links",
    "MoveStore": "sql.moves",
    "Registry": "registry",
}

_IN_KAFKA = " or kafka://HOST:PORT/TOPIC"


def __getattr__(name: str) -> object:
    # Load modules on first use: code that only needs the path of a file should not import NumPy.
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_stores(event_log_url: str) -> None:
    """Load the stores' modules before the first is opened; that takes a third of a second."""
    log = "kafka.log" if event_log_url.startswith("kafka:") else "sqlite.log"
    for name in (log, "sqlite.delayed", "sql.registry", "sql.keys", "files.match_log"):
        import_module(f"{__name__}.{name}")


def open_event_log(url: str) -> EventLog:
    """Open the event log at an address, ``sqlite:///path`` or ``kafka://host:port/topic``.

    A file that does not exist is created.

    Raises
    ------
    ValueError
        The address has another scheme, or is invalid.
    EventLogError
        The file cannot be opened, or is not an event log; no broker answers, or there is no such topic.
    """
    # Import implementations on first use, so that callers load only the ones that they need.
    if url.startswith("kafka:"):
        from fieldfare.storage.kafka.log import KafkaEventLog

        return KafkaEventLog(url)
    path = _path(url, "event log", "sqlite", _IN_KAFKA)
    from fieldfare.storage.sqlite.log import SqliteEventLog

    return SqliteEventLog(path)


def open_delayed(url: str) -> DelayedRecords:
    """Open the delayed records at an address, ``sqlite:///path``; a file that does not exist is created.

    Raises
    ------
    ValueError
        The address has another scheme, or is invalid.
    StorageError
        The file cannot be opened, or holds something else.
    """
    path = _path(url, "delayed records", "sqlite")
    from fieldfare.storage.sqlite.delayed import SqliteDelayed

    return SqliteDelayed(path)


def open_registry(url: str) -> Registry:
    """Open the registry at an address, ``sqlite:///path``; a file that does not exist is created.

    Raises
    ------
    ValueError
        The address has another scheme, or is invalid.
    RegistryError
        The file cannot be opened, or is not a registry.
    """
    from fieldfare.storage.sql.registry import SqlRegistry

    return SqlRegistry(_database_url(url))


def open_keys(url: str) -> KeyStore:
    """Open the API keys, stored in the registry's database; address and errors as in `open_registry`."""
    from fieldfare.storage.sql.keys import KeyStore

    return KeyStore(_database_url(url))


def open_brokers(url: str) -> BrokerStore:
    """Open the filters of other brokers, in the registry's database; see `open_registry`."""
    from fieldfare.storage.sql.brokers import BrokerStore

    return BrokerStore(_database_url(url))


def open_links(url: str) -> LinkStore:
    """Open the links to other brokers at an address, ``sqlite:///path``; a missing file is created.

    Raises
    ------
    ValueError
        The address has another scheme, or is invalid.
    StorageError
        The file cannot be opened, or holds something else.
    """
    path = _path(url, "links", "sqlite")
    from fieldfare.storage.sqlite.links import LinkStore

    return LinkStore(path)


def open_moves(url: str) -> MoveStore:
    """Open the moves of subscriptions, in the registry's database; see `open_registry`."""
    from fieldfare.storage.sql.moves import MoveStore

    return MoveStore(_database_url(url))


def open_match_log(url: str) -> MatchLog:
    """Open the match log at an address, ``file:///path`` or ``kafka://host:port/topic``.

    A folder that does not exist is created at the first write.

    Raises
    ------
    ValueError
        The address has another scheme, or is invalid.
    MatchLogError
        No broker answers, or there is no such topic.
    """
    if url.startswith("kafka:"):
        from fieldfare.storage.kafka.match_log import KafkaMatchLog

        return KafkaMatchLog(url)
    path = _path(url, "match log", "file", _IN_KAFKA)
    from fieldfare.storage.files.match_log import FileMatchLog

    return FileMatchLog(path)


def open_index_store(url: str, copy: str | None = None) -> IndexStore:
    """Open the index store at an address, ``file:///path``: a folder, created at the first write.

    Parameters
    ----------
    url
        Address of the index store.
    copy
        Address to which everything that is written is copied, for the process that writes; None for no copy.
        See `open_index_copy`.

    Raises
    ------
    ValueError
        An address has another scheme, or is invalid.
    """
    path = _path(url, "index store", "file")
    from fieldfare.storage.files.index_store import FileIndexStore

    store = FileIndexStore(path)
    if copy is None:
        return store
    from fieldfare.storage.shared.address import SharedAddress
    from fieldfare.storage.shared.index_copy import CopiedIndexStore

    return CopiedIndexStore(store, SharedAddress.parse(copy))


def open_index_copy(address: str) -> IndexSource:
    """Open a copy of an index, for machines without the store: ``file:///path``, ``s3://bucket/path``, ...

    Raises
    ------
    ValueError
        The address has an unknown scheme, or is invalid.
    """
    from fieldfare.storage.shared.address import SharedAddress
    from fieldfare.storage.shared.index_copy import IndexCopy

    return IndexCopy(SharedAddress.parse(address))


def _database_url(url: str) -> str:
    return f"sqlite:///{Path(_path(url, 'registry', 'sqlite')).absolute()}"


def _path(url: str, what: str, known: str, or_else: str = "") -> str:
    scheme, separator, path = url.partition(":///")
    if scheme != known or not separator or not path:
        raise ValueError(f"the address of the {what} is {known}:///PATH{or_else}, not {url!r}")
    return os.fsdecode(b"/" + unquote_to_bytes(path)) if scheme == "file" else path
