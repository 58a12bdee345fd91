"""The poset beside plain comparisons of all pairs, and with the service's own filters."""

from __future__ import annotations

from random import Random

import pytest
from tests.doses import drawn

from fieldfare.filters import compile_filter, covers, region_of
from fieldfare_lab.balancing.poset import Poset
from fieldfare_lab.routing.filter_sets import covering_set
from fieldfare_lab.simulation.balancing.stock_market import StockRegion

SYMBOLS = ("YHOO", "IBM")


def stock(rng: Random) -> StockRegion:
    symbol = rng.choice([*SYMBOLS, None])
    attribute = rng.choice([None, "high", "low", "volume"])
    return StockRegion(symbol, attribute, float(rng.randrange(4)) if attribute else 0.0)


def check(poset: Poset) -> None:
    """All edges of the poset are those of the order between its nodes, without detours."""
    nodes = {key: node.region for key, node in poset.nodes.items()}

    def above(one: object, other: object) -> bool:
        return one != other and nodes[one].covers(nodes[other])  # type: ignore[index]

    for key, node in poset.nodes.items():
        parents = {
            other
            for other in nodes
            if above(other, key) and not any(above(other, mid) and above(mid, key) for mid in nodes)
        }
        assert node.parents == parents
        assert poset.descendants(key) == {other for other in nodes if above(key, other)}
        assert all(key in poset.nodes[parent].children for parent in parents)
    assert set(poset.css()) == {key for key, node in poset.nodes.items() if not node.parents}


def test_additions_and_removals_keep_the_order() -> None:
    for seed in range(drawn(100)):
        rng = Random(seed)
        poset, there = Poset(), dict[str, StockRegion]()
        for number in range(30):
            if there and rng.random() < 0.4:
                id = rng.choice(sorted(there))
                poset.remove(id)
                del there[id]
            else:
                id = f"s{number}"
                there[id] = stock(rng)
                poset.add(id, there[id])
            check(poset)
        assert {id: poset.key_of(id) for id in there} == there
        other = poset.copy()
        for key in list(other.nodes):
            other.discard(key)
        assert len(other) == 0 and len(poset) == len(there)


def test_filters_that_cover_each_other_are_one_unique_subscription() -> None:
    one = region_of(compile_filter("a > 1 AND b = 2"))
    other = region_of(compile_filter("b = 2 AND a > 1"))
    poset = Poset([("s1", one), ("s2", other)])
    assert [sorted(node.ids) for node in poset.nodes.values()] == [["s1", "s2"]]


def test_the_covering_set_is_that_of_filters() -> None:
    for seed in range(drawn(20)):
        rng = Random(seed)
        regions = [region_of(compile_filter(stock(rng).text())) for _ in range(15)]
        poset = Poset([(f"s{number}", region) for number, region in enumerate(regions)])
        kept = [regions[number] for number in covering_set(regions)]
        assert {each.key for each in kept} == {poset.nodes[key].region.key for key in poset.css()}


def test_the_simulations_filters_cover_each_other_as_the_services_do() -> None:
    rng = Random(1)
    for _ in range(drawn(400)):
        one, other = stock(rng), stock(rng)
        compiled = [region_of(compile_filter(each.text())) for each in (one, other)]
        assert one.covers(other) == covers(*compiled), (one, other)


def test_a_subscription_that_is_added_twice_has_its_new_filter() -> None:
    poset = Poset([("s", StockRegion("YHOO"))])
    poset.add("s", StockRegion())
    assert poset.css() == [StockRegion()]
    poset.remove("s")
    assert len(poset) == 0
    with pytest.raises(KeyError):
        poset.remove("s")
