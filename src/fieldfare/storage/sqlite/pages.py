"""A reader of SQLite files that does not use SQLite: it skips corrupt pages that stop SQLite.

A table is a tree of pages (https://www.sqlite.org/fileformat2.html). Each row is checked separately: a cell
is accepted only if its lengths are consistent. So damage affects only the rows that it hits.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_INDEX_INNER, _TABLE_INNER, _INDEX_LEAF, _TABLE_LEAF = 2, 5, 10, 13
_INT_SIZES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_FLOAT = 7

Row = tuple[int, list[Any]]
"""The rowid, 0 in a table without rowids, and the row's values as they are stored."""


class DamagedPageError(Exception):
    """The bytes are not a valid cell of a page."""


@dataclass
class Tree:
    """The pages found in one table or index.

    Attributes
    ----------
    pages
        Numbers of the pages that belong to the tree.
    damaged
        Number of pages and cells that could not be read.
    """

    pages: set[int] = field(default_factory=set)
    damaged: int = 0


class PageFile:
    """A read-only view of a SQLite file that has no writers and an empty WAL.

    Parameters
    ----------
    path
        The file.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        size = int.from_bytes(self._file[16:18])
        self._page_bytes = 65_536 if size == 1 else size
        self._usable = self._page_bytes - self._file[20]
        self.count = len(self._file) // self._page_bytes

    def close(self) -> None:
        self._file.close()

    def rows(self, root: int, tree: Tree, *, has_numbers: bool) -> Iterator[Row]:
        """Yield the readable rows of a table.

        Parameters
        ----------
        root
            Number of the table's root page.
        tree
            Receives the visited pages and the number of damaged ones.
        has_numbers
            Whether the rows have rowids; a table without rowids is stored like an index.
        """
        inner = _TABLE_INNER if has_numbers else _INDEX_INNER
        waiting = [root]
        while waiting:
            number = waiting.pop()
            if not 1 <= number <= self.count or number in tree.pages:
                tree.damaged += 1
                continue
            tree.pages.add(number)
            page, head = self._page(number)
            is_inner = page[head] == inner
            if page[head] not in (inner, inner + 8):
                tree.damaged += 1
            for at in self._cells(page, head, is_inner, tree):
                if is_inner:
                    waiting.append(int.from_bytes(page[at : at + 4]))
                    at += 4
                if not (is_inner and has_numbers):
                    try:
                        yield self._row(page, at, has_numbers, tree)
                    except (DamagedPageError, IndexError, struct.error):
                        tree.damaged += 1
            if is_inner:
                waiting.append(int.from_bytes(page[head + 8 : head + 12]))

    def unused(self) -> set[int] | None:
        """Return the pages on the free list; None if the list is damaged."""
        found = set[int]()
        trunk, expected = int.from_bytes(self._file[32:36]), int.from_bytes(self._file[36:40])
        while trunk:
            if not 1 <= trunk <= self.count or trunk in found:
                return None
            page, _ = self._page(trunk)
            leaves = int.from_bytes(page[4:8])
            if leaves > self._usable // 4 - 2:
                return None
            found.add(trunk)
            found.update(struct.unpack_from(f">{leaves}I", page, 8))
            trunk = int.from_bytes(page[:4])
        return found if len(found) == expected else None

    def leaf_rows(self, number: int, tree: Tree) -> tuple[bool, list[Row]]:
        """Return whether a page outside every tree has rows with rowids, and its rows if all are readable."""
        page, head = self._page(number)
        rows: list[Row] = []
        if page[head] in (_TABLE_LEAF, _INDEX_LEAF):
            for at in self._cells(page, head, False, tree):
                try:
                    rows.append(self._row(page, at, page[head] == _TABLE_LEAF, tree))
                except (DamagedPageError, IndexError, struct.error):
                    return False, []
        return page[head] == _TABLE_LEAF, rows

    def _page(self, number: int) -> tuple[bytes, int]:
        """Return a page and the position of its header."""
        start = (number - 1) * self._page_bytes
        return self._file[start : start + self._page_bytes], 100 if number == 1 else 0

    def _cells(self, page: bytes, head: int, is_inner: bool, tree: Tree) -> Iterator[int]:
        first = head + (12 if is_inner else 8)
        count = int.from_bytes(page[head + 3 : head + 5])
        end = first + 2 * count
        if end > self._usable:
            tree.damaged += 1
            return
        for at in struct.unpack_from(f">{count}H", page, first):
            if end <= at <= self._usable - 4:
                yield at
            else:
                tree.damaged += 1

    def _row(self, page: bytes, at: int, has_number: bool, tree: Tree) -> Row:
        size, at = _varint(page, at)
        number = 0
        if has_number:
            number, at = _varint(page, at)
            number -= (number >> 63) << 64
        if size > len(self._file):
            raise DamagedPageError
        local = self._local_bytes(size, has_number)
        if at + local > self._usable:
            raise DamagedPageError
        payload = page[at : at + local]
        if local < size:
            payload = self._overflow(payload, size, int.from_bytes(page[at + local : at + local + 4]), tree)
        return number, _values(payload)

    def _local_bytes(self, size: int, has_number: bool) -> int:
        """Return the number of bytes of a row in the page itself; the rest is in overflow pages."""
        usable = self._usable
        most = usable - 35 if has_number else (usable - 12) * 64 // 255 - 23
        if size <= most:
            return size
        least = (usable - 12) * 32 // 255 - 23
        some = least + (size - least) % (usable - 4)
        return some if some <= most else least

    def _overflow(self, start: bytes, size: int, number: int, tree: Tree) -> bytes:
        parts, left = [start], size - len(start)
        while left > 0:
            if not 1 <= number <= self.count or number in tree.pages:
                raise DamagedPageError
            tree.pages.add(number)
            page, _ = self._page(number)
            parts.append(page[4 : 4 + min(left, self._usable - 4)])
            left -= len(parts[-1])
            number = int.from_bytes(page[:4])
        return b"".join(parts)


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(8):
        byte = content[at + place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + place + 1
    return value << 8 | content[at + 8], at + 9


def _values(payload: bytes) -> list[Any]:
    """Decode a record; raise DamagedPageError if its lengths are inconsistent."""
    head_end, at = _varint(payload, 0)
    if head_end > len(payload):
        raise DamagedPageError
    kinds = []
    while at < head_end:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    if at != head_end:
        raise DamagedPageError
    values: list[Any] = []
    for kind in kinds:
        if kind == 0:
            values.append(None)
        elif kind in (8, 9):
            values.append(kind - 8)
        elif kind in (10, 11):
            raise DamagedPageError
        else:
            size = _INT_SIZES.get(kind, 8 if kind == _FLOAT else (kind - 12) // 2)
            content = payload[at : at + size]
            if len(content) != size:
                raise DamagedPageError
            at += size
            if kind in _INT_SIZES:
                values.append(int.from_bytes(content, signed=True))
            elif kind == _FLOAT:
                values.append(struct.unpack(">d", content)[0])
            else:
                # The row's checksum detects text that is no longer valid.
                values.append(content.decode(errors="replace") if kind % 2 else content)
    if at != len(payload):
        raise DamagedPageError
    return values
