"""Disjunctions of conjunctions of value sets and needles, as they are made: products and unions, bounded.

Everything here may give a superset, which is then marked as not exact; nothing ever gives less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from fieldfare.filters.needles import MAX_NEEDLES, Needle
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


NO_NEEDLES: frozenset[Needle] = frozenset()
NO_PATHS: frozenset[Path] = frozenset()


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
    """A conjunction being made; nobody changes it once it has been given away.

    An attribute that has a needle has a set of strings only. What is `implied` are attributes whose sets say
    no more than those of derived columns do.
    """

    __slots__ = ("exact", "implied", "needles", "sets")

    def __init__(
        self,
        sets: dict[Path, ValueSet],
        exact: bool = True,
        needles: frozenset[Needle] = NO_NEEDLES,
        implied: frozenset[Path] = NO_PATHS,
    ) -> None:
        self.sets = sets
        self.exact = exact
        self.needles = needles
        self.implied = implied

    @property
    def cuts(self) -> int:
        return sum(len(found.numbers.cuts) + len(found.strings.cuts) for found in self.sets.values())


Disjunction = list[Draft]


def conjoin(drafts: Sequence[Draft]) -> Draft | None:
    """What lies in all drafts; None if that is nothing."""
    sets: dict[Path, ValueSet] = {}
    repeated: dict[Path, list[ValueSet]] = {}
    exact = True
    needles = NO_NEEDLES
    implied = NO_PATHS
    for draft in drafts:
        exact = exact and draft.exact
        if draft.needles:
            needles |= draft.needles
        if draft.implied:
            implied |= draft.implied
        for path, values in draft.sets.items():
            if path in sets:
                repeated.setdefault(path, [sets[path]]).append(values)
            else:
                sets[path] = values
    for path, many in repeated.items():
        sets[path] = intersection_of(list({id(found): found for found in many}.values()))
        if sets[path].is_empty:
            return None
    if len(needles) > MAX_NEEDLES:
        exact, needles = False, frozenset(sorted(needles, key=_by_length)[-MAX_NEEDLES:])
    if implied:
        implied = implied.difference(*(draft.sets.keys() - draft.implied for draft in drafts))
    return Draft(sets, exact, needles, implied)


def _by_length(needle: Needle) -> tuple[int, str, str, int]:
    return len(needle.text), needle.text, repr(needle.path), needle.kind


def _without_needles(part: Disjunction, budget: Budget) -> Disjunction:
    """The same without needles: alternatives that differ in these only are one."""
    if not any(draft.needles for draft in part):
        return part
    return _merged(
        [Draft(draft.sets, draft.exact and not draft.needles, NO_NEEDLES, draft.implied) for draft in part],
        budget,
    )


def product(parts: Sequence[Disjunction], budget: Budget) -> Disjunction:
    """What lies in all parts. A part that would make too many conjunctions gives only its hull."""
    if not all(parts):
        return []
    single = conjoin([part[0] for part in parts if len(part) == 1])
    if single is None:
        return []
    several = [part for part in parts if len(part) > 1]
    if math.prod(map(len, several)) > MAX_CONJUNCTIONS:
        several = [_without_needles(part, budget) for part in several]
        single = conjoin([single, *[part[0] for part in several if len(part) == 1]])
        several = [part for part in several if len(part) > 1]
        if single is None:
            return []
    split = _to_split(several, budget)
    if split:
        return _mostly_exact(single, [part for part in several if part not in split], split, budget)
    result, hulls, width = [single], [], len(single.sets)
    for part in sorted(several, key=len):
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
        result = _within(result, hulls, width, budget)
    return result if len(result) <= 1 else _bounded(_merged(result, budget), budget)


def _within(drafts: Disjunction, hulls: Disjunction, width: int, budget: Budget) -> Disjunction:
    """Each of the conjunctions and all hulls; these are joined first, so that the work is linear in them."""
    around = conjoin(hulls)
    if around is None:
        return []
    if len(drafts) > 1 and not (
        budget.allows(len(drafts) * (width + len(around.sets))) and _cuts(drafts, [around]) <= MAX_CUTS
    ):
        drafts = [hull(drafts, budget)]
    return [both for draft in drafts if (both := conjoin((draft, around))) is not None]


def _to_split(several: list[Disjunction], budget: Budget) -> list[Disjunction]:
    """The parts of which the exact and the other conjunctions are better multiplied separately.

    These are parts with some of both: those whose hull still says something, if there are two of
    them, and all if the whole product were too large.
    """
    mixed = [part for part in several if len({draft.exact for draft in part}) == 2]
    width = sum(max(len(draft.sets) for draft in part) for part in mixed)
    if not mixed or not budget.allows(len(mixed) * max(len(mixed), width)):
        return []
    size = 1
    for part in several:
        size *= len(part)
    if size > MAX_CONJUNCTIONS:
        return mixed
    split = [part for part in mixed if hull(part, budget).sets]
    return split if len(split) > 1 else []


def _mostly_exact(
    single: Draft, others: list[Disjunction], split: list[Disjunction], budget: Budget
) -> Disjunction:
    """The product of the exact conjunctions, and what is left: one part not exact, the rest only their hulls.

    What is left is a superset, but of few events if a part's conjunctions are inexact for odd events
    only (those with an array, say); the full product would have 2 ** n conjunctions for n parts.
    """
    exact = [[draft for draft in part if draft.exact] for part in split]
    result = product([[single], *others, *exact], budget)
    hulls = [hull(part, budget) for part in split]
    for place, part in enumerate(split):
        rest = [[around] for number, around in enumerate(hulls) if number != place]
        inexact = [draft for draft in part if not draft.exact]
        result += product([[single], *others, inexact, *rest], budget)
    return _bounded(_merged(result, budget), budget) if len(result) > 1 else result


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
    return Draft(sets, False, drafts[0].needles.intersection(*(draft.needles for draft in drafts[1:])))


def _cuts(a: Disjunction, b: Disjunction) -> int:
    return sum(draft.cuts for draft in a) * len(b) + sum(draft.cuts for draft in b) * len(a)


def _merged(drafts: Disjunction, budget: Budget) -> Disjunction:
    """The same events in fewer conjunctions: those that differ in one attribute only become one."""
    by_paths: dict[tuple[bool, frozenset[Path], frozenset[Needle]], Disjunction] = {}
    for draft in drafts:
        by_paths.setdefault((draft.exact, frozenset(draft.sets), draft.needles), []).append(draft)
    result: Disjunction = []
    for (_, paths, _), alike in by_paths.items():
        if len(paths) <= _MAX_WIDTH_TO_MERGE:
            for path in sorted(paths, key=repr):
                if len(alike) > 1 and budget.allows(sum(len(paths) + draft.cuts // 4 for draft in alike)):
                    merged = _merged_in(alike, path)
                    # What merged to all values of an attribute does not name it any more.
                    result += [draft for draft in merged if path not in draft.sets]
                    alike = [draft for draft in merged if path in draft.sets]
        result += alike
    result = _uncovered(result, budget)
    if len(result) > 1 and any(not draft.sets for draft in result):
        return [Draft({}, any(draft.exact for draft in result if not draft.sets))]
    return result


def _uncovered(drafts: Disjunction, budget: Budget) -> Disjunction:
    """The same without conjunctions with needles whose events fit another one anyway."""
    plain = [draft for draft in drafts if not draft.needles]
    if not plain or len(plain) == len(drafts) or not budget.allows(len(plain) * (len(drafts) - len(plain))):
        return drafts
    return [
        draft
        for draft in drafts
        if not (draft.needles and any(_covers(other.sets, draft.sets) for other in plain))
    ]


def _covers(wide: dict[Path, ValueSet], narrow: dict[Path, ValueSet]) -> bool:
    """Whether all that lies in some sets lies in other ones."""
    return all(
        path in narrow and narrow[path].intersection(values) == narrow[path] for path, values in wide.items()
    )


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
        implied = frozenset.intersection(*(draft.implied for draft in group))
        if sets[path].is_full:
            del sets[path]
            implied = NO_PATHS  # nothing may be left that implies them
        result.append(Draft(sets, group[0].exact, group[0].needles, implied))
    return result


def _bounded(drafts: Disjunction, budget: Budget) -> Disjunction:
    """At most ``MAX_CONJUNCTIONS``: neighbours over the same attributes give way to their hulls."""
    if len(drafts) <= MAX_CONJUNCTIONS:
        return drafts
    if any(draft.needles for draft in drafts):
        return _bounded(_without_needles(drafts, budget), budget)
    kept = [draft for draft in drafts if draft.exact]
    if 2 * len(kept) > MAX_CONJUNCTIONS:
        kept = []
    room = MAX_CONJUNCTIONS - len(kept)
    given = [draft for draft in drafts if not (kept and draft.exact)]
    given.sort(key=lambda draft: sorted(map(repr, draft.sets)))
    starts = [len(given) * i // room for i in range(room + 1)]
    hulls = [hull(given[a:b], budget) for a, b in pairwise(starts) if a < b]
    if any(not draft.sets for draft in hulls):
        return [Draft({}, False)]
    return kept + hulls
