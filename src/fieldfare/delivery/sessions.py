"""Those who take messages, and for how long they have them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence

from fieldfare.delivery.pages import KeySet

KEPT_SESSIONS = 4
"""Of so many sessions what they have without a deadline is a set of keys: a message is looked for in each."""

FORGOTTEN_KEYS = 16
"""What is settled of a lease without a deadline leaves it when it is so much more than the rest."""


class Session:
    """Somebody who takes messages: one stream, or all pulls of a subscription.

    Parameters
    ----------
    window
        How many messages the session may hold unacked.
    is_auto
        Whether it settles messages itself, by their order: its leases have no end, and it needs its window.
    is_shared
        Whether it stands for many readers, who come and go: nothing is kept for it.
    """

    __slots__ = ("ended", "endless", "held", "is_auto", "is_shared", "leases", "window")

    def __init__(self, window: int, *, is_auto: bool = False, is_shared: bool = False) -> None:
        self.window = window
        self.is_auto = is_auto
        self.is_shared = is_shared
        self.held = 0
        self.leases: set[Lease] = set()
        """Those with messages that are not settled."""
        self.endless: Lease | None = None
        """The last one without a deadline: as long as it is open, what else has none belongs to it."""
        self.ended = False
        """Whether another session has taken its place: it is to take nothing more."""

    @property
    def room(self) -> int:
        return self.window - self.held


class Lease:
    """Messages given to one session until one time; ``open`` counts those that are not settled."""

    __slots__ = ("deadline_s", "keys", "open", "session")

    def __init__(self, session: Session, deadline_s: float, keys: list[int]) -> None:
        self.session = session
        self.deadline_s = deadline_s
        self.keys = keys
        self.open = len(keys)

    def __lt__(self, other: Lease) -> bool:
        return self.deadline_s < other.deadline_s


class Leases:
    """Who has which messages of one subscription, and until when."""

    __slots__ = (
        "_kept",
        "_mean_bytes",
        "_of",
        "_settled",
        "_size_bytes",
        "_sizes",
        "deadlines",
        "is_weighed",
    )

    def __init__(self) -> None:
        self.is_weighed = False
        """Whether it counts how large messages are."""
        self._sizes: dict[int, int] = {}
        self._size_bytes = 0
        self._mean_bytes = math.inf
        """About how large a message is: until one was weighed they come one by one."""
        self._of: dict[int, Lease] = {}
        """By message."""
        self._kept: dict[Session, KeySet] = {}
        """What sessions have without a deadline."""
        self.deadlines: list[Lease] = []
        """A heap."""
        self._settled = 0
        """How many of the deadlines are of leases whose messages are all settled."""

    def __len__(self) -> int:
        return len(self._of) + sum(map(len, self._kept.values()))

    def __contains__(self, key: int) -> bool:
        return self.holder(key) is not None

    def __iter__(self) -> Iterator[int]:
        yield from self._of
        for kept in self._kept.values():
            yield from kept

    def holder(self, key: int) -> Session | None:
        """Who has a message, if anybody."""
        lease = self._of.get(key)
        if lease is not None:
            return lease.session
        return next((session for session, kept in self._kept.items() if key in kept), None)

    @property
    def next_deadline_s(self) -> float:
        """When the next one runs out; one whose messages are all settled may still be named."""
        return self.deadlines[0].deadline_s if self.deadlines else math.inf

    def give(self, session: Session, keys: list[int], deadline_s: float) -> None:
        """Messages that nobody has are a session's until then."""
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
        """Whether messages without a deadline are in the session's set of keys now."""
        kept = self._kept.get(session)
        if kept is None:
            if len(self._kept) >= KEPT_SESSIONS:
                return False
            kept = self._kept[session] = KeySet()
        for key in keys:
            kept.add(key)
        return True

    def _endless(self, session: Session, keys: Sequence[int]) -> Lease:
        """One lease for all: Python's collector would look at each of a hundred, of thousands of streams."""
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

    def weigh(self, keys: Iterable[int], sizes_bytes: Iterable[int]) -> None:
        """Messages are so large."""
        if self.is_weighed:
            for key, size_bytes in zip(keys, sizes_bytes, strict=True):
                if key in self:
                    self._size_bytes += size_bytes - self._sizes.get(key, 0)
                    self._sizes[key] = size_bytes
            if self._sizes:
                self._mean_bytes = self._size_bytes / len(self._sizes)

    def fitting(self, max_bytes: int) -> int:
        """About how many messages more may be given so that all have so many bytes; one, if none is given."""
        unknown = len(self) - len(self._sizes)
        left_bytes = float(max_bytes - self._size_bytes)
        if unknown and self._mean_bytes == math.inf:
            return 0
        left_bytes -= unknown * self._mean_bytes if unknown else 0
        return 0 if left_bytes <= 0 else max(1, int(left_bytes // self._mean_bytes))

    def end(self, keys: Sequence[int]) -> list[int]:
        """Nobody has these messages any more; those that nobody had."""
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
        """What readers have who settle what they were given is theirs until then; how many those are."""
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
        self.weigh(sizes, sizes.values())
        return sum(map(len, found.values()))

    def expired(self, now_s: float) -> Iterator[list[int]]:
        """What was leased until now at most, one lease after the other; nobody has ended them yet."""
        while self.deadlines and self.deadlines[0].deadline_s <= now_s:
            lease = heapq.heappop(self.deadlines)
            if lease.open == 0:
                self._settled -= 1
                continue
            lease.deadline_s = math.inf  # it is not among the deadlines any more
            yield [key for key in lease.keys if self._of.get(key) is lease]

    def release(self, session: Session) -> list[int]:
        """End all that a session has; what that was."""
        keys: list[int] = []
        for lease in session.leases:
            # One that failed and was given anew is in a lease without a deadline twice.
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
        """End all."""
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
        """Leases that are settled leave when they are half of all, not when their deadline comes."""
        if self._settled > 16 and 2 * self._settled > len(self.deadlines):
            self.deadlines = [each for each in self.deadlines if each.open]
            heapq.heapify(self.deadlines)
            self._settled = 0
