"""Gossip: every matcher's row reaches all others by exchanges with a few random ones.

Li et al. 2011, section III.C, after Cassandra: each matcher periodically exchanges its table with
log(N) randomly selected matchers. An exchange is three messages (digest; newer rows and digest; newer
rows), after which both have the later version of each row; it takes log(N) rounds to reach everybody.
Messages may be lost, doubled or late: merging rows never goes back.
"""

from __future__ import annotations

from math import ceil, log2
from random import Random

from fieldfare.membership.messages import Answer, Effect, Greeting, Rows, Send
from fieldfare.membership.table import State, Table


class Gossip:
    """One server's part in the gossip: a machine without I/O.

    Parameters
    ----------
    table : what it knows; shared with the matcher whose gossip this is
    rng : chooses whom to talk to
    silent_after_s : who has been silent for longer is talked to by chance only: one in each round, so
        that two halves of a cut network find each other again.
    """

    def __init__(self, me: str, table: Table, rng: Random, silent_after_s: float) -> None:
        self.me = me
        self.table = table
        self._rng = rng
        self._silent_after_s = silent_after_s

    def round(self, now: float) -> list[Effect]:
        """Greet log2(N) of those who are there, at least one, and one of those who are silent."""
        rows = self.table.rows
        others = sorted(name for name in rows if name != self.me and rows[name].state is not State.LEFT)
        here = [name for name in others if self.table.silent_s(name, now) < self._silent_after_s]
        silent = [name for name in others if name not in here]
        count = min(len(here), max(1, ceil(log2(len(here) + 1))))
        partners = self._rng.sample(here, count) + self._rng.sample(silent, min(1, len(silent)))
        return [Send(partner, Greeting(self.table.digest())) for partner in partners]

    def handle(self, sender: str, message: object, now: float) -> list[Effect]:
        """Answer an exchange; other messages are nothing to gossip."""
        if isinstance(message, Greeting):
            rows = self.table.newer_than(message.digest)
            return [Send(sender, Answer(self.table.digest(), rows))]
        if isinstance(message, Answer):
            self.table.merge(message.rows, now)
            return [Send(sender, Rows(self.table.newer_than(message.digest)))]
        if isinstance(message, Rows):
            self.table.merge(message.rows, now)
        return []
