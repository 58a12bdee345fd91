"""Gossip: every server's row reaches all others by exchanges with a few random ones.

Li et al. 2011, section III.C, after Cassandra: each matcher periodically exchanges its table with log(N)
randomly selected matchers. An exchange is three messages (digest; newer rows and digest; newer rows), after
which both have the later version of each row; a row reaches all servers in log(N) rounds. Messages may be
lost, duplicated or late: merging never replaces a row by an older one.

Gossip does not depend on a row's content: it uses the name, the version, which the row's own server
increments, and whether the server has left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, log2
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from fieldfare.effects import Effect, Send


class Row(Protocol):
    """The row in which one server describes itself to all others.

    Attributes
    ----------
    name
        Its address; a restarted server takes a new one.
    version
        Increases with every change, and with every heartbeat.
    is_gone
        Whether it has left: then no messages are sent to it.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def is_gone(self) -> bool: ...


AnyRow = TypeVar("AnyRow", bound=Row)

Digest = Mapping[str, int]
"""The version of every row in a table."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """Starts an exchange: the sender's digest."""

    digest: Digest


@dataclass(frozen=True, slots=True)
class Reply:
    """Answers a `Greeting`: the sender's digest, and the rows that the receiver lacks."""

    digest: Digest
    rows: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class NewerRows:
    """Rows that the receiver lacks; also a dispatcher's answer to its pull, and to a stale table."""

    rows: tuple[Any, ...]


class GossipTable(Generic[AnyRow]):
    """The rows that one server knows, and when each last advanced.

    A row is written only by its own server; so tables merge row by row, the later version wins, and any order
    of merging leads to the same table.
    """

    def __init__(self) -> None:
        self.rows: dict[str, AnyRow] = {}
        self._advanced_s: dict[str, float] = {}

    def merge(self, rows: Iterable[AnyRow], now: float) -> list[AnyRow]:
        """Add rows that are newer than the known ones; return them."""
        newer = []
        for row in rows:
            known = self.rows.get(row.name)
            if known is None or row.version > known.version:
                self.rows[row.name] = row
                self._advanced_s[row.name] = now
                newer.append(row)
        return newer

    def digest(self) -> Digest:
        """Return the version of every known row."""
        return {name: row.version for name, row in self.rows.items()}

    def newer_than(self, digest: Digest) -> tuple[AnyRow, ...]:
        """Return every row that is newer than in a digest, or missing there."""
        return tuple(row for name, row in self.rows.items() if row.version > digest.get(name, -1))

    def silent_s(self, name: str, now: float) -> float:
        """Return the seconds since a server's row last advanced."""
        return now - self._advanced_s.get(name, now)

    def forgive(self, now: float) -> None:
        """Restart the silence of all servers now: this server did not listen."""
        self._advanced_s = dict.fromkeys(self.rows, now)


class Gossip(Generic[AnyRow]):
    """One server's part in the gossip: a machine without I/O.

    Parameters
    ----------
    me
        This server's name.
    table
        The known rows; shared with the machine that uses them.
    rng
        Selects the partners.
    silent_after_s
        Silence in seconds after which a server is contacted only at random, one per round, so that two halves
        of a partitioned network find each other again.
    """

    def __init__(self, me: str, table: GossipTable[AnyRow], rng: Random, silent_after_s: float) -> None:
        self.me = me
        self.table = table
        self._rng = rng
        self._silent_after_s = silent_after_s

    def round(self, now: float) -> list[Effect]:
        """Greet log2(N) of the servers that are not silent (at least one), and one silent server."""
        others = sorted(name for name, row in self.table.rows.items() if name != self.me and not row.is_gone)
        here = [name for name in others if self.table.silent_s(name, now) < self._silent_after_s]
        silent = [name for name in others if name not in here]
        count = min(len(here), max(1, ceil(log2(len(here) + 1))))
        partners = self._rng.sample(here, count) + self._rng.sample(silent, min(1, len(silent)))
        return [Send(partner, Greeting(self.table.digest())) for partner in partners]

    def handle(self, sender: str, message: object, now: float) -> list[Effect]:
        """Answer a message of an exchange; other messages are ignored."""
        if isinstance(message, Greeting):
            rows = self.table.newer_than(message.digest)
            return [Send(sender, Reply(self.table.digest(), rows))]
        if isinstance(message, Reply):
            self.table.merge(message.rows, now)
            return [Send(sender, NewerRows(self.table.newer_than(message.digest)))]
        if isinstance(message, NewerRows):
            self.table.merge(message.rows, now)
        return []
