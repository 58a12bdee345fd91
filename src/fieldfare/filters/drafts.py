"""Disjunctions of conjunctions of value sets, as they are made: products and unions, bounded.

Everything here may give a superset, which is then marked as not exact; nothing ever gives less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from fieldfare.filters.values import ValueSet, intersection_of, union_of
from fieldfare.model import Path

MAX_CONJUNCTIONS = 64
"""How many conjunctions a normal form has at most."""

MAX_CUTS = 10_000
"""How many bounds of ranges a product of several conjunctions has at most, all together."""

MAX_WORK = 12_000
"""How many constraints and cuts are combined for one filter; what is left then is made coarse instead."""

_MAX_WIDTH_TO_MERGE = 8
"""Conjunctions of more attributes than this are not compared with each other."""


class Budget:
    """How much may still be done for a filter, in constraints (sets of one attribute) and their cuts."""

    def __init__(self) -> None:
        self.left = MAX_WORK

    def allows(self, work: int) -> bool:
        """Whether so much can be done; if so, it counts as done."""
        if work > self.left:
            return False
        self.left -= work
        return True


class Draft:
    """A conjunction being made; nobody changes it once it has been given away."""

    __slots__ = ("exact", "sets")

    def __init__(self, sets: dict[Path, ValueSet], exact: bool = True) -> None:
        self.sets = sets
        self.exact = exact

    @property
    def cuts(self) -> int:
        return sum(len(found.numbers.cuts) + len(found.strings.cuts) for found in self.sets.values())


Disjunction = list[Draft]


def conjoin(drafts: Iterable[Draft]) -> Draft | None:
    """What lies in all drafts; None if that is nothing."""
    sets: dict[Path, ValueSet] = {}
    repeated: dict[Path, list[ValueSet]] = {}
    exact = True
    for draft in drafts:
        exact = exact and draft.exact
        for path, values in draft.sets.items():
            if path in sets:
                repeated.setdefault(path, [sets[path]]).append(values)
            else:
                sets[path] = values
    for path, many in repeated.items():
        sets[path] = intersection_of(many)
        if sets[path].is_empty:
            return None
    return Draft(sets, exact)


def product(parts: Sequence[Disjunction], budget: Budget) -> Disjunction:
    """What lies in all parts. A part that would make too many conjunctions gives only its hull."""
    if not all(parts):
        return []
    single = conjoin([part[0] for part in parts if len(part) == 1])
    if single is None:
        return []
    result, hulls, width = [single], [], len(single.sets)
    for part in sorted((part for part in parts if len(part) > 1), key=len):
        wider = width + max(len(draft.sets) for draft in part)
        count = len(result) * len(part)
        if count > MAX_CONJUNCTIONS or not budget.allows(count * wider) or _cuts(result, part) > MAX_CUTS:
            hulls.append(hull(part, budget))
            continue
        width = wider
        result = [both for a in result for b in part if (both := conjoin((a, b))) is not None]
        if not result:
            return []
    if hulls:
        around = conjoin(hulls)
        if around is None:
            return []
        if len(result) > 1 and not budget.allows(len(result) * (width + len(around.sets))):
            result = [hull(result, budget)]
        result = [both for a in result if (both := conjoin((a, around))) is not None]
    return result if len(result) <= 1 else _bounded(_merged(result, budget), budget)


def union(parts: Sequence[Disjunction], budget: Budget) -> Disjunction:
    """What lies in any part, in as few conjunctions as merging finds, and within the bounds."""
    drafts = [draft for part in parts for draft in part]
    if len(drafts) <= 1:
        return drafts
    everything = [draft for draft in drafts if not draft.sets]
    if everything:
        return [Draft({}, any(draft.exact for draft in everything))]
    return _bounded(_merged(drafts, budget), budget)


def hull(drafts: Disjunction, budget: Budget) -> Draft:
    """One conjunction around several: for each attribute that all name, the union of its sets.

    Without a constraint at all, if that would be too much work.
    """
    if len(drafts) == 1:
        return drafts[0]
    sets = {}
    if not budget.allows(sum(draft.cuts for draft in drafts) // 4):
        return Draft({}, False)
    for path in set(drafts[0].sets).intersection(*(draft.sets for draft in drafts[1:])):
        values = union_of([draft.sets[path] for draft in drafts])
        if not values.is_full:
            sets[path] = values
    return Draft(sets, False)


def _cuts(a: Disjunction, b: Disjunction) -> int:
    return sum(draft.cuts for draft in a) * len(b) + sum(draft.cuts for draft in b) * len(a)


def _merged(drafts: Disjunction, budget: Budget) -> Disjunction:
    """The same events in fewer conjunctions: those that differ in one attribute only become one."""
    by_paths: dict[tuple[bool, frozenset[Path]], Disjunction] = {}
    for draft in drafts:
        by_paths.setdefault((draft.exact, frozenset(draft.sets)), []).append(draft)
    result: Disjunction = []
    for (_, paths), alike in by_paths.items():
        if len(paths) <= _MAX_WIDTH_TO_MERGE:
            for path in sorted(paths, key=repr):
                if len(alike) > 1 and budget.allows(sum(len(paths) + draft.cuts // 4 for draft in alike)):
                    alike = _merged_in(alike, path)
        result += alike
    if len(result) > 1 and any(not draft.sets for draft in result):
        return [Draft({}, any(draft.exact for draft in result if not draft.sets))]
    return result


def _merged_in(alike: Disjunction, path: Path) -> Disjunction:
    """Merge conjunctions over the same attributes that have the same sets but for one attribute."""
    groups: dict[tuple[ValueSet, ...], Disjunction] = {}
    others = [other for other in alike[0].sets if other != path]
    for draft in alike:
        groups.setdefault(tuple([draft.sets[other] for other in others]), []).append(draft)
    result = []
    for group in groups.values():
        if len(group) == 1:
            result.append(group[0])
            continue
        sets = dict(group[0].sets)
        sets[path] = union_of([draft.sets[path] for draft in group])
        if sets[path].is_full:
            del sets[path]
        result.append(Draft(sets, group[0].exact))
    return result


def _bounded(drafts: Disjunction, budget: Budget) -> Disjunction:
    """At most ``MAX_CONJUNCTIONS``: neighbours over the same attributes give way to their hulls."""
    if len(drafts) <= MAX_CONJUNCTIONS:
        return drafts
    drafts = sorted(drafts, key=lambda draft: sorted(map(repr, draft.sets)))
    starts = [len(drafts) * i // MAX_CONJUNCTIONS for i in range(MAX_CONJUNCTIONS + 1)]
    hulls = [hull(drafts[a:b], budget) for a, b in pairwise(starts)]
    if any(not draft.sets for draft in hulls):
        return [Draft({}, False)]
    return hulls
