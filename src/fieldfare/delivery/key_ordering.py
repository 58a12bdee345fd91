"""Ordered delivery, one message per ordering key at a time: a state machine without I/O in `Delivery`.

In a subscription that orders by key, each match from a `PartitionDelivery` waits here until the key is read
from its event and every earlier message with an equal key is settled::

    partitions ──add──▶ unread ──name──▶ queues, one a name ──take──▶ held by a session
                                              ▲                            │
                                              └──── free: it has failed ───┤
                                                                           ▼ settle: the next of its name

A *name* is a number that stands for an ordering key. Two keys with one name wait for each other
unnecessarily. A held message (leased to a session, or delayed) blocks only its own name. A name is *sticky*:
it stays with the stream that had it last, while that stream is open and has room.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice

from fieldfare.delivery.sessions import Session

ORDERED_MAX = 10_000
"""Maximum messages in the ordering; at the bound, messages of all other keys wait, too."""

HOMES_MAX = 10_000
"""Maximum names whose last stream is remembered; beyond it, the least recently taken are forgotten."""

Entry = tuple[int, int]
"""A message that may be the first of its name, and that name."""


class KeyOrdering:
    """The messages of a subscription that is ordered by key.

    Each method takes time logarithmic in the number of waiting messages, for each message it handles.
    """

    __slots__ = ("_busy", "_held", "_homes", "_names", "_open", "_own", "_queues", "_shared", "_unread")

    def __init__(self, keys: Iterable[int] = ()) -> None:
        self._unread: dict[int, None] = dict.fromkeys(keys)
        self._names: dict[int, int] = {}
        self._queues: dict[int, list[int]] = {}
        """Heaps of messages, by name; they may contain settled ones."""
        self._held: set[int] = set()
        self._busy: dict[int, int] = {}
        """Held messages by name: one, except for messages held before the ordering began."""
        self._shared: list[Entry] = []
        """Entries for any session. As in `_own`, an entry is valid while its message is first of its name."""
        self._open: set[Session] = set()
        """The sessions for which names are kept."""
        self._own: dict[Session, list[Entry]] = {}
        """The entries kept for each session now."""
        self._homes: OrderedDict[int, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._unread) + len(self._names)

    @property
    def is_unread(self) -> bool:
        """Whether a message has no name yet."""
        return bool(self._unread)

    def __iter__(self) -> Iterator[int]:
        """Iterate over all messages, waiting or held."""
        return iter((*self._unread, *self._names))

    def unread(self, limit: int) -> list[int]:
        """Return at most ``limit`` messages that have no name yet."""
        return list(islice(self._unread, limit))

    def add(self, keys: Iterable[int]) -> None:
        """Add messages, which wait after all added before."""
        self._unread.update(dict.fromkeys(keys))

    def name(self, key: int, name: int | None, *, is_held: bool) -> None:
        """Set the name of a message; None for a message without a key, which waits for no other."""
        if key not in self._unread:
            return  # it was settled meanwhile, or has its name already
        del self._unread[key]
        found = self._names[key] = ~key if name is None else name
        heapq.heappush(self._queues.setdefault(found, []), key)
        if is_held:
            self._hold(key, found)
        else:
            self._offer(found)

    def has(self, session: Session) -> bool:
        """Return whether `take` would return a message for a session, once all names are known."""
        own = self._own.get(session)
        return bool((own and self._first(own)) or self._first(self._shared) or self._lent())

    def take(self, session: Session) -> int | None:
        """Return the oldest message that a session may have, and hold it; None if there is none.

        None also while a message has no name: it may come before all messages that have one.
        """
        if self._unread:
            return None
        heaps = [self._shared]
        if not session.is_shared and not session.is_auto:
            self._open.add(session)
            heaps.append(self._own.get(session, []))
        heap = min((each for each in heaps if self._first(each)), default=None) or self._lent()
        if not heap:
            return None
        key, name = heapq.heappop(heap)
        if session.is_auto:
            self.settle(key)  # an auto session settles messages in order, and would wait for itself
            return key
        self._hold(key, name)
        if not session.is_shared and name >= 0:
            self._homes[name] = session
            self._homes.move_to_end(name)
            if len(self._homes) > HOMES_MAX:
                self._homes.popitem(last=False)
        return key

    def free(self, key: int) -> None:
        """Make a message available, again or for the first time."""
        name = self._names.get(key)
        if name is None:
            self._unread[key] = None
            return
        self._let_go(key, name)
        self._offer(name)

    def settle(self, key: int) -> None:
        """Settle a message: the next of its name becomes available."""
        self._unread.pop(key, None)
        name = self._names.pop(key, None)
        if name is not None:
            self._let_go(key, name)
            self._offer(name)

    def leave(self, session: Session) -> None:
        """End a session: any session may take the messages kept for it."""
        self._open.discard(session)
        for entry in self._own.pop(session, ()):
            heapq.heappush(self._shared, entry)

    def _hold(self, key: int, name: int) -> None:
        self._held.add(key)
        self._busy[name] = self._busy.get(name, 0) + 1

    def _let_go(self, key: int, name: int) -> None:
        if key in self._held:
            self._held.discard(key)
            self._busy[name] -= 1
            if not self._busy[name]:
                del self._busy[name]

    def _offer(self, name: int) -> None:
        """Make the first message of a name available, if none of the name is held."""
        queue = self._queues[name]
        while queue and self._names.get(queue[0]) != name:
            heapq.heappop(queue)
        if not queue:
            del self._queues[name]
        elif name not in self._busy:
            home = self._homes.get(name)
            heap = self._own.setdefault(home, []) if home is not None and home in self._open else self._shared
            heapq.heappush(heap, (queue[0], name))

    def _first(self, heap: list[Entry]) -> bool:
        """Remove the invalid entries at the front of a heap; return whether an entry is left."""
        while heap:
            key, name = heap[0]
            queue = self._queues.get(name)
            if queue and queue[0] == key and name not in self._busy and key in self._names:
                return True
            heapq.heappop(heap)
        return False

    def _lent(self) -> list[Entry]:
        """Return the entries kept for a session without room or, if the ordering is full, for any one."""
        is_full = len(self) >= ORDERED_MAX
        for session, heap in list(self._own.items()):
            if not self._first(heap):
                del self._own[session]
            elif is_full or session.room <= 0:
                return heap
        return []
