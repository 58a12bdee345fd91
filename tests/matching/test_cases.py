"""Changes of case by columns are Python's, for every character; Python converts no string by itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from random import Random

import pytest

from fieldfare.matching.evaluation.operands import constants
from fieldfare.matching.evaluation.texts import with_case

CHANGES = [str.lower, str.upper, str.casefold]
COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
EVERY = range(0, sys.maxunicode + 1, 1 if COMPILED else 997)


def assert_as_python(strings: list[str], change: Callable[[str], str]) -> None:
    given = constants(strings, 1)
    _, words, text = with_case(given.kinds, given.words, given.text, change)
    whole = text.tobytes()
    found = [whole[word >> 32 : (word >> 32) + (word & 0xFFFFFFFF)] for word in words.tolist()]
    assert [each.decode("utf-8", "surrogatepass") for each in found] == list(map(change, strings))


@pytest.mark.parametrize("change", CHANGES)
def test_the_case_of_every_character_is_changed(change: Callable[[str], str]) -> None:
    assert_as_python([chr(code) for code in EVERY], change)


@pytest.mark.long
@pytest.mark.parametrize("pattern", ["{}Σ", "a{}Σ", "aΣ{}", "aΣ{}b"])
def test_the_lower_case_of_a_sigma_depends_on_each_character_beside_it(pattern: str) -> None:
    assert_as_python([pattern.format(chr(code)) for code in EVERY], str.lower)


@pytest.mark.parametrize("change", CHANGES)
def test_the_case_of_strings_of_difficult_characters_is_changed(change: Callable[[str], str]) -> None:
    random, characters = Random(1), "aΣΣσ'.İßŉΐ龍\u0301\u00ad😀\ud800 1Ａǅʰ\U0001e900"
    assert_as_python(
        ["".join(random.choices(characters, k=random.randrange(9))) for _ in range(3_000)], change
    )
