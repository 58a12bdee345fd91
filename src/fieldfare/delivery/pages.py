"""Collections of integer keys in pages of a fixed size, eight bytes per key.

Thousands of streams hold a thousand keys each, which are added one by one. A single array per stream would be
reallocated again and again to slightly larger sizes, and the fragments between would waste a third of the
memory. A full page has exactly the memory it needs, and its memory is reused by another page. Lists of
integers, as in the package sortedcontainers, take 40 bytes per key.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from operator import itemgetter

PAGE_KEYS = 64

_last = itemgetter(-1)


class KeyQueue:
    """A queue of keys: appended at the end, removed at the front.

    `place` and `behind` need the keys in ascending order.
    """

    __slots__ = ("_first", "_pages", "_size")

    def __init__(self) -> None:
        self._pages: list[array[int]] = []
        """All pages but the last are full."""
        self._first = 0
        """The index of the first key in the first page."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int) -> int:
        """Return the key at an index, counted from 0."""
        page, at = divmod(self._first + place, PAGE_KEYS)
        return self._pages[page][at]

    def extend(self, keys: Sequence[int]) -> None:
        """Append keys at the end."""
        pages, at = self._pages, 0
        while at < len(keys):
            if not pages or len(pages[-1]) == PAGE_KEYS:
                pages.append(array("q"))
            upto = at + PAGE_KEYS - len(pages[-1])
            pages[-1].extend(keys[at:upto])
            if len(pages[-1]) == PAGE_KEYS:
                pages[-1] = pages[-1][:]  # a copy without spare memory
            at = upto
        self._size += len(keys)

    def drop(self, count: int) -> None:
        """Remove the first ``count`` keys."""
        self._size -= count
        gone, self._first = divmod(self._first + count, PAGE_KEYS)
        if not self._size:
            self._pages, self._first = [], 0
        elif gone:
            del self._pages[:gone]

    def first(self, count: int) -> list[int]:
        """Return the first ``count`` keys, or all if there are fewer."""
        pages = -(-(self._first + count) // PAGE_KEYS)
        keys = [key for page in self._pages[:pages] for key in page]
        return keys[self._first : self._first + count]

    def place(self, key: int) -> int:
        """Return the number of keys less than ``key``."""
        at = bisect_left(self._pages, key, key=_last)
        return self._place(at, bisect_left(self._pages[at], key) if at < len(self._pages) else 0)

    def behind(self, key: int) -> int:
        """Return the number of keys less than or equal to ``key``."""
        at = bisect_right(self._pages, key, key=_last)
        return self._place(at, bisect_right(self._pages[at], key) if at < len(self._pages) else 0)

    def _place(self, page: int, at: int) -> int:
        if page == len(self._pages):
            return self._size
        return max(0, page * PAGE_KEYS + at - self._first)


class KeySet:
    """A sorted set of keys, fast where most are added at the end and removed at the front."""

    __slots__ = ("_pages", "_size")

    def __init__(self) -> None:
        self._pages: list[array[int]] = []
        """No page is empty."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        for page in self._pages:
            yield from page

    def __contains__(self, key: int) -> bool:
        at = bisect_left(self._pages, key, key=_last)
        if at == len(self._pages):
            return False
        page = self._pages[at]
        return page[bisect_left(page, key)] == key

    def add(self, key: int) -> None:
        """Add a key that is not in the set."""
        pages = self._pages
        at = bisect_left(pages, key, key=_last)
        if at == len(pages):
            if at and len(pages[-1]) < PAGE_KEYS:
                at -= 1
            else:
                pages.append(array("q"))
        page = pages[at]
        insort(page, key)
        if len(page) == PAGE_KEYS:
            pages[at] = page[:]  # a copy without spare memory
        elif len(page) > PAGE_KEYS:
            half = PAGE_KEYS // 2
            pages[at : at + 1] = page[:half], page[half:]
        self._size += 1

    def remove(self, key: int) -> bool:
        """Remove a key; False if it is not in the set."""
        pages = self._pages
        at = bisect_left(pages, key, key=_last)
        if at == len(pages):
            return False
        page = pages[at]
        place = bisect_left(page, key)
        if page[place] != key:
            return False
        del page[place]
        if not page:
            del pages[at]
        self._size -= 1
        return True
