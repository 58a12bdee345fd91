"""What is durable: event log, registry, match log and index files; contracts, opened by address.

``event_log``, ``delayed``, ``match_log``, ``index_store`` and ``registry`` say what holds, whoever keeps it;
the folders are those who do: `sqlite` an event log and what waits to be in it, `sql` the registry, `files`
match log and index store, `kafka` both logs, `shared` the index where other machines reach it.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from fieldfare.storage.delayed import DelayedRecords
    from fieldfare.storage.event_log import EventLog, EventReader, EventRetention, EventWriter, LogPartition
    from fieldfare.storage.index_store import IndexSource, IndexStore
    from fieldfare.storage.keys import KeyStore
    from fieldfare.storage.match_log import MatchBlock, MatchLog, MatchPartition, NewMatchBlock
    from fieldfare.storage.registry import Registry

__all__ = [
    "DelayedRecords",
    "EventLog",
    "EventReader",
    "EventRetention",
    "EventWriter",
    "IndexSource",
    "IndexStore",
    "KeyStore",
    "LogPartition",
    "MatchBlock",
    "MatchLog",
    "MatchPartition",
    "NewMatchBlock",
    "Registry",
    "open_delayed",
    "open_event_log",
    "open_index_copy",
    "open_index_store",
    "open_keys",
    "open_match_log",
    "open_registry",
]

_MODULES = {
    **dict.fromkeys(
        ("EventLog", "EventReader", "EventRetention", "EventWriter", "LogPartition"), "event_log"
    ),
    **dict.fromkeys(("MatchBlock", "MatchLog", "MatchPartition", "NewMatchBlock"), "match_log"),
    "DelayedRecords": "delayed",
    "IndexSource": "index_store",
    "IndexStore": "index_store",
    "KeyStore": "keys",
    "Registry": "registry",
}

_IN_KAFKA = " or kafka://HOST:PORT/TOPIC"


def __getattr__(name: str) -> object:
    # Loaded when first asked for: who only wants to know where a file lies needs no arrays.
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def open_event_log(url: str) -> EventLog:
    """Open the event log at an address, ``sqlite:///path`` or ``kafka://host:port/topic``.

    A file that does not exist is created.

    Raises
    ------
    ValueError
        The address is of no kind that is known.
    EventLogError
        The file cannot be opened, or is not an event log; no broker answers, or there is no such topic.
    """
    # Who needs one part of storage need not wait for the others to load.
    if url.startswith("kafka:"):
        from fieldfare.storage.kafka.log import KafkaEventLog

        return KafkaEventLog(url)
    path = _path(url, "event log", "sqlite", _IN_KAFKA)
    from fieldfare.storage.sqlite.log import SqliteEventLog

    return SqliteEventLog(path)


def open_delayed(url: str) -> DelayedRecords:
    """Open the records that wait for their time at an address, ``sqlite:///path``; created if not there.

    Raises
    ------
    ValueError
        The address is of no kind that is known.
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
        The address is of no kind that is known.
    RegistryError
        The file cannot be opened, or is not a registry.
    """
    path = _path(url, "registry", "sqlite")
    from fieldfare.storage.sql.registry import SqlRegistry

    return SqlRegistry(f"sqlite:///{Path(path).absolute()}")


def open_keys(url: str) -> KeyStore:
    """Open the API keys that are kept beside the registry at an address, ``sqlite:///path``.

    Raises
    ------
    ValueError
        The address is of no kind that is known.
    RegistryError
        The file cannot be opened.
    """
    path = _path(url, "registry", "sqlite")
    from fieldfare.storage.sql.keys import SqlKeys

    return SqlKeys(f"sqlite:///{Path(path).absolute()}")


def open_match_log(url: str) -> MatchLog:
    """Open the match log at an address, ``file:///path`` or ``kafka://host:port/topic``.

    A folder is made when something is written.

    Raises
    ------
    ValueError
        The address is of no kind that is known.
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
    """Open the index store at an address, ``file:///path``: a folder, made when something is written.

    Parameters
    ----------
    copy
        Where what is written goes, too: for the one who writes. See `open_index_copy`.

    Raises
    ------
    ValueError
        The address is of no kind that is known.
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
    """Open the copy of an index that machines without the store read: ``file:///path``, ``s3://bucket/path``...

    Raises
    ------
    ValueError
        The address is of no kind that is known.
    """
    from fieldfare.storage.shared.address import SharedAddress
    from fieldfare.storage.shared.index_copy import IndexCopy

    return IndexCopy(SharedAddress.parse(address))


def _path(url: str, what: str, known: str, or_else: str = "") -> str:
    scheme, separator, path = url.partition(":///")
    if scheme != known or not separator or not path:
        raise ValueError(f"the address of the {what} is {known}:///PATH{or_else}, not {url!r}")
    return f"/{unquote(path)}" if scheme == "file" else path
