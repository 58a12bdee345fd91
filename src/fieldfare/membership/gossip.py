"""Gossip: every server's row reaches all others by exchanges with a few random ones.

Li et al. 2011, section III.C, after Cassandra: each matcher periodically exchanges its table with
log(N) randomly selected matchers. An exchange is three messages (digest; newer rows and digest; newer
rows), after which both have the later version of each row; it takes log(N) rounds to reach everybody.
Messages may be lost, doubled or late: merging rows never goes back.

What a row says is nothing to gossip: it has a name, a version that its own server counts up, and it can say
that its server is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, log2
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from fieldfare.effects import Effect, Send


class Row(Protocol):
    """What one server tells all others about itself.

    Attributes
    ----------
    name
        Its address; a server that starts again takes a new one.
    version
        Goes up with every change, and with every beat of its heart.
    is_gone
        Whether it has said goodbye: then nobody talks to it.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def is_gone(self) -> bool: ...


AnyRow = TypeVar("AnyRow", bound=Row)

Digest = Mapping[str, int]
"""The version of every row that a table has."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What I know, in short."""

    digest: Digest


@dataclass(frozen=True, slots=True)
class Reply:
    """What I know and you do not, and what I know in short."""

    digest: Digest
    rows: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class NewerRows:
    """What you did not know. Also a dispatcher's answer to its pull, and to a stale table."""

    rows: tuple[Any, ...]


class GossipTable(Generic[AnyRow]):
    """The rows that one server knows, and when each last moved on.

    A row is written by its own server alone; so tables merge row by row, the later version wins, and any
    order of merging ends in the same table.
    """

    def __init__(self) -> None:
        self.rows: dict[str, AnyRow] = {}
        self._advanced_s: dict[str, float] = {}

    def merge(self, rows: Iterable[AnyRow], now: float) -> list[AnyRow]:
        """Take in rows that are newer than the known ones; return them."""
        newer = []
        for row in rows:
            known = self.rows.get(row.name)
            if known is None or row.version > known.version:
                self.rows[row.name] = row
                self._advanced_s[row.name] = now
                newer.append(row)
        return newer

    def digest(self) -> Digest:
        """What is known, in short."""
        return {name: row.version for name, row in self.rows.items()}

    def newer_than(self, digest: Digest) -> tuple[AnyRow, ...]:
        """Every row of which the other one has an older version, or none."""
        return tuple(row for name, row in self.rows.items() if row.version > digest.get(name, -1))

    def silent_s(self, name: str, now: float) -> float:
        """For how long nothing new was heard of a server."""
        return now - self._advanced_s.get(name, now)

    def forgive(self, now: float) -> None:
        """Count everybody's silence from now on: it was this server that did not listen."""
        self._advanced_s = dict.fromkeys(self.rows, now)


class Gossip(Generic[AnyRow]):
    """One server's part in the gossip: a machine without I/O.

    Parameters
    ----------
    table
        What it knows; shared with the machine whose gossip this is.
    rng
        Chooses whom to talk to.
    silent_after_s
        Who has been silent for longer is talked to by chance only: one in each round, so that two halves of a
        cut network find each other again.
    """

    def __init__(self, me: str, table: GossipTable[AnyRow], rng: Random, silent_after_s: float) -> None:
        self.me = me
        self.table = table
        self._rng = rng
        self._silent_after_s = silent_after_s

    def round(self, now: float) -> list[Effect]:
        """Greet log2(N) of those who are there, at least one, and one of those who are silent."""
        others = sorted(name for name, row in self.table.rows.items() if name != self.me and not row.is_gone)
        here = [name for name in others if self.table.silent_s(name, now) < self._silent_after_s]
        silent = [name for name in others if name not in here]
        count = min(len(here), max(1, ceil(log2(len(here) + 1))))
        partners = self._rng.sample(here, count) + self._rng.sample(silent, min(1, len(silent)))
        return [Send(partner, Greeting(self.table.digest())) for partner in partners]

    def handle(self, sender: str, message: object, now: float) -> list[Effect]:
        """Answer an exchange; other messages are nothing to gossip."""
        if isinstance(message, Greeting):
            rows = self.table.newer_than(message.digest)
            return [Send(sender, Reply(self.table.digest(), rows))]
        if isinstance(message, Reply):
            self.table.merge(message.rows, now)
            return [Send(sender, NewerRows(self.table.newer_than(message.digest)))]
        if isinstance(message, NewerRows):
            self.table.merge(message.rows, now)
        return []
