"""JSON lines to columns: only the attributes that some filter names, everything else is skipped.

The payload is scanned once by a compiled kernel (``json_kernels``). Strings stay where they are, so the
payload itself is the batch's text; only strings with escapes are unescaped, to bytes appended to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.columns import KIND_EXACT, KIND_FLOAT, Column, ColumnBatch
from fieldfare.matching.json_bytes import KIND_ESCAPED
from fieldfare.matching.json_kernels import (
    NONE,
    Trie,
    hash_key,
    scan_lines,
    survey_kinds,
    unescape_strings,
)
from fieldfare.matching.json_numbers import KIND_UNREAD
from fieldfare.model import Path

Payload = bytes | bytearray | memoryview | NDArray[np.uint8]

_MOST_BYTES = (1 << 31) - 1
_MOST_INT_DIGITS = 4300
_CACHE_LINE_BYTES = 64
_PLANS_KEPT = 64


class DecodeError(ValueError):
    """A line of a payload is not a JSON object; ``line`` counts from 0.

    ``byte`` is the place in the payload where it showed, if known. Line ``size`` is the one after the
    last that was expected.
    """

    def __init__(self, line: int, byte: int | None = None) -> None:
        place = f"line {line}" if byte is None else f"line {line} (at byte {byte} of the payload)"
        super().__init__(f"{place} is not one JSON object that ends in a newline")
        self.line = line
        self.byte = byte


def decode_json_lines(payload: Payload, size: int, paths: Sequence[Path]) -> ColumnBatch:
    """Decode events, one JSON object a line, to columns of the attributes named by ``paths``.

    Parameters
    ----------
    payload : bytes-like
        UTF-8; ``size`` lines, each ends in ``b"\\n"``. Not copied unless a string that is asked for
        has escapes; it must not change while the batch is in use.
    size : int
        How many lines there are.
    paths : sequence of Path
        A string step is the member of an object, an integer step the element of an array.

    Returns
    -------
    ColumnBatch
        Without a column for a path that no event has. A number without fraction and exponent is an
        exact integer, any other a correctly rounded float64 (infinite if it is too large). Of repeated
        keys the last counts. A surrogate without its partner (``\\ud800``) is read as U+FFFD.

    Raises
    ------
    DecodeError
        A line is not a JSON object. What is skipped is checked for strings and brackets only, and
        UTF-8 is not checked: that was done when the event was accepted.
    ValueError
        The payload has 2 GiB or more.
    """
    data = _as_bytes(payload)
    plan = _plan(tuple(paths))
    rows = len(plan.rows)
    kinds = np.zeros((rows, _padded(size, 1)), np.uint8)
    words = np.zeros((rows, _padded(size, 8)), np.int64)
    line, byte = scan_lines(data, size, plan.trie, kinds, words)
    if line >= 0:
        raise DecodeError(line, byte)
    text, exact = data, ()
    present, escaped, unread = survey_kinds(kinds, words, size)
    if escaped.any():
        text = _unescape(data, escaped, size, kinds, words)
    if unread.any():
        exact = _read_numbers(data, unread, size, kinds, words)
    columns = {
        path: Column(kinds[row, :size], words[row, :size]) for path, row in plan.rows.items() if present[row]
    }
    return ColumnBatch(size, columns, text, exact)


def _as_bytes(payload: Payload) -> NDArray[np.uint8]:
    """The payload as a read-only array (one type, so that the kernels are compiled once)."""
    data = np.frombuffer(payload, np.uint8)
    if data.size > _MOST_BYTES:
        raise ValueError(f"a payload of {data.size} bytes is too large: at most {_MOST_BYTES}")
    if data.size and data[-1] != ord("\n"):
        raise DecodeError(bytes(data).count(b"\n"), data.size)
    data.flags.writeable = False
    return data


def _padded(size: int, item_bytes: int) -> int:
    """A row length of an odd number of cache lines.

    The kernel writes to all rows at once; rows a power of two apart would share the same few places
    of the cache.
    """
    lines = -(-size * item_bytes // _CACHE_LINE_BYTES) | 1
    return lines * _CACHE_LINE_BYTES // item_bytes


def _unescape(
    data: NDArray[np.uint8],
    escaped: NDArray[np.int64],
    size: int,
    kinds: NDArray[np.uint8],
    words: NDArray[np.int64],
) -> NDArray[np.uint8]:
    """Unescape the strings that need it; ``escaped`` is their length in each row. Gives the new text."""
    text = np.empty(data.size + int(escaped.sum()), np.uint8)
    if text.size > _MOST_BYTES:
        raise ValueError(f"a text of {text.size} bytes is too large: at most {_MOST_BYTES}")
    text[: data.size] = data
    end = unescape_strings(data, np.flatnonzero(escaped), size, kinds, words, text)
    return text[:end]


def _read_numbers(
    data: NDArray[np.uint8],
    unread: NDArray[np.int64],
    size: int,
    kinds: NDArray[np.uint8],
    words: NDArray[np.int64],
) -> tuple[int | Decimal, ...]:
    """Have Python read the numbers that the kernel left as they stand; gives the batch's ``exact``."""
    exact: list[int | Decimal] = []
    for row in np.flatnonzero(unread):
        floats = words[row].view(np.float64)
        for event in np.flatnonzero(kinds[row, :size] == KIND_UNREAD):
            start, length = divmod(int(words[row, event]), 1 << 32)
            token = data[start : start + length].tobytes().decode()
            if token.lstrip("-").isdigit():
                # Python refuses to read a longer int; as a Decimal it is as exact.
                exact.append(int(token) if length <= _MOST_INT_DIGITS else Decimal(token))
                kinds[row, event], words[row, event] = KIND_EXACT, len(exact) - 1
            else:
                kinds[row, event], floats[event] = KIND_FLOAT, float(token)
    return tuple(exact)


class _Plan(NamedTuple):
    """The trie of some paths, and the row of each path that a JSON event can have."""

    trie: Trie
    rows: dict[Path, int]


@lru_cache(maxsize=_PLANS_KEPT)
def _plan(paths: tuple[Path, ...]) -> _Plan:
    wanted = {path for path in paths if _can_be_present(path)}
    prefixes = {path[:length] for path in wanted | {()} for length in range(len(path) + 1)}
    # Sorted like this, a node stands before all below it, and an array's elements stand in order.
    nodes = sorted(prefixes, key=lambda path: [(isinstance(step, str), step) for step in path])
    named = np.array([node in wanted for node in nodes])
    rows = {node: row for row, node in enumerate(node for node in nodes if node in wanted)}
    return _Plan(_build_trie(nodes, named), rows)


def _can_be_present(path: Path) -> bool:
    """Whether some JSON event can have a path: no negative index, nothing that UTF-8 cannot write."""
    for step in path:
        if isinstance(step, str):
            try:
                step.encode()
            except UnicodeEncodeError:
                return False
        elif step < 0:
            return False
    return True


def _build_trie(nodes: list[Path], named: NDArray[np.bool_]) -> Trie:
    size = len(nodes)
    numbers = {node: number for number, node in enumerate(nodes)}
    keys = [node[-1].encode() if node and isinstance(node[-1], str) else b"" for node in nodes]
    key_length = np.array([len(key) for key in keys], np.int64)
    row_start = np.cumsum(named) - named
    trie = Trie(
        parent=np.array([numbers[node[:-1]] if node else NONE for node in nodes], np.int64),
        named=named,
        row_start=row_start,
        row_end=row_start + named,
        has_below=np.zeros(size, np.bool_),
        has_members=np.zeros(size, np.bool_),
        first_element=np.full(size, NONE, np.int64),
        next_element=np.full(size, NONE, np.int64),
        element_index=np.array([_index(node) for node in nodes], np.int64),
        key_start=np.cumsum(key_length) - key_length,
        key_length=key_length,
        key_bytes=np.frombuffer(b"".join(keys) + bytes(8), np.uint8),
        table=np.full(1 << (4 * size).bit_length(), NONE, np.int64),
        longest_key=int(key_length.max()),
        depth=max(map(len, nodes)),
    )
    for number in range(size - 1, 0, -1):
        parent = trie.parent[number]
        trie.has_below[parent] = True
        trie.row_end[parent] = max(trie.row_end[parent], trie.row_end[number])
        if isinstance(nodes[number][-1], str):
            trie.has_members[parent] = True
            _enter_key(trie, number)
        else:
            trie.next_element[number] = trie.first_element[parent]
            trie.first_element[parent] = number
    return trie


def _index(node: Path) -> int:
    return node[-1] if node and not isinstance(node[-1], str) else NONE


def _enter_key(trie: Trie, number: int) -> None:
    """Put a member's node at the first free slot from where the search for it starts."""
    mask = trie.table.size - 1
    start, length, parent = trie.key_start[number], trie.key_length[number], trie.parent[number]
    slot = hash_key(trie.key_bytes, int(start), int(length), int(parent)) & mask
    while trie.table[slot] != NONE:
        slot = (slot + 1) & mask
    trie.table[slot] = number
