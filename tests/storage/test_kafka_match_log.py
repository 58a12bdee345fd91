"""Properties specific to a match log in Kafka: readers that begin anywhere, blocks in pieces, torn blocks."""

from __future__ import annotations

import os
import pickle
import random
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import kafka_rig
import pytest
from storage_support import block_of, of_number, read_on, some_matches, write_in_blocks

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import KafkaError, KafkaException

from fieldfare.storage import MatchPartition, NewMatchBlock, open_match_log
from fieldfare.storage.errors import MatchLogError
from fieldfare.storage.kafka import connections, match_log
from fieldfare.storage.kafka.address import KafkaAddress
from fieldfare_lab.kafka_broker import KafkaBroker


@pytest.fixture
def url() -> str:
    return kafka_rig.topic(2)


@pytest.fixture
def own_broker() -> Iterator[KafkaBroker]:
    """A broker that a test may kill."""
    with kafka_rig.own_broker() as broker:
        yield broker


def opened(url: str) -> MatchPartition:
    """A reader that has not read anything yet."""
    return open_match_log(url).partition(0)


def test_a_reader_that_begins_later_looks_back_as_far_as_it_must(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a start a gateway needs only the last minutes of a week of blocks, until a slow subscriber
    connects."""
    monkeypatch.setattr(match_log, "PAGE_MESSAGES", 20)
    matches = some_matches(300)
    cuts = list(range(0, 301, 2))
    write_in_blocks(opened(url), matches, cuts)
    for at in (299, 250, 3):
        reader = opened(url)
        assert reader.greatest_end() == 300
        assert read_on(reader, 4, at) == (of_number(matches, 4, at), 300)
        met = len(reader._places)  # type: ignore[attr-defined]
        assert met <= (300 - at) // 2 + 2 * 20
        assert at == 299 or reader.next_start(at) == at + 2 - at % 2
    assert opened(url).end() == 300
    assert opened(url).end(300) == 300


def test_blocks_that_came_in_another_order_are_all_found(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of a batch end in any order, and after a crash the last batch is cut differently."""
    monkeypatch.setattr(match_log, "PAGE_MESSAGES", 30)
    chance = random.Random(2)
    matches = some_matches(400)
    log = opened(url)
    for batch in range(0, 400, 40):
        for _ in range(chance.choice((1, 2))):
            cuts = sorted({batch, batch + 40, *(chance.randint(batch, batch + 40) for _ in range(6))})
            pieces = list(pairwise(cuts))
            chance.shuffle(pieces)
            for start, end in pieces:
                log.write(block_of(matches, start, end))
    for at in (0, 1, 77, 200, 399):
        for reader in opened(url), log:
            assert read_on(reader, 7, at) == (of_number(matches, 7, at), 400)


def test_a_gap_stays_a_gap_when_it_is_read_repeatedly(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match_log, "PAGE_MESSAGES", 10)
    matches = some_matches(100)
    log = opened(url)
    write_in_blocks(log, matches, list(range(51)))
    write_in_blocks(log, matches, list(range(60, 101)))
    reader = opened(url)
    for _ in range(3):
        assert reader.block_at(55) is None
        assert (reader.end(40), reader.next_start(50)) == (50, 60)
    assert len(reader._places) < 80, "what lies far before it was not looked through"  # type: ignore[attr-defined]
    assert reader.fill(45, 70) == [(50, 60)]
    assert reader.end() == 100


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "in a file"])
def test_a_block_larger_than_a_message_may_be_is_one_block(
    url: str, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    monkeypatch.setattr(connections, "_DEFAULT_PIECE_BYTES", 300)
    if not in_memory:
        monkeypatch.setattr(match_log, "_MEMORY_PIECES", 2)
    matches = some_matches(900)
    log = opened(url)
    log.write(block_of(matches, 0, 900))
    for reader in log, opened(url):
        assert read_on(reader, 3) == (of_number(matches, 3), 900)
        block = reader.block_at(5)
        assert block is not None
        block.check()


def test_an_incomplete_block_does_not_count(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task was killed between two pieces; the batch is matched again, and then the block is there."""
    monkeypatch.setattr(connections, "_DEFAULT_PIECE_BYTES", 300)
    matches = some_matches(300)
    log, early = opened(url), opened(url)
    log.write(block_of(matches, 0, 100))
    assert early.end() == 100

    class Killed(Exception):
        pass

    def produce_two(self: match_log.KafkaMatchLog) -> object:
        producer, left = ready(self), [2]

        class Dying:
            def produce(self, *arguments: object, **named: object) -> None:
                if not left[0]:
                    producer.flush(10)
                    raise Killed
                left[0] -= 1
                producer.produce(*arguments, **named)

        return Dying()

    ready = match_log.KafkaMatchLog._ready
    with monkeypatch.context() as dying:
        dying.setattr(match_log.KafkaMatchLog, "_ready", produce_two)
        with pytest.raises(Killed):
            log.write(block_of(matches, 100, 300))
    for reader in log, early, opened(url):
        assert (reader.end(), reader.recover(0)) == (100, 100)
    begun_meanwhile = opened(url)
    assert begun_meanwhile.greatest_end() == 100
    log.write(block_of(matches, 100, 300))
    for reader in log, early, begun_meanwhile, opened(url):
        assert read_on(reader, 3) == (of_number(matches, 3), 300)


def test_a_reader_that_begins_while_a_block_is_written_meets_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_DEFAULT_PIECE_BYTES", 300)
    matches = some_matches(300)
    log = open_match_log(url)
    began: list[MatchPartition] = []
    ready = match_log.KafkaMatchLog._ready

    def watched(self: match_log.KafkaMatchLog) -> object:
        producer = ready(self)

        class Watched:
            def produce(self, *arguments: object, **named: object) -> None:
                producer.produce(*arguments, **named)
                producer.flush(10)
                reader = opened(url)
                assert reader.end() == 0
                began.append(reader)

            def flush(self, timeout_s: float) -> None:
                producer.flush(timeout_s)

        return Watched()

    with monkeypatch.context() as watching:
        watching.setattr(match_log.KafkaMatchLog, "_ready", watched)
        with pytest.raises(AssertionError):  # behind the last piece the block is there
            log.partition(0).write(block_of(matches, 0, 300))
    assert len(began) > 3
    for reader in began:
        assert read_on(reader, 3) == (of_number(matches, 3), 300)


def test_trimmed_blocks_are_removed_for_all_readers_and_later_ones_stay(url: str) -> None:
    matches = some_matches(100)
    log = opened(url)
    write_in_blocks(log, matches, [0, 10, 20, 30, 60, 100])
    assert log.trim(35) == 3
    assert log.trim(35) == 0
    for reader in log, opened(url):
        assert reader.block_at(29) is None
        assert read_on(reader, 4, 30) == (of_number(matches, 4, 30), 100)
    reader = opened(url)
    assert reader.end(30) == 100 and reader.block_at(99) is not None
    kafka_rig.remove_before(url, 0, 5)
    assert reader.block_at(99) is not None, "a reader that has read a block keeps it"
    assert opened(url).block_at(99) is None
    log.write(block_of(matches, 0, 100))
    assert read_on(reader, 4) == (of_number(matches, 4), 100)


def test_a_corrupt_block_is_replaced_by_an_empty_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's checksums are right, but a task with a bug wrote a corrupt block."""
    log = opened(url)

    def nonsense(block: NewMatchBlock, file: object) -> None:
        file.write(b"nonsense")  # type: ignore[attr-defined]

    with monkeypatch.context() as broken:
        broken.setattr(match_log, "write_block", nonsense)
        log.write(block_of(some_matches(5), 0, 5))
    assert "is not a match block" in (log.trouble((0, 5)) or "")
    assert "message 0" in str(log.set_aside((0, 5)))
    assert (log.trouble((0, 5)), log.end()) == (None, 5)


def test_a_failed_producer_is_replaced(url: str) -> None:
    """A client that had a fatal error reports it for ever; the error may happen between two blocks."""
    log = open_match_log(url)
    partition = log.partition(0)
    partition.write(NewMatchBlock.gap(0, 3))

    class Dead:
        def produce(self, *arguments: object, **named: object) -> None:
            raise KafkaException(KafkaError(KafkaError._FATAL))

    log._producer = Dead()  # type: ignore[attr-defined]
    with pytest.raises(MatchLogError):
        partition.write(NewMatchBlock.gap(3, 5))
    partition.write(NewMatchBlock.gap(3, 5))
    assert partition.end() == 5


def test_a_topic_that_became_shorter_is_read_from_its_beginning(url: str) -> None:
    """The topic was emptied by creating it again; the gateway keeps running, and waits for new blocks."""
    from confluent_kafka.admin import AdminClient, NewTopic

    matches = some_matches(100)
    log = opened(url)
    write_in_blocks(log, matches, list(range(0, 61, 2)))
    assert log.end() == 60
    address = KafkaAddress.parse(url, "log")
    admin = AdminClient({"bootstrap.servers": address.brokers})
    admin.delete_topics([address.topic])[address.topic].result(60)

    def until_done(step: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + 180
        while True:
            try:
                if step():
                    return
            except (KafkaException, MatchLogError):
                """It is not gone everywhere, or not there again."""
            assert time.monotonic() < give_up_s
            time.sleep(0.1)

    def made() -> bool:
        admin.create_topics([NewTopic(address.topic, 2, 1)])[address.topic].result(60)
        return True

    until_done(made)
    other = opened(url)
    until_done(lambda: other.write(block_of(matches, 60, 80)) > 0)
    other.write(block_of(matches, 80, 100))
    until_done(lambda: log.block_at(60) is not None)
    assert read_on(log, 3, 60) == (of_number(matches, 3, 60), 100)


def test_a_match_log_travels_as_its_address_and_knows_its_partitions(url: str) -> None:
    log = open_match_log(url)
    log.partition(1).write(NewMatchBlock.gap(0, 3))
    copy = pickle.loads(pickle.dumps(log))
    assert copy.url == url
    assert copy.partition(1).end() == 3
    with pytest.raises(MatchLogError, match="has 2 partitions, none for 2"):
        log.partition(2)
    child = os.fork()
    if child == 0:
        log.partition(1).write(NewMatchBlock.gap(3, 5))
        os._exit(0 if log.partition(1).end() == 5 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert log.partition(1).end() == 5


@pytest.mark.slow
def test_a_write_while_the_broker_is_away_fails_and_works_again_later(
    own_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    matches = some_matches(30)
    log = opened(kafka_rig.topic(1, own_broker))
    log.write(block_of(matches, 0, 10))
    monkeypatch.setattr(match_log, "ANSWER_S", 0.5)
    monkeypatch.setattr(connections, "ANSWER_S", 2.0)
    own_broker.kill()
    with pytest.raises(MatchLogError):
        log.write(block_of(matches, 10, 20))
    own_broker.start_again()
    for _ in range(20):
        try:
            write_in_blocks(log, matches, [10, 20, 30])
            break
        except MatchLogError:
            """It is starting."""
    assert read_on(log, 3) == (of_number(matches, 3), 30)
