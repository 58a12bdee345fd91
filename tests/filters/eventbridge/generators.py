"""Random patterns and events over few names and few values, so that they often match."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

WORDS = ["", "a", "b", "ab", "abc", "AB", "Ab", "a*b", "a\\b", "é", "É", "x.y", "true", "null", "5"]
NUMBERS: list[Any] = [0, 1, -1, 5, 5.0, 2.5, -0.25, 1e3, 1000, 123456789012, 0.1, 3e-7, 9007199254740991]
ADDRESSES = [
    "10.0.0.1",
    "10.0.0.200",
    "10.1.2.3",
    "192.168.0.1",
    "2001:db8::1",
    "2001:DB8:0:0:0:0:0:1",
    "::1",
]
BLOCKS = ["10.0.0.0/24", "10.0.0.0/8", "10.0.0.77/25", "192.168.0.0/16", "0.0.0.0/0", "2001:db8::/32", "::/0"]
WILDCARDS = ["*", "a*", "*b", "a*b", "*b*", "a\\*b", "a\\\\b", "*a*b*", "", "ab", "*.*"]
NAMES = ["a", "b", "c", "data", "x"]


class Generator:
    """A generator of patterns and events.

    Parameters
    ----------
    random
        The random number generator.
    words, numbers
        The values to draw from.
    nested_lists
        Whether events have lists directly inside of lists.
    """

    def __init__(
        self,
        random: random.Random,
        words: Sequence[str] = (*WORDS, *ADDRESSES),
        numbers: Sequence[Any] = NUMBERS,
        nested_lists: bool = True,
    ) -> None:
        self.random = random
        self.words = words
        self.numbers = numbers
        self.nested_lists = nested_lists

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def word(self) -> str:
        return self.random.choice(self.words)

    def number(self) -> Any:
        return self.random.choice(self.numbers)

    def scalar(self) -> Any:
        draw = self.random.random()
        if draw < 0.55:
            return self.word()
        return self.number() if draw < 0.8 else self.random.choice([True, False, None])

    def event(self) -> dict[str, Any]:
        event = self.object(3)
        if self.chance(0.5):
            event["source"] = self.word()
        return event

    def object(self, depth: int) -> dict[str, Any]:
        names = self.random.sample(NAMES, self.random.randint(0 if depth < 3 else 1, 3))
        return {name: self.value(depth) for name in names}

    def value(self, depth: int) -> Any:
        draw = self.random.random()
        if depth and draw < 0.35:
            return self.object(depth - 1)
        if depth and draw < 0.65:
            return [self.element(depth - 1) for _ in range(self.random.choice([0, 1, 2, 2, 3]))]
        return self.scalar()

    def element(self, depth: int) -> Any:
        draw = self.random.random()
        if depth and draw < 0.55:
            return self.object(depth)
        if depth and draw < 0.65 and self.nested_lists:
            return [self.element(depth - 1) for _ in range(self.random.randint(0, 2))]
        return self.scalar()

    def pattern(self) -> dict[str, Any]:
        pattern = self.fields(3, NAMES)
        if self.chance(0.2):
            pattern["source"] = self.tests()
        return pattern

    def fields(self, depth: int, names: list[str]) -> dict[str, Any]:
        """Return an object of a pattern; fields inside its ``$or`` have other names than those beside it."""
        chosen = self.random.sample(names, self.random.choice([1, 1, 1, 2, 2, 3]) if len(names) > 2 else 1)
        pattern = {name: self.field(depth) for name in chosen}
        rest = [name for name in names if name not in chosen]
        if rest and self.chance(0.15):
            pattern["$or"] = [self.fields(depth, rest) for _ in range(self.random.randint(2, 3))]
            if self.chance(0.3):
                return {"$or": pattern["$or"]}
        return pattern

    def field(self, depth: int) -> Any:
        return self.fields(depth - 1, NAMES) if depth and self.chance(0.45) else self.tests()

    def tests(self) -> list[Any]:
        return [self.test() for _ in range(self.random.choice([1, 1, 1, 2, 3]))]

    def test(self) -> Any:
        draw = self.random.random()
        if draw < 0.35:
            return self.scalar()
        if draw < 0.55:
            return {"exists": self.chance(0.4)}
        if draw < 0.65:
            return {"numeric": self.comparison()}
        return self.random.choice([self.text_test, self.excluding, self.excluding])()

    def comparison(self) -> list[Any]:
        if self.chance(0.4):
            low, high = sorted((self.number(), self.number()))
            if low < high:
                return [self.random.choice([">", ">="]), low, self.random.choice(["<", "<="]), high]
        return [self.random.choice(["=", "<", "<=", ">", ">="]), self.number()]

    def text_test(self) -> Any:
        kind = self.random.choice(
            ["prefix", "suffix", "equals-ignore-case", "wildcard", "cidr", "exactly", "prefix", "suffix"]
        )
        if kind == "wildcard":
            return {kind: self.random.choice(WILDCARDS)}
        if kind == "cidr":
            return {kind: self.random.choice(BLOCKS)}
        if kind in ("prefix", "suffix") and self.chance(0.3):
            return {kind: {"equals-ignore-case": self.word()}}
        return {kind: self.word()}

    def excluding(self) -> Any:
        draw = self.random.random()
        count = self.random.randint(1, 2)
        if draw < 0.3:
            return {"anything-but": self.random.choice([self.word(), self.number()])}
        if draw < 0.5:
            return {"anything-but": [self.word() for _ in range(count)]}
        if draw < 0.6:
            return {"anything-but": [self.number() for _ in range(count)]}
        kind = self.random.choice(["prefix", "suffix", "equals-ignore-case", "wildcard"])
        if kind == "wildcard":
            texts = [self.random.choice(WILDCARDS) for _ in range(count)]
        else:
            texts = [self.word() or "a" for _ in range(count)]
        return {"anything-but": {kind: texts if self.chance(0.5) else texts[0]}}
