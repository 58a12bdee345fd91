"""Normal forms of filters whose steps are counted (``filters.work``): the part that an index may decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fieldfare.filters import values as sets
from fieldfare.filters.drafts import CONJUNCTIONS_MAX
from fieldfare.filters.normal_form import Conjunction, NormalForm, sorted_sets
from fieldfare.filters.values import ValueSet
from fieldfare.filters.work import Work
from fieldfare.model import Path

_MISSING = ValueSet(sets.MISSING)
_PRESENT = _MISSING.complement()


def decided_by_work(form: NormalForm, work: Work | None) -> NormalForm:
    """Return the normal form of a filter that is evaluated only if its work is within the limits.

    A conjunction that an array can satisfy is then inexact: it must not decide a match alone. The filters
    that share the steps of an event must not depend on the searches of an index, so such a conjunction has no
    needles and no derived columns either. If small arrays take no steps, it is split: the inexact conjunction
    is for larger arrays, and the original one is kept for small arrays.
    """
    if work is None:
        return form
    found = [part for each in form.conjunctions for part in _decided(each, work)]
    if len(found) > CONJUNCTIONS_MAX:
        found = [part for each in form.conjunctions for part in _decided(each, work._replace(few=-1))]
    return NormalForm(tuple(found))


def _decided(each: Conjunction, work: Work) -> list[Conjunction]:
    constraints = dict(each.constraints)
    paths = [root + steps for root, steps in work.through]
    with_member = _with_member(constraints)
    arrays = [
        path
        for path in paths
        if path not in with_member and (path not in constraints or constraints[path].atoms & sets.OTHER)
    ]
    if not work.reads_much and not arrays:
        return [each]
    counted = replace(each.without_derived(), exact=False)
    counted = replace(counted, needles=()) if work.loops else counted
    if work.few < 0 or counted == each:
        return [counted]
    beyond = [(*path, work.few) for path in arrays]
    small = _within(each, dict.fromkeys(beyond, _MISSING))
    return [part for part in (small, *(_within(counted, {path: _PRESENT}) for path in beyond)) if part]


def _within(each: Conjunction, sets_of: Mapping[Path, ValueSet]) -> Conjunction | None:
    """Return a conjunction with more constraints on its attributes; None if it can never hold."""
    constraints = dict(each.constraints)
    for path, values in sets_of.items():
        constraints[path] = values.intersection(constraints.get(path, values))
    if any(values.is_empty for values in constraints.values()):
        return None
    return replace(each, constraints=sorted_sets(constraints))


def _with_member(constraints: Mapping[Path, ValueSet]) -> set[Path]:
    """Return the attributes that must have a member, by the constraints: they are no arrays."""
    found = set[Path]()
    for path, values in constraints.items():
        if not values.atoms & sets.MISSING:
            found.update(path[:end] for end in range(len(path)) if isinstance(path[end], str))
    return found
