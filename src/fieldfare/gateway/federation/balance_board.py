"""The messages of brokers for balancing: their loads, and letters about sessions.

Both go along with the requests over links, before all entries, and are not stored. Loads reach all brokers of
the sites, only the newest of each counts, and old ones are ignored. A letter is for one broker, and is
passed on over shortest paths; it may be lost or repeated.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.wire import LETTER_HOPS_MAX, LETTERS_MAX, Letter, LoadRow

LETTER_S = 10.0
"""Seconds after which a letter that a neighbour has not taken is dropped."""

FORGOTTEN_S = 60.0
"""Seconds after which a load that has not been replaced can be replaced by one with a lower number.

Numbers are times: a broker whose clock was set back, or for which another broker once sent a very high
number, would otherwise never be heard again.
"""


class BalanceBoard:
    """The newest load of each broker, and the letters under way. Used on the event loop only."""

    def __init__(self, clusters: Clusters, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clusters = clusters
        self._clock_s = clock_s
        self._rows: dict[str, tuple[LoadRow, int, float]] = {}
        """By broker: its row, the change of this board that brought it, and when that was."""
        self._letters: dict[str, deque[tuple[int, float, Letter]]] = {}
        """By neighbour: letters, each with the change of this board that brought it, and when that was."""
        self._changes = 0
        self._sending: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self.on_row: Callable[[LoadRow], None] = lambda row: None
        """Called with each newer load of another broker."""
        self.on_letter: Callable[[Letter], None] = lambda letter: None
        """Called with each letter for this broker."""
        self.on_post: Callable[[], None] = lambda: None
        """Called when there are letters to be sent."""

    # Loads

    def put(self, row: LoadRow) -> bool:
        """Set a broker's load if it is newer than the known one; return whether it is."""
        now_s = self._clock_s()
        if row.name in self._rows:
            known, _, at_s = self._rows[row.name]
            is_forgotten = now_s - at_s > FORGOTTEN_S and row.number != known.number
            if known.number >= row.number and not is_forgotten:
                return False
        self._changes += 1
        self._rows[row.name] = row, self._changes, now_s
        return True

    def merge(self, rows: Iterable[LoadRow]) -> None:
        """Take over newer loads of brokers that are known here, other than this one."""
        for row in rows:
            if self._clusters.cluster_of(row.name) is not None and row.is_finite and self.put(row):
                self.on_row(row)

    def rows_for(self, peer: str) -> tuple[LoadRow, ...]:
        """Return the loads that have changed since the last request that a neighbour has answered.

        Those of brokers that tell it themselves are left out.
        """
        self._sending[peer] = self._changes
        sent, are_linked = self._sent.get(peer, 0), self._clusters.are_linked
        newer = [row for row, change, _ in self._rows.values() if change > sent and row.name != peer]
        me = self._clusters.name
        return tuple(row for row in newer if row.name == me or not are_linked(row.name, peer))

    def sent(self, peer: str) -> None:
        """Note that a neighbour has answered the last request."""
        self._sent[peer] = self._sending.get(peer, 0)

    def known(self) -> list[tuple[LoadRow, float]]:
        """Return all loads by name, each with its age in seconds."""
        now_s = self._clock_s()
        return [(row, now_s - at_s) for _, (row, _, at_s) in sorted(self._rows.items())]

    # Letters

    def post(self, letter: Letter) -> None:
        """Send a letter of this broker, or pass one on; it is lost if there is no path."""
        hop = self._clusters.path(letter.to)
        if hop is None:
            return
        self._changes += 1
        waiting = self._letters.setdefault(hop, deque(maxlen=LETTERS_MAX))
        waiting.append((self._changes, self._clock_s(), letter))
        self.on_post()

    def receive(self, letters: Iterable[Letter]) -> None:
        """Process letters that a neighbour has sent: for this broker, or to be passed on."""
        me = self._clusters.name
        for letter in letters:
            is_whole = letter.load is None or letter.load.is_finite
            if self._clusters.cluster_of(letter.source) is None or not is_whole:
                continue
            if letter.to == me:
                self.on_letter(letter)
            elif letter.hops < LETTER_HOPS_MAX:
                self.post(msgspec.structs.replace(letter, hops=letter.hops + 1))

    def has_letters(self, peer: str) -> bool:
        """Return whether letters wait for a neighbour."""
        return bool(self.letters_for(peer))

    def letters_for(self, peer: str) -> tuple[Letter, ...]:
        """Return the letters that a neighbour has not taken; `rows_for` goes with it, and then `sent`."""
        waiting, sent = self._letters.get(peer), self._sent.get(peer, 0)
        if waiting is None:
            return ()
        oldest_s = self._clock_s() - LETTER_S
        while waiting and (waiting[0][0] <= sent or waiting[0][1] < oldest_s):
            waiting.popleft()
        return tuple(letter for _, _, letter in waiting)
