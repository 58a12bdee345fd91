"""Filters as text, of real events, on small overlays of each protocol."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from explorer import clustered
from routing_support import World

from fieldfare.filters import FilterError
from fieldfare_lab.routing import (
    Ddbr,
    Fbr,
    TextFilter,
)
from fieldfare_lab.routing.messages import (
    Everything,
    Filter,
    SetAdvertisement,
    SetSubscription,
)

TEXTS = (
    "symbol = 'IBM'",
    "symbol = 'IBM' AND price > 50",
    "symbol IN ('IBM', 'SAP') AND price BETWEEN 10 AND 90",
    "price > 50",
    "price > 20 OR symbol = 'SAP'",
    "name LIKE '%a_b%'",
    "NOT (symbol = 'SAP')",
    "EXISTS name",
)
STOCKS = TextFilter("EXISTS symbol")


def events(rng: Random, count: int) -> list[dict[str, Any]]:
    found = []
    for _ in range(count):
        event: dict[str, Any] = {"symbol": rng.choice(("IBM", "SAP", "DEC")), "price": rng.randrange(100)}
        if rng.random() < 0.3:
            event["name"] = rng.choice(("xa-by", "ab"))
        found.append(event)
    return found


def overlay(protocol: str) -> World:
    if protocol == "merc":
        edges, strategy, groups = clustered("A: A-E A-B B-E; B: E-C C-D E-D; A/B")
        world = World(0, strategy)
    else:
        edges = (("A", "B"), ("B", "C"), ("C", "D"), ("D", "A"), ("D", "E"))
        alike = Ddbr() if protocol == "ddbr" else Fbr(uses_covering=protocol == "fbr-covering")
        world, groups = World(0, lambda _: alike), lambda a, b: ("",)
    for name in sorted({name for edge in edges for name in edge}):
        world.add(name)
        world.command(name, SetAdvertisement("stocks", STOCKS))
    for a, b in edges:
        world.link(a, b, *groups(a, b))
    assert world.settle()
    return world


@pytest.mark.parametrize("protocol", ["ddbr", "fbr", "fbr-covering", "merc"])
def test_each_subscriber_gets_what_its_text_matches(protocol: str) -> None:
    world, rng = overlay(protocol), Random(protocol)
    for _ in range(30):
        name, id = rng.choice("ABCDE"), rng.choice("st")
        wanted = TextFilter(rng.choice(TEXTS)) if rng.random() < 0.8 else None
        world.command(name, SetSubscription(id, wanted))
        for event in events(rng, 5):
            world.publish(rng.choice("ABCDE"), event)
        world.run(rng.choice((0.0, 0.02, 0.2)))
        if rng.random() < 0.1:
            world.crash(name)
            world.start(name)
    assert world.settle()
    assert world.faults() == []
    remote = [
        each
        for name, site in world.sites.items()
        for each in site.delivered
        if each.publication.origin.broker != name
    ]
    assert len(remote) > 100


@pytest.mark.parametrize("protocol", ["ddbr", "fbr", "merc"])
def test_a_subscription_goes_only_to_brokers_whose_advertised_texts_intersect_it(protocol: str) -> None:
    world = overlay(protocol)
    world.command("A", SetAdvertisement("stocks", TextFilter("symbol = 'IBM' AND price < 10")))
    assert world.settle()
    world.command("E", SetSubscription("s", TextFilter("symbol = 'IBM' AND price > 50")))
    assert world.settle()
    assert {each.origin for each in world.sites["E"].counts} == set("BCDE")
    world.command("E", SetSubscription("s", TextFilter("price < 5")))
    assert world.settle()
    assert {each.origin for each in world.sites["E"].counts} == set("ABCDE")


def test_a_filter_is_stored_as_its_text() -> None:
    found = TextFilter('{"price": [{"numeric": [">", 5]}]}', "eventbridge")
    stored = pickle.dumps(found)
    assert len(stored) < 200
    again = pickle.loads(stored)
    assert again == found and hash(again) == hash(found)
    assert again.matches({"price": 6}) and not again.matches({"price": 5})
    assert again.covers(TextFilter("price > 7")) and not again.covers(TextFilter("price > 3"))
    assert not again.intersects(TextFilter("price < 3"))


def test_texts_and_everything_are_compared() -> None:
    everything: Filter = Everything()
    all_events, some = TextFilter("TRUE"), TextFilter("price > 1")
    assert everything.covers(some) and everything.intersects(some) and some.intersects(everything)
    assert all_events.covers(everything) and not some.covers(everything)


def test_a_text_that_is_no_filter_is_refused() -> None:
    with pytest.raises(FilterError):
        TextFilter("price >")
