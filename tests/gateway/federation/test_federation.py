"""Brokers joined by links over loopback: exactly once, from one exact place, through cuts and restarts."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from federation_support import Site, sites
from gateway_support import BATCH, DEADLINE_S, EVENTS, encode, event, until

from fieldfare.filters import compile_filter
from fieldfare.gateway.federation import wire
from fieldfare.gateway.federation.interest import first_pages, later_pages
from fieldfare.gateway.federation.link_filters import read_link_filters
from fieldfare.model import Change
from fieldfare.storage.errors import FormatError, StorageError
from fieldfare.storage.links import Inbound
from fieldfare.storage.sqlite.links import LinkStore
from fieldfare_lab.link_proxy import LinkProxy
from fieldfare_lab.ports import find_free_port


def test_an_event_reaches_the_subscribers_of_the_other_site_once(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        revision = b.subscribe("mine", "data.n < 100")
        a.subscribe("home", "data.n < 5")
        until(lambda: b.counts(revision, "a"))
        a.publish(1, 200, 2)
        a.publish(50)
        assert b.take("mine", 3) == [1, 2, 50]
        assert a.take("home", 2) == [1, 2]
        b.publish(7)
        assert b.take("mine", 1) == [7]
        assert a.pull("home") == []
        assert b.of("a")["events_received"] == a.of("b")["events_sent"] > 0
        assert b.of("a")["sent_twice"] == 0
        [record] = b.gateway.log.read(0, 1)
        assert record.origin is not None and record.origin.startswith("a/0-0/")


def test_a_site_between_passes_events_on_and_matches_nothing(tmp_path: Path) -> None:
    with sites(tmp_path, "abc", "ab bc") as (a, b, c):
        revision = c.subscribe("far", "data.n > 3")
        until(lambda: c.counts(revision, "a", "b"))
        a.publish(*range(10))
        assert c.take("far", 6) == [4, 5, 6, 7, 8, 9]
        assert b.gateway.log.end() == 0, "what is for others is not in its log"
        b.publish(11)
        assert c.take("far", 1) == [11]
        revision = b.subscribe("near", "data.n > 8")
        until(lambda: b.counts(revision, "a", "c"))
        until(lambda: all(site.is_quiet() for site in (a, b, c)))
        before = a.brokers()["links"][0]["sent_entries"]
        a.publish(9)
        assert b.take("near", 1) == [9] == c.take("far", 1)
        until(lambda: all(site.is_quiet() for site in (a, b, c)))
        assert a.brokers()["links"][0]["sent_entries"] == before + 1, "one copy for both"


def test_filters_that_overtook_an_earlier_message_count_once_that_has_come(tmp_path: Path) -> None:
    """The later message was looked at once, before the earlier one, and then never again."""
    with sites(tmp_path, "ab", "ab") as (a, b):
        until(lambda: "b" in a.gateway.federation._correspondence.brokers)
        federation = a.gateway.federation
        b.stop()
        me = (wire.Destination("a"),)
        store = LinkStore(a.gateway.settings.folder.links_path)
        for sequence in (4, 3, 2):  # as they arrive
            filters = (wire.FilterChange("default", 100 + sequence, f"data.n = {sequence}"),)
            entry = wire.Interest("b", me, sequence, filters, 10 * sequence)
            inbound = Inbound(0, "b", "interest", sequence, None, wire.encoder.encode(entry))
            store.receive("b", 10 - sequence, [], [inbound])
            federation._has_news = True
        until(lambda: a.of("b")["filters"] == 3)
        store.close()


def test_a_cut_site_gets_everything_once_when_it_is_back(tmp_path: Path) -> None:
    with sites(tmp_path, "abc", "ab bc") as (a, b, c):
        revision = c.subscribe("far", "data.n >= 0")
        until(lambda: c.counts(revision, "a"))
        a.publish(1)
        assert c.take("far", 1) == [1]
        for first, site in ((10, c), (20, b), (30, a)):
            site.stop()
            if site is not a:
                a.publish(first, first + 1)
            site.start()
            if site is a:
                a.publish(first, first + 1)
            assert sorted(c.take("far", 2)) == [first, first + 1]
        assert c.pull("far") == []
        assert c.of("a")["sent_twice"] == 0
        assert c.of("a")["events_received"] == a.of("c")["events_sent"]


def test_a_subscription_counts_from_one_place_while_events_flow(tmp_path: Path) -> None:
    """All events from some place on, none before it, and none twice: also after a replacement."""
    with sites(tmp_path, "ab", "ab") as (a, b):
        stop, published = threading.Event(), list[int]()

        def flow() -> None:
            number = 0
            while not stop.wait(0.002):
                a.publish(number, number + 1)
                published.extend((number, number + 1))
                number += 2

        b.subscribe("other", "data.n >= 0")
        flowing = threading.Thread(target=flow)
        flowing.start()
        until(lambda: len(published) > 20)
        made = b.subscribe("mine", "data.n >= 0")
        until(lambda: b.counts(made, "a") and len(published) > 60)
        replaced = b.subscribe("mine", "data.n >= 0 AND data.n % 2 = 0")
        until(lambda: b.counts(replaced, "a"))
        later = len(published)
        until(lambda: len(published) > later + 20)
        stop.set()
        flowing.join(DEADLINE_S)
        expected = published[-1] // 2 * 2
        got: list[int] = []
        until(lambda: got.extend(b.pull("mine")) or (got and got[-1] == expected))
        assert len(set(got)) == len(got) and got == sorted(got)
        odd = [each for each in got if each % 2]
        assert odd, "the first version counted for a while"
        assert [each for each in got if each <= odd[-1]] == list(range(got[0], odd[-1] + 1))
        assert [each for each in got if each > odd[-1]] == list(range(odd[-1] + 1, expected + 1, 2))


def test_filters_of_all_dialects_spaces_and_removals_reach_the_other_site(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        b.subscribe("pattern", {"data": {"n": [{"numeric": ["<", 10]}]}}, "eventbridge")
        b.subscribe("list", [{"exact": {"type": "t"}}], "subscriptions")
        revision = b.subscribe("cesql", "id = '3'", "cesql")
        until(lambda: b.counts(revision, "a"))
        assert a.of("b")["filters"] == 3
        a.publish(3, 30)
        assert b.take("pattern", 1) == [3] == b.take("cesql", 1)
        assert b.take("list", 2) == [3, 30]
        for id in ("pattern", "list", "cesql"):
            b.client.delete(f"/v1/spaces/default/subscriptions/{id}").raise_for_status()
        until(lambda: a.of("b")["filters"] == 0)
        b.client.post("/v1/spaces", json={"name": "other"}).raise_for_status()
        path = "/v1/spaces/other/subscriptions/mine"
        b.client.put(path, json={"filter": "data.n = 1"}).raise_for_status()
        until(lambda: a.of("b")["filters"] == 1)
        until(lambda: b.counts(b.gateway.registry.revision(), "a"))
        a.publish(1)
        a.client.post("/v1/spaces", json={"name": "other"}).raise_for_status()
        answer = a.client.post("/v1/spaces/other/events", content=encode([event(1, {"n": 1})]), headers=BATCH)
        answer.raise_for_status()
        [found] = until(lambda: b.client.post(f"{path}/pull", json={}).json()["messages"])
        assert found["event"]["id"] == "1"
        assert a.of("b")["events_sent"] == 2, "nothing was sent for removed filters, or of another space"


def test_a_step_that_fails_after_its_first_half_is_repeated_without_a_double(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill: the log has the records and the registry the filters, but the inbox still has them,
    too."""
    failures = {"processed": 3, "acknowledge": 3, "add": 3, "receive": 3}
    for name in failures:
        done = getattr(LinkStore, name)

        def failing(self: LinkStore, *given: Any, name: str = name, done: Any = done, **more: Any) -> None:
            if name in ("add", "receive"):
                if failures[name] and self.correspondents():
                    failures[name] -= 1
                    raise StorageError("the disk is slow today")
                done(self, *given, **more)
                return
            if failures[name]:
                failures[name] -= 1
                raise StorageError("the disk is slow today")
            done(self, *given, **more)

        monkeypatch.setattr(LinkStore, name, failing)
    with sites(tmp_path, "ab", "ab") as (a, b):
        revision = b.subscribe("mine", "data.n >= 0")
        until(lambda: b.counts(revision, "a"))
        for name in failures:
            failures[name] = 2
        a.publish(1, 2)
        a.publish(3)
        assert b.take("mine", 3) == [1, 2, 3]
        until(lambda: not any(failures.values()))
        a.publish(4)
        assert b.take("mine", 1) == [4]
        assert b.of("a")["sent_twice"] == 0
        assert b.of("a")["events_received"] == a.of("b")["events_sent"] > 0


def matched(site: Site) -> dict[int, list[str]]:
    """The ids of the events that each subscription of a site has matched, by its match log and log."""
    gateway, found = site.gateway, dict[int, list[str]]()
    offset, end = gateway.log.start(), gateway.log.end()
    lines = {record.offset: record.payload.splitlines() for record in gateway.log.read(offset, end)}
    while offset < end:
        block = gateway.match_log.partition(0).block_at(offset)
        assert block is not None
        for number in block.numbers().tolist():
            for at, index in zip(*(each.tolist() for each in block.matches_of(number, offset)), strict=True):
                found.setdefault(number, []).append(json.loads(lines[at][index])["id"])
        offset = block.end
    return found


def path(one: Site, other: Site, all_sites: list[Site]) -> list[Site]:
    """The sites at which an event is matched on its way, at sites in a line."""
    first, last = all_sites.index(one), all_sites.index(other)
    if one.settings.get("routing", "ddbr") == "ddbr" and one is not other:
        return [one, other]
    return all_sites[first : last + 1] if first <= last else all_sites[last : first + 1][::-1]


def expected(site: Site, all_sites: list[Site]) -> dict[int, list[str]]:
    """Return the expected matches, from the logs of the sites that published, and this site's registry.

    An event of another site counts for the versions that are valid at the revision of this site that its
    site knew when it was published; or that the site between knew, at the revision of its own that counted.
    """
    registry, wanted = site.gateway.registry, dict[int, list[str]]()
    versions = [each for each in registry.versions(registry.revision(), 0) if each.space == "default"]
    for origin in all_sites:
        for record in origin.gateway.log.read(0, origin.gateway.log.end()):
            if record.origin is not None:
                continue
            stamp = record.stamp
            for one, other in pairwise(path(origin, site, all_sites)):
                store = one.gateway.federation._brokers  # type: ignore[union-attr]
                numbers = {each.name: each.number for each in store.brokers()}
                runs = [run for run in store.runs() if run.number == numbers.get(other.name)]
                stamp = max((run.theirs for run in runs if run.revision <= stamp), default=-1)
            for line in map(json.loads, record.payload.splitlines()):
                for version in versions:
                    text = str(version.filter)
                    if version.revision <= stamp < version.closed_by and compile_filter(text).matches(line):
                        wanted.setdefault(version.number, []).append(line["id"])
    return wanted


@pytest.mark.parametrize("routing, seed", [("ddbr", 0), ("ddbr", 1), ("fbr", 2), ("merc", 3)])
def test_each_subscription_matches_exactly_the_events_of_its_versions(
    tmp_path: Path, routing: str, seed: int
) -> None:
    """Random changes, events and restarts at three sites; the logs say what each should have got."""
    random = Random(seed)
    found = [Site(tmp_path / name, name, find_free_port()) for name in "abc"]
    link(found, routing)
    try:
        for site in found:
            site.start()
        reached = {
            site.name: [
                other
                for other in found
                if other is not site and (routing == "ddbr" or len(path(site, other, found)) == 2)
            ]
            for site in found
        }
        until(lambda: all(site.of(other.name) for site in found for other in reached[site.name]))
        for step in range(90):
            site, chance = random.choice(found), random.random()
            if chance < 0.04:
                site.stop()
                site.start()
            elif chance < 0.3:
                test = random.choice(("<", "=", ">"))
                site.subscribe(
                    random.choice("xyz"), f"data.n {test} {random.randrange(10)} AND {step} = {step}"
                )
            elif chance < 0.36:
                site.client.delete(f"/v1/spaces/default/subscriptions/{random.choice('xyz')}")
            else:
                given = [
                    event(f"{step}-{n}", {"n": random.randrange(10)}) for n in range(random.randrange(1, 4))
                ]
                site.client.post(EVENTS, content=encode(given), headers=BATCH).raise_for_status()
        until(lambda: all(site.is_quiet() for site in found))
        until(lambda: is_settled(found, reached) and is_settled(found, reached))
        for site in found:
            got, wanted = matched(site), expected(site, found)
            destinations = {each.number for each in site.gateway.federation._brokers.brokers()}  # type: ignore[union-attr]
            mine = {number: sorted(ids) for number, ids in got.items() if number not in destinations}
            assert mine == {number: sorted(ids) for number, ids in wanted.items()}
            assert all(each.get("sent_twice", 0) == 0 for each in site.brokers()["brokers"])
            assert mine, "something was matched"
    finally:
        for site in found:
            if site.is_running:
                site.stop()


def link(found: list[Site], routing: str) -> None:
    """Link sites in a line; by cluster, each inner site is between two clusters."""
    for place, (one, other) in enumerate(pairwise(found)):
        prefix = f"N{place}/" if routing == "merc" else ""
        one.peers[prefix + other.name], other.peers[prefix + one.name] = other.port, one.port
    for place, site in enumerate(found):
        # Maintenance forgets which filters counted when, and the test asks for it in the end.
        site.settings = {"routing": routing, "maintenance_s": 3600}
        if routing == "merc":
            site.settings["clusters"] = tuple(f"N{n}" for n in (place - 1, place) if 0 <= n < len(found) - 1)


def is_settled(found: list[Site], reached: dict[str, list[Site]]) -> bool:
    """Whether all events are matched where they must be, and none is on its way."""
    return all(
        site.gateway.match_log.end(0) == site.gateway.log.end() == site.brokers()["forwarded_to"][0]
        and all(
            site.of(other.name)["events_received"] == other.of(site.name)["events_sent"]
            for other in reached[site.name]
        )
        for site in found
    )


def test_where_a_link_is_cut_events_go_another_way(tmp_path: Path) -> None:
    a, b, c = found = [Site(tmp_path / name, name, find_free_port()) for name in "abc"]
    there, back = LinkProxy(c.port), LinkProxy(a.port)
    a.peers, b.peers = {"b": b.port, "c": there.port}, {"a": a.port, "c": c.port}
    c.peers = {"a": back.port, "b": b.port}
    try:
        for site in found:
            site.start()
        revision = c.subscribe("mine", "data.n >= 0")
        until(lambda: c.counts(revision, "a") and a.of("c")["next_hop"] == "c")
        a.publish(1)
        assert c.take("mine", 1) == [1]
        until(a.is_quiet)
        there.cut()
        back.cut()
        until(lambda: a.of("c")["next_hop"] == "b")
        a.publish(2)
        assert c.take("mine", 1) == [2]
        assert b.gateway.log.end() == 0
        there.heal()
        back.heal()
        until(lambda: a.of("c")["next_hop"] == "c")
        a.publish(3)
        assert c.take("mine", 1) == [3]
        assert c.of("a")["sent_twice"] == 0 and c.of("a")["events_received"] == 3
    finally:
        for site in found:
            if site.is_running:
                site.stop()
        there.close()
        back.close()


def test_pages_of_changes_are_complete_up_to_their_last_change() -> None:
    """Only all filters together are a consistent state; a later page is one up to its last change."""
    count = 2 * wire.FILTERS_MAX + 5
    changes = [Change(n, "default", n, f"n = {n}", "sql") for n in range(1, count + 1)]
    first = list(first_pages(changes, count + 2))
    assert [(len(page), theirs) for page, theirs in first] == [(1000, None), (1000, None), (5, count + 2)]
    later = list(later_pages(changes, count + 2))
    assert [(len(page), theirs) for page, theirs in later] == [(1000, 1000), (1000, 2000), (5, count + 2)]
    assert list(later_pages([], count + 2)) == [((), count + 2)]
    long = [Change(n, "default", n, "x" * 60_000, "sql") for n in range(1, 30)]
    assert max(len(page) for page, _ in later_pages(long, 30)) <= 9
    longer = [Change(n, "default", n, "x" * 2_000_000, "sql") for n in range(1, 30)]
    assert {len(page) for page, _ in later_pages(longer, 30)} == {1}, "a neighbour takes 3 MiB at least"


def test_a_sender_with_a_restored_file_is_stopped_and_loses_nothing_silently(tmp_path: Path) -> None:
    """It would give new entries the numbers of those that the neighbour has, which would leave them out."""
    with sites(tmp_path, "ab", "ab") as (a, b):
        revision = b.subscribe("mine", "data.n >= 0")
        until(lambda: b.counts(revision, "a"))
        a.publish(1)
        assert b.take("mine", 1) == [1]
        until(a.is_quiet)
        a.stop()
        file = tmp_path / "a" / "links.db"
        copy = file.read_bytes()
        a.start()
        for number in range(2, 5):
            a.publish(number)
            assert b.take("mine", 1) == [number]
        until(a.is_quiet)
        a.stop()
        for stale in file.parent.glob("links.db*"):
            stale.unlink()
        file.write_bytes(copy)
        a.start()
        a.publish(*range(5, 9))
        until(lambda: "restored from a copy" in (a.brokers()["links"][0]["trouble"] or ""))
        assert not a.brokers()["links"][0]["is_up"] and b.pull("mine") == []


def test_a_broker_with_a_new_name_and_an_empty_file_hears_of_all_filters_again(tmp_path: Path) -> None:
    """Its registry knows the others by the old file: their first messages are no repeats."""
    with sites(tmp_path, "ab", "ab") as (a, b):
        old = b.subscribe("old", "data.n >= 0")
        until(lambda: b.counts(old, "a"))
        a.stop()
        for file in a.data.glob("links.db*"):
            file.unlink()
        b.stop()
        b.peers = {"c": a.port}
        b.start()
        made = b.subscribe("mine", "data.n >= 5")
        b.client.delete("/v1/spaces/default/subscriptions/old").raise_for_status()
        a.name = "c"
        a.start()
        until(lambda: b.counts(made, "c"))
        until(lambda: a.of("b").get("filters") == 1)
        a.publish(1, 7)
        assert b.take("mine", 1) == [7]


def test_the_limits_of_requests_of_one_site_leave_out_no_event_of_another(tmp_path: Path) -> None:
    """Long records and lists of few bytes were accepted where they were published."""
    a, b = found = [Site(tmp_path / name, name, find_free_port()) for name in "ab"]
    a.peers, b.peers = {"b": b.port}, {"a": a.port}
    b.settings = {"batch_max_events": 2}
    try:
        for site in found:
            site.start()
        revision = b.subscribe("mine", "type = 't'")
        until(lambda: b.counts(revision, "a"))
        a.publish(1, 2, 3, 4)
        assert b.take("mine", 4) == [1, 2, 3, 4]
        columns = {"specversion": ["1.0"], "id": ["5"], "source": ["/s"], "type": ["t"]}
        flags = pa.array([[True] * 100_000], pa.list_(pa.bool_()))
        table = pa.table(columns | {"data": pa.StructArray.from_arrays([flags], ["flags"])})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        kind = {"content-type": "application/vnd.apache.arrow.stream"}
        a.client.post(EVENTS, content=sink.getvalue().to_pybytes(), headers=kind).raise_for_status()
        assert b.take("mine", 1) == [5]
        assert b.brokers()["dropped_events"] == 0
    finally:
        for site in found:
            if site.is_running:
                site.stop()


def test_an_event_that_the_neighbour_cannot_take_does_not_stop_the_link(tmp_path: Path) -> None:
    a, b = found = [Site(tmp_path / name, name, find_free_port()) for name in "ab"]
    a.peers, b.peers = {"b": b.port}, {"a": a.port}
    a.settings = {"event_max_bytes": 5 << 20}
    b.settings = {"body_max_bytes": 3 << 20}
    try:
        for site in found:
            site.start()
        revision = b.subscribe("mine", "type = 't'")
        until(lambda: b.counts(revision, "a"))
        large = event(1, {"n": 1, "text": "".join(Random(0).choices("abcdefgh", k=4 << 20))})
        a.client.post(EVENTS, content=encode([large]), headers=BATCH).raise_for_status()
        a.publish(2)
        assert b.take("mine", 1) == [2]
        until(a.is_quiet)
        assert b.brokers()["dropped_events"] == 1
        assert b.of("a")["events_received"] == a.of("b")["events_sent"] == 2
    finally:
        for site in found:
            if site.is_running:
                site.stop()


def test_a_filter_of_a_link_keeps_other_events_back(tmp_path: Path) -> None:
    """Also from sites behind the neighbour, and of tables; the exchange stays in order."""
    rules = tmp_path / "rules.txt"
    rules.write_text("# what may leave\n\nb data.n < 5 AND type = 't'\n")
    a, b, c = found = [Site(tmp_path / name, name, find_free_port()) for name in "abc"]
    link(found, "ddbr")
    a.settings["peer_filter_file"] = rules
    try:
        for site in found:
            site.start()
        revisions = {site: site.subscribe("mine", "data.n >= 0") for site in (b, c)}
        until(lambda: all(site.counts(revision, "a") for site, revision in revisions.items()))
        a.publish(1, 7, 2)
        a.publish(8, 9)
        columns = {"specversion": ["1.0"] * 3, "id": ["3", "6", "4"], "source": ["/s"] * 3, "type": ["t"] * 3}
        table = pa.table(columns | {"data": pa.StructArray.from_arrays([pa.array([3, 6, 4])], ["n"])})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        kind = {"content-type": "application/vnd.apache.arrow.stream"}
        a.client.post(EVENTS, content=sink.getvalue().to_pybytes(), headers=kind).raise_for_status()
        b.publish(6)
        assert sorted(c.take("mine", 5)) == [1, 2, 3, 4, 6]
        assert sorted(b.take("mine", 5)) == [1, 2, 3, 4, 6]
        until(lambda: c.of("a")["events_received"] == a.of("c")["events_sent"] > 0)
        assert a.brokers()["links"][0]["withheld_events"] == 4
        assert c.pull("mine") == [] and c.of("a")["sent_twice"] == 0
    finally:
        for site in found:
            if site.is_running:
                site.stop()


def test_a_file_with_filters_of_links_that_cannot_be_is_refused(tmp_path: Path) -> None:
    bad = {
        "oslo": "line 1: .*",
        "rome type = 't'": "line 1: 'rome' is not a neighbour; the neighbours are",
        "oslo type = 't'\noslo type = 'u'": "line 2: 'oslo' has a filter already",
        "# fine\noslo type =": "line 2: ",
    }
    for text, message in bad.items():
        (tmp_path / "rules").write_text(text)
        with pytest.raises(FormatError, match=message):
            read_link_filters(tmp_path / "rules", {"oslo"})
    with pytest.raises(FormatError, match="cannot be read"):
        read_link_filters(tmp_path / "none", {"oslo"})
    (tmp_path / "rules").write_text("oslo data.n < 3\n")
    assert read_link_filters(tmp_path / "rules", {"oslo"})["oslo"].matches({"data": {"n": 2}})
    assert read_link_filters(None, {"oslo"}) == {}


def test_events_of_other_sites_use_up_the_quota_of_a_space_and_are_not_refused(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab", quota_events_per_s=5) as (a, b):
        revision = b.subscribe("mine", "data.n >= 0")
        until(lambda: b.counts(revision, "a"))
        for first in (0, 100):
            until(
                lambda first=first: a.client.post(EVENTS, content=numbered(first), headers=BATCH).is_success
            )
        assert sorted(b.take("mine", 80)) == [*range(40), *range(100, 140)]
        answer = b.client.post(EVENTS, content=numbered(500), headers=BATCH)
        assert answer.status_code == 429 and answer.json()["quota"] == "events_per_s"
        assert int(answer.headers["retry-after"]) <= 11
        assert a.of("b")["sent_twice"] == 0 == a.brokers()["dropped_events"]


def numbered(first: int) -> bytes:
    return bytes(encode([event(number, {"n": number}) for number in range(first, first + 40)]))


@pytest.mark.parametrize("setting", ["peer_bytes_per_s", "peer_catch_up_bytes_per_s"])
def test_a_link_sends_no_more_than_its_rate_allows(tmp_path: Path, setting: str) -> None:
    """What waits for a site that was away comes at the rate; the link shows meanwhile that it is up."""
    rate, count = 60_000, 12
    with sites(tmp_path, "ab", "ab") as (a, b):
        revision = b.subscribe("mine", "type = 't'")
        until(lambda: b.counts(revision, "a"))
        b.stop()
        a.stop()
        a.settings = {setting: rate}
        a.start()
        for number in range(count):
            text = "".join(Random(number).choices("0123456789abcdef", k=30_000))  # packed, half of it
            given = [event(number, {"n": number, "text": text})]
            a.client.post(EVENTS, content=encode(given), headers=BATCH).raise_for_status()
        until(lambda: a.brokers()["forwarded_to"] == [a.gateway.log.end()])
        before = a.brokers()["links"][0]["sent_bytes"]
        begun_s = time.monotonic()
        b.start()
        assert b.take("mine", count) == [*range(count)]
        sent_bytes = a.brokers()["links"][0]["sent_bytes"] - before
        assert sent_bytes > 10_000 * count
        # The last batch need not have been waited for.
        assert time.monotonic() - begun_s >= (sent_bytes - rate - 30_000) / rate
        assert a.brokers()["links"][0]["is_up"]


def test_a_broker_with_a_restored_registry_is_refused_before_filters_are_missing(tmp_path: Path) -> None:
    """Other brokers would take its next revisions for ones that they know."""
    with sites(tmp_path, "ab", "ab") as (_, b):
        b.stop()
        file = b.data / "registry.db"
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        copy = file.read_bytes()
        b.start()
        revision = b.subscribe("mine", "data.n >= 0")
        until(lambda: b.counts(revision, "a"))
        b.stop()
        for stale in b.data.glob("registry.db*"):
            stale.unlink()
        file.write_bytes(copy)
        with pytest.raises(FormatError, match="it was restored from a copy"):
            b.start()
