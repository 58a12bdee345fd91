"""The addresses of a service's logs and of the copy of its index, recorded in its data directory.

Positions, cursors and the index refer to one log. So a directory keeps its log for good: another address is
refused, and a start without an address uses the recorded one. The copy of the index may move: for another
address, a new copy is written there.
"""

from __future__ import annotations

import secrets
from contextlib import closing, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

from fieldfare.storage import open_event_log, open_match_log
from fieldfare.storage.errors import EventLogError, StorageError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.kafka.address import KafkaAddress
from fieldfare.storage.shared.address import SharedAddress

_TRIED = "README"
MATCHES = ".matches"
"""Suffix that turns the event log's topic name into that of the match log's topic."""


class AddressError(StorageError):
    """The logs, or the copy of the index, cannot be at the requested address."""


def settle(root: Path, log: str | None, index_store: str | None = None) -> DataFolder:
    """Return the data directory with the addresses of its logs and its index copy; record new ones.

    Parameters
    ----------
    root
        The directory; created if it does not exist.
    log
        Address of the event log, ``kafka://HOST:PORT/TOPIC``; the match log is in the topic with the suffix
        `MATCHES`. None means the recorded address or, without one, the directory itself.
    index_store
        Address of the copy of the index that the machines of a cluster read: see `shared.address`. None means
        the recorded one, if any.

    Raises
    ------
    AddressError
        An address is invalid, the directory has another log, or the log belongs to another directory.
    StorageError
        No broker answers, there is no such topic, or nothing can be written at an address.
    """
    index_copy = None if index_store is None else _usable(index_store, root)
    folder = DataFolder.at(root)
    _refuse_misplaced(folder)
    found = _with_log(folder, log)
    if index_copy not in (None, found.index_copy):
        found = replace(found, index_copy=index_copy)
        found.note()
    elif found.addresses.exists():
        with suppress(OSError):  # An older version wrote it without a checksum.
            found.note()
    return found


def _refuse_misplaced(folder: DataFolder) -> None:
    """Raise AddressError if an earlier version stored the registry beside the directory.

    That version took the directory's path for a URL: "?" ended the path, and "%41" was read as "A".
    """
    path = folder.registry_path.absolute()
    misplaced = Path(unquote(str(path).partition("?")[0]))
    is_used = folder.log is not None or folder.log_path.exists()
    if misplaced != path and is_used and misplaced.is_file() and not path.exists():
        raise AddressError(
            f"an earlier version kept the subscriptions of {folder.root} in {misplaced}. If no other service"
            f" uses that file, move it, and {misplaced.name}-wal if there is one, to {path} and"
            f" {path.name}-wal; then start again"
        )


def _usable(url: str, root: Path) -> str:
    """Return the normalized address of a writable place; files of an earlier service there remain."""
    try:
        address = SharedAddress.parse(url)
    except ValueError as error:
        raise AddressError(str(error)) from None
    path = Path(unquote(address.place.removeprefix("file://")))
    if address.place.startswith("file:") and root.resolve() in (path.resolve(), *path.resolve().parents):
        raise AddressError(
            f"{path} is in the data directory, which other machines cannot read: name a folder that all"
            " machines share"
        )
    from fieldfare.storage.shared.files import SharedFiles  # loads pyarrow

    try:
        SharedFiles(address).put_bytes(_TRIED, b"This is a copy of the index of a fieldfare service.\n")
    except StorageError as error:
        raise AddressError(f"the index cannot be copied to {address.place}: {error}") from None
    return address.url


def _with_log(folder: DataFolder, log: str | None) -> DataFolder:
    if log is None:
        if folder.log is not None:
            try:
                return _claimed(folder, KafkaAddress.parse(folder.log, "event log"))
            except EventLogError:
                """No broker answers yet; the service waits for one."""
        return folder
    try:
        wanted = KafkaAddress.parse(log, "event log")
    except ValueError as error:
        raise AddressError(str(error)) from None
    _refuse_another(folder, wanted)
    _need_kafka()
    if wanted.config is not None:
        wanted = replace(wanted, config=str(Path(wanted.config).absolute()))
    try:
        with closing(open_event_log(wanted.url)) as opened:
            wanted = replace(wanted, partitions=len(opened.partitions))
        matches = replace(wanted, topic=wanted.topic + MATCHES)
        open_match_log(matches.url).partition(0).end(0)
    except ValueError as error:
        raise AddressError(str(error)) from None
    return _claimed(replace(folder, log=wanted.url, match_log=matches.url), wanted)


def _claimed(folder: DataFolder, address: KafkaAddress) -> DataFolder:
    """Record the log in the directory, claim the log for the directory, and return the directory."""
    _need_kafka()
    from fieldfare.storage.kafka.owner import AnotherOwner, claim

    noted = DataFolder.at(folder.root)
    found = replace(folder, service=folder.service or secrets.token_hex(16))
    # Before the claim: a directory that owns a log but has not recorded it would be refused for ever.
    if found != noted:
        found.note()
    try:
        claim(address, found.service, folder.root.absolute())
    except StorageError as error:
        if noted == DataFolder(folder.root):
            found.addresses.unlink()
        else:
            noted.note()
        if isinstance(error, AnotherOwner):
            raise AddressError(str(error)) from None
        raise
    return found


def _need_kafka() -> None:
    if find_spec("confluent_kafka") is None:
        raise AddressError("a log in Kafka needs the kafka extra: pip install 'fieldfare[kafka]'")


def _refuse_another(folder: DataFolder, wanted: KafkaAddress) -> None:
    """Raise AddressError if the directory has another log; only the topic counts, since brokers may move."""
    if folder.log is not None:
        noted = KafkaAddress.parse(folder.log, "event log")
        if noted.topic == wanted.topic:
            return
        has = str(noted)
    elif folder.log_path.exists():
        has = str(folder.log_path)
    else:
        return
    raise AddressError(
        f"--log names {wanted}, but the data directory {folder.root} already uses the log {has}: its cursors"
        " and matches refer to that log. Leave out --log, or name another directory with --data"
    )
