"""Hulls: a bounded normal form around several, for filters that stand for many others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fieldfare.filters.normal_form import Conjunction, NormalForm, path_order, sorted_sets
from fieldfare.filters.values import Cut, Ranges, ValueSet, union_of
from fieldfare.model import Path, derived_text

CONJUNCTIONS_MAX = 16
"""Maximum conjunctions of a hull by default; neighbours over the same attributes are united."""
CUTS_MAX = 128
"""Maximum bounds of ranges of each attribute in a conjunction of a hull; beyond, gaps are closed."""


def hull_of(forms: Sequence[NormalForm], conjunctions_max: int = CONJUNCTIONS_MAX) -> NormalForm:
    """Return a normal form that contains several, in O(n log n) for their size.

    Its conjunctions are exact: the hull is the filter. Derived columns are dropped, as computing one may take
    many steps, but the sets of attributes that follow from them are kept.
    """
    found = dict.fromkeys(
        Conjunction(_attributes(each), True, each.needles) for form in forms for each in form.conjunctions
    )
    everything = Conjunction(())
    if everything in found:
        return NormalForm((everything,))
    conjunctions = list(found)
    if len(conjunctions) > conjunctions_max:
        conjunctions.sort(key=_place)
        count = len(conjunctions)
        starts = [count * number // conjunctions_max for number in range(conjunctions_max + 1)]
        conjunctions = [_united(conjunctions[start:end]) for start, end in pairwise(starts)]
    if any(not each.constraints for each in conjunctions):
        return NormalForm((everything,))
    return NormalForm(tuple([_coarse(each) for each in conjunctions]))


def _attributes(each: Conjunction) -> tuple[tuple[Path, ValueSet], ...]:
    return tuple([pair for pair in each.constraints if derived_text(pair[0]) is None])


def _place(each: Conjunction) -> tuple[object, ...]:
    """Return a sort key: by attributes, then by the lowest values of each."""
    paths = [path_order(path) for path, _ in each.constraints]
    bounds = [_lowest(values) for _, values in each.constraints]
    return len(paths), paths, bounds


def _lowest(values: ValueSet) -> tuple[object, ...]:
    numbers, strings = values.numbers.cuts[:1], values.strings.cuts[:1]
    return values.atoms, len(numbers), numbers, len(strings), strings


def _united(many: Sequence[Conjunction]) -> Conjunction:
    """Return one conjunction around several: the unions of the sets of the attributes that all constrain."""
    if len(many) == 1:
        return many[0]
    sets = [dict(each.constraints) for each in many]
    united = {
        path: union_of([each[path] for each in sets])
        for path in sets[0]
        if all(path in each for each in sets[1:])
    }
    needles = set(many[0].needles).intersection(*(each.needles for each in many[1:]))
    kept = {path: values for path, values in united.items() if not values.is_full}
    return Conjunction(sorted_sets(kept), True, tuple([each for each in many[0].needles if each in needles]))


def _coarse(each: Conjunction) -> Conjunction:
    """Return a conjunction whose sets have at most ``CUTS_MAX`` bounds each."""
    if all(len(values.numbers.cuts) + len(values.strings.cuts) <= CUTS_MAX for _, values in each.constraints):
        return each
    return Conjunction(
        tuple(
            [
                (path, ValueSet(values.atoms, _closed(values.numbers), _closed(values.strings)))
                for path, values in each.constraints
            ]
        ),
        True,
        each.needles,
    )


def _closed(ranges: Ranges) -> Ranges:
    """Close gaps until a set has at most half of ``CUTS_MAX`` bounds: of numbers the narrowest gaps."""
    first = 0 if ranges.starts_inside else 1
    gaps = [ranges.cuts[place : place + 2] for place in range(first, len(ranges.cuts) - 1, 2)]
    most = CUTS_MAX // 4 - 1
    if len(gaps) <= most:
        return ranges
    if isinstance(ranges.cuts[0][0], str):
        kept = [gaps[len(gaps) * number // most] for number in range(most)]
    else:
        widest = sorted(range(len(gaps)), key=lambda number: gaps[number][0][0] - gaps[number][1][0])[:most]
        kept = [gaps[number] for number in sorted(widest)]
    cuts: list[Cut] = [*ranges.cuts[:first]]
    for gap in kept:
        cuts += gap
    if (len(ranges.cuts) - first) % 2:
        cuts.append(ranges.cuts[-1])
    return Ranges(ranges.starts_inside, tuple(cuts))
