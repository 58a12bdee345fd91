"""Where a service's logs are: said once, and never another."""

from __future__ import annotations

from pathlib import Path

import kafka_rig
import pytest

from fieldfare.storage import open_event_log, open_match_log
from fieldfare.storage.addresses import AddressError, settle
from fieldfare.storage.errors import FormatError, StorageError
from fieldfare.storage.folder import DataFolder


def test_who_says_nothing_has_the_logs_in_the_directory(tmp_path: Path) -> None:
    assert settle(tmp_path, None) == DataFolder(tmp_path)
    assert DataFolder(tmp_path).log_url == f"sqlite:///{tmp_path / 'log.db'}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("sqlite:///elsewhere/log.db", "kafka://HOST:PORT/TOPIC"),
        ("kafka:///topic", "kafka://HOST:PORT/TOPIC"),
        ("kafka://127.0.0.1:9092/", "kafka://HOST:PORT/TOPIC"),
        ("kafka://me:secret@127.0.0.1:9092/t", "without a password"),
        ("kafka://127.0.0.1:9092/t?partitions=0", "partitions is a number from 1 on"),
        ("kafka://127.0.0.1:9092/t?config=/nowhere/at-all", "/nowhere/at-all cannot be read"),
    ],
)
def test_an_address_that_is_none_is_refused_and_nothing_noted(
    tmp_path: Path, address: str, said: str
) -> None:
    pytest.importorskip("confluent_kafka")
    with pytest.raises(AddressError) as refused:
        settle(tmp_path, address)
    assert said in str(refused.value) and "secret" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_a_log_of_its_own_gets_no_other(tmp_path: Path) -> None:
    open_event_log(DataFolder(tmp_path).log_url).close()
    with pytest.raises(AddressError, match=r"log\.db, and its cursors and matches are of that one"):
        settle(tmp_path, "kafka://127.0.0.1:9/t")
    assert settle(tmp_path, None) == DataFolder(tmp_path)


def test_logs_json_that_says_nothing_is_no_reason_to_begin_another_log(tmp_path: Path) -> None:
    for text in (b"", b"{", b'{"log": 1}', b"[]", b'{"log": "kafka://a/b"}'):
        (tmp_path / "logs.json").write_bytes(text)
        with pytest.raises(FormatError, match=r"logs\.json does not say where the logs are"):
            settle(tmp_path, None)


def test_kafka_logs_are_noted_with_their_partitions_and_found_again(tmp_path: Path) -> None:
    url = kafka_rig.topic(3)
    folder = settle(tmp_path, url)
    assert DataFolder.at(tmp_path) == folder == settle(tmp_path, None) == settle(tmp_path, url)
    plain, _, _ = url.partition("?")
    assert settle(tmp_path, plain) == folder
    assert folder.log_url == url and folder.matches_url == f"{plain}.matches?partitions=3"
    assert len(open_event_log(folder.log_url).partitions) == 3
    assert open_match_log(folder.matches_url).partition(2).end(0) == 0
    with pytest.raises(AddressError, match=f"the log of {tmp_path} is {plain}"):
        settle(tmp_path, kafka_rig.topic(3))
    assert DataFolder.at(tmp_path) == folder


def test_a_topic_that_is_not_there_and_a_broker_that_does_not_answer_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _, _ = kafka_rig.topic(1).partition("?")
    with pytest.raises(StorageError, match="partitions"):
        settle(tmp_path, plain)
    monkeypatch.setattr("fieldfare.storage.kafka.connections.ANSWER_S", 1.0)
    with pytest.raises(StorageError, match=r"kafka://127\.0\.0\.1:9/t"):
        settle(tmp_path, "kafka://127.0.0.1:9/t?partitions=1")
    assert list(tmp_path.iterdir()) == []
