"""Bounded products and unions of disjunctions of conjunctions, from which normal forms are built.

Every function here may return a superset, which is then marked as not exact; none returns less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from fieldfare.filters.needles import NEEDLES_MAX, Needle
from fieldfare.filters.values import ValueSet, intersection_of, union_of
from fieldfare.model import Path

CONJUNCTIONS_MAX = 64
"""Maximum conjunctions of a normal form; beyond, conjunctions are replaced by their hulls."""

CUTS_MAX = 10_000
"""Maximum bounds of ranges in a product, in total; beyond, a part is replaced by its hull."""

WORK_MAX = 12_000
"""Maximum constraints and cuts combined for one filter; the rest of the filter is made coarse."""

STEPS_MAX = 20_000
"""Maximum steps of building one filter's normal form; the rest of the filter does not constrain the index."""

_WIDTH_TO_MERGE_MAX = 8
"""Maximum attributes of conjunctions that are merged with each other; wider ones are left as they are."""


NO_NEEDLES: frozenset[Needle] = frozenset()
NO_PATHS: frozenset[Path] = frozenset()


class Budget:
    """The work left for one filter: constraints (sets of one attribute) with their cuts, and steps."""

    def __init__(self) -> None:
        self.left = WORK_MAX
        self.steps_left = STEPS_MAX

    def step(self, steps: int = 1) -> bool:
        """Count steps, even beyond the bound; return whether any are left."""
        self.steps_left -= steps
        return self.steps_left > 0

    def allows(self, work: int) -> bool:
        """Return whether the budget covers some work; if it does, subtract the work."""
        if work > self.left:
            return False
        self.left -= work
        return True


class Draft:
    """A conjunction under construction; not changed after the function that makes it returns.

    An attribute that has a needle has a set of strings only. `implied` holds the attributes whose sets follow
    from the sets of derived columns.
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
    """Return the intersection of drafts; None if it is empty."""
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
    if len(needles) > NEEDLES_MAX:
        exact, needles = False, frozenset(sorted(needles, key=_by_length)[-NEEDLES_MAX:])
    if implied:
        implied = implied.difference(*(draft.sets.keys() - draft.implied for draft in drafts))
    return Draft(sets, exact, needles, implied)


def _by_length(needle: Needle) -> tuple[int, str, str, int]:
    return len(needle.text), needle.text, repr(needle.path), needle.kind


def _without_needles(part: Disjunction, budget: Budget) -> Disjunction:
    """Return a disjunction without its needles; alternatives that differed only in needles are merged."""
    if not any(draft.needles for draft in part):
        return part
    return _merged(
        [Draft(draft.sets, draft.exact and not draft.needles, NO_NEEDLES, draft.implied) for draft in part],
        budget,
    )


def product(parts: Sequence[Disjunction], budget: Budget) -> Disjunction:
    """Return the intersection of disjunctions.

    A part that would make the result exceed a bound contributes only its hull.
    """
    if not all(parts):
        return []
    single = conjoin([part[0] for part in parts if len(part) == 1])
    if single is None:
        return []
    several = [part for part in parts if len(part) > 1]
    if math.prod(map(len, several)) > CONJUNCTIONS_MAX:
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
        if count > CONJUNCTIONS_MAX or not budget.allows(count * wider) or _cuts(result, part) > CUTS_MAX:
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
    """Return each conjunction narrowed by all hulls; the hulls are joined first, to keep the work linear."""
    around = conjoin(hulls)
    if around is None:
        return []
    if len(drafts) > 1 and not (
        budget.allows(len(drafts) * (width + len(around.sets))) and _cuts(drafts, [around]) <= CUTS_MAX
    ):
        drafts = [hull(drafts, budget)]
    return [both for draft in drafts if (both := conjoin((draft, around))) is not None]


def _to_split(several: list[Disjunction], budget: Budget) -> list[Disjunction]:
    """Return the parts whose exact and inexact conjunctions should be multiplied separately.

    Only a part that has both kinds qualifies. If the complete product would be too large, all such parts are
    returned; otherwise those whose hull has a constraint, if there are at least two.
    """
    mixed = [part for part in several if len({draft.exact for draft in part}) == 2]
    width = sum(max(len(draft.sets) for draft in part) for part in mixed)
    if not mixed or not budget.allows(len(mixed) * max(len(mixed), width)):
        return []
    size = 1
    for part in several:
        size *= len(part)
    if size > CONJUNCTIONS_MAX:
        return mixed
    split = [part for part in mixed if hull(part, budget).sets]
    return split if len(split) > 1 else []


def _mostly_exact(
    single: Draft, others: list[Disjunction], split: list[Disjunction], budget: Budget
) -> Disjunction:
    """Return the product of exact conjunctions; and of each part's inexact ones with the others' hulls.

    The latter are supersets, but of few events if a part's conjunctions are inexact for unusual events only
    (those with an array, for example). The full product would have 2 ** n conjunctions for n parts.
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
    """Return the union of disjunctions, with conjunctions merged where possible, within the bounds."""
    drafts = [draft for part in parts for draft in part]
    if len(drafts) <= 1:
        return drafts
    everything = [draft for draft in drafts if not draft.sets]
    if everything:
        return [Draft({}, any(draft.exact for draft in everything))]
    return _bounded(_merged(drafts, budget), budget)


def hull(drafts: Disjunction, budget: Budget) -> Draft:
    """Return one conjunction around several: for each attribute that all constrain, the union of its sets.

    If that exceeds the budget, the conjunction has no constraints.
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
    """Merge conjunctions that differ in one attribute only; the result admits the same events."""
    by_paths: dict[tuple[bool, frozenset[Path], frozenset[Needle]], Disjunction] = {}
    for draft in drafts:
        by_paths.setdefault((draft.exact, frozenset(draft.sets), draft.needles), []).append(draft)
    result: Disjunction = []
    for (_, paths, _), alike in by_paths.items():
        budget.step(len(alike) + len(paths))
        if len(paths) <= _WIDTH_TO_MERGE_MAX:
            for path in sorted(paths, key=repr):
                if len(alike) > 1 and budget.allows(sum(len(paths) + draft.cuts // 4 for draft in alike)):
                    merged = _merged_in(alike, path)
                    # A conjunction that merged to all values of an attribute does not constrain it any more.
                    result += [draft for draft in merged if path not in draft.sets]
                    alike = [draft for draft in merged if path in draft.sets]
        result += alike
    result = _uncovered(result, budget)
    if len(result) > 1 and any(not draft.sets for draft in result):
        return [Draft({}, any(draft.exact for draft in result if not draft.sets))]
    return result


def _uncovered(drafts: Disjunction, budget: Budget) -> Disjunction:
    """Remove conjunctions with needles that are covered by a conjunction without needles."""
    plain = [draft for draft in drafts if not draft.needles]
    if not plain or len(plain) == len(drafts) or not budget.allows(len(plain) * (len(drafts) - len(plain))):
        return drafts
    return [
        draft
        for draft in drafts
        if not (draft.needles and any(_covers(other.sets, draft.sets) for other in plain))
    ]


def _covers(wide: dict[Path, ValueSet], narrow: dict[Path, ValueSet]) -> bool:
    """Return whether the `wide` sets contain every event that fits the `narrow` sets."""
    return all(
        path in narrow and narrow[path].intersection(values) == narrow[path] for path, values in wide.items()
    )


def _merged_in(alike: Disjunction, path: Path) -> Disjunction:
    """Merge conjunctions over the same attributes whose sets differ only in the attribute at `path`."""
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
    """Reduce a disjunction to ``CONJUNCTIONS_MAX``: neighbours over the same attributes become their hull."""
    if len(drafts) <= CONJUNCTIONS_MAX:
        return drafts
    if any(draft.needles for draft in drafts):
        return _bounded(_without_needles(drafts, budget), budget)
    kept = [draft for draft in drafts if draft.exact]
    if 2 * len(kept) > CONJUNCTIONS_MAX:
        kept = []
    room = CONJUNCTIONS_MAX - len(kept)
    given = [draft for draft in drafts if not (kept and draft.exact)]
    given.sort(key=lambda draft: sorted(map(repr, draft.sets)))
    starts = [len(given) * i // room for i in range(room + 1)]
    hulls = [hull(given[a:b], budget) for a, b in pairwise(starts) if a < b]
    if any(not draft.sets for draft in hulls):
        return [Draft({}, False)]
    return kept + hulls
