"""Where a service's logs are: said once, and never another."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import kafka_rig
import pytest

from fieldfare.storage import open_event_log, open_index_store, open_match_log, open_registry
from fieldfare.storage.addresses import AddressError, settle
from fieldfare.storage.errors import FormatError, StorageError
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.folder import DataFolder


def test_without_an_address_the_logs_are_in_the_directory(tmp_path: Path) -> None:
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
def test_an_invalid_address_is_refused_and_not_recorded(tmp_path: Path, address: str, said: str) -> None:
    pytest.importorskip("confluent_kafka")
    with pytest.raises(AddressError) as refused:
        settle(tmp_path, address)
    assert said in str(refused.value) and "secret" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_a_log_of_its_own_gets_no_other(tmp_path: Path) -> None:
    open_event_log(DataFolder(tmp_path).log_url).close()
    with pytest.raises(AddressError, match=r"^--log names kafka://\S+, but .*log\.db: its cursors"):
        settle(tmp_path, "kafka://127.0.0.1:9/t")
    assert settle(tmp_path, None) == DataFolder(tmp_path)


def test_logs_json_that_says_nothing_is_no_reason_to_begin_another_log(tmp_path: Path) -> None:
    for text in (b"", b"{", b'{"log": 1}', b"[]", b'{"log": "kafka://a/b"}'):
        (tmp_path / "logs.json").write_bytes(text)
        with pytest.raises(FormatError, match=r"logs\.json cannot be used to find the logs") as raised:
            settle(tmp_path, None)
        is_other = "Name both. Otherwise restore" in str(raised.value)  # The address of one log alone.
        assert is_other == text.endswith(b'a/b"}') and ("Otherwise" in str(raised.value)) == is_other


def test_kafka_logs_are_noted_with_their_partitions_and_found_again(tmp_path: Path) -> None:
    url = kafka_rig.topic(3)
    folder = settle(tmp_path, url)
    assert DataFolder.at(tmp_path) == folder == settle(tmp_path, None) == settle(tmp_path, url)
    plain, _, _ = url.partition("?")
    assert settle(tmp_path, plain) == folder
    assert folder.log_url == url and folder.matches_url == f"{plain}.matches?partitions=3"
    assert len(open_event_log(folder.log_url).partitions) == 3
    assert open_match_log(folder.matches_url).partition(2).end(0) == 0
    with pytest.raises(AddressError, match=f"{tmp_path} already uses the log {plain}"):
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


def test_a_log_belongs_to_one_directory_and_others_are_told_the_owner(tmp_path: Path) -> None:
    """The command that starts a service was copied, with another directory."""
    url = kafka_rig.topic(2)
    first, second = tmp_path / "first", tmp_path / "second"
    folder = settle(first, url)
    with pytest.raises(AddressError, match=f"whose data directory is {first} on .*delete the topic"):
        settle(second, url)
    assert not (second / "logs.json").exists()
    # Even if its logs.json already names the topic.
    settle(second, kafka_rig.topic(2))
    replace(folder, root=second, service="another").note()
    with pytest.raises(AddressError, match="belongs to another service"):
        settle(second, None)
    assert settle(first, None) == folder == settle(first, url), "whose it is it stays"


def test_a_directory_moves_with_its_log_and_goes_on_without_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = settle(tmp_path / "here", kafka_rig.topic(1))
    (tmp_path / "here").rename(tmp_path / "there")
    moved = settle(tmp_path / "there", None)
    assert (moved.log_url, moved.service) == (folder.log_url, folder.service)
    monkeypatch.setattr("fieldfare.storage.kafka.connections.ANSWER_S", 0.5)
    assert moved.log is not None
    replace(moved, log=moved.log.replace(kafka_rig.broker().address, "127.0.0.1:9")).note()
    assert settle(tmp_path / "there", None).log_url.startswith("kafka://127.0.0.1:9/")


@pytest.mark.parametrize("name", ["a b", "a%41?b", "a#b", os.fsdecode(b"caf\xe9")])
def test_nothing_is_kept_beside_a_directory_of_any_name(tmp_path: Path, name: str) -> None:
    """The path was taken for a URL: the registry of ``a%41?b`` was a file called ``aA``."""
    folder = DataFolder(tmp_path / name)
    folder.make()
    open_event_log(folder.log_url).append([NewRecord("default", b"{}\n", 1, stamp=0)])
    open_registry(folder.registry_url).create_space("default")
    store = open_index_store(folder.index_url)
    assert store.newest() is None
    assert open_match_log(folder.matches_url).partition(0).end(0) == 0
    assert folder.log_path.exists() and folder.registry_path.exists()
    assert os.listdir(tmp_path) == [name]


def test_a_registry_that_an_earlier_version_kept_elsewhere_is_not_lost_sight_of(tmp_path: Path) -> None:
    root = tmp_path / "a%41?b"
    folder = DataFolder(root)
    folder.make()
    (tmp_path / "aA").touch()
    assert settle(root, None) == folder, "a directory that was not used has no registry yet"
    folder.log_path.touch()
    with pytest.raises(AddressError, match="move it") as refused:
        settle(root, None)
    assert str(tmp_path / "aA") in str(refused.value) and str(folder.registry_path) in str(refused.value)
    folder.registry_path.touch()
    assert settle(root, None) == folder
