"""Where a service's logs are: said when its data directory is first used, and noted there for good.

Positions, cursors and the index are of one log. So a directory has one for as long as it lives: whoever
names another is refused, and who names none goes on with the one that it has.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import msgspec

from fieldfare.files import make_folder, write_file
from fieldfare.storage import open_event_log, open_match_log
from fieldfare.storage.errors import StorageError
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
        The address is none, or the directory has another log.
    StorageError
        No broker answers there, or there is no such topic.
    """
    folder = DataFolder.at(root)
    if log is None:
        return folder
    try:
        wanted = KafkaAddress.parse(log, "event log")
    except ValueError as error:
        raise AddressError(str(error)) from None
    _refuse_another(folder, wanted)
    if find_spec("confluent_kafka") is None:
        raise AddressError("a log in Kafka needs the kafka extra: pip install 'fieldfare[kafka]'")
    if wanted.config is not None:
        wanted = replace(wanted, config=str(Path(wanted.config).absolute()))
    try:
        with closing(open_event_log(wanted.url)) as opened:
            wanted = replace(wanted, partitions=len(opened.partitions))
        matches = replace(wanted, topic=wanted.topic + MATCHES)
        open_match_log(matches.url).partition(0).end(0)
    except ValueError as error:
        raise AddressError(str(error)) from None
    found = replace(folder, log=wanted.url, match_log=matches.url)
    if found != folder:
        make_folder(root)
        document = msgspec.json.encode({"log": found.log, "match_log": found.match_log})
        write_file(found.addresses, lambda file: file.write(document + b"\n"))
    return found


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
