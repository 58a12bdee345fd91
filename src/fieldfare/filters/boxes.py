"""Boxes: conjunctions of value sets, compared with each other in a bounded number of steps.

A box is a conjunction of a normal form. One box *lies in* another if each set of the other contains its own
set of that attribute; two boxes *meet* if they have a common value in every attribute that both constrain.
A box can lie in several boxes together without lying in one of them: then the part outside the first box is
split off and compared with the others.

A box's sets also say what follows for an attribute's surroundings. Where ``data.x`` exists, ``data`` is an
object; where ``data`` is a number or missing, ``data.x`` is missing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from fieldfare.filters import values as sets
from fieldfare.filters.needles import AT_END, AT_START, FOLDED, Needle
from fieldfare.filters.normal_form import Conjunction
from fieldfare.filters.values import AFTER, BEFORE, Ranges, ValueSet, with_prefix
from fieldfare.model import Path, derived_text

STEPS_MAX = 20_000
"""Maximum steps of one comparison of two filters; beyond it, the answer is the cautious one.

A comparison of two sets of one attribute takes a step, plus one for each bound of the set with fewer bounds
(of both sets, if neither has many more than the other)."""

TEXTS_MAX = 64
"""Maximum intervals of strings that are searched for a needle; a set with more is not."""

CHARACTERS_A_STEP = 16
"""Characters of a string that are searched for a needle in one step."""

_MISSING = ValueSet(sets.MISSING)
_CONTAINER = ValueSet(sets.OTHER)


class OutOfStepsError(Exception):
    """A comparison that needs more than ``STEPS_MAX`` steps."""


class Steps:
    """The steps left for one comparison."""

    __slots__ = ("left",)

    def __init__(self, left: int = STEPS_MAX) -> None:
        self.left = left

    def take(self, steps: int) -> None:
        """Count steps; raise OutOfStepsError beyond the bound."""
        self.left -= steps
        if self.left < 0:
            raise OutOfStepsError


class Box:
    """The events whose attributes have values in given sets, and whose strings contain given texts.

    Attributes
    ----------
    sets : dict of path to set
        No set is full. Derived columns count as attributes.
    needles
        Texts that attributes must contain; the set of such an attribute has strings only.
    """

    __slots__ = ("needles", "sets")

    def __init__(self, sets: dict[Path, ValueSet], needles: tuple[Needle, ...] = ()) -> None:
        self.sets = sets
        self.needles = needles


def box_of(conjunction: Conjunction) -> Box | None:
    """Return the box of a conjunction with the sets that follow for outer attributes; None if it is empty."""
    found = dict(conjunction.constraints)
    return Box(found, conjunction.needles) if _closed(found) else None


def _closed(found: dict[Path, ValueSet]) -> bool:
    """Add what follows for the attributes around those that must exist; return whether an event can fit."""
    for path, values in list(found.items()):
        if values.is_empty:
            return False
        if len(path) == 1 or values.atoms & sets.MISSING or derived_text(path) is not None:
            continue
        for end in range(1, len(path)):
            outer = path[:end]
            if outer in found and not found[outer].atoms & sets.OTHER:
                return False
            found[outer] = _CONTAINER
    return True


def meet(a: Box, b: Box, steps: Steps) -> bool:
    """Return whether an event may be in both boxes; False is a proof."""
    steps.take(1)
    few, many = (a.sets, b.sets) if len(a.sets) <= len(b.sets) else (b.sets, a.sets)
    for path, values in few.items():
        other = many.get(path)
        if other is not None and not overlap(values, other, steps):
            return False
    if a.needles or b.needles:
        return _have_needles(a, b.needles, steps) and _have_needles(b, a.needles, steps)
    return True


def _is_missing(path: Path, known: Mapping[Path, ValueSet]) -> bool:
    """Return whether an attribute must be missing because an outer one is neither object nor array."""
    for end in range(len(path) - 1, 0, -1):
        outer = known.get(path[:end])
        if outer is not None and not outer.atoms & sets.OTHER:
            return True
    return False


def overlap(a: ValueSet, b: ValueSet, steps: Steps) -> bool:
    """Return whether two sets have a common value; adjacent strings may count as one."""
    if a.atoms & b.atoms:
        return True
    steps.left -= 1
    return ranges_overlap(a.numbers, b.numbers, False, steps) or ranges_overlap(
        a.strings, b.strings, False, steps
    )


def contains(wide: ValueSet, narrow: ValueSet, steps: Steps) -> bool:
    """Return whether one set contains another; True is a proof."""
    if narrow.atoms & ~wide.atoms:
        return False
    steps.left -= 1
    return not (
        ranges_overlap(narrow.numbers, wide.numbers, True, steps)
        or ranges_overlap(narrow.strings, wide.strings, True, steps)
    )


def ranges_overlap(a: Ranges, b: Ranges, outside: bool, steps: Steps) -> bool:
    """Return whether two sets have a common value; with ``outside``, ``a`` and the complement of ``b``."""
    starts_a, starts_b = a.starts_inside, b.starts_inside ^ outside
    if not a.cuts:
        return starts_a and (starts_b or bool(b.cuts))
    if not b.cuts:
        return starts_b
    if starts_a and starts_b:
        return True
    if len(a.cuts) <= len(b.cuts):
        return _cuts_overlap(a.cuts, starts_a, b.cuts, starts_b, steps)
    return _cuts_overlap(b.cuts, starts_b, a.cuts, starts_a, steps)


def _cuts_overlap(
    few: tuple[sets.Cut, ...], few_inside: bool, many: tuple[sets.Cut, ...], many_inside: bool, steps: Steps
) -> bool:
    """Compare two nonempty lists of cuts; at most one of the sets has its region's lowest values."""
    size = len(many)
    steps.take(min(len(few) * size.bit_length(), len(few) + size))
    if few_inside and many[0] < few[0]:
        return True  # the region's lowest values are in `few`, and `many` begins among them
    for place in range(few_inside, len(few), 2):
        start = few[place]
        at = bisect_right(many, start)
        if many_inside ^ bool(at & 1):
            return True
        if at < size and (place + 1 == len(few) or many[at] < few[place + 1]):
            return True
    return False


def lies_in(box: Box, others: Sequence[Box], steps: Steps) -> bool:
    """Return whether all events of a box are in the union of others; True is a proof.

    Raises
    ------
    OutOfStepsError
        Also if the box must be split too often.
    """
    if len(others) == 1:
        return _lies_in_one(box, others[0], steps)
    best: list[Path] | None = None
    chosen: Box | None = None
    near: list[Box] = []
    for other in others:
        steps.take(1 + len(other.sets))
        outside = _outside(box, other, steps)
        if outside is None:
            continue
        if not outside:
            return True
        near.append(other)
        if best is None or len(outside) < len(best):
            best, chosen = outside, other
    if best is None or chosen is None or len(near) == 1:
        return False
    rest = [other for other in near if other is not chosen]
    within = dict(box.sets)
    for path in best:
        known, wanted = _known(box, path), chosen.sets[path]
        piece = {**within, path: known.intersection(wanted.complement())}
        steps.take(len(known.numbers.cuts) + len(known.strings.cuts) + len(piece))
        if _closed(piece) and not lies_in(Box(piece, box.needles), rest, steps):
            return False
        within[path] = known.intersection(wanted)
    return True


def _lies_in_one(box: Box, other: Box, steps: Steps) -> bool:
    steps.take(1 + len(other.sets))
    known = box.sets
    for path, wanted in other.sets.items():
        values = known.get(path)
        if not contains(wanted, _known(box, path) if values is None else values, steps):
            return False
    return not other.needles or all(_proves(box, needle, steps) for needle in other.needles)


def _outside(box: Box, other: Box, steps: Steps) -> list[Path] | None:
    """Return the attributes in which a box has values outside of another; None if these boxes can't help.

    They cannot if they do not meet, or if a needle of the other is not proved.
    """
    if other.needles and not all(_proves(box, needle, steps) for needle in other.needles):
        return None
    found = []
    for path, wanted in other.sets.items():
        known = box.sets.get(path)
        if known is None:
            known = _known(box, path)
        if contains(wanted, known, steps):
            continue
        if not overlap(wanted, known, steps):
            return None
        found.append(path)
    return found


def _known(box: Box, path: Path) -> ValueSet:
    """Return the values that an attribute can have in a box."""
    known = box.sets.get(path)
    if known is not None:
        return known
    return _MISSING if len(path) > 1 and _is_missing(path, box.sets) else sets.ANY_VALUE


def _proves(box: Box, needle: Needle, steps: Steps) -> bool:
    """Return whether an attribute contains a needle in all events of a box."""
    if any(known.path == needle.path and _implies(known, needle) for known in box.needles):
        return True
    texts = _texts(box.sets.get(needle.path), steps)
    return texts is not None and all(
        needle.is_in(text) if is_whole else _has_prefix(text, needle) for text, is_whole in texts
    )


def _implies(known: Needle, needle: Needle) -> bool:
    """Return whether a string that contains one needle contains the other."""
    text = known.text
    if known.kind & FOLDED:
        if not needle.kind & FOLDED:
            return False
    elif needle.kind & FOLDED:
        text = text.casefold()
    at = known.kind & (AT_START | AT_END)
    wanted = needle.kind & (AT_START | AT_END)
    if wanted & ~at:
        return False
    return Needle(needle.path, needle.text, wanted).is_in(text)


def _has_prefix(prefix: str, needle: Needle) -> bool:
    """Return whether all strings with a prefix contain a needle."""
    if needle.kind & AT_END:
        return False
    return needle.is_in(prefix)


def _have_needles(box: Box, needles: tuple[Needle, ...], steps: Steps) -> bool:
    """Return whether a box may have events whose attributes contain the needles; False is a proof."""
    for needle in needles:
        texts = _texts(box.sets.get(needle.path), steps)
        if texts is not None and not any(not is_whole or needle.is_in(text) for text, is_whole in texts):
            return False
    return True


def _texts(values: ValueSet | None, steps: Steps) -> list[tuple[str, bool]] | None:
    """Return a set's strings: each text, and whether it is a string itself or a prefix of several strings.

    None if the set is not made of such intervals only, or has more than ``TEXTS_MAX``.
    """
    if values is None or values.atoms or not values.numbers.is_empty:
        return None
    strings = values.strings
    if len(strings.cuts) > 2 * TEXTS_MAX:
        return None
    cuts = strings.cuts if not strings.starts_inside else (("", BEFORE), *strings.cuts)
    if len(cuts) % 2:
        return None
    found = []
    for low, high in zip(cuts[::2], cuts[1::2], strict=True):
        steps.take(1 + len(low[0]) // CHARACTERS_A_STEP)
        if low[1] == AFTER:
            return None
        if low[0] == high[0] and high[1] == AFTER:
            found.append((low[0], True))
        elif with_prefix(low[0]).cuts == (low, high):
            found.append((low[0], False))
        else:
            return None
    return found
