"""Random events, filters and subscription histories, and a replay that computes the expected matches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from random import Random
from typing import Any

import pyarrow as pa

from fieldfare.arrow_events.stream import write_events
from fieldfare.filters import compile_filter, encode_normal_form
from fieldfare.filters.values import ABSENT
from fieldfare.model import OPEN_END, Change
from fieldfare.partitioning import AttributeSpace, Axis, HashPartitioning, Partitioning, Replicated
from fieldfare.partitioning.axis import place_before

SPACES = ("alpha", "beta")
WORDS = ("", "a", "ab", "b", "ba", "ü", 'q"', "\U0001f426")


def random_event(random: Random) -> dict[str, Any]:
    """A small event in which every attribute that a filter may name is sometimes missing or of an odd
    type."""
    data: dict[str, Any] = {}
    for name in ("x", "y"):
        if random.random() < 0.85:
            numbers = [random.randrange(6), random.randrange(6), random.randrange(12) / 2]
            data[name] = random.choice([*numbers, None, "a"])
    if random.random() < 0.85:
        data["word"] = random.choice([*WORDS, *WORDS, None, 1, True])
    if random.random() < 0.5:
        data["flag"] = random.choice([True, False, None])
    return {"id": str(random.randrange(100)), "data": data}


def random_filter(random: Random, depth: int = 2) -> str:
    """A filter over these attributes, of every kind: exact in the index, inexact, never or always true."""
    if depth and random.random() < 0.6:
        left, right = random_filter(random, depth - 1), random_filter(random, depth - 1)
        return random.choice([f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})"])
    x, word = random.randrange(6), random.choice(WORDS)
    return random.choice(
        [
            f"data.x = {x}", f"data.x > {x / 2}", f"data.y BETWEEN {x - 2} AND {x}",
            f"data.y IN ({x}, {x + 1.5})", f"data.word = '{word}'", f"data.word LIKE '{word}%'",
            "data.word LIKE '%b%'", f"data.word >= '{word}'",
            "data.flag", "EXISTS(data.flag)", "data.x IS NULL", f"data.x + data.y > {x}", "data.x = data.y",
        ]
    )  # fmt: skip


def payload_of(events: list[dict[str, Any]], random: Random) -> bytes:
    """Encode the events as a record's JSON payload."""
    return "".join(json.dumps(e, ensure_ascii=random.random() < 0.5) + "\n" for e in events).encode()


def typed_event(random: Random) -> dict[str, Any]:
    """An event like `random_event`, but typed as a table's columns require; attributes may still be missing.

    A missing member of data becomes null in a column, so such members are null here.
    """
    event: dict[str, Any] = {"id": str(random.randrange(100))}
    if random.random() < 0.5:
        event["subject"] = random.choice(WORDS[1:])
    if random.random() < 0.9:
        event["data"] = {
            "x": random.choice([random.randrange(6), None]),
            "y": random.choice([random.randrange(12) / 2, None]),
            "word": random.choice([*WORDS, None]),
            "flag": random.choice([True, False, None]),
        }
    return event


TYPED = pa.schema(
    {
        "id": pa.string(),
        "subject": pa.string(),
        "data": pa.struct({"x": pa.int64(), "y": pa.float64(), "word": pa.string(), "flag": pa.bool_()}),
    }
)
"""The columns of the events of `typed_event`."""


def arrow_payload_of(events: list[dict[str, Any]] | pa.RecordBatch, schema: pa.Schema | None = None) -> bytes:
    """Encode the events as a record's Arrow payload."""
    if isinstance(events, list):
        events = pa.RecordBatch.from_pylist(events, schema)
    return bytes(write_events(events))


def random_partitioning(random: Random) -> Partitioning:
    """Any partitioning of a space of such subscriptions, with any owners."""
    matchers = random.randrange(1, 5)
    kind = random.choice(["hash", "replicated", "space", "space", "space"])
    if kind == "hash":
        return HashPartitioning(matchers, random.randrange(7))
    if kind == "replicated":
        return Replicated(matchers)
    values = [ABSENT, None, True, "", *WORDS, *range(-1, 7), 2.5, Decimal("1e30")]
    paths = random.sample([("data", name) for name in ("x", "y", "word", "flag")], random.randrange(1, 4))
    axes = tuple(
        Axis(path, tuple(sorted(place_before(v) for v in random.sample(values, random.randrange(4)))))
        for path in paths
    )
    owners = tuple(tuple(random.randrange(matchers) for _ in range(axis.segment_count)) for axis in axes)
    hash_owners = tuple(random.randrange(matchers) for _ in range(random.randrange(3)))
    wide_share = random.choice([0.0, 0.4, 0.75, 1.0])
    return AttributeSpace(axes, owners, hash_owners, wide_share)


@dataclass
class Version:
    """A version of a subscription, and the revision that ended it."""

    revision: int
    space: str
    number: int
    filter: str
    closed_by: int = OPEN_END

    @cached_property
    def matches(self) -> Callable[[dict[str, Any]], bool]:
        return compile_filter(self.filter).matches


@dataclass
class History:
    """A registry without storage: every version that ever existed."""

    versions: list[Version] = field(default_factory=list)
    revision: int = 0

    def change(self, space: str, number: int, text: str | None) -> Change:
        """Put (or, without a text, remove) a subscription."""
        self.revision += 1
        for version in self.versions:
            if version.number == number and version.closed_by == OPEN_END:
                version.closed_by = self.revision
        compiled = None
        if text is not None:
            self.versions.append(Version(self.revision, space, number, text))
            compiled = encode_normal_form(compile_filter(text).normal_form)
        return Change(self.revision, space, number, text, "sql", compiled)

    def expected(self, space: str, stamp: int, event: dict[str, Any]) -> list[int]:
        """The numbers of the subscriptions that an event must match, in a record with this stamp."""
        return sorted(
            {
                version.number
                for version in self.versions
                if version.space == space
                and version.revision <= stamp < version.closed_by
                and version.matches(event)
            }
        )
