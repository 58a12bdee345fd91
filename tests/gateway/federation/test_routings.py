"""Sites that route by filter or by cluster: as exact as by destination, and rings are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from federation_support import Site, sites
from gateway_support import BATCH, EVENTS, encode, event, until
from pydantic import ValidationError

from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.origins import HOPS_MAX, Origin
from fieldfare.gateway.federation.wire import Counts, Destination, Row
from fieldfare.gateway.peers import BrokerSettings, Neighbour
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.storage.errors import FormatError
from fieldfare_lab.ports import find_free_port


@contextmanager
def clusters(root: Path, members: dict[str, str], links: str) -> Iterator[dict[str, Site]]:
    """Start sites that route by cluster, by name, each with its clusters, and links as pairs of letters."""
    found = {name: Site(root / name, name, find_free_port()) for name in members}
    for one, other in links.split():
        [shared] = set(members[one]) & set(members[other])
        for here, there in ((one, other), (other, one)):
            found[here].peers[f"{shared}/{there}"] = found[there].port
    for name, its in members.items():
        found[name].settings |= {"routing": "merc", "clusters": tuple(its)}
    try:
        for site in found.values():
            site.start()
        yield found
    finally:
        for site in found.values():
            if site.is_running:
                site.stop()


@contextmanager
def by_filter(root: Path, names: str, links: str) -> Iterator[list[Site]]:
    """Start sites that route by filter; see `sites`."""
    with sites(root, names, links, routing="fbr") as found:
        yield found


def knows(site: Site, name: str, filters: int) -> bool:
    return bool(site.of(name).get("filters") == filters)


def test_by_filter_each_site_knows_its_neighbours_only(tmp_path: Path) -> None:
    with by_filter(tmp_path, "abc", "ab bc") as (a, b, c):
        c.subscribe("far", "data.n > 3")
        until(lambda: knows(a, "b", 1))
        assert a.of("c") == {} == c.of("a")
        a.publish(*range(10))
        assert c.take("far", 6) == [4, 5, 6, 7, 8, 9]
        [record] = b.gateway.log.read(0, b.gateway.log.end())
        assert record.count == 6, "it is matched again at the broker between"
        assert record.origin is not None and record.origin.startswith(">a>1>a/0-0/")
        [record] = c.gateway.log.read(0, c.gateway.log.end())
        assert record.origin is not None and Origin.parsed(record.origin).place.startswith("a/0-0/")
        b.subscribe("near", "data.n = 5")
        until(lambda: knows(a, "b", 2))
        a.publish(5, 6)
        assert b.take("near", 1) == [5] and c.take("far", 2) == [5, 6]
        b.publish(7)
        assert c.take("far", 1) == [7]
        assert a.gateway.log.end() == 2, "nothing comes back"
        c.client.delete("/v1/spaces/default/subscriptions/far").raise_for_status()
        until(lambda: knows(a, "b", 1))
        before = b.of("c")["events_sent"]
        a.publish(5, 9)
        assert b.take("near", 1) == [5]
        until(lambda: b.brokers()["forwarded_to"] == [b.gateway.log.end()])
        assert b.of("c")["events_sent"] == before


def test_by_filter_a_replaced_filter_counts_from_one_place(tmp_path: Path) -> None:
    with by_filter(tmp_path, "abcd", "ab bc bd") as (a, b, c, d):
        c.subscribe("mine", "data.n >= 0")
        d.subscribe("mine", "data.n >= 0")
        until(lambda: knows(a, "b", 2) and knows(d, "b", 1))
        for number in range(20):
            a.publish(2 * number, 2 * number + 1)
            if number == 10:
                c.subscribe("mine", "data.n >= 0 AND data.n % 2 = 0")
        until(lambda: a.of("b")["filters"] == 2 and "% 2" in str(_filters_known(a)))
        a.publish(1000, 1001)
        assert sorted(d.take("mine", 42)) == [*range(40), 1000, 1001]
        got: list[int] = []
        until(lambda: got.extend(c.pull("mine")) or 1000 in got)
        odd = [each for each in got if each % 2]
        assert got == [each for each in [*range(40), 1000] if each % 2 == 0 or each <= odd[-1]]
        assert all(
            each.get("sent_twice", 0) == 0 for site in (a, b, c, d) for each in site.brokers()["brokers"]
        )


def _filters_known(site: Site) -> list[str | None]:
    registry = site.gateway.registry
    versions = registry.versions(registry.revision(), registry.revision())
    return [each.filter for each in versions if each.space.startswith(">")]


def test_an_edge_broker_passes_events_on_between_clusters(tmp_path: Path) -> None:
    """Figure 2 of the paper: two clusters, and an edge broker with a subscriber of its own."""
    members = {"a": "N", "b": "N", "e": "NS", "c": "S", "d": "S"}
    with clusters(tmp_path, members, "ab be ec cd") as found:
        a, b, e, c, d = (found[name] for name in "abecd")
        d.subscribe("far", "data.n >= 10")
        e.subscribe("edge", "data.n = 11")
        b.subscribe("near", "data.n = 12")
        until(lambda: knows(a, "e", 2) and knows(a, "b", 1) and knows(c, "e", 2) and knows(d, "e", 2))
        assert {each["name"] for each in a.brokers()["brokers"]} == {"a", "b", "e"}
        assert a.of("e")["links"] == ["b"], "of other clusters' links it knows nothing"
        a.publish(9, 10, 11, 12)
        assert d.take("far", 3) == [10, 11, 12]
        assert e.take("edge", 1) == [11] and b.take("near", 1) == [12]
        assert c.gateway.log.end() == 0, "it only passes on"
        assert [each.count for each in b.gateway.log.read(0, 9)] == [1]
        d.publish(11, 12)
        assert b.take("near", 1) == [12] and e.take("edge", 1) == [11] and d.take("far", 2) == [11, 12]
        for site in (e, d):
            site.stop()
            a.publish(100 if site is e else 101)
            site.start()
        assert sorted(d.take("far", 2)) == [100, 101]
        assert e.brokers()["clusters"] == ["N", "S"]
        assert all(each.get("sent_twice", 0) == 0 for s in found.values() for each in s.brokers()["brokers"])


def test_a_ring_of_links_is_refused_when_routing_by_filter(tmp_path: Path) -> None:
    with by_filter(tmp_path, "abc", "ab bc") as found:
        a, _, c = found
        until(lambda: a.of("b").get("next_hop") == "b" and c.of("b").get("next_hop") == "b")
        for site, other in ((a, c), (c, a)):
            site.stop()
            site.peers[other.name] = other.port
            site.start()

        def refused(site: Site) -> list[str]:
            troubles = {each["peer"]: each["trouble"] or "" for each in site.brokers()["links"]}
            return [peer for peer, text in troubles.items() if "must not form a ring" in text]

        until(lambda: sum(len(refused(site)) for site in found) == 2)
        [[one, [other]], [another, [back]]] = [(each.name, refused(each)) for each in found if refused(each)]
        assert (one, another) == (back, other), "both ends of one link refuse it"
        c.subscribe("mine", "data.n >= 0")
        until(lambda: knows(a, "b", 1) or knows(a, "c", 1))
        a.publish(1)
        assert c.take("mine", 1) == [1] and c.pull("mine") == []


def test_two_edge_brokers_of_the_same_clusters_are_refused(tmp_path: Path) -> None:
    with clusters(tmp_path, {"a": "N", "e": "NS", "c": "S", "f": "NS"}, "ae ec af fc") as found:
        ring = re.compile("must not form a ring|two brokers may share only one cluster")

        def refused() -> list[str]:
            links = [link for site in found.values() for link in site.brokers()["links"]]
            return [each["peer"] for each in links if ring.search(each["trouble"] or "")]

        until(refused)


def test_neighbours_with_another_routing_or_cluster_are_refused(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        b.stop()
        b.settings = {"routing": "fbr"}
        with pytest.raises(FormatError, match="made with --routing ddbr, not fbr"):
            b.start()
        for file in b.data.glob("links.db*"):
            file.unlink()
        b.start()
        until(lambda: "This broker has --routing fbr" in (a.brokers()["links"][0]["trouble"] or ""))
        until(lambda: "This broker has --routing ddbr" in (b.brokers()["links"][0]["trouble"] or ""))
        until(lambda: not a.brokers()["links"][0]["is_up"])
    with clusters(tmp_path / "more", {"c": "N", "d": "N"}, "cd") as found:
        c, d = found.values()
        d.stop()
        d.settings |= {"clusters": ("M",)}
        d.peers = {"c": c.port}
        d.start()
        until(lambda: "cluster 'M' here" in (c.brokers()["links"][0]["trouble"] or ""))


def test_entries_for_a_removed_broker_of_any_cluster_are_dropped() -> None:
    members = {"a": "N", "c": "S"}
    rows = [Row(name, f"id of {name}", 1, ("e",), its) for name, its in members.items()]
    clusters = Clusters("e", "mine", "NS", members, 1, rows)
    for name in members:
        to = (Destination(name),)
        assert [hop for hop, _ in clusters.split(Counts("e", to, 1, 1, 0), to)] == [""], "no link is up"
        clusters.remove(name)
        assert clusters.split(Counts("e", to, 1, 1, 0), to) == []


def test_settings_of_a_broker_that_cannot_be_are_refused(tmp_path: Path) -> None:
    bad = [
        ({"routing": "merc"}, "needs --cluster"),
        ({"clusters": "north"}, "--cluster needs --routing merc"),
        ({"routing": "merc", "clusters": "north,north"}, "named twice"),
        ({"routing": "merc", "clusters": "no/rth"}, "not a valid name of a cluster"),
        (
            {"routing": "merc", "clusters": "n,s", "peers": "b=http://h"},
            "needs one of this broker's clusters",
        ),
        ({"routing": "merc", "clusters": "n,s", "peers": "m/b=http://h"}, "they are n, s"),
        ({"routing": "fbr", "peers": "n/b=http://h"}, "needs --routing merc"),
        ({"peers": "n/b=http://h"}, "needs --routing merc"),
        ({"routing": "random"}, "ddbr"),
        ({"broker": None, "routing": "fbr"}, "--routing needs --broker"),
    ]
    for given, message in bad:
        with pytest.raises(ValidationError, match=message):
            GatewaySettings.model_validate({"data": tmp_path, "broker": "a", **given})
    merc = BrokerSettings("a", ("n/b=http://h:1/", "s/c=http://i"), "merc", ("n", "s"))
    assert merc.neighbours() == {"b": Neighbour("http://h:1", "n"), "c": Neighbour("http://i", "s")}
    assert BrokerSettings("a", ("b=http://h",), "merc", ("n",)).neighbours()["b"].cluster == "n"
    assert BrokerSettings("z", ("b=http://h",), "fbr").all_clusters() == ["b+z"]
    assert BrokerSettings("z").all_clusters() == [""] == BrokerSettings("z", (), "fbr").all_clusters()


def test_events_that_come_back_or_cross_too_many_clusters_are_dropped(tmp_path: Path) -> None:
    here = Origin.received("e", "0-5/7", f"{HOPS_MAX}>a/0-1/2", is_edge=True)
    assert here.hops == HOPS_MAX + 1 and here.broker == "a" and here.via == "e"
    assert Origin.parsed(here.text) == here
    last = Origin.received("e", "0-5/7", "", is_edge=False)
    assert last.text == "e/0-5/7" and Origin.parsed(last.text).via == ""


def test_events_of_a_space_that_an_edge_lacks_are_counted_as_dropped(tmp_path: Path) -> None:
    with by_filter(tmp_path, "abc", "ab bc") as (a, b, c):
        for site in (a, c):
            site.client.post("/v1/spaces", json={"name": "other"}).raise_for_status()
        c.client.put("/v1/spaces/other/subscriptions/mine", json={"filter": "data.n = 1"}).raise_for_status()
        until(lambda: knows(a, "b", 1))
        body = encode([event(1, {"n": 1})])
        a.client.post(EVENTS.replace("default", "other"), content=body, headers=BATCH).raise_for_status()
        until(lambda: b.brokers()["dropped_events"] == 1)
        assert json.dumps(c.brokers()["dropped_events"]) == "0"
