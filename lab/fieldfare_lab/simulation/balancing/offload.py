"""The offload algorithms: which subscribers move so that a metric is balanced (section 5, Table 2).

    input    CSS only; the card with the difference nearest to zero, again and again
    match    ascending output bandwidth, all subscriptions
    output   phase I: covered by the acceptor's CSS; types I, II, III, each by descending traffic
             phase II: the others, chosen as by the input algorithm; covers others ──▶ phase I again

Each ends when nothing is left, all choices would worsen the difference, the loads differ by at most the
balance threshold, or the offloading broker's is below the other's.

Where the text is open:

* A chosen subscription leaves the poset, and **its children join the CSS**. If some of its subscribers stay,
  it is considered no more in this session either.
* Among cards with equal differences, the input algorithm and phase II prefer less added input.
* An overload of input, CPU or memory is over once all three are below the lower threshold; the usual ends
  count only after that, and until then a choice may worsen the difference.
* Phase II ends once the offloading broker's input utilisation exceeds the other's by no more than the balance
  threshold: more would reverse it, and the input algorithm would undo it.
* With an overloaded output phase II ends once O_r is below 0.9, whatever the input utilisations.
* Phase I ends for a card that does not improve the difference; the next ones are still considered.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from fieldfare.balancing.load import Load, Metric, Resource
from fieldfare.balancing.plans import Plan
from fieldfare.balancing.press import Profile
from fieldfare.balancing.settings import BalancingSettings
from fieldfare_lab.balancing.poset import Poset, Region
from fieldfare_lab.simulation.balancing.cards import Cards, Exchange

RELIEVED_BY_MATCH = (Resource.CPU, Resource.INPUT, Resource.MEMORY)
"""Ratios that the match algorithm brings below the lower overload threshold."""
_EQUAL = 1e-12


def offload(
    metric: Metric,
    overloaded: Resource | None,
    loads: tuple[Load, Load],
    poset: Poset,
    profile: Profile,
    movable: Mapping[Hashable, int],
    accepted: tuple[Region, ...],
    settings: BalancingSettings,
) -> Plan:
    """Choose the subscribers to offload.

    Parameters
    ----------
    metric, overloaded
        The metric to balance, and the overloaded resource if that is the reason.
    loads
        Of the offloading and of the load-accepting broker.
    poset
        The offloading broker's subscriptions.
    profile
        What PRESS found, for every unique subscription of the poset.
    movable
        The number of subscribers of each unique subscription that may move.
    accepted
        The CSS of the load-accepting broker.
    """
    present = {key: len(node.ids) for key, node in poset.nodes.items()}
    covered = frozenset[Hashable]()
    if metric is Metric.OUTPUT or overloaded is Resource.OUTPUT:
        covered = covered_by(accepted, poset)
    exchange = Exchange(*loads, profile, movable, present, settings, covered)
    left = poset.copy()
    if metric is Metric.OUTPUT or overloaded is Resource.OUTPUT:
        balance_output(exchange, left, is_overloaded=overloaded is Resource.OUTPUT)
    elif overloaded in (Resource.CPU, Resource.MEMORY):
        balance_matching(exchange, RELIEVED_BY_MATCH)
    elif overloaded is Resource.INPUT:
        balance_input(exchange, left)
        if exchange.is_overloaded(RELIEVED_BY_MATCH):
            balance_matching(exchange, RELIEVED_BY_MATCH)
    elif metric is Metric.INPUT:
        balance_input(exchange, left)
    else:
        balance_matching(exchange)
    return Plan(tuple(exchange.moved), exchange.mine, exchange.theirs)


def covered_by(accepted: tuple[Region, ...], poset: Poset) -> frozenset[Hashable]:
    """Return the unique subscriptions that are covered by, or equal to, one of a covering set."""
    return frozenset(
        [key for key, node in poset.nodes.items() if any(each.covers(node.region) for each in accepted)]
    )


def balance_input(exchange: Exchange, left: Poset) -> None:
    """Offload from the CSS until the input utilisation ratios are balanced (section 5.1)."""
    while exchange.difference(Metric.INPUT) > exchange.settings.balance:
        rows = _rows(exchange, left.css())
        cards = exchange.cards(rows, Metric.INPUT)
        place = nearest_to_zero(cards, exchange.difference(Metric.INPUT))
        if place is None:
            return
        exchange.take(cards, place)
        left.discard(exchange.moved[-1].key)


def balance_matching(exchange: Exchange, relieved: tuple[Resource, ...] = ()) -> None:
    """Offload the subscriptions with the least traffic until the delays are balanced (section 5.2).

    Parameters
    ----------
    relieved
        The ratios to bring below the lower overload threshold; none if nothing is overloaded.
    """
    all_of = exchange.cards(exchange.open_choices, Metric.DELAY, relieved)
    order = np.lexsort((all_of.choices, all_of.added_per_s, all_of.bytes_per_s))
    for row in all_of.choices[order]:
        is_shedding = bool(relieved) and exchange.is_overloaded(relieved)
        before = exchange.difference(Metric.DELAY)
        if not is_shedding and before <= exchange.settings.balance:
            return
        cards = exchange.cards(np.array([row]), Metric.DELAY, relieved if is_shedding else ())
        if cards.number[0] and (is_shedding or abs(cards.difference[0]) < abs(before) - _EQUAL):
            exchange.take(cards, 0)


def balance_output(exchange: Exchange, left: Poset, *, is_overloaded: bool) -> None:
    """Offload until the output utilisation ratios are balanced, in two phases (section 5.3)."""
    covers, settings = left.copy(), exchange.settings
    _first_phase(exchange, left, is_overloaded)
    while not _output_done(exchange, is_overloaded) and (
        is_overloaded or exchange.difference(Metric.INPUT) > settings.balance
    ):
        rows = exchange.open_choices
        cards = exchange.cards(rows[~exchange.is_covered[rows]], Metric.OUTPUT)
        place = nearest_to_zero(cards, exchange.difference(Metric.OUTPUT))
        if place is None:
            return
        exchange.take(cards, place)
        key = exchange.moved[-1].key
        left.discard(key)
        below = [exchange.rows[each] for each in covers.descendants(key) if each in exchange.rows]
        exchange.is_covered[below] = True
        if any(exchange.movable[each] for each in below):
            _first_phase(exchange, left, is_overloaded)


def _first_phase(exchange: Exchange, left: Poset, is_overloaded: bool) -> None:
    """Offload what the acceptor's CSS covers: types I, II, III, each by descending traffic."""
    rows = exchange.open_choices
    cards = exchange.cards(rows[exchange.is_covered[rows]], Metric.OUTPUT)
    order = np.lexsort((cards.choices, -cards.bytes_per_s, types(cards, exchange)))
    for row in cards.choices[order]:
        if _output_done(exchange, is_overloaded):
            return
        card = exchange.cards(np.array([row]), Metric.OUTPUT)
        if card.number[0] and abs(card.difference[0]) < abs(exchange.difference(Metric.OUTPUT)) - _EQUAL:
            exchange.take(card, 0)
            left.discard(exchange.moved[-1].key)


def types(cards: Cards, exchange: Exchange) -> Any:
    """Return the type of each card in phase I: 1, 2 or 3."""
    all_go = cards.number == exchange.present[cards.choices]
    return np.where(cards.reduced_by_all_per_s > 0, np.where(all_go, 1, 2), 3)


def nearest_to_zero(cards: Cards, now: float) -> int | None:
    """Return the card with the difference nearest to zero; None if none is nearer than the present one."""
    size = np.where(cards.number > 0, np.abs(cards.difference), np.inf)
    if not len(size) or not size.min() < abs(now) - _EQUAL:
        return None
    ties = np.flatnonzero(size <= size.min() + _EQUAL)
    return int(min(ties, key=lambda place: (cards.added_per_s[place], cards.choices[place])))


def _output_done(exchange: Exchange, is_overloaded: bool) -> bool:
    if is_overloaded:
        return not exchange.is_overloaded((Resource.OUTPUT,))
    return exchange.difference(Metric.OUTPUT) <= exchange.settings.balance


def _rows(exchange: Exchange, keys: list[Hashable]) -> Any:
    found = [exchange.rows[key] for key in keys if key in exchange.rows]
    return np.array([row for row in found if exchange.movable[row]], dtype=np.int64)
