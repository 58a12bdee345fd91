"""The delivery of one subscription: a machine without I/O.

Matches are *fed* in order, *given* to sessions under a lease, and *acked*. A match that is nacked, or
whose lease runs out, or whose session ends is given *again*. The cursor stands at the first match that
is not acked; what is acked beyond it is remembered one by one::

    acked │ given: leased, acked or to be given again │ fed, not given yet │ not read yet
          ^ cursor                                                         ^ read_to

Positions are keys here: ``offset << 16 | index``, so that order and arithmetic are those of integers.
Time is passed in as seconds of a clock that never goes back.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fieldfare.model import Position
from fieldfare.storage.registry import Cursor

INDEX_BITS = 16
INDEX_MASK = (1 << INDEX_BITS) - 1

SPREAD_MAX = 50_000
"""Matches that may be given while an older one is not acked: a bound on what is remembered."""

_NOTHING: NDArray[np.int64] = np.empty(0, dtype=np.int64)


def key_of(position: Position) -> int:
    """The key of a position of partition 0."""
    return position.offset << INDEX_BITS | position.index


def position_of(key: int) -> Position:
    """The position that a key stands for."""
    return Position(0, key >> INDEX_BITS, key & INDEX_MASK)


class Session:
    """Somebody who takes messages: one stream, or all pulls of a subscription.

    Parameters
    ----------
    window
        How many messages the session may hold unacked.
    """

    __slots__ = ("held", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.held = 0

    @property
    def room(self) -> int:
        return self.window - self.held


class _Lease:
    """Messages given to one session at one time."""

    __slots__ = ("deadline_s", "keys", "session")

    def __init__(self, session: Session, deadline_s: float, keys: Sequence[int]) -> None:
        self.session = session
        self.deadline_s = deadline_s
        self.keys = keys

    def __lt__(self, other: _Lease) -> bool:
        return self.deadline_s < other.deadline_s


class Delivery:
    """Where one subscription's delivery stands.

    Parameters
    ----------
    number
        The subscription's number.
    cursor
        The key that everything before is acked (or is older than the subscription).
    acked
        Keys at or beyond the cursor that were acked.
    """

    def __init__(self, number: int, cursor: int, acked: Iterable[int] = ()) -> None:
        self.number = number
        self.read_to = cursor
        self.deleted = False
        self.saved = self.cursor_key = cursor
        self._acked = set(acked)
        self._given: deque[int] = deque()
        self._fed = _NOTHING
        self._fed_at = 0
        self._leases: dict[int, _Lease] = {}
        self._deadlines: list[_Lease] = []
        self._again: list[int] = []

    @classmethod
    def from_cursor(cls, number: int, cursor: Cursor) -> Delivery:
        """The delivery as a saved cursor left it: what was not acked will come again."""
        return cls(number, key_of(cursor.position), map(key_of, cursor.acked))

    def cursor(self) -> Cursor:
        """What must be saved so that no acked message ever comes again."""
        beyond = sorted(key for key in self._acked if key >= self.cursor_key)
        return Cursor(position_of(self.cursor_key), tuple(map(position_of, beyond)))

    @property
    def in_flight(self) -> int:
        """How many messages are leased."""
        return len(self._leases)

    @property
    def next_deadline_s(self) -> float | None:
        """When the next lease runs out; one whose messages are all settled may still be named."""
        return self._deadlines[0].deadline_s if self._deadlines else None

    @property
    def wants_feed(self) -> bool:
        """Whether nothing more can be given until more of the match log is read."""
        self._drop_settled()
        return not self._again and self._fed_at >= len(self._fed)

    def has_message(self, session: Session) -> bool:
        """Whether `take` would give this session something (expired leases aside)."""
        return session.room > 0 and not self.wants_feed and (bool(self._again) or self._spread_left() > 0)

    def feed(self, keys: NDArray[np.int64], read_to: int) -> None:
        """Take in the matches up to ``read_to``: ascending keys; those read before are left out."""
        keys = keys[np.searchsorted(keys, self.read_to) :]
        if len(keys):
            self._fed = np.concatenate((self._fed[self._fed_at :], keys))
            self._fed_at = 0
        self.read_to = max(self.read_to, read_to)
        self._advance()

    def take(self, session: Session, limit: int, now_s: float, lease_s: float) -> list[int]:
        """Up to ``limit`` messages for a session, each leased to it for ``lease_s`` seconds."""
        self.expire(now_s)
        room = min(limit, session.room)
        keys: list[int] = []
        while self._again and len(keys) < room:
            key = heapq.heappop(self._again)
            if self._is_open(key):
                keys.append(key)
        while len(keys) < room and self._fed_at < len(self._fed):
            count = min(room - len(keys), self._spread_left())
            if count <= 0:
                break
            fresh: list[int] = self._fed[self._fed_at : self._fed_at + count].tolist()
            self._fed_at += len(fresh)
            self._given.extend(fresh)
            # Acked before a restart, or before it was read: given in order, but to nobody.
            keys += [key for key in fresh if key not in self._acked] if self._acked else fresh
        if self._fed_at >= len(self._fed):
            self._fed, self._fed_at = _NOTHING, 0
        if keys:
            lease = _Lease(session, now_s + lease_s, keys)
            self._leases.update(dict.fromkeys(keys, lease))
            heapq.heappush(self._deadlines, lease)
            session.held += len(keys)
        self._advance()
        return keys

    def ack(self, keys: Iterable[int]) -> bool:
        """Settle messages for good; whether there was anything new in it."""
        changed = False
        for key in keys:
            if key < self.cursor_key or key in self._acked:
                continue
            if not self._end_lease(key) and len(self._acked) >= SPREAD_MAX:
                continue
            self._acked.add(key)
            changed = True
        if changed:
            self._advance()
        return changed

    def ack_up_to(self, key: int) -> bool:
        """Settle every match up to and including a key, given or not."""
        if key < self.cursor_key:
            return False
        while self._given and self._given[0] <= key:
            self._end_lease(self._given.popleft())
        self._fed_at += int(np.searchsorted(self._fed[self._fed_at :], key, side="right"))
        self.read_to = max(self.read_to, key + 1)
        self._acked = {acked for acked in self._acked if acked > key}
        self._advance()
        return True

    def nack(self, keys: Iterable[int]) -> int:
        """Give leased messages again, at once; how many those are."""
        count = 0
        for key in keys:
            if self._end_lease(key):
                heapq.heappush(self._again, key)
                count += 1
        return count

    def release(self, session: Session) -> None:
        """A session has ended: what it held unacked is to be given again."""
        self.nack([key for key, lease in self._leases.items() if lease.session is session])

    def expire(self, now_s: float) -> bool:
        """End the leases that have run out; whether something is to be given again because of it."""
        expired = False
        while self._deadlines and self._deadlines[0].deadline_s <= now_s:
            lease = heapq.heappop(self._deadlines)
            keys = [key for key in lease.keys if self._leases.get(key) is lease]
            expired |= self.nack(keys) > 0
        return expired

    def forget_unread(self) -> None:
        """Let go of matches read but not given: nobody is there to take them; they are read again later."""
        if self._fed_at < len(self._fed):
            self.read_to = int(self._fed[self._fed_at])
        self._fed, self._fed_at = _NOTHING, 0

    def _end_lease(self, key: int) -> bool:
        lease = self._leases.pop(key, None)
        if lease is None:
            return False
        lease.session.held -= 1
        return True

    def _is_open(self, key: int) -> bool:
        """Whether a message to be given again still should be."""
        return key >= self.cursor_key and key not in self._acked and key not in self._leases

    def _drop_settled(self) -> None:
        while self._again and not self._is_open(self._again[0]):
            heapq.heappop(self._again)

    def _spread_left(self) -> int:
        return SPREAD_MAX - len(self._given)

    def _advance(self) -> None:
        """Move the cursor over what is acked and over what did not match."""
        while self._given and self._given[0] in self._acked:
            self._acked.discard(self._given.popleft())
        if self._given:
            self.cursor_key = self._given[0]
        elif self._fed_at < len(self._fed):
            self.cursor_key = int(self._fed[self._fed_at])
        else:
            self.cursor_key = self.read_to
        if self._acked and not self._given:
            self._acked = {key for key in self._acked if key >= self.cursor_key}
