"""One Kafka broker for all tests of a process that need one, with separate topics for each."""

from __future__ import annotations

import functools
import itertools
import os
import warnings

import pytest

from fieldfare.storage.kafka.address import KafkaAddress
from fieldfare_lab.kafka_broker import KafkaBroker, why_no_broker

_NUMBERS = itertools.count()


@functools.cache
def why_not() -> str | None:
    return why_no_broker()


@functools.cache
def _the_broker() -> KafkaBroker:
    return KafkaBroker()


def broker() -> KafkaBroker:
    """The broker, started when it is first needed; skips the test if it cannot be started."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    if not _the_broker().is_running:  # by itself, or killed for lack of memory
        warnings.warn(f"the tests' Kafka broker ended:\n{_the_broker().log()}", stacklevel=2)
        stop()
    return _the_broker()


def own_broker() -> KafkaBroker:
    """A separate broker that a test may kill; skips the test if it cannot be started."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    return KafkaBroker()


def topic(partitions: int, of: KafkaBroker | None = None) -> str:
    """The address of a topic that is made when it is opened."""
    address = (of or broker()).address
    return f"kafka://{address}/t{os.getpid()}-{next(_NUMBERS)}?partitions={partitions}"


def remove_before(url: str, partition: int, offset: int) -> None:
    """Remove records as a topic's retention does, at a moment that the test chooses."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    address = KafkaAddress.parse(url, "log")
    admin = AdminClient({"bootstrap.servers": address.brokers})
    for future in admin.delete_records([TopicPartition(address.topic, partition, offset)]).values():
        future.result(60)


def stop() -> None:
    """Stop the broker if there is one."""
    if _the_broker.cache_info().currsize:
        _the_broker().close()
        _the_broker.cache_clear()
