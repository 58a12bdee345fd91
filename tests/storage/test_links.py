"""Links and other brokers' filters on disk: each step once, whatever is repeated; damage is named."""

from __future__ import annotations

import sqlite3
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from test_registry import put

from fieldfare.model import Change
from fieldfare.storage import BrokerStore, LinkStore, Registry, open_brokers, open_links, open_registry
from fieldfare.storage.brokers import RemoteFilter, Run
from fieldfare.storage.corruption import note_paths
from fieldfare.storage.errors import FormatError, RegistryError, StorageError
from fieldfare.storage.links import Correspondent, Inbound, Outbox
from fieldfare.storage.sqlite.links import _FILLS


@pytest.fixture
def links(tmp_path: Path) -> Iterator[LinkStore]:
    found = open_links(f"sqlite:///{tmp_path}/links.db")
    yield found
    found.close()


def entry(name: str) -> bytes:
    return name.encode()


def test_an_entry_keeps_its_number_until_it_is_acknowledged(links: LinkStore, tmp_path: Path) -> None:
    links.add([("b", entry("one")), ("c", entry("far")), ("b", entry("two")), ("b", entry("three"))])
    assert links.transmit("b", 2, 1 << 20) == (1, [b"one", b"two"])
    assert links.transmit("b", 2, 1 << 20) == (1, [b"one", b"two"]), "a lost request is repeated"
    links.close()
    again = open_links(f"sqlite:///{tmp_path}/links.db")
    assert again.identity == links.identity
    assert again.transmit("b", 9, 1 << 20) == (1, [b"one", b"two", b"three"])
    again.acknowledge("b", 2)
    assert again.transmit("b", 9, 1 << 20) == (3, [b"three"])
    again.acknowledge("b", 3)
    assert again.transmit("b", 9, 1 << 20) == (4, [])
    again.add([("b", entry("four"))])
    assert again.transmit("b", 9, 1 << 20) == (4, [b"four"])
    assert again.outboxes() == {"b": Outbox(1, 4, 1), "c": Outbox(1, 3, 0)}
    again.close()


def test_a_batch_ends_at_its_bytes_and_has_at_least_one_entry(links: LinkStore) -> None:
    links.add([("b", b"x" * 100), ("b", b"y" * 10), ("b", b"z" * 10)])
    assert [len(each) for each in links.transmit("b", 9, 50)[1]] == [100]
    assert [len(each) for each in links.transmit("b", 9, 115)[1]] == [100, 10]
    links.acknowledge("b", 1)
    assert links.transmit("b", 9, 50) == (2, [b"y" * 10, b"z" * 10])


def test_a_batch_of_large_entries_reads_only_its_own(links: LinkStore) -> None:
    links.add([("b", b"x" * 100_000)] * 200)
    for _ in range(2):
        tracemalloc.start()
        assert len(links.transmit("b", 200, 250_000)[1]) == 2
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2_000_000


def test_the_bytes_in_use_shrink_when_entries_are_acknowledged(links: LinkStore) -> None:
    links.add([("b", b"x" * 100_000)] * 20)
    full = links.used_bytes()
    assert full > 2_000_000
    links.transmit("b", 20, 1 << 30)
    links.acknowledge("b", 20)
    assert links.used_bytes() < full - 1_900_000


def test_the_fill_of_outboxes_is_counted_without_reading_the_entries(
    links: LinkStore, tmp_path: Path
) -> None:
    links.add([("b", b"x" * 10), ("c", b"y" * 20), ("b", b"z" * 30), ("", b"v")])
    links.transmit("b", 1, 1 << 20)
    assert links.outboxes() == {"": Outbox(1, 1, 0), "b": Outbox(2, 40, 1), "c": Outbox(1, 20, 0)}
    with closing(sqlite3.connect(tmp_path / "links.db")) as connection:
        plan = str(connection.execute(f"EXPLAIN QUERY PLAN {_FILLS}").fetchall())
    assert "INDEX outbox_sent" in plan and "INDEX outbox_unsent" in plan, plan


def test_only_entries_that_were_never_sent_go_another_way(links: LinkStore) -> None:
    links.add([("b", entry("sent"))])
    links.transmit("b", 1, 100)
    links.add([("b", entry("unsent")), ("", entry("lost"))])
    found = links.unsent(("b", ""), 0, 10)
    assert [(peer, stored) for _, peer, stored in found] == [("b", b"unsent"), ("", b"lost")]
    links.reroute([(id, [("c", content)]) for id, _, content in found])
    assert links.transmit("b", 9, 100) == (1, [b"sent"])
    assert links.transmit("c", 9, 100) == (1, [b"unsent", b"lost"])


def test_an_entry_that_is_sent_while_it_gets_another_way_does_not_go_twice(links: LinkStore) -> None:
    links.add([("b", entry("first")), ("b", entry("second"))])
    found = links.unsent(("b",), 0, 10)
    links.transmit("b", 1, 100)
    links.reroute([(id, [("c", content)]) for id, _, content in found])
    assert links.transmit("b", 9, 100) == (1, [b"first"])
    assert links.transmit("c", 9, 100) == (1, [b"second"])


def test_a_neighbour_is_known_by_its_identity(links: LinkStore) -> None:
    assert links.meet("b", "of b") and links.meet("b", "of b")
    assert not links.meet("b", "of another")
    links.receive("c", 4, [], [])
    assert links.meet("c", "of c") and links.watermark("c") == 4


def test_the_floor_is_the_lowest_stamp_that_may_still_come(links: LinkStore) -> None:
    assert links.floor() is None and links.published() is None
    links.add((), [Correspondent("b", messages=1, through=9, floor=7), Correspondent("c", floor=2)])
    assert links.floor() == 7 and links.published() == 9, "c has not been sent filters, so it sends no events"
    mine = [Inbound(0, "b", "events", 1, 5, b"entry"), Inbound(0, "b", "counts", 0, None, b"more")]
    links.receive("b", 2, [("d", b"passed on")], mine)
    assert links.floor() == 5 and links.inbound_bytes() == 9
    first, second = links.inbound(10)
    assert (first.kind, first.floor, first.entry, second.entry) == ("events", 5, b"entry", b"more")
    state = Correspondent("b", messages=1, through=9, floor=8, ahead={4: 9}, pending=(5, 9))
    links.processed([first.id, second.id], [state])
    assert links.floor() == 8 and links.inbound(10) == []
    assert links.correspondents()["b"] == state
    links.add((), (), (0, 17))
    assert links.cursor(0) == 17 and links.cursor(1) is None


def test_a_corrupt_entry_is_sent_as_lost_and_named(links: LinkStore, tmp_path: Path) -> None:
    links.add([("b", entry("one")), ("b", entry("two"))])
    links.receive("b", 1, [], [Inbound(0, "b", "events", 1, 5, b"three")])
    links.close()
    with sqlite3.connect(tmp_path / "links.db") as connection:
        connection.execute("UPDATE outbox SET entry = x'6f6e66' WHERE id = 1")
        connection.execute("UPDATE inbox SET sequence = 2")
    connection.close()
    assert links.transmit("b", 9, 100) == (1, [b"", b"two"])
    assert [each.entry for each in links.inbound(9)] == [b""]
    assert len(note_paths(tmp_path)) == 2


@pytest.mark.parametrize(
    "change",
    [
        "peers SET watermark = 3",
        "correspondents SET floor = 3",
        "own SET version = 9",
        "places SET offset = 3",
    ],
)
def test_a_corrupt_watermark_is_an_error(links: LinkStore, tmp_path: Path, change: str) -> None:
    links.receive("b", 5, [], [])
    links.add((), [Correspondent("b", messages=1, floor=7)], (0, 9))
    links.close()
    with sqlite3.connect(tmp_path / "links.db") as connection:
        connection.execute(f"UPDATE {change}")
    connection.close()
    with pytest.raises(StorageError, match="cannot go on without it"):
        for read in (lambda: links.watermark("b"), links.correspondents, links.row, lambda: links.cursor(0)):
            read()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    open_registry(f"sqlite:///{tmp_path}/registry.db").close()
    with pytest.raises(FormatError, match="holds no links of format 1"):
        open_links(f"sqlite:///{tmp_path}/registry.db")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    found = open_registry(f"sqlite:///{tmp_path}/registry.db")
    found.create_space("birds")
    yield found
    found.close()


@pytest.fixture
def brokers(registry: Registry) -> Iterator[BrokerStore]:
    found = open_brokers(registry.url)
    yield found
    found.close()


def remote(number: int, text: str | None) -> RemoteFilter:
    return RemoteFilter("birds", number, text, "sql", b"compiled")


def test_a_message_with_filters_is_applied_once_and_in_order(
    registry: Registry, brokers: BrokerStore
) -> None:
    registry.apply([put("mine")], (0,), 0)
    messages = [
        [remote(1, "a = 1"), remote(2, "a = 2")],
        [remote(1, "a = 3"), remote(2, None), remote(3, None)],
    ]
    assert brokers.apply_filters("berlin", 1, messages[0], 40, (0,), 0) == 3
    assert brokers.apply_filters("berlin", 1, messages[0], 40, (0,), 0) == 3, "a repeat changes nothing"
    with pytest.raises(RegistryError, match="message 2 of the broker 'berlin' is missing"):
        brokers.apply_filters("berlin", 3, messages[1], 50, (0,), 0)
    assert brokers.apply_filters("berlin", 2, messages[1], 50, (0,), 0) == 5
    [berlin] = brokers.brokers()
    assert (berlin.name, berlin.sequence) == ("berlin", 2)
    assert brokers.runs() == [Run(berlin.number, 3, 40), Run(berlin.number, 5, 50)]
    assert brokers.count_filters() == {berlin.number: 1} and registry.count() == 1
    changes = list(registry.changes(0, 5))
    assert [(each.revision, each.space, each.filter, each.destination) for each in changes[1:]] == [
        (2, ">birds", "a = 1", berlin.number),
        (3, ">birds", "a = 2", berlin.number),
        (4, ">birds", "a = 3", berlin.number),
        (5, ">birds", None, None),
    ]
    assert changes[0].destination is None
    numbers = {each.number for each in changes}
    assert berlin.number not in numbers, "a destination's number is no subscription's"
    standing = list(registry.versions(5, 5))
    assert [each.destination for each in standing] == [None, berlin.number]
    brokers.forget_runs(4)
    assert brokers.runs() == [Run(berlin.number, 3, 40), Run(berlin.number, 5, 50)]
    brokers.forget_runs(5)
    assert brokers.runs() == [Run(berlin.number, 5, 50)]


def test_the_filters_of_all_brokers_are_counted(registry: Registry, brokers: BrokerStore) -> None:
    registry.apply([put("mine")], (0,), 0)
    for number in range(12):
        filters = [RemoteFilter(f"s{each % 3}", each, "a = 1") for each in range(number)]
        brokers.apply_filters(f"b{number:02}", 1, filters, 1, (0,), 0)
    numbers = [each.number for each in brokers.brokers()]
    counts = brokers.count_filters()
    assert [counts.get(each, 0) for each in numbers] == list(range(12)) and len(counts) == 11


def test_a_lost_version_of_a_brokers_filter_is_restored(
    registry: Registry, brokers: BrokerStore, tmp_path: Path
) -> None:
    brokers.apply_filters("berlin", 1, [RemoteFilter("fish", 1, "a = 1")], 4, (0,), 0)
    assert not registry.has_vanished(), "there need be no space of this name"
    [before] = registry.versions(1, 1)
    for damage in ("DELETE FROM versions", "UPDATE versions SET destination = 99"):
        registry.close()
        brokers.close()
        with sqlite3.connect(tmp_path / "registry.db") as connection:
            connection.execute(damage)
        connection.close()
        registry.mend_vanished()
        [after] = registry.versions(1, 1)
        assert replace(after, compiled=None) == replace(before, compiled=None)
        assert isinstance(after, Change) and after.destination == brokers.brokers()[0].number


def test_a_restored_file_uses_no_id_of_an_entry_again(links: LinkStore, tmp_path: Path) -> None:
    """The log would take another entry with the id for a repeat, and leave it out."""
    links.close()
    copy = (tmp_path / "links.db").read_bytes()
    entries = [Inbound(0, "b", "events", n, 0, b"entry") for n in range(1, 4)]
    with closing(open_links(f"sqlite:///{tmp_path}/links.db")) as again:
        again.receive("b", 3, [], entries)
        used = {each.id for each in again.inbound(10)}
    for stale in tmp_path.glob("links.db*"):
        stale.unlink()
    (tmp_path / "links.db").write_bytes(copy)
    with closing(open_links(f"sqlite:///{tmp_path}/links.db")) as restored:
        restored.receive("c", 3, [], entries)
        assert len(used) == 3 and not used & {each.id for each in restored.inbound(10)}
