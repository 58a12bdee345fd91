"""Properties specific to an event log in Kafka: restarts, dying brokers, records in pieces, retention."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import kafka_rig
import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import KafkaError, KafkaException

from fieldfare.storage import EventLog, open_event_log
from fieldfare.storage.errors import EventLogError, TrimmedError
from fieldfare.storage.event_log import Appended, NewRecord, RetentionPolicy, ends_of
from fieldfare.storage.kafka import connections, pieces, writer
from fieldfare.storage.kafka.address import KafkaAddress
from fieldfare.storage.kafka.repeats import Repeats
from fieldfare_lab.kafka_broker import KafkaBroker

POLICY = RetentionPolicy(producers_ms=100)


@pytest.fixture
def url() -> str:
    return kafka_rig.topic(3)


@pytest.fixture
def own_broker() -> Iterator[KafkaBroker]:
    """A broker that a test may kill."""
    with kafka_rig.own_broker() as broker:
        yield broker


def record(sequence: int | None = None, producer: str = "p", stamp: int = 0, width: int = 9) -> NewRecord:
    payload = b'"' + f"{sequence}".encode() * width + b'"\n'
    return NewRecord("birds", payload, 1, None if sequence is None else producer, sequence, stamp=stamp)


def payloads(log: EventLog) -> list[bytes]:
    return [
        each.payload
        for partition in log.partitions
        for each in partition.read(partition.start(), partition.end())
    ]


@pytest.mark.parametrize("saved", [True, False], ids=["after a clean end", "after a kill"])
def test_repeats_are_known_after_a_restart(url: str, saved: bool) -> None:
    """A client got no answer, the gateway was restarted, and the client sends its batch again."""
    log = open_event_log(url)
    first = log.append([record(number, producer) for number in range(5) for producer in "pqr"])
    if saved:
        log.close()
    later = log.append([record(7)])
    again = open_event_log(url)
    repeats = [record(number, producer) for number in range(5) for producer in "pqr"] + [record(7)]
    assert again.append(repeats) == [replace(each, duplicate=True) for each in first + later]
    assert again.append([record(7, width=2)])[0].differs
    assert len(payloads(again)) == 16


def test_a_start_reads_only_what_was_appended_since_the_table_was_saved(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SAVE_RECORDS", 40)
    log = open_event_log(url)
    for number in range(100):
        log.append([record(number)])
    partition = log.append([record(99)])[0].partition
    began: list[int] = []
    read = writer.KafkaPartition.read_headers

    def noted(self: writer.KafkaPartition, start: int, end: int) -> object:
        began.append(start)
        return read(self, start, end)

    monkeypatch.setattr(writer.KafkaPartition, "read_headers", noted)
    again = open_event_log(url)
    assert all(each.duplicate for each in again.append([record(number) for number in range(100)]))
    assert began[partition] >= 80


def test_sequences_that_were_forgotten_stay_so_after_a_restart(url: str) -> None:
    log = open_event_log(url)
    log.append([record(1, "old")])
    for _ in range(3):
        log.grow_older(60, POLICY)
    log.append([record(1, "new")])
    log.retain(POLICY, ends_of(log))
    log.close()
    again = open_event_log(url)
    done = again.append([record(1, "new"), record(1, "old")])
    assert [each.duplicate for each in done] == [True, False]


def test_a_new_writer_takes_over_and_nothing_is_lost_or_doubled(url: str) -> None:
    """A gateway hung, another was started in its place, and then it went on."""
    one, other = open_event_log(url), open_event_log(url)
    kept: dict[int, Appended] = {}
    for number in range(0, 20, 2):
        for log, sequence in ((one, number), (other, number + 1)):
            for _ in range(3):
                try:
                    (kept[sequence],) = log.append([record(sequence)])
                    break
                except EventLogError:
                    """It finds that it was replaced, and takes over in turn."""
    assert sorted(kept) == list(range(20))
    assert sorted(payloads(one)) == sorted(record(number).payload for number in range(20))
    repeats = other.append([record(number) for number in range(20)])
    assert [(each.partition, each.offset) for each in repeats] == [
        (kept[number].partition, kept[number].offset) for number in range(20)
    ]


def test_a_record_larger_than_a_message_may_be_is_one_record(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_DEFAULT_PIECE_BYTES", 100)
    log = open_event_log(url)
    chance = random.Random(1)
    wanted = [record(number, width=chance.choice((1, 80, 800))) for number in range(30)]
    places = log.append(wanted)
    partition = log.partitions[places[0].partition]
    offsets = [place.offset for place in places]
    assert max(after - before for before, after in itertools.pairwise(offsets)) > 10
    for _ in range(60):
        start, end = sorted(chance.choices(range(partition.end() + 1), k=2))
        found = [(each.offset, each.payload) for each in partition.read(start, end)]
        assert found == [
            (place.offset, each.payload)
            for place, each in zip(places, wanted, strict=True)
            if start <= place.offset < end
        ]
    large = NewRecord("birds", b'"' + b"x" * (20 << 20) + b'"\n', 1)
    monkeypatch.undo()
    (place,) = open_event_log(url).append([large])
    (found,) = log.partitions[place.partition].read(place.offset, place.offset + 1)
    assert found.payload == large.payload


def test_a_record_whose_beginning_retention_has_cut_is_no_record(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_DEFAULT_PIECE_BYTES", 100)
    log = open_event_log(url)
    first, second = log.append([record(1, width=900), record(2, width=900)])
    kafka_rig.remove_before(url, first.partition, first.offset + 3)
    partition = log.partitions[first.partition]
    assert partition.start() == first.offset + 3
    assert [each.offset for each in partition.read(partition.start(), partition.end())] == [second.offset]
    with pytest.raises(
        TrimmedError, match=rf"holds the records from {first.offset + 3} to \d+, not {first.offset}$"
    ):
        list(partition.read(first.offset, partition.end()))
    with pytest.raises(TrimmedError):
        partition.bound(first.offset, 100, 100)


def test_messages_of_others_in_the_topic_are_holes(url: str) -> None:
    log = open_event_log(url)
    (before,) = log.append([record(1)])
    foreign = connections.KafkaConnections(KafkaAddress.parse(url, "log"), {}, EventLogError).producer()
    for headers in None, [("fieldfare", b"no JSON")], [("fieldfare", b"{}")]:
        foreign.produce(
            KafkaAddress.parse(url, "log").topic, b"{}", partition=before.partition, headers=headers
        )
    foreign.flush(10)
    (after,) = log.append([record(2)])
    assert after.offset > before.offset + 3
    assert payloads(log) == [record(1).payload, record(2).payload]


@pytest.mark.parametrize(
    "said",
    [
        {"pieces": 3},
        {"pieces": 0},
        {"piece": -1},
        {"piece": 1},
        {"count": 1 << 40},
        {"count": 0},
        {"stamp": -1},
    ],
)
def test_forged_records_in_the_topic_hide_no_record(url: str, said: dict[str, int]) -> None:
    """A mirror copied some of another service's messages, and not all of them."""
    log = open_event_log(url)
    (before,) = log.append([record(1)])
    header = {"format": 1, "space": "s", "count": 1, "appended_ms": 0, "stamp": 0, "id": "z", **said}
    topic = KafkaAddress.parse(url, "log").topic
    foreign = connections.KafkaConnections(KafkaAddress.parse(url, "log"), {}, EventLogError).producer()
    headers = [("fieldfare", json.dumps(header).encode())]
    foreign.produce(topic, b"{}\n", partition=before.partition, headers=headers)
    foreign.flush(10)
    for number in range(2, 5):
        log.append([record(number)])
    assert payloads(log) == [record(number).payload for number in range(1, 5)]
    partition = log.partitions[before.partition]
    for end in range(before.offset + 2, partition.end()):
        found = [each.offset for each in partition.read(before.offset, end)]
        assert found == [
            each.offset for each in partition.read(before.offset, partition.end()) if each.offset < end
        ]
    again = open_event_log(url)
    assert again.append([record(4)])[0].duplicate and log.partitions[before.partition].backlog_events(0) < 20


def test_many_records_behind_one_that_does_not_go_on_are_read_all_the_same(url: str) -> None:
    log = open_event_log(url)
    log.append([])
    header = {"format": 1, "space": "s", "count": 1, "appended_ms": 0, "stamp": 0, "id": "z", "pieces": 2}
    address = KafkaAddress.parse(url, "log")
    foreign = connections.KafkaConnections(address, {}, EventLogError).producer()
    for number in range(3):
        foreign.produce(
            address.topic, b"{", partition=number, headers=[("fieldfare", json.dumps(header).encode())]
        )
    foreign.flush(10)
    wanted = [record(number) for number in range(700)]
    log.append(wanted)
    assert sorted(payloads(log)) == sorted(each.payload for each in wanted)


def test_nothing_is_acknowledged_in_a_recreated_topic(url: str) -> None:
    """The topic was emptied by deleting it, and brokers or scripts created it again at once."""
    from confluent_kafka.admin import AdminClient, NewTopic

    log = open_event_log(url)
    for number in range(6):
        log.append([record(number)])
    address = KafkaAddress.parse(url, "log")
    admin = AdminClient({"bootstrap.servers": address.brokers})
    admin.delete_topics([address.topic])[address.topic].result(60)
    give_up_s = time.monotonic() + 180
    while time.monotonic() < give_up_s:
        try:
            admin.create_topics([NewTopic(address.topic, 3, 1)])[address.topic].result(60)
            break
        except KafkaException:
            time.sleep(0.1)
    for number in range(6, 9):
        with pytest.raises(EventLogError, match=r"appended: the topic was created again|Unknown topic"):
            log.append([record(number)])


def test_a_topic_that_forgets_by_keys_is_no_log() -> None:
    """It was created by hand, with the policy of the other topics of a cluster."""
    from confluent_kafka.admin import AdminClient, NewTopic

    url = kafka_rig.topic(1)
    address = KafkaAddress.parse(url, "log")
    admin = AdminClient({"bootstrap.servers": address.brokers})
    topic = NewTopic(address.topic, 1, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([topic])[address.topic].result(60)
    with pytest.raises(EventLogError, match=r"its cleanup\.policy is compact, and must be delete"):
        open_event_log(url).append([record(1)])


def test_a_stamp_that_falls_is_refused(url: str) -> None:
    """The registry was put back from before, and goes on below the stamps that records carry."""
    log = open_event_log(url)
    log.append([record(1, stamp=7)])
    for each in log, open_event_log(url):
        with pytest.raises(EventLogError, match="the registry is older than the log"):
            each.append([record(2, stamp=6)])
    assert len(payloads(log)) == 1


def test_a_topic_that_was_made_anew_is_told_from_the_one_that_is_known(url: str) -> None:
    log = open_event_log(url)
    with pytest.raises(EventLogError, match=r"ends at offset 0, but .* up to 5: .*--data"):
        log.raise_ends((5, 5, 5))
    log.raise_ends((0, 0, 0))


def test_a_log_travels_to_another_process_as_its_address(url: str) -> None:
    log = open_event_log(url)
    log.append([record(1)])
    copy = pickle.loads(pickle.dumps(log))
    assert copy.url == log.url == url
    assert payloads(copy) == payloads(log)
    child = os.fork()
    if child == 0:
        os._exit(0 if payloads(log) == [record(1).payload] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_no_broker_and_no_topic_are_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_S", 0.5)
    address = kafka_rig.broker().address
    with pytest.raises(EventLogError, match="there is no such topic; create it, or add"):
        open_event_log(f"kafka://{address}/absent")
    with pytest.raises(EventLogError, match=r"kafka://127.0.0.1:1/t: no broker answers .*Connection refused"):
        open_event_log("kafka://127.0.0.1:1/t")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("kafka://host:9092", "is kafka://HOST:PORT/TOPIC, not"),
        ("kafka:///topic", "is kafka://HOST:PORT/TOPIC, not"),
        ("kafka://host/a b", "is kafka://HOST:PORT/TOPIC, not"),
        ("kafka://me:secret@host/topic", "without a password: name a file of properties"),
        ("kafka://host/topic?sasl.password=secret", "options config, partitions, replication"),
        ("kafka://host/topic?partitions=0", "partitions is a number from 1 on, not '0'"),
        ("kafka://host/topic?config=/absent", "the properties in /absent cannot be read"),
    ],
)
def test_an_address_that_cannot_be_is_refused_without_its_secrets(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        open_event_log(url)
    assert "secret@" not in str(caught.value) and "=secret" not in str(caught.value)


def test_properties_come_from_a_file_and_secrets_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kafka.properties"
    path.write_text("# ours\nsasl.username = me\nsasl.password=${env:BROKER_PASSWORD}=\n\n")
    address = KafkaAddress.parse(f"kafka://a:1,b:2/t?config={path}", "log")
    assert KafkaAddress.parse(address.url, "log") == address
    with pytest.raises(ValueError, match="line 3: BROKER_PASSWORD is not in the environment"):
        address.properties()
    monkeypatch.setenv("BROKER_PASSWORD", "hush")
    assert address.properties() == {"sasl.username": "me", "sasl.password": "hush="}
    assert "hush" not in address.url + str(address) + repr(address)
    path.write_text("security.protocol")
    with pytest.raises(ValueError, match="line 1: expected name=value"):
        address.properties()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("security.protocol=SSL", "no broker answers .*SSL"),
        (
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=me\nsasl.password=hush",
            "SASL PLAIN mechanism handshake failed",
        ),
        ("security.protocol=hush", r"Invalid value \*\*\* for configuration property"),
        ("sasl.pasword=hush", 'No such configuration property: "sasl.pasword"'),
        ("stats_cb=hush", "expected stats_cb property as a callable"),
        ("security.protocol=SSL\nssl.ca.location=/nowhere.pem", "ssl.ca.location failed"),
    ],
)
def test_properties_that_do_not_fit_the_brokers_are_said_and_no_secret_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    """This error is the only help for a user who sets up TLS for the first time."""
    monkeypatch.setattr(connections, "ANSWER_S", 2.0)
    path = tmp_path / "kafka.properties"
    path.write_text(text)
    with pytest.raises(EventLogError, match=reason) as caught:
        open_event_log(f"{kafka_rig.topic(1)}&config={path}")
    assert "hush" not in str(caught.value)


def test_properties_that_cannot_be_read_any_more_are_a_fault_of_storage(tmp_path: Path) -> None:
    """The file is replaced while a broker is away, and the next producer is made in between."""
    path = tmp_path / "kafka.properties"
    path.write_text("client.rack=a")
    log = open_event_log(f"{kafka_rig.topic(1)}&config={path}")
    path.unlink()
    with pytest.raises(EventLogError, match=r"kafka\.properties cannot be read"):
        log.append([record(1)])
    path.write_text("client.rack=a")
    assert isinstance(log.append([record(1)])[0], Appended)


def test_a_fatal_error_of_the_client_is_an_error_of_the_log(
    own_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library sets the error in a message callback, and Python raises it as a SystemError."""
    log = open_event_log(kafka_rig.topic(1, own_broker))
    log.append([record(0)])

    def fenced(producer: object) -> None:
        raise SystemError("returned a result with an exception set") from KafkaException(
            KafkaError(KafkaError._FENCED)
        )

    with monkeypatch.context() as patched:
        patched.setattr(writer, "_end", fenced)
        with pytest.raises(EventLogError, match="fenced"):
            log.append([record(1)])
    assert not log.append([record(1)])[0].duplicate


@pytest.mark.slow
def test_nothing_is_appended_again_while_a_commit_is_invisible(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another producer's transaction is open in the topic: later records are invisible until it ends."""
    log = open_event_log(url)
    (first,) = log.append([record(1)])
    monkeypatch.setattr(writer, "ANSWER_S", 3.0)
    address = KafkaAddress.parse(url, "log")
    foreign = connections.KafkaConnections(address, {}, EventLogError).producer(
        **{"transactional.id": f"foreign-{address.topic}"}
    )
    foreign.init_transactions(10)
    foreign.begin_transaction()
    foreign.produce(address.topic, b"x", partition=first.partition)
    foreign.flush(10)
    for _ in range(2):
        with pytest.raises(EventLogError, match="not visible"):
            log.append([record(2)])
    with pytest.raises(EventLogError, match="not visible"):
        open_event_log(url).append([record(2)])
    foreign.abort_transaction(10)
    (place,) = log.append([record(2)])
    assert isinstance(place, Appended) and place.duplicate, "it was committed, and could not be told"
    assert payloads(log) == [record(1).payload, record(2).payload]


def test_records_missing_in_the_saved_table_are_read_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk for the saved table of repeats was full; the records had been committed before."""
    log = open_event_log(url)
    log.append([record(0)])
    add = writer.Repeats.add

    def fails(self: writer.Repeats, space: str, producer: str, sequence: int, *more: object) -> None:
        if sequence == 2:
            raise sqlite3.OperationalError("database or disk is full")
        add(self, space, producer, sequence, *more)  # type: ignore[arg-type]

    with monkeypatch.context() as full:
        full.setattr(writer.Repeats, "add", fails)
        with pytest.raises(sqlite3.OperationalError):
            log.append([record(1), record(2), record(3)])
    log.append([record(4)])
    assert all(each.duplicate for each in log.append([record(number) for number in range(5)]))
    assert len(payloads(log)) == 5


def test_the_table_of_repeats_is_taken_in_a_message_at_a_time() -> None:
    """For many producers the table is larger than memory, and also contains their earlier states."""
    kept, again = Repeats(2), Repeats(2)
    messages: list[tuple[bytes, bytes | None]] = []
    for stamp in range(3):
        for producer in ["p", *(f"q{number}" for number in range(30))][: None if stamp < 2 else 1]:
            kept.add("birds", producer, stamp, Appended(stamp, 1, stamp, False), b"d")
        kept.advance(0, stamp + 1, stamp)
        if stamp == 1:
            kept.grow_older(100, 50)
        messages += kept.changed()
        kept.saved()
    kept.grow_older(100, 50)
    kept.forget(50)
    messages += kept.changed()
    held = [0]

    class Message(bytes):
        def __new__(cls, content: bytes) -> Message:
            held[0] += 1
            return super().__new__(cls, content)

        def __del__(self) -> None:
            held[0] -= 1

    def fetched() -> Iterator[tuple[bytes, bytes | None]]:
        for key, value in messages:
            assert held[0] <= 3, "the one before, the one that goes, and the last that says as of when"
            yield key, None if value is None else Message(value)

    again.load(fetched())
    assert again.as_of == kept.as_of
    wanted = [("p", 0), ("p", 1), ("p", 2), ("q7", 0), ("q7", 1)]
    found = [each for each in wanted if again.find("birds", *each, b"d") is not None]
    assert found == [each for each in wanted if kept.find("birds", *each, b"d") is not None]
    assert 0 < len(found) < len(wanted)


def test_names_of_records_are_of_one_process_also_where_it_was_forked() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, pieces.new_id().encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reading, 100) != pieces.new_id().encode()
    os.close(reading)
    os.close(writing)


def append_until_taken(log: EventLog, sequences: list[int], met: list[str]) -> None:
    """Append like a client that repeats an unanswered request until it is answered."""
    for number in sequences:
        give_up_s = time.monotonic() + 180
        while True:
            try:
                log.append([record(number)])
                break
            except EventLogError as error:
                met.append(str(error))
                assert time.monotonic() < give_up_s
                time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "hung"])
def test_a_broker_that_dies_in_mid_append_loses_and_doubles_nothing(
    own_broker: KafkaBroker, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_event_log(kafka_rig.topic(3, own_broker))
    log.append([])
    monkeypatch.setattr(writer, "ANSWER_S", 1.0)
    monkeypatch.setattr(connections, "ANSWER_S", 2.0)
    met: list[str] = []
    appending = threading.Thread(target=append_until_taken, args=(log, list(range(800)), met))
    appending.start()
    chance = random.Random(7)
    for _ in range(3):
        time.sleep(chance.uniform(0.3, 1.0))
        if how == "killed":
            own_broker.kill()
            time.sleep(chance.choice((0.0, 1.5)))
            own_broker.start_again()
        else:
            own_broker.stop_answering()
            time.sleep(3)
            own_broker.answer_again()
    appending.join(400)
    assert not appending.is_alive()
    assert met, "no append met the broker's death"
    found = sorted(
        (header.sequence, partition.number, offset, header.id)
        for partition in log.partitions
        for offset, header, _ in partition.read_headers(*partition.bounds())
    )
    twice = [pair for pair in itertools.pairwise(found) if pair[0][0] == pair[1][0]]
    assert not twice, "twice: sequence, partition, offset, id of the message"
    assert [each[0] for each in found] == list(range(800))
    again = open_event_log(log.url)
    assert all(each.duplicate for each in again.append([record(number) for number in range(800)]))
