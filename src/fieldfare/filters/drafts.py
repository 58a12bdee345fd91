"""Disjunctions of conjunctions of value sets, as they are made: products and unions, bounded.

Everything here may give a superset, which is then marked as not exact; nothing ever gives less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from fieldfare.filters.values import ValueSet
from fieldfare.model import Path

MAX_CONJUNCTIONS = 64
"""How many conjunctions a normal form has at most."""

MAX_CUTS = 100_000
"""How many bounds of ranges a product of several conjunctions has at most, all together."""

_MAX_WIDTH_TO_MERGE = 8
"""Conjunctions of more attributes than this are not compared with each other."""


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
        sets[path] = _combined(many, ValueSet.intersection)
        if sets[path].is_empty:
            return None
    return Draft(sets, exact)


def product(parts: Sequence[Disjunction]) -> Disjunction:
    """What lies in all parts. A part that would make too many conjunctions gives only its hull."""
    if not all(parts):
        return []
    single = conjoin([part[0] for part in parts if len(part) == 1])
    if single is None:
        return []
    several = [part for part in parts if len(part) > 1]
    split = _to_split(several)
    if split:
        return _mostly_exact(single, [part for part in several if part not in split], split)
    result = [single]
    for part in sorted(several, key=len):
        factors = part
        if len(result) * len(part) > MAX_CONJUNCTIONS or _cuts(result, part) > MAX_CUTS:
            factors = [hull(part)]
        result = [both for a in result for b in factors if (both := conjoin((a, b))) is not None]
        if not result:
            return []
    return result if len(result) == 1 else _bounded(_merged(result))


def _to_split(several: list[Disjunction]) -> list[Disjunction]:
    """The parts of which the exact and the other conjunctions are better multiplied separately.

    These are parts with some of both: those whose hull still says something, if there are two of
    them, and all if the whole product were too large.
    """
    mixed = [part for part in several if len({draft.exact for draft in part}) == 2]
    size = 1
    for part in several:
        size *= len(part)
    if size > MAX_CONJUNCTIONS:
        return mixed
    split = [part for part in mixed if hull(part).sets]
    return split if len(split) > 1 else []


def _mostly_exact(single: Draft, others: list[Disjunction], split: list[Disjunction]) -> Disjunction:
    """The product of the exact conjunctions, and what is left: one part not exact, the rest only their hulls.

    What is left is a superset, but of few events if a part's conjunctions are inexact for odd events
    only (those with an array, say); the full product would have 2 ** n conjunctions for n parts.
    """
    exact = [[draft for draft in part if draft.exact] for part in split]
    result = product([[single], *others, *exact])
    hulls = [hull(part) for part in split]
    for place, part in enumerate(split):
        rest = [[around] for number, around in enumerate(hulls) if number != place]
        result += product([[single], *others, [draft for draft in part if not draft.exact], *rest])
    return _bounded(_merged(result)) if len(result) > 1 else result


def union(parts: Sequence[Disjunction]) -> Disjunction:
    """What lies in any part, in as few conjunctions as merging finds, and within the bounds."""
    drafts = [draft for part in parts for draft in part]
    if len(drafts) <= 1:
        return drafts
    everything = [draft for draft in drafts if not draft.sets]
    if everything:
        return [Draft({}, any(draft.exact for draft in everything))]
    return _bounded(_merged(drafts))


def hull(drafts: Disjunction) -> Draft:
    """One conjunction around several: for each attribute that all name, the union of its sets."""
    if len(drafts) == 1:
        return drafts[0]
    sets = {}
    for path in set(drafts[0].sets).intersection(*(draft.sets for draft in drafts[1:])):
        values = _combined([draft.sets[path] for draft in drafts], ValueSet.union)
        if not values.is_full:
            sets[path] = values
    return Draft(sets, False)


def _combined(many: list[ValueSet], combine: Callable[[ValueSet, ValueSet], ValueSet]) -> ValueSet:
    """All sets combined pair by pair, so that the work is n log n."""
    while len(many) > 1:
        pairs = [combine(a, b) for a, b in zip(many[::2], many[1::2], strict=False)]
        many = [*pairs, many[-1]] if len(many) % 2 else pairs
    return many[0]


def _cuts(a: Disjunction, b: Disjunction) -> int:
    return sum(draft.cuts for draft in a) * len(b) + sum(draft.cuts for draft in b) * len(a)


def _merged(drafts: Disjunction) -> Disjunction:
    """The same events in fewer conjunctions: those that differ in one attribute only become one."""
    by_paths: dict[tuple[bool, frozenset[Path]], Disjunction] = {}
    for draft in drafts:
        by_paths.setdefault((draft.exact, frozenset(draft.sets)), []).append(draft)
    result: Disjunction = []
    for (_, paths), alike in by_paths.items():
        if len(paths) <= _MAX_WIDTH_TO_MERGE:
            for path in sorted(paths, key=repr):
                if len(alike) > 1:
                    merged = _merged_in(alike, path)
                    # What merged to all values of an attribute does not name it any more.
                    result += [draft for draft in merged if path not in draft.sets]
                    alike = [draft for draft in merged if path in draft.sets]
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
        sets[path] = _combined([draft.sets[path] for draft in group], ValueSet.union)
        if sets[path].is_full:
            del sets[path]
        result.append(Draft(sets, group[0].exact))
    return result


def _bounded(drafts: Disjunction) -> Disjunction:
    """At most ``MAX_CONJUNCTIONS``: neighbours over the same attributes give way to their hulls."""
    if len(drafts) <= MAX_CONJUNCTIONS:
        return drafts
    kept = [draft for draft in drafts if draft.exact]
    if 2 * len(kept) > MAX_CONJUNCTIONS:
        kept = []
    room = MAX_CONJUNCTIONS - len(kept)
    given = [draft for draft in drafts if not (kept and draft.exact)]
    given.sort(key=lambda draft: sorted(map(repr, draft.sets)))
    starts = [len(given) * i // room for i in range(room + 1)]
    hulls = [hull(given[a:b]) for a, b in pairwise(starts) if a < b]
    if any(not draft.sets for draft in hulls):
        return [Draft({}, False)]
    return kept + hulls
