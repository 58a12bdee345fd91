"""Keys in pages of one size, eight bytes each.

Thousands of streams have a thousand keys each, which come one by one. In one array each they would be copied
again and again to a place a little larger, and what lies between those places is of use to nobody: a third of
the memory. A page that is full has just the room that it needs, and when it goes another takes its place.
Lists of integers, as sorted containers have them, take 40 bytes a key.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from operator import itemgetter

PAGE_KEYS = 64

_last = itemgetter(-1)


class KeyQueue:
    """Keys that come at the end and go from the front. Those that find places need them to be in order."""

    __slots__ = ("_first", "_pages", "_size")

    def __init__(self) -> None:
        self._pages: list[array[int]] = []
        """All full but for the last."""
        self._first = 0
        """Where the first key lies in the first page."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int) -> int:
        """The key at a place, from 0 on."""
        page, at = divmod(self._first + place, PAGE_KEYS)
        return self._pages[page][at]

    def extend(self, keys: Sequence[int]) -> None:
        """These come after all before."""
        pages, at = self._pages, 0
        while at < len(keys):
            if not pages or len(pages[-1]) == PAGE_KEYS:
                pages.append(array("q"))
            upto = at + PAGE_KEYS - len(pages[-1])
            pages[-1].extend(keys[at:upto])
            if len(pages[-1]) == PAGE_KEYS:
                pages[-1] = pages[-1][:]  # without room for more
            at = upto
        self._size += len(keys)

    def drop(self, count: int) -> None:
        """The first ones go."""
        self._size -= count
        gone, self._first = divmod(self._first + count, PAGE_KEYS)
        if not self._size:
            self._pages, self._first = [], 0
        elif gone:
            del self._pages[:gone]

    def first(self, count: int) -> list[int]:
        """So many from the front, or all."""
        pages = -(-(self._first + count) // PAGE_KEYS)
        keys = [key for page in self._pages[:pages] for key in page]
        return keys[self._first : self._first + count]

    def place(self, key: int) -> int:
        """How many keys are less."""
        at = bisect_left(self._pages, key, key=_last)
        return self._place(at, bisect_left(self._pages[at], key) if at < len(self._pages) else 0)

    def behind(self, key: int) -> int:
        """How many keys are not greater."""
        at = bisect_right(self._pages, key, key=_last)
        return self._place(at, bisect_right(self._pages[at], key) if at < len(self._pages) else 0)

    def _place(self, page: int, at: int) -> int:
        if page == len(self._pages):
            return self._size
        return max(0, page * PAGE_KEYS + at - self._first)


class KeySet:
    """Different keys, in order; most come at the end and go from the front."""

    __slots__ = ("_pages", "_size")

    def __init__(self) -> None:
        self._pages: list[array[int]] = []
        """None is empty."""
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
        """Take in a key that is not there."""
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
            pages[at] = page[:]  # without room for more
        elif len(page) > PAGE_KEYS:
            half = PAGE_KEYS // 2
            pages[at : at + 1] = page[:half], page[half:]
        self._size += 1

    def remove(self, key: int) -> bool:
        """Let go of a key; False when it is not there."""
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
