"""Whose a log is: one data directory's, for the stamps and matches of another would be in its way.

A message of the table's topic says it (see `repeats`), each with a key of its own, so that compaction leaves
them. Of two that come at the same time the first in the topic counts.
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
    """The log is another directory's; the text says whose, and what can be done."""


class _Owner(msgspec.Struct):
    service: str
    place: str


def claim(address: KafkaAddress, service: str, root: Path) -> None:
    """Say that a log is a directory's; AnotherOwner when it is another one's, EventLogError without a broker.

    Parameters
    ----------
    address
        The event log's.
    service
        What no other directory has.
    root
        Where the directory is: for who is refused later.
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
        raise EventLogError(f"{table}: that the log is of {root} could not be noted")
    if owner.service != service:
        raise AnotherOwner(
            f"{address} is the log of another service, that in {owner.place}: name another topic. If"
            f" that one is gone for good, delete the topic {table.topic}, which says so, and this one goes on"
            " behind it"
        )


def _owner(connections: KafkaConnections) -> _Owner | None:
    low, high = connections.bounds(0)
    with connections.reading(0, low) as reader:
        for message in reader.messages(high):
            if (message.key() or b"").startswith(OWNER):
                return msgspec.json.decode(message.value() or b"", type=_Owner)
    return None
