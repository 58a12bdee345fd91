"""Lower case, upper case and case folding, and their inverses: the texts that a conversion maps to a text.

``LOWER(type) = 'ab'`` holds for the four texts ``ab aB Ab AB``, which the index can search for. They are
found by replacing the characters of a text, one after the other, by all characters that are converted to
them. Once there are too many, the rest is cut off, and any text with one of the beginnings is a candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from fieldfare.filters import values as sets
from fieldfare.filters.expression import Expression
from fieldfare.filters.functions.table import Requirements
from fieldfare.filters.values import AFTER, BEFORE, Ranges, ValueSet

Fold = Callable[[str], str]

LAST_CASED = 0x1E943
"""The last code point that has a case."""

_ORIGINALS_MAX, _FOR_ONE_MAX = 256, 32
_TARGETS_MAX = 128
_CONTEXT = frozenset("σς")
"""Lower cases of a capital sigma, which depend on its neighbours; no other character depends on any."""

Target = tuple[str, bool]
"""A text, and whether it stands for all texts that start with it."""


def lower(text: str) -> str:
    return text.lower()


def upper(text: str) -> str:
    return text.upper()


def fold(text: str) -> str:
    return text.casefold()


def implied(folding: Fold) -> Callable[[tuple[Expression, ...], ValueSet], Requirements]:
    """Return a function that gives the texts whose conversion is in a set."""

    def texts(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements:
        strings = wanted.strings
        inverted = strings.starts_inside
        found = _originals(folding, targets_of(strings.complement() if inverted else strings))
        if found is None or (inverted and not found[1]):
            return [(operands[0], sets.STRINGS)], strings.is_full
        ranges, is_exact = found
        return [(operands[0], ValueSet(strings=ranges.complement() if inverted else ranges))], is_exact

    return texts


def targets_of(ranges: Ranges) -> list[Target] | None:
    """Return texts and prefixes that cover ranges; None if only the empty prefix does."""
    if ranges.starts_inside or len(ranges.cuts) % 2:
        return None
    targets = []
    for (low, low_side), (high, high_side) in zip(ranges.cuts[::2], ranges.cuts[1::2], strict=True):
        if low == high:
            targets.append((low, False))
        elif sets.with_prefix(low).cuts == ((low, low_side), (high, high_side)):
            targets.append((low, True))
        else:
            targets.append((_common_prefix(low, high), True))
    return None if ("", True) in targets else targets


def covering(targets: Iterable[Target]) -> Ranges:
    """Return the texts that are one of the targets, or start with one that is a prefix."""
    cuts: list[sets.Cut] = []
    covered = None
    for text, is_prefix in sorted(set(targets), key=lambda target: (target[0], not target[1])):
        if covered is not None and text.startswith(covered):
            continue
        new = sets.with_prefix(text) if is_prefix else Ranges(False, ((text, BEFORE), (text, AFTER)))
        if is_prefix:
            covered = text
        if cuts and new.cuts and cuts[-1] == new.cuts[0]:
            cuts.pop()
            cuts.extend(new.cuts[1:])
        else:
            cuts.extend(new.cuts)
    return Ranges(False, tuple(cuts))


def _common_prefix(low: str, high: str) -> str:
    size = 0
    for a, b in zip(low, high, strict=False):
        if a != b:
            break
        size += 1
    return low[:size]


def _originals(folding: Fold, targets: list[Target] | None) -> tuple[Ranges, bool] | None:
    """Return the texts that are converted to one of the targets, and whether the set is exact."""
    if targets is None:
        return None
    for size in (None, 8, 4, 2, 1):
        if size is not None:
            targets = list({(text[:size], is_prefix or len(text) > size) for text, is_prefix in targets})
        if len(targets) <= _TARGETS_MAX:
            break
    else:
        return None
    most = min(_FOR_ONE_MAX, _ORIGINALS_MAX // max(1, len(targets)))
    is_exact = size is None
    originals: list[Target] = []
    for target in targets:
        found, complete = _originals_of(folding, target, most)
        originals += found
        is_exact = is_exact and complete and not (folding is lower and not _CONTEXT.isdisjoint(target[0]))
    if ("", True) in originals:
        return None
    return covering(originals), is_exact


def _originals_of(folding: Fold, target: Target, most: int) -> tuple[list[Target], bool]:
    """Return the texts that are converted to a target, and whether they are complete.

    If there are more than `most`, return prefixes of them.
    """
    text, is_prefix = target
    sources = _sources(folding)
    reached: list[list[str]] = [[""], *[[] for _ in text]]  # by length: originals of the target's prefix
    done: list[Target] = []
    for place in range(len(text)):
        originals = reached[place]
        if not originals:
            continue
        for size in (1, 2, 3)[: len(text) - place]:
            ends = sources.of(text[place : place + size])
            reached[place + size] += [original + end for original in originals for end in ends]
        if is_prefix and len(text) - place < 3:  # one character whose image is longer than the rest
            rest = text[place:]
            longer = [image for image in sources.long if len(image) > len(rest) and image.startswith(rest)]
            ends = [end for image in longer for end in sources[image]]
            done += [(original + end, True) for original in originals for end in ends]
        reached[place] = []
        waiting = [original for many in reached for original in many]
        if len(waiting) + len(done) > most:
            return [*done, *[(original, True) for original in waiting]], False
    return done + [(original, is_prefix) for original in reached[-1]], True


class _Sources(dict[str, list[str]]):
    """For each image of a conversion, the characters that have it, except for unchanged characters."""

    def __init__(self, folding: Fold) -> None:
        self.changed: set[str] = set()
        for character in map(chr, range(LAST_CASED + 1)):
            image = folding(character)
            if image != character:
                self.setdefault(image, []).append(character)
                self.changed.add(character)
        if folding is lower:
            self["ς"] = ["Σ"]
        self.long = [image for image in self if len(image) > 1]

    def of(self, image: str) -> list[str]:
        """Return all characters that are converted to an image."""
        sources = self.get(image, [])
        return [*sources, image] if len(image) == 1 and image not in self.changed else sources


_sources = cache(_Sources)
