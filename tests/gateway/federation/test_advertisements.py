"""What a site advertises: refused elsewhere, needed filters are sent, and changes are exact."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
from federation_support import Site, sites
from gateway_support import BATCH, encode, event, until

from fieldfare.arrow_events.stream import write_events
from fieldfare.storage.quarantine import QuarantinedRecord

ADVERTISEMENT = "/v1/spaces/default/advertisement"
EVENTS = "/v1/spaces/default/events"


def advertise(site: Site, filter: Any, dialect: str = "sql") -> dict[str, Any]:
    answer = site.client.put(ADVERTISEMENT, json={"filter": filter, "dialect": dialect})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def advertised(site: Site) -> dict[str, Any]:
    return dict(site.client.get(ADVERTISEMENT).raise_for_status().json())


def confirmed(site: Site) -> bool:
    found = advertised(site)
    return not found["is_pending"] and all(found["sites"].values())


def post(site: Site, *ids: int, headers: Any = BATCH) -> httpx.Response:
    events = [event(each, {"n": each}) for each in ids]
    return site.client.post(EVENTS, content=encode(events), headers=headers)


def known(site: Site, of: str) -> int:
    return int(site.of(of).get("filters", 0))


def test_other_sites_send_only_the_filters_that_can_match(tmp_path: Path) -> None:
    with sites(tmp_path, "abc", "ab bc") as (a, b, c):
        b.subscribe("low", "data.n < 10")
        b.subscribe("high", "data.n > 100")
        c.subscribe("all", "data.n IS NOT NULL")
        c.subscribe("other", "type = 'another'")
        until(lambda: known(a, "b") == 2 == known(a, "c"))
        assert advertise(a, "data.n < 50 AND type = 't'")["filter"] == "data.n < 50 AND type = 't'"
        until(lambda: known(a, "b") == 1 == known(a, "c"))
        until(lambda: confirmed(a))
        assert b.of("a")["advertised"] == {"default": "data.n < 50 AND type = 't'"}
        assert b.of("a")["held_back_filters"] == 1 == c.of("a")["held_back_filters"]
        assert known(c, "b") == 2, "others advertise nothing"
        low = b.subscribe("low", "data.n < 20")
        high = b.subscribe("higher", "data.n > 200")
        until(lambda: b.counts(max(low, high), "a"))
        assert known(a, "b") == 1
        a.publish(15, 40)
        assert b.take("low", 1) == [15]
        assert sorted(c.take("all", 2)) == [15, 40]
        for id in ("low", "higher"):
            b.client.delete(f"/v1/spaces/default/subscriptions/{id}").raise_for_status()
        until(lambda: known(a, "b") == 0)


def test_the_state_of_a_broker_is_bounded_however_much_is_advertised(tmp_path: Path) -> None:
    """A thousand spaces, each with an advertisement of 16 KB, made an answer of 16 MB."""
    filters = {f"s{n}": f"data.text <> '{'x' * 15_000}{n}'" for n in range(6)}
    with sites(tmp_path, "ab", "ab") as (a, b):
        for site in (a, b):
            for space in filters:
                site.client.post("/v1/spaces", json={"name": space}).raise_for_status()
        for space, filter in filters.items():
            path = f"/v1/spaces/{space}/advertisement"
            a.client.put(path, json={"filter": filter}).raise_for_status()
        until(lambda: b.of("a").get("advertised_left_out") == 2)
        for site in (a, b):
            shown = site.of("a")
            assert list(shown["advertised"]) == ["s0", "s1", "s2", "s3"]
            assert shown["advertised_left_out"] == 2
            assert "advertised_left_out" not in site.of("b")
            (found,) = (
                each
                for each in site.client.get("/v1/brokers", params={"space": "s5"}).json()["brokers"]
                if each["name"] == "a"
            )
            assert found["advertised"] == {"s5": filters["s5"]} and "advertised_left_out" not in found
        twice = a.client.get("/v1/brokers?space=a&space=b")
        assert twice.status_code == 400


def test_what_is_not_advertised_is_refused_whole_and_by_its_place(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        advertise(a, "data.n < 50")
        end = a.gateway.log.end()
        refused = post(a, 1, 2, 60, 3)
        assert refused.status_code == 400
        problem = refused.json()
        assert problem["type"].endswith("not-advertised")
        assert (problem["index"], problem["advertisement"]) == (2, "data.n < 50")
        later = {**BATCH, "Fieldfare-Deliver-After": "60"}
        assert post(a, 60, headers=later).status_code == 400
        table = pa.RecordBatch.from_pylist([event(each, {"n": each}) for each in (1, 51)])
        arrow = {"Content-Type": "application/vnd.apache.arrow.stream"}
        refused = a.client.post(EVENTS, content=bytes(write_events(table)), headers=arrow)
        assert (refused.status_code, refused.json()["index"]) == (400, 1)
        many = [event(each, {"n": 1, "pad": "x" * 200}) for each in range(999)] + [event(1, {"n": 99})]
        refused = a.client.post(EVENTS, content=encode(many), headers=BATCH)
        assert (refused.status_code, refused.json()["index"]) == (400, 999)
        assert a.gateway.log.end() == end, "nothing was appended"
        mixed = json.dumps([event(1, {"n": 1}), {"specversion": "0"}, event(3, {"n": 77})]).encode()
        assert a.client.post(EVENTS, content=mixed, headers=BATCH).json()["index"] == 2
        made = b.subscribe("mine", "data.n >= 0")
        until(lambda: b.counts(made, "a"))
        a.publish(49)
        b.publish(77)  # what comes over a link was checked at its origin
        assert sorted(b.take("mine", 2)) == [49, 77]
        home = a.subscribe("home", "data.n = 78")
        until(lambda: a.counts(home, "b"))
        b.publish(78)
        assert a.take("home", 1) == [78]


def test_a_wider_advertisement_counts_once_every_site_has_sent_its_filters(tmp_path: Path) -> None:
    with sites(tmp_path, "abc", "ab bc") as (a, b, c):
        b.subscribe("high", "data.n > 100")
        c.subscribe("high", "data.n > 100")
        advertise(a, "data.n < 50")
        until(lambda: known(a, "b") == 0 == known(a, "c") and confirmed(a))
        c.stop()
        found = advertise(a, "data.n < 500")
        assert found["is_pending"] and not all(found["sites"].values())
        until(lambda: known(a, "b") == 1 and advertised(a)["sites"] == {"b": True, "c": False})
        refused = post(a, 200)
        assert refused.status_code == 503 and refused.headers["Retry-After"]
        assert refused.json()["type"].endswith("advertisement-pending")
        assert post(a, 600).status_code == 400
        a.publish(5)
        c.start()
        until(lambda: confirmed(a))
        a.publish(200)
        assert b.take("high", 1) == [200] == c.take("high", 1)
        advertise(a, None)
        until(lambda: confirmed(a))
        a.publish(700)
        assert b.take("high", 1) == [700] == c.take("high", 1)


def test_a_site_that_is_removed_holds_nothing_up(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        advertise(a, "data.n < 50")
        until(lambda: confirmed(a) and a.of("b")["is_removed"] is False and b.of("a").get("advertised"))
        b.stop()
        advertise(a, None)
        assert post(a, 60).status_code == 503
        until(lambda: not a.brokers()["links"][0]["is_up"])
        a.client.delete("/v1/brokers/b").raise_for_status()
        until(lambda: post(a, 60).status_code == 200)


def test_advertisements_survive_a_restart_and_a_deleted_space(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        path = "/v1/spaces/market"
        for site in (a, b):
            site.client.post("/v1/spaces", json={"name": "market"}).raise_for_status()
        a.client.put(f"{path}/advertisement", json={"filter": "data.n < 5"}).raise_for_status()
        until(lambda: b.of("a").get("advertised") == {"market": "data.n < 5"})
        for site in (a, b):
            site.stop()
            site.start()
        assert a.of("a")["advertised"] == {"market": "data.n < 5"} == b.of("a")["advertised"]
        refused = a.client.post(f"{path}/events", content=encode([event(9, {"n": 9})]), headers=BATCH)
        assert refused.status_code == 400
        a.client.delete(path).raise_for_status()
        until(lambda: b.of("a").get("advertised") == {})
        a.client.post("/v1/spaces", json={"name": "market"}).raise_for_status()
        until(lambda: a.client.get(f"{path}/advertisement").json()["is_pending"] is False)
        answer = a.client.post(f"{path}/events", content=encode([event(9, {"n": 9})]), headers=BATCH)
        assert answer.status_code == 200


def test_a_narrower_advertisement_is_told_once_earlier_delayed_events_are_appended(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        high = b.subscribe("high", "data.n > 100")
        until(lambda: b.counts(high, "a"))
        later = {**BATCH, "Fieldfare-Deliver-After": "3"}
        assert post(a, 200, headers=later).status_code == 202
        log = a.gateway.log.partitions[0]
        end = log.end()
        advertise(a, "data.n < 50")
        assert post(a, 200).status_code == 400, "it counts at once"

        def is_appended() -> bool:
            is_told = known(a, "b") == 0 or bool(b.of("a")["advertised"])
            has_grown = log.end() > end
            assert has_grown or not is_told
            return has_grown

        until(is_appended)
        assert b.take("high", 1) == [200]
        until(lambda: known(a, "b") == 0)


def test_a_quarantined_record_is_published_again_only_if_it_is_advertised(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, _):
        a.publish(60)
        a.gateway.quarantine.add(QuarantinedRecord(0, "default", 1, "it failed", 5))
        advertise(a, "data.n < 50")
        refused = a.client.post("/v1/quarantine/0-0-0/retry")
        assert (refused.status_code, refused.json()["index"]) == (400, 0)
        assert a.gateway.log.end() == 1
        advertise(a, None)
        until(lambda: a.client.post("/v1/quarantine/0-0-0/retry").status_code == 200)


def test_advertisements_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, _):
        for wrong in ("data.n <", "x" * 20_000, "data.x IN (" + ",".join(["'abcdefgh'"] * 2_000) + ")"):
            assert a.client.put(ADVERTISEMENT, json={"filter": wrong}).status_code == 400, wrong[:20]
        assert a.client.put(ADVERTISEMENT, json={"filter": "true", "dialect": "no"}).status_code == 400
        assert a.client.put("/v1/spaces/none/advertisement", json={"filter": None}).status_code == 404
        assert advertised(a)["filter"] is None


def test_a_decimal_of_a_table_is_checked_as_the_index_has_it(tmp_path: Path) -> None:
    """As a float it was 0.1: it was accepted, and matched filters that other sites had not sent."""
    with sites(tmp_path, "ab", "ab") as (a, _):
        advertise(a, "data.n <= 0.1")
        arrow = {"Content-Type": "application/vnd.apache.arrow.stream"}
        for text, status in (("0.1", 200), ("0.10000000000000000555", 400), ("0.09999999999999999999", 200)):
            table = pa.RecordBatch.from_pylist([event(1, {"n": Decimal(text)})])
            answer = a.client.post(EVENTS, content=bytes(write_events(table)), headers=arrow)
            assert answer.status_code == status, (text, answer.text)


def test_an_edge_states_what_comes_through_it(tmp_path: Path) -> None:
    """Filters are held back by the edge, too; a wider advertisement waits for the site behind it."""
    with sites(tmp_path, "abc", "ab bc", routing="fbr") as (a, b, c):
        c.subscribe("low", "data.n < 10")
        c.subscribe("high", "data.n > 100")
        until(lambda: known(b, "c") == 2 == known(a, "b"))
        advertise(a, "data.n < 50")
        until(lambda: known(a, "b") == 1 and b.of("a")["held_back_filters"] == 1)
        assert known(b, "c") == 2, "the edge itself publishes everything"
        advertise(b, "false")
        until(lambda: known(b, "c") == 1 and confirmed(a) and confirmed(b))
        assert c.of("b")["advertised"] == {"default": "data.n < 50"}
        assert c.of("b")["held_back_filters"] == 1
        a.publish(5)
        assert c.take("low", 1) == [5]
        c.stop()
        advertise(a, None)
        until(lambda: b.of("a")["advertised"] == {})
        assert post(a, 200).status_code == 503 and not confirmed(a)
        c.start()
        until(lambda: confirmed(a) and known(a, "b") == 2 == known(b, "c"))
        a.publish(200)
        assert c.take("high", 1) == [200]
