"""Sessions, which take messages, and the leases of their messages."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence

from fieldfare.delivery.pages import KeySet

KEPT_SESSIONS = 4
"""Maximum sessions whose messages without a deadline are a set of keys; others use a lease.

The bound is small, as a message is looked up in each set."""

FORGOTTEN_KEYS = 16
"""Keys of a lease without a deadline, beyond twice its open messages, at which settled keys are removed."""


class Session:
    """A consumer of messages: one stream, or all pulls of a subscription.

    Parameters
    ----------
    window
        Maximum number of unacked messages that the session may hold.
    is_auto
        Whether it settles messages itself, in order: its leases have no deadline, and its window bounds it.
    is_shared
        Whether it stands for many readers that come and go: no ordering keys are kept for it.
    """

    __slots__ = ("ended", "endless", "held", "is_auto", "is_shared", "leases", "window")

    def __init__(self, window: int, *, is_auto: bool = False, is_shared: bool = False) -> None:
        self.window = window
        self.is_auto = is_auto
        self.is_shared = is_shared
        self.held = 0
        self.leases: set[Lease] = set()
        """The leases with messages that are not settled."""
        self.endless: Lease | None = None
        """The last lease without a deadline: while it is open, further messages without one go to it."""
        self.ended = False
        """Whether another session has replaced this one: it must take no more messages."""

    @property
    def room(self) -> int:
        return self.window - self.held


class Lease:
    """Messages leased to one session until one deadline; ``open`` counts those that are not settled."""

    __slots__ = ("deadline_s", "keys", "open", "session")

    def __init__(self, session: Session, deadline_s: float, keys: list[int]) -> None:
        self.session = session
        self.deadline_s = deadline_s
        self.keys = keys
        self.open = len(keys)

    def __lt__(self, other: Lease) -> bool:
        return self.deadline_s < other.deadline_s


class Leases:
    """The leases of one subscription: the holder of each leased message, and its deadline."""

    __slots__ = (
        "_kept",
        "_lacking_bytes",
        "_mean_bytes",
        "_of",
        "_settled",
        "_size_bytes",
        "_sizes",
        "deadlines",
    )

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        """The size in bytes of each leased message whose event has been read."""
        self._size_bytes = 0
        self._mean_bytes = math.inf
        """The estimated size of a message that has not been read; none is known before the first."""
        self._lacking_bytes = 0
        """The size of a message that did not fit: until it fits, no message is leased."""
        self._of: dict[int, Lease] = {}
        """The lease of each message that is in no set of `_kept`."""
        self._kept: dict[Session, KeySet] = {}
        """The messages of sessions without a deadline."""
        self.deadlines: list[Lease] = []
        """A heap of the leases with a deadline."""
        self._settled = 0
        """Number of `deadlines` that belong to leases without open messages."""

    def __len__(self) -> int:
        return len(self._of) + sum(map(len, self._kept.values()))

    def __contains__(self, key: int) -> bool:
        return self.holder(key) is not None

    def __iter__(self) -> Iterator[int]:
        yield from self._of
        for kept in self._kept.values():
            yield from kept

    def holder(self, key: int) -> Session | None:
        """Return the session that holds a message; None if it is not leased."""
        lease = self._of.get(key)
        if lease is not None:
            return lease.session
        return next((session for session, kept in self._kept.items() if key in kept), None)

    @property
    def next_deadline_s(self) -> float:
        """The next lease deadline, in seconds, or infinity; its lease may have no open messages."""
        return self.deadlines[0].deadline_s if self.deadlines else math.inf

    def give(self, session: Session, keys: list[int], deadline_s: float) -> None:
        """Lease messages, none of which is leased yet, to a session until a deadline."""
        leases = self._of
        session.held += len(keys)
        if deadline_s == math.inf:
            if self._keep(session, keys):
                return
            lease = self._endless(session, keys)
        else:
            lease = Lease(session, deadline_s, keys)
            session.leases.add(lease)
            heapq.heappush(self.deadlines, lease)
        for key in keys:
            leases[key] = lease

    def _keep(self, session: Session, keys: Sequence[int]) -> bool:
        """Add messages without a deadline to the session's set of keys; False if it gets no set."""
        kept = self._kept.get(session)
        if kept is None:
            if len(self._kept) >= KEPT_SESSIONS:
                return False
            kept = self._kept[session] = KeySet()
        for key in keys:
            kept.add(key)
        return True

    def _endless(self, session: Session, keys: Sequence[int]) -> Lease:
        """Return the session's one lease without a deadline, with ``keys`` added.

        One, as Python's garbage collector would visit each of a hundred leases of thousands of streams.
        """
        lease = session.endless
        if lease is None or not lease.open:
            lease = session.endless = Lease(session, math.inf, list(keys))
            session.leases.add(lease)
            return lease
        if len(lease.keys) >= 2 * lease.open + FORGOTTEN_KEYS:
            lease.keys = [key for key in lease.keys if self._of.get(key) is lease]
        lease.keys += keys
        lease.open += len(keys)
        return lease

    def weigh(self, key: int, size_bytes: int, max_bytes: int) -> bool:
        """Count the size of a leased message; False if it does not fit and is not the only one."""
        session = self.holder(key)
        if session is None:
            return True
        others_bytes = self._size_bytes - self._sizes.get(key, 0)
        if others_bytes and others_bytes + size_bytes > max_bytes and not session.is_auto:
            self._lacking_bytes = size_bytes
            return False
        self._size_bytes = others_bytes + size_bytes
        self._sizes[key] = size_bytes
        self._mean_bytes = self._size_bytes / len(self._sizes)
        self._lacking_bytes = 0
        return True

    def forget_mean(self) -> None:
        """Lease no more messages until the size of each leased one is known."""
        self._mean_bytes = math.inf

    def fitting(self, max_bytes: int) -> int:
        """Return how many more messages may be leased, by estimated size; `weigh` checks each one."""
        unknown = len(self) - len(self._sizes)
        left_bytes = float(max_bytes - self._size_bytes)
        if (unknown and self._mean_bytes == math.inf) or (
            self._size_bytes and self._lacking_bytes > left_bytes
        ):
            return 0
        left_bytes -= unknown * self._mean_bytes if unknown else 0
        return 0 if left_bytes <= 0 else max(1, int(left_bytes // self._mean_bytes))

    def end(self, keys: Sequence[int]) -> list[int]:
        """End the leases of messages; return the messages that were not leased."""
        leases, others = self._of, []
        for key in keys:
            lease = leases.pop(key, None)
            if lease is None:
                if not self._end_kept(key):
                    others.append(key)
                continue
            lease.session.held -= 1
            lease.open -= 1
            if lease.open == 0:
                lease.session.leases.discard(lease)
                if lease.deadline_s != math.inf:
                    lease.keys = []
                    self._settled += 1
                    self._forget_settled()
        if self._sizes:
            self._forget_sizes(keys)
        return others

    def _end_kept(self, key: int) -> bool:
        for session, kept in self._kept.items():
            if kept.remove(key):
                session.held -= 1
                if not kept:
                    del self._kept[session]
                return True
        return False

    def extend(self, keys: Iterable[int], deadline_s: float) -> int:
        """Set a new deadline for leased messages, except those of auto sessions; return how many."""
        found: dict[Session, list[int]] = {}
        sizes = {}
        for key in keys:
            lease = self._of.get(key)
            if lease is not None and not lease.session.is_auto:
                if key in self._sizes:
                    sizes[key] = self._sizes[key]
                self.end((key,))
                found.setdefault(lease.session, []).append(key)
        for session, extended in found.items():
            self.give(session, extended, deadline_s)
        self._sizes |= sizes
        self._size_bytes += sum(sizes.values())
        return sum(map(len, found.values()))

    def expired(self, now_s: float) -> Iterator[list[int]]:
        """Yield the open messages of each lease that has expired; the caller ends their leases with `end`."""
        while self.deadlines and self.deadlines[0].deadline_s <= now_s:
            lease = heapq.heappop(self.deadlines)
            if lease.open == 0:
                self._settled -= 1
                continue
            lease.deadline_s = math.inf  # it is no longer in deadlines
            yield [key for key in lease.keys if self._of.get(key) is lease]

    def release(self, session: Session) -> list[int]:
        """End all leases of a session; return its messages."""
        keys: list[int] = []
        for lease in session.leases:
            # A message that failed and was delivered again is in a lease without a deadline twice.
            keys += dict.fromkeys(key for key in lease.keys if self._of.get(key) is lease)
            lease.open, lease.keys = 0, []
            self._settled += lease.deadline_s != math.inf
        session.leases.clear()
        session.held = 0
        for key in keys:
            del self._of[key]
        keys += self._kept.pop(session, ())
        self._forget_sizes(keys)
        self._forget_settled()
        return keys

    def clear(self) -> None:
        """End all leases."""
        for lease in set(self._of.values()):
            lease.session.held = lease.open = 0
            lease.session.leases.clear()
            lease.keys = []
        self._of.clear()
        for session in self._kept:
            session.held = 0
        self._kept.clear()
        self._sizes.clear()
        self._size_bytes = 0
        self.deadlines, self._settled = [], 0

    def _forget_sizes(self, keys: Sequence[int]) -> None:
        for key in keys:
            self._size_bytes -= self._sizes.pop(key, 0)

    def _forget_settled(self) -> None:
        """Remove settled leases from the deadlines once they are half of all, before their deadlines pass."""
        if self._settled > 16 and 2 * self._settled > len(self.deadlines):
            self.deadlines = [each for each in self.deadlines if each.open]
            heapq.heapify(self.deadlines)
            self._settled = 0
