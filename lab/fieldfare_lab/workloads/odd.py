"""Seeded workloads of filters as people write them, each difficult for an index in a different way.

* `sparse`: 500 attributes; a filter names a few of them, and an event has five;
* `strings`: prefixes, suffixes, parts, patterns, with and without regard to case;
* `negated`: NOT, unequal, and attributes that are missing or null;
* `skewed`: symbols by Zipf's law, and prices near the symbol's own, most of them at a few round limits;
* `extremes`: among others filters that match nothing, or everything;
* `operators`: every operator and many functions of the sql dialect;
* `words`: alerts on words and phrases in titles, whose words follow Zipf's law.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Random = np.random.Generator
Event = Mapping[str, Any]

WORDS = [
    a + b for a in ("ba", "do", "fi", "ka", "lo", "mi", "no", "ra", "su", "te") for b in ("n", "r", "st")
]


@dataclass(frozen=True, slots=True)
class TextWorkload:
    """Filters as texts of the sql dialect, and events as dicts; the same seed gives the same ones."""

    filter: Callable[[Random], str]
    event: Callable[[Random], Event]

    def filters(self, count: int, seed: int) -> list[str]:
        """Return `count` filters."""
        rng = np.random.default_rng(seed)
        return [self.filter(rng) for _ in range(count)]

    def events(self, size: int, seed: int) -> list[Event]:
        """Return `size` events."""
        rng = np.random.default_rng(seed)
        return [self.event(rng) for _ in range(size)]


def _pick(rng: Random, choices: list[str]) -> str:
    return choices[rng.integers(len(choices))]


def _zipf(rng: Random, count: int) -> int:
    """Return a random rank, from 0 to `count` - 1; the k-th has a probability of about 1 / k."""
    return int(count ** rng.random()) - 1


def _sparse_filter(rng: Random) -> str:
    predicates = []
    for a in rng.choice(500, rng.integers(1, 4), replace=False).tolist():
        low = int(rng.integers(0, 900))
        predicates.append(
            [f"data.a{a} = {low}", f"data.a{a} BETWEEN {low} AND {low + 100}", f"data.a{a} > {low}"][
                rng.integers(3)
            ]
        )
    return " AND ".join(predicates)


def _sparse_event(rng: Random) -> Event:
    names = rng.choice(500, 5, replace=False).tolist()
    return {"data": {f"a{a}": int(rng.integers(0, 1000)) for a in names}}


def _name(rng: Random) -> str:
    return "-".join(_pick(rng, WORDS) for _ in range(4))


def _strings_filter(rng: Random) -> str:
    one, two = _pick(rng, WORDS), _pick(rng, WORDS)
    forms = [
        f"data.name LIKE '{one}-{two}%'",
        f"data.name LIKE '%{one}-{two}'",
        f"data.name LIKE '%-{one}-{two}%'",
        f"data.name ILIKE '{one.upper()}-{two}-%'",
        f"data.name = '{_name(rng)}'",
        f"data.name LIKE '{one}-%-{two}' AND data.kind = '{_pick(rng, WORDS)}'",
        f"CONTAINS(data.name, '{one}') AND data.kind IN ('{two}', '{one}')",
        f"LOWER(data.kind) = '{one}' AND STARTS_WITH(data.name, '{two}')",
    ]
    return forms[rng.integers(len(forms))]


def _strings_event(rng: Random) -> Event:
    return {"data": {"name": _name(rng), "kind": _pick(rng, WORDS)}}


def _negated_filter(rng: Random) -> str:
    a, b = rng.choice(10, 2, replace=False).tolist()
    low = int(rng.integers(0, 90))
    narrow = f"data.key = '{_pick(rng, WORDS)}'"
    forms = [
        f"{narrow} AND NOT data.a{a} = {low}",
        f"{narrow} AND data.a{a} <> {low} AND data.a{b} IS NOT NULL",
        f"{narrow} AND data.a{a} NOT IN ({low}, {low + 1}, {low + 5})",
        f"{narrow} AND NOT (data.a{a} BETWEEN {low} AND {low + 40} OR data.a{b} > {low})",
        f"{narrow} AND data.a{a} IS NULL AND data.a{b} < {low}",
        f"NOT EXISTS(data.a{a}) AND NOT EXISTS(data.a{b}) AND data.key LIKE '{_pick(rng, WORDS)[:2]}%'",
        f"{narrow} AND data.key NOT LIKE '%{_pick(rng, WORDS)}' AND (data.a{a} > {low}) IS NOT FALSE",
    ]
    return forms[rng.integers(len(forms))]


def _negated_event(rng: Random) -> Event:
    data: dict[str, Any] = {"key": _pick(rng, WORDS)}
    for a in range(10):
        kind = rng.random()
        if kind < 0.7:
            data[f"a{a}"] = int(rng.integers(0, 100))
        elif kind < 0.8:
            data[f"a{a}"] = None
    return {"data": data}


_SYMBOLS = 2000


def _skewed_filter(rng: Random) -> str:
    symbol = _zipf(rng, _SYMBOLS)
    price = 10 + symbol % 90
    limit = price if rng.random() < 0.5 else round(price * float(rng.normal(1, 0.05)), 2)
    condition = [
        f"data.price > {limit}",
        f"data.price < {limit}",
        f"data.price BETWEEN {limit} AND {limit + 1}",
    ]
    volume = f" AND data.volume >= {10 ** int(rng.integers(2, 6))}" if rng.random() < 0.5 else ""
    return f"data.symbol = 'S{symbol}' AND {condition[rng.integers(3)]}{volume}"


def _skewed_event(rng: Random) -> Event:
    symbol = _zipf(rng, _SYMBOLS)
    price = round((10 + symbol % 90) * float(rng.normal(1, 0.02)), 2)
    return {"data": {"symbol": f"S{symbol}", "price": price, "volume": int(10 ** (6 * rng.random()))}}


def _extremes_filter(rng: Random) -> str:
    kind = rng.random()
    low = int(rng.integers(0, 900))
    if kind < 0.001:
        return "data.a >= 0 OR data.a < 0"
    if kind < 0.3:
        return f"data.a > {low + 5} AND data.a < {low}"
    if kind < 0.6:
        return f"data.kind = 'never-{low}'"
    return f"data.a BETWEEN {low} AND {low + 2} AND data.kind = '{_pick(rng, WORDS)}'"


def _extremes_event(rng: Random) -> Event:
    return {"data": {"a": int(rng.integers(0, 1000)), "kind": _pick(rng, WORDS)}}


def _operators_filter(rng: Random) -> str:
    n, word, other = int(rng.integers(0, 1000)), _pick(rng, WORDS), _pick(rng, WORDS)
    near = f"data.kind = '{word}'"
    forms = [
        f"{near} AND data.high - data.low > {n}",
        f"{near} AND data.high * 2 > data.low + {n}",
        f"{near} AND LENGTH(data.name) = {n % 20}",
        f"{near} AND ABS(data.low - {n}) < 20",
        f"{near} AND data.name LIKE '%{other}%' AND data.high % 7 = {n % 7}",
        f"{near} AND (data.flag OR data.low > {n}) AND NOT (data.flag AND data.high < {n})",
        f"{near} AND ANY tag IN data.tags SATISFIES (tag = '{other}')",
        f"data.low IN ({n}, {n + 3}, {n + 9}) AND data.name > '{other}'",
        f"data.low BETWEEN {n} AND {n + 10} AND UPPER(data.kind) = '{word.upper()}'",
        f"data.high = data.low OR data.low = {n} AND {near}",
        f"data.name LIKE '{word}-{other}%' OR data.name LIKE '{other}-{word}%'",
        f"WITHIN_BOX(data.latitude, data.longitude, {n % 80}, {n % 170}, {n % 80 + 1}, {n % 170 + 1})",
    ]
    return forms[rng.integers(len(forms))]


def _operators_event(rng: Random) -> Event:
    low = int(rng.integers(0, 1000))
    return {
        "data": {
            "kind": _pick(rng, WORDS),
            "name": _name(rng),
            "low": low,
            "high": low + int(rng.integers(0, 1000)),
            "flag": bool(rng.random() < 0.5),
            "tags": [_pick(rng, WORDS) for _ in range(rng.integers(0, 3))],
            "latitude": float(rng.uniform(0, 85)),
            "longitude": float(rng.uniform(0, 175)),
        }
    }


VOCABULARY = 200_000
RARE = 1_000
"""Number of the most frequent words for which there are no alerts."""
_SYLLABLES = [
    onset + vowel + coda
    for coda in ("", "n", "r", "s", "l", "t")
    for onset in "b c d f g h k l m n p r s t v w st tr ch br pl gr fl j".split()  # noqa: SIM905
    for vowel in ("a", "e", "i", "o", "u", "ea", "ou", "ai")
]


def _word(rank: int) -> str:
    """Return the word of a rank; two syllables, and no two words are equal."""
    first, second = divmod(rank * 7919 % len(_SYLLABLES) ** 2, len(_SYLLABLES))
    return _SYLLABLES[first] + _SYLLABLES[second]


def _words_filter(rng: Random) -> str:
    word = _word(int(RARE * (VOCABULARY / RARE) ** rng.random()))
    frequent = _word(_zipf(rng, RARE))
    forms = [
        *4 * [f"data.title LIKE '%{word}%'"],
        *2 * [f"data.title ILIKE '%{word.capitalize()}%'"],
        f"data.title LIKE '%{frequent} {word}%'",
        f"CONTAINS(data.title, '{word}') AND data.region = 'R{rng.integers(50)}'",
        f"LOWER(data.title) LIKE '%{word}%' AND data.title NOT LIKE '%{frequent}%'",
        f"data.link LIKE '%/{word}'",
    ]
    return forms[rng.integers(len(forms))]


def _words_event(rng: Random) -> Event:
    words = [_word(_zipf(rng, VOCABULARY)) for _ in range(12)]
    link = f"https://example.com/{words[3]}/{words[5]}"
    title = " ".join(words).capitalize()
    return {"data": {"title": title, "link": link, "region": f"R{rng.integers(50)}"}}


TEXT_WORKLOADS = {
    "sparse": TextWorkload(_sparse_filter, _sparse_event),
    "strings": TextWorkload(_strings_filter, _strings_event),
    "negated": TextWorkload(_negated_filter, _negated_event),
    "skewed": TextWorkload(_skewed_filter, _skewed_event),
    "extremes": TextWorkload(_extremes_filter, _extremes_event),
    "operators": TextWorkload(_operators_filter, _operators_event),
    "words": TextWorkload(_words_filter, _words_event),
}
