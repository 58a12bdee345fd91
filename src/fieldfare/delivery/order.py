"""Messages of one ordering key, one after the other: a machine without I/O, a part of `Delivery`.

Where a subscription orders by key, what lanes give waits here until the key is read from its event and
everything before it that has the same key is settled::

    lanes ──add──▶ unread ──named──▶ queues, one a name ──take──▶ held by a session
                                          ▲                            │
                                          └──── free: it has failed ───┤
                                                                       ▼ settle: the next of its name

A *name* is a number that stands for an ordering key; two keys with one name wait for each other without need.
A message that is held, by a session or until its time has come, keeps its name's others waiting, and nobody
else. A name is *sticky*: the stream that had it last has it again, while it is open and has room.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice

from fieldfare.delivery.sessions import Session

ORDERED_MAX = 10_000
"""Messages that may wait here: behind so many of keys that fail all others wait, too."""

HOMES_MAX = 10_000
"""Names of which is known who had them last."""

Entry = tuple[int, int]
"""A message that may be first of its name, and that name."""


class Order:
    """See above. Every verb takes time logarithmic in what waits, for each message."""

    __slots__ = ("_busy", "_held", "_homes", "_names", "_open", "_own", "_queues", "_shared", "_unread")

    def __init__(self, keys: Iterable[int] = ()) -> None:
        self._unread: dict[int, None] = dict.fromkeys(keys)
        self._names: dict[int, int] = {}
        self._queues: dict[int, list[int]] = {}
        """By name, heaps; they may have settled ones within."""
        self._held: set[int] = set()
        self._busy: dict[int, int] = {}
        """How many of a name are held: one, but for those that were when the order began."""
        self._shared: list[Entry] = []
        """Those that anybody may take; an entry counts if it is still the first of its name, as in `_own`."""
        self._open: set[Session] = set()
        """Those for whom names are kept."""
        self._own: dict[Session, list[Entry]] = {}
        """Those for whom something is kept now."""
        self._homes: OrderedDict[int, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._unread) + len(self._names)

    @property
    def is_unread(self) -> bool:
        """Whether there is something whose name is to be found."""
        return bool(self._unread)

    def __iter__(self) -> Iterator[int]:
        """All that waits or is held."""
        return iter((*self._unread, *self._names))

    def unread(self, limit: int) -> list[int]:
        """Messages whose names are to be found."""
        return list(islice(self._unread, limit))

    def add(self, keys: Iterable[int]) -> None:
        """These wait now, after all that were added."""
        self._unread.update(dict.fromkeys(keys))

    def name(self, key: int, name: int | None, *, is_held: bool) -> None:
        """The name of a message is known; None for one without a key, which waits for nobody."""
        if key not in self._unread:
            return  # it was settled meanwhile, or somebody else has said it
        del self._unread[key]
        found = self._names[key] = ~key if name is None else name
        heapq.heappush(self._queues.setdefault(found, []), key)
        if is_held:
            self._hold(key, found)
        else:
            self._offer(found)

    def has(self, session: Session) -> bool:
        """Whether `take` would give a session something, once all names are known."""
        own = self._own.get(session)
        return bool((own and self._first(own)) or self._first(self._shared) or self._lent())

    def take(self, session: Session) -> int | None:
        """The oldest message that a session may have: it is held from now on.

        None while any name is to be found: it may be of a message that comes before those that are known.
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
            self.settle(key)  # it settles messages by their order, and would wait for itself
            return key
        self._hold(key, name)
        if not session.is_shared and name >= 0:
            self._homes[name] = session
            self._homes.move_to_end(name)
            if len(self._homes) > HOMES_MAX:
                self._homes.popitem(last=False)
        return key

    def free(self, key: int) -> None:
        """A message can be given, again or for the first time."""
        name = self._names.get(key)
        if name is None:
            self._unread[key] = None
            return
        self._let_go(key, name)
        self._offer(name)

    def settle(self, key: int) -> None:
        """A message is dealt with: the next of its name may be given."""
        self._unread.pop(key, None)
        name = self._names.pop(key, None)
        if name is not None:
            self._let_go(key, name)
            self._offer(name)

    def leave(self, session: Session) -> None:
        """A session has ended: what was kept for it is anybody's."""
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
        """If nothing of a name is held, its first message may be taken."""
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
        """Whether there is something in a heap, once what does not count has left it."""
        while heap:
            key, name = heap[0]
            queue = self._queues.get(name)
            if queue and queue[0] == key and name not in self._busy and key in self._names:
                return True
            heapq.heappop(heap)
        return False

    def _lent(self) -> list[Entry]:
        """What is kept for a session that has no room now, or for any where nothing else may come."""
        is_full = len(self) >= ORDERED_MAX
        for session, heap in list(self._own.items()):
            if not self._first(heap):
                del self._own[session]
            elif is_full or session.room <= 0:
                return heap
        return []
