"""Cheung and Jacobsen 2006, section 2: covering subscription sets and the poset (Figure 1)."""

from __future__ import annotations

from fieldfare.filters import compile_filter, region_of
from fieldfare_lab.balancing.poset import Poset

# The figure itself is not in the text; a set of subscriptions of its kind.
SUBSCRIPTIONS = {
    "stocks": "class = 'STOCK'",
    "volumes": "class = 'STOCK' AND volume > 50",
    "high volumes": "class = 'STOCK' AND volume > 150",
    "YHOO": "class = 'STOCK' AND symbol = 'YHOO'",
    "YHOO's high volumes": "class = 'STOCK' AND symbol = 'YHOO' AND volume > 150",
    "sports": "class = 'SPORTS'",
    "racing": "class = 'SPORTS' AND type = 'racing'",
}


def poset() -> Poset:
    return Poset([(name, region_of(compile_filter(filter))) for name, filter in SUBSCRIPTIONS.items()])


def names(found: Poset, keys: object) -> set[str]:
    return {id for key in keys for id in found.nodes[key].ids}  # type: ignore[attr-defined]


def test_figure_1_the_css_are_the_children_of_the_root() -> None:
    found = poset()
    assert names(found, found.css()) == {"stocks", "sports"}


def test_figure_1_parents_have_supersets_and_others_are_siblings() -> None:
    found = poset()
    parents = {id: names(found, node.parents) for node in found.nodes.values() for id in node.ids}
    assert parents == {
        "stocks": set(),
        "sports": set(),
        "volumes": {"stocks"},
        "YHOO": {"stocks"},
        "high volumes": {"volumes"},
        "YHOO's high volumes": {"high volumes", "YHOO"},
        "racing": {"sports"},
    }


def test_each_unique_subscription_is_one_node() -> None:
    found = poset()
    found.add("again", region_of(compile_filter("class = 'STOCK' AND symbol = 'YHOO'")))
    assert len(found) == 8 and len(found.nodes) == 7


def test_without_a_general_subscription_its_children_are_the_css() -> None:
    found = poset()
    found.remove("stocks")
    assert names(found, found.css()) == {"volumes", "YHOO", "sports"}
