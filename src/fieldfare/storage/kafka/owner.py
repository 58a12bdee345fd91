"""The owner of a log: one data directory, since the stamps and matches of a second one would conflict.

A message in the producer table's topic names the owner (see `repeats`). Each claim has its own key, so that
compaction keeps it. If two directories claim a log at the same time, the first claim in the topic counts.
"""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import msgspec

from fieldfare.storage.errors import EventLogError
from fieldfare.storage.kafka.address import KafkaAddress
from fieldfare.storage.kafka.connections import ANSWER_S, KafkaConnections
from fieldfare.storage.kafka.repeats import OWNER, TABLE_SETTINGS, table_of


class AnotherOwner(EventLogError):
    """The log belongs to another directory; the message names the owner and says what to do."""


class _Owner(msgspec.Struct):
    service: str
    place: str


def claim(address: KafkaAddress, service: str, root: Path) -> None:
    """Claim a log for a data directory.

    Parameters
    ----------
    address
        Address of the event log.
    service
        Unique ID of the directory's service.
    root
        Path of the directory, named in the error that a later claimant gets.

    Raises
    ------
    AnotherOwner
        The log belongs to another directory.
    EventLogError
        No broker answers, or the claim could not be written.
    """
    table = table_of(address)
    with closing(KafkaConnections(table, TABLE_SETTINGS, EventLogError)) as connections:
        connections.prepare()
        owner = _owner(connections)
        if owner is None:
            said = msgspec.json.encode(_Owner(service, f"{root} on {socket.gethostname()}"))
            with connections.explained():
                producer = connections.producer()
                producer.produce(table.topic, said, OWNER + service.encode(), 0)
                producer.flush(ANSWER_S)
            owner = _owner(connections)
    if owner is None:
        raise EventLogError(f"{table}: the log's owner, {root}, could not be recorded")
    if owner.service != service:
        raise AnotherOwner(
            f"{address} belongs to another service, whose data directory is {owner.place}: name another topic"
            f" with --log. If that service no longer exists, delete the topic '{table.topic}', which records"
            " the owner; this service then appends after the existing records"
        )


def _owner(connections: KafkaConnections) -> _Owner | None:
    low, high = connections.bounds(0)
    with connections.reading(0, low) as reader:
        for message in reader.messages(high):
            if (message.key() or b"").startswith(OWNER):
                return msgspec.json.decode(message.value() or b"", type=_Owner)
    return None
