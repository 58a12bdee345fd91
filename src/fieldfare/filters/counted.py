"""What an index may decide of a filter whose steps are counted (``filters.work``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fieldfare.filters import values as sets
from fieldfare.filters.drafts import MAX_CONJUNCTIONS
from fieldfare.filters.normal_form import Conjunction, NormalForm, sorted_sets
from fieldfare.filters.values import ValueSet
from fieldfare.filters.work import Work
from fieldfare.model import Path

_MISSING = ValueSet(sets.MISSING)
_PRESENT = _MISSING.complement()


def decided_by_work(form: NormalForm, work: Work | None) -> NormalForm:
    """The normal form of a filter that is evaluated only if its work is not too much.

    A conjunction that lets an array in is not enough to match then. And which filters share the steps of an
    event must not depend on what an index looks for: it has no needles and no derived columns either. Where
    small arrays take no steps, such a conjunction counts for those that are not small, and there is another
    one for small arrays, which is what it was.
    """
    if work is None:
        return form
    found = [part for each in form.conjunctions for part in _decided(each, work)]
    if len(found) > MAX_CONJUNCTIONS:
        found = [part for each in form.conjunctions for part in _decided(each, work._replace(few=-1))]
    return NormalForm(tuple(found))


def _decided(each: Conjunction, work: Work) -> list[Conjunction]:
    constraints = dict(each.constraints)
    paths = [root + steps for root, steps in work.through]
    arrays = [path for path in paths if not _is_no_array(path, constraints)]
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
    """A conjunction whose attributes must be in some sets, too; None if that is never so."""
    constraints = dict(each.constraints)
    for path, values in sets_of.items():
        constraints[path] = values.intersection(constraints.get(path, values))
    if any(values.is_empty for values in constraints.values()):
        return None
    return replace(each, constraints=sorted_sets(constraints))


def _is_no_array(path: Path, constraints: Mapping[Path, ValueSet]) -> bool:
    """Whether constraints say so of an attribute, or that it has a member."""
    for longer, values in constraints.items():
        if longer == path and not values.atoms & sets.OTHER:
            return True
        is_below = longer[: len(path)] == path and len(longer) > len(path)
        if is_below and isinstance(longer[len(path)], str) and not values.atoms & sets.MISSING:
            return True
    return False
