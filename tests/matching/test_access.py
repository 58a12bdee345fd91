"""Rows found by keys of several attributes: correct for every kind of filter, and chosen by cost."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matching_support import Compiler, Conjunction, NormalForm, columns_of, entry, matches_of
from tests.doses import drawn

from fieldfare.filters.values import ValueSet, less_than, points
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.plain.building import access
from fieldfare.matching.plain.library import PlainLibrary

PATHS = [("data", name) for name in "abcdefgh"]
WORDS = [f"w{i}" for i in range(12)]

Event = dict[Any, Any]


def _value_set(rng: random.Random, words: list[str]) -> ValueSet:
    """Mostly one string or a few, sometimes a value that no key can use."""
    kind = rng.random()
    if kind < 0.6:
        return ValueSet(strings=points([rng.choice(words)]))
    if kind < 0.75:
        return ValueSet(strings=points(rng.sample(words, 3)))
    if kind < 0.8:
        return ValueSet(numbers=points([Decimal(rng.randrange(4)), Decimal("0.5")]))
    if kind < 0.85:
        return ValueSet(atoms=rng.choice([8, 16, 24]))
    if kind < 0.9:
        return ValueSet(atoms=1)  # missing
    if kind < 0.95:
        return ValueSet(strings=points([rng.choice(words)]).complement())
    return ValueSet(numbers=less_than(Decimal(rng.randrange(4)), or_equal=True))


def _form(rng: random.Random, words: list[str]) -> NormalForm:
    conjunctions = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        paths = sorted(rng.sample(PATHS, rng.choice([1, 2, 3, 3, 5])))
        constraints = tuple((path, _value_set(rng, words)) for path in paths)
        conjunctions.append(Conjunction(constraints, rng.random() < 0.8))
    return NormalForm(tuple(conjunctions), (1, "w1"))


def _event(rng: random.Random, words: list[str]) -> Event:
    event: Event = {("a",): rng.choice([1, 2, "w1"])}
    for path in rng.sample(PATHS, rng.choice([2, 5, 8, 8])):
        event[path] = rng.choice([*words, *words, 0, 1, 0.5, True, False, None, "other", []])
    return event


def _zipf(words: list[str]) -> list[str]:
    """The words, the first much more frequent than the last."""
    return [word for i, word in enumerate(words) for _ in range(max(1, 24 // (i + 1) ** 2))]


def _part(forms: list[NormalForm]) -> Part:
    compiler = Compiler()
    return build_part(
        [entry(n, form, text=compiler.register(form)) for n, form in enumerate(forms)], PlainLibrary(compiler)
    )


def _found(part: Part, events: list[Event]) -> list[list[int]]:
    return Index((part,)).match(columns_of(events), np.zeros(len(events), np.int64)).lists()


def _expected(forms: list[NormalForm], events: list[Event]) -> list[list[int]]:
    return [[n for n, form in enumerate(forms) if matches_of(form, event)] for event in events]


COSTS = {
    "many keys": {"KEY_NS": 1e-6, "OPEN_ROW_NS": 5.0},
    "tiles under cells": {"TILE_GROUP_ROWS": 1, "TILE_NS": 0.0, "LIVE_TILE_NS": 0.0, "OPEN_ROW_NS": 5.0},
    "hashed": {"KEY_NS": 1e-6, "OPEN_ROW_NS": 5.0, "_SPARE_SLOTS": -(1 << 40)},
    "as they are": {},
}


@pytest.mark.parametrize("costs", sorted(COSTS))
@settings(max_examples=drawn(25))
@given(seed=st.integers(0, 2**32), skewed=st.booleans())
def test_keys_find_the_same_as_the_naive_evaluator(costs: str, seed: int, skewed: bool) -> None:
    rng = random.Random(seed)
    words = _zipf(WORDS) if skewed else WORDS
    forms = [
        _form(rng, WORDS if skewed and rng.random() < 0.2 else words) for _ in range(rng.choice([3, 60]))
    ]
    events = [_event(rng, words) for _ in range(rng.choice([1, 12, 40]))]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in COSTS[costs].items():
            patch.setattr(access, name, value)
        part = _part(forms)
    assert _found(part, events) == _expected(forms, events)


def _equalities(*constraints: tuple[int, str]) -> NormalForm:
    return NormalForm(
        (Conjunction(tuple((PATHS[i], ValueSet(strings=points([word]))) for i, word in constraints)),)
    )


def _keys(part: Part) -> list[frozenset[Any]]:
    found = access.keys_of(part.filters.groups.access, part.filters.indexed_paths)
    assert sum(size for _, size in found) == len(part.filters.groups.access.row)
    return [frozenset(key) for key, _ in found]


def test_rows_with_several_equalities_are_found_by_pairs_of_attributes() -> None:
    rng = random.Random(5)
    chosen = [sorted(rng.sample(range(8), 3)) for _ in range(6000)]
    forms = [_equalities(*((i, rng.choice(WORDS)) for i in attributes)) for attributes in chosen]
    part = _part(forms)
    sizes = [len(key) for key in _keys(part)]
    assert min(sizes) >= 2
    assert len(part.filters.groups.access.row) == len(forms)
    assert len(sizes) < 28 + 56  # fewer than all pairs and triples
    events = [{path: rng.choice(WORDS) for path in PATHS} for _ in range(20)]
    assert _found(part, events) == _expected(forms, events)


def test_a_dependent_attribute_does_not_make_a_key_more_selective() -> None:
    """Every city lies in one country, so (city, country) finds no fewer rows than the city alone."""
    rng = random.Random(6)
    cities = [f"city{i}" for i in range(40)]
    forms = []
    for _ in range(8000):
        city = rng.randrange(40)
        forms.append(_equalities((0, cities[city]), (1, f"country{city // 2}"), (2, rng.choice(WORDS))))
    part = _part(forms)
    assert frozenset(PATHS[:2]) not in _keys(part)
    assert any(PATHS[2] in key for key in _keys(part))


def test_filters_for_missing_attributes_are_not_found_by_keys() -> None:
    """Most events lack most attributes: a key for missing values would find its rows for all of them."""
    missing = NormalForm((Conjunction(((PATHS[0], ValueSet(atoms=1)),)),))
    part = _part([missing, _equalities((1, "w1"))])
    assert _found(part, [{PATHS[1]: "w1"}, {PATHS[0]: 1}]) == [[0, 1], []]
    assert all(PATHS[0] not in key for key in _keys(part))


def test_events_are_looked_up_only_in_keys_of_present_attributes() -> None:
    rng = random.Random(7)
    paths = [("data", f"f{i:03d}") for i in range(300)]
    forms = []
    for _ in range(500):
        chosen = sorted(rng.sample(paths, 2))
        forms.append(
            NormalForm(
                (
                    Conjunction(
                        tuple((path, ValueSet(strings=points([rng.choice("xyz")]))) for path in chosen)
                    ),
                )
            )
        )
    events: list[Event] = [
        {path: rng.choice("xyz") for path in rng.sample(paths, rng.choice([0, 5, 150]))} for _ in range(64)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(access, "KEY_NS", 1e-6)
        patch.setattr(access, "OPEN_ROW_NS", 5.0)
        part = _part(forms)
    assert _found(part, events) == _expected(forms, events)
