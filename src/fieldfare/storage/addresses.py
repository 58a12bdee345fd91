"""Where a service's logs are: said when its data directory is first used, and noted there for good.

Positions, cursors and the index are of one log. So a directory has one for as long as it lives: whoever
names another is refused, and who names none goes on with the one that it has.
"""

from __future__ import annotations

import secrets
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import msgspec

from fieldfare.files import make_folder, write_file
from fieldfare.storage import open_event_log, open_match_log
from fieldfare.storage.errors import EventLogError, StorageError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.kafka.address import KafkaAddress

MATCHES = ".matches"
"""What the name of the match log's topic has behind that of the event log's."""


class AddressError(StorageError):
    """The logs cannot be where somebody wants them."""


def settle(root: Path, log: str | None) -> DataFolder:
    """The data directory with its logs where they are to be, or are already.

    Parameters
    ----------
    root
        The directory; it is made if it is not there.
    log
        The event log's address, ``kafka://HOST:PORT/TOPIC``; the match log is in the topic beside it. None:
        where it is, and else in the directory itself.

    Raises
    ------
    AddressError
        The address is none, the directory has another log, or the log another directory.
    StorageError
        No broker answers there, or there is no such topic.
    """
    folder = DataFolder.at(root)
    if log is None:
        if folder.log is not None:
            try:
                return _claimed(folder, KafkaAddress.parse(folder.log, "event log"))
            except EventLogError:
                """No broker answers yet; the service waits for them."""
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
    """The directory, with its log noted as its own on either side."""
    _need_kafka()
    from fieldfare.storage.kafka.owner import AnotherOwner, claim

    noted = DataFolder.at(folder.root)
    found = replace(folder, service=folder.service or secrets.token_hex(16))
    # First: one that the log knows as its own, and that does not know so itself, would be refused for ever.
    if found != noted:
        _note(found)
    try:
        claim(address, found.service, folder.root.absolute())
    except StorageError as error:
        if noted.log is None:
            found.addresses.unlink()
        else:
            _note(noted)
        if isinstance(error, AnotherOwner):
            raise AddressError(str(error)) from None
        raise
    return found


def _note(folder: DataFolder) -> None:
    make_folder(folder.root)
    names = ("log", "match_log", "service")
    document = msgspec.json.encode({name: getattr(folder, name) for name in names})
    write_file(folder.addresses, lambda file: file.write(document + b"\n"))


def _need_kafka() -> None:
    if find_spec("confluent_kafka") is None:
        raise AddressError("a log in Kafka needs the kafka extra: pip install 'fieldfare[kafka]'")


def _refuse_another(folder: DataFolder, wanted: KafkaAddress) -> None:
    """AddressError when a directory has a log already that is not this one; brokers may have moved."""
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
        f"the log of {folder.root} is {has}, and its cursors and matches are of that one: leave --log out,"
        f" or name another directory with --data"
    )
