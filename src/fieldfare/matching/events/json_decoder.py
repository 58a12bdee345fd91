"""Decoding of JSON lines to columns; attributes that no filter names are skipped.

A kernel scans the payload once (``json_kernels``). Strings stay in place, so the payload itself is the
batch's text; only strings with escapes are unescaped, to bytes appended to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.events.columns import KIND_EXACT, KIND_FLOAT, TEXT_BYTES_MAX, Column, ColumnBatch
from fieldfare.matching.events.json_kernels import (
    ELEMENT_INDEX,
    FIRST_ELEMENT,
    HAS_BELOW,
    HAS_MEMBERS,
    KEY_LENGTH,
    KEY_START,
    NAMED,
    NEXT_ELEMENT,
    NODE_FIELDS,
    NONE,
    PARENT,
    ROW,
    ROW_END,
    SCRIPT_FIELDS,
    SEEN,
    STACK_FIELDS,
    hash_key,
    scan_lines,
    survey_kinds,
    unescape_strings,
)
from fieldfare.matching.events.json_numbers import KIND_UNREAD
from fieldfare.matching.events.odd_json import INT_DIGITS_MAX
from fieldfare.model import Path

Payload = bytes | bytearray | memoryview | NDArray[np.uint8]

_CACHE_LINE_BYTES = 64
_PLANS_KEPT = 64
_PLANNED_PATHS = 1 << 16
"""Maximum paths of all cached plans together, except the newest: about 30 MB."""
_SCRIPT_ENTRIES = 512


class DecodeError(ValueError):
    """A line of a payload is not a JSON object; ``line`` counts from 0.

    ``byte`` is the offset in the payload of the error, if known. Line ``size`` is the one after the last
    expected line.
    """

    def __init__(self, line: int, byte: int | None = None) -> None:
        place = f"line {line}" if byte is None else f"line {line} (at byte {byte} of the payload)"
        super().__init__(f"{place} is not one JSON object that ends in a newline")
        self.line = line
        self.byte = byte


def decode_json_lines(payload: Payload, size: int, paths: Sequence[Path]) -> ColumnBatch:
    """Decode events, one JSON object per line, to columns of the attributes named by ``paths``.

    Parameters
    ----------
    payload : bytes-like
        UTF-8; ``size`` lines, each ended by ``b"\\n"``. Not copied unless a requested string has escapes;
        must not change while the batch is in use.
    size : int
        The number of lines.
    paths : sequence of Path
        A string step is the member of an object, an integer step the element of an array.

    Returns
    -------
    ColumnBatch
        Without columns for paths that no event has. A number without fraction and exponent is an exact
        integer, any other a correctly rounded float64 (infinite if too large). Arrays and objects stay as
        text, which the batch parses on demand. Among repeated keys the last counts. A lone surrogate
        (``\\ud800``) is read as U+FFFD.

    Raises
    ------
    DecodeError
        A line is not a JSON object. Skipped values are checked for strings and brackets only, and UTF-8 is
        not checked, because the gateway did so when it accepted the event.
    ValueError
        The payload has 2 GiB or more.
    """
    data = _as_bytes(payload)
    plan = _plan(tuple(paths))
    rows = len(plan.rows)
    kinds = np.zeros((rows, _padded(size, 1)), np.uint8)
    words = np.zeros((rows, _padded(size, 8)), np.int64)
    line, byte = scan_lines(
        data,
        size,
        plan.trie.nodes.copy(),
        plan.trie.keys,
        plan.trie.table,
        np.empty((_SCRIPT_ENTRIES, SCRIPT_FIELDS), np.int64),
        np.empty(6 * plan.trie.longest_key, np.uint8),
        np.empty((plan.trie.depth, STACK_FIELDS), np.int64),
        kinds,
        words,
    )
    if line >= 0:
        raise DecodeError(line, byte)
    text = data
    exact: tuple[int | Decimal, ...] = ()
    present, escaped, unread = survey_kinds(kinds, words, size)
    if escaped.any():
        text = _unescape(data, escaped, size, kinds, words)
    if unread.any():
        exact = _read_numbers(data, unread, size, kinds, words)
    # Read-only like all arrays here, so that kernels are compiled for one type of array.
    kinds.flags.writeable = words.flags.writeable = False
    columns = {
        path: Column(kinds[row, :size], words[row, :size]) for path, row in plan.rows.items() if present[row]
    }
    return ColumnBatch(size, columns, text, exact, None, plan.asked)


def _as_bytes(payload: Payload) -> NDArray[np.uint8]:
    """Return the payload as a read-only array (a single type, so that the kernels are compiled once)."""
    data = np.frombuffer(payload, np.uint8)
    if data.size > TEXT_BYTES_MAX:
        raise ValueError(f"a payload of {data.size} bytes is too large: at most {TEXT_BYTES_MAX}")
    if data.size and data[-1] != ord("\n"):
        raise DecodeError(bytes(data).count(b"\n"), data.size)
    data.flags.writeable = False
    return data


def _padded(size: int, item_bytes: int) -> int:
    """Return a row length of an odd number of cache lines.

    The kernel writes to all rows at once; rows a power of two apart would compete for the same cache sets.
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
    """Unescape the strings that need it; ``escaped`` is their size in each row. Return the new text."""
    text = np.empty(data.size + int(escaped.sum()), np.uint8)
    if text.size > TEXT_BYTES_MAX:
        raise ValueError(f"a text of {text.size} bytes is too large: at most {TEXT_BYTES_MAX}")
    text[: data.size] = data
    end = unescape_strings(data, np.flatnonzero(escaped), size, kinds, words, text)
    text.flags.writeable = False
    return text[:end]


def unescaped(
    data: NDArray[np.uint8], escaped_bytes: int, kinds: NDArray[np.uint8], words: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Append strings of KIND_ESCAPED, unescaped, to a text; update their kinds and words."""
    size, rows = len(kinds), np.array([escaped_bytes])
    return _unescape(data, rows, size, kinds.reshape(1, size), words.reshape(1, size))


def _read_numbers(
    data: NDArray[np.uint8],
    unread: NDArray[np.int64],
    size: int,
    kinds: NDArray[np.uint8],
    words: NDArray[np.int64],
) -> tuple[int | Decimal, ...]:
    """Parse the numbers that the kernel left unread in Python; return the batch's ``exact``."""
    exact: list[int | Decimal] = []
    for row in np.flatnonzero(unread):
        floats = words[row].view(np.float64)
        for event in np.flatnonzero(kinds[row, :size] == KIND_UNREAD):
            start, length = divmod(int(words[row, event]), 1 << 32)
            token = data[start : start + length].tobytes().decode()
            if token.lstrip("-").isdigit():
                # Python refuses to parse a longer int; a Decimal is equally exact.
                exact.append(int(token) if length <= INT_DIGITS_MAX else Decimal(token))
                kinds[row, event], words[row, event] = KIND_EXACT, len(exact) - 1
            else:
                kinds[row, event], floats[event] = KIND_FLOAT, float(token)
    return tuple(exact)


class Trie(NamedTuple):
    """The steps of all paths as arrays; see ``scan_lines``."""

    nodes: NDArray[np.int64]
    keys: NDArray[np.uint8]
    table: NDArray[np.int64]
    depth: int

    longest_key: int


class _Plan(NamedTuple):
    """The trie of some paths, the row of each path that a JSON event can have, and all the paths."""

    trie: Trie
    rows: dict[Path, int]
    asked: frozenset[Path]


_plans: OrderedDict[tuple[Path, ...], _Plan] = OrderedDict()


def _plan(paths: tuple[Path, ...]) -> _Plan:
    """Return the plan of some paths, from a cache of recently used plans that is bounded in size."""
    try:
        plan = _plans.pop(paths)
    except KeyError:
        plan = _make_plan(paths)
    _plans[paths] = plan
    while len(_plans) > 1 and (len(_plans) > _PLANS_KEPT or sum(map(len, tuple(_plans))) > _PLANNED_PATHS):
        _plans.popitem(last=False)
    return plan


def _make_plan(paths: tuple[Path, ...]) -> _Plan:
    wanted = {path for path in paths if _can_be_present(path)}
    prefixes = {path[:length] for path in wanted | {()} for length in range(len(path) + 1)}
    # This order puts a node before all below it, and an array's elements in ascending order.
    nodes = sorted(prefixes, key=lambda path: [(isinstance(step, str), step) for step in path])
    named = np.array([node in wanted for node in nodes])
    rows = {node: row for row, node in enumerate(node for node in nodes if node in wanted)}
    return _Plan(_build_trie(nodes, named), rows, frozenset(paths))


def _can_be_present(path: Path) -> bool:
    """Whether a JSON event can have a path: no negative index, no string that UTF-8 cannot encode."""
    for step in path:
        if isinstance(step, str):
            try:
                step.encode()
            except UnicodeEncodeError:
                return False
        elif step < 0:
            return False
    return True


def _build_trie(paths: list[Path], named: NDArray[np.bool_]) -> Trie:
    numbers = {path: number for number, path in enumerate(paths)}
    encoded = [path[-1].encode() if path and isinstance(path[-1], str) else b"" for path in paths]
    keys = np.frombuffer(b"".join(encoded), np.uint8)
    table = np.full(1 << (4 * len(paths)).bit_length(), NONE)
    nodes = np.zeros((len(paths), NODE_FIELDS), np.int64)
    nodes[:, [PARENT, FIRST_ELEMENT, NEXT_ELEMENT, ELEMENT_INDEX, SEEN]] = NONE
    nodes[:, NAMED] = named
    nodes[:, ROW] = np.cumsum(named) - named
    nodes[:, ROW_END] = np.cumsum(named)
    nodes[:, KEY_LENGTH] = [len(key) for key in encoded]
    nodes[:, KEY_START] = np.cumsum(nodes[:, KEY_LENGTH]) - nodes[:, KEY_LENGTH]
    for number in range(len(paths) - 1, 0, -1):
        node, step = nodes[number], paths[number][-1]
        node[PARENT] = numbers[paths[number][:-1]]
        parent = nodes[node[PARENT]]
        parent[HAS_BELOW] = 1
        parent[ROW_END] = max(parent[ROW_END], node[ROW_END])
        if isinstance(step, str):
            parent[HAS_MEMBERS] = 1
            _enter_key(number, node, keys, table)
        else:
            node[ELEMENT_INDEX] = step
            node[NEXT_ELEMENT] = parent[FIRST_ELEMENT]
            parent[FIRST_ELEMENT] = number
    return Trie(nodes, keys, table, max(map(len, paths)), max(map(len, encoded)))


def _enter_key(
    number: int, node: NDArray[np.int64], keys: NDArray[np.uint8], table: NDArray[np.int64]
) -> None:
    """Insert a member's node at the first free slot from its hash on."""
    slot = hash_key(keys, int(node[KEY_START]), int(node[KEY_LENGTH]), int(node[PARENT]))
    while table[slot & (table.size - 1)] != NONE:
        slot += 1
    table[slot & (table.size - 1)] = number
