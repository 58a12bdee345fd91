"""The decoder's loop: one pass over JSON lines that stores the values of a trie of paths.

Events of one stream look alike: the members of an event come in the order of the event before, with
the same keys and the same white space. So the scan keeps a *script* of a line: for every member that
it met, the bytes between the value before and the member's value (``,"symbol":``), and which node of
the trie they lead to. On the following lines it compares these bytes first and then stands at the
value; only where they differ does it read the key and look it up. A line that departs from the script
too often is written down as the next script.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fieldfare.matching.columns import KIND_MISSING, KIND_OTHER, KIND_STRING
from fieldfare.matching.json_bytes import (
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    COLON,
    COMMA,
    KIND_ESCAPED,
    NEWLINE,
    OPEN_ARRAY,
    OPEN_OBJECT,
    QUOTE,
    byte_at,
    load_part,
    read_value,
    same_bytes,
    skip_container,
    skip_space,
    skip_value,
    string_end,
    unescape,
)
from fieldfare.matching.json_numbers import KIND_UNREAD

NONE = -1
"""No node: a member that no path names, or the end of a list of nodes."""
_END = -2
"""The container's closing bracket came instead of a member."""

_SCRIPT_SIZE = 512
_LOOK_AHEAD = 3
_MOST_DEPARTURES = 2


class Trie(NamedTuple):
    """The steps of all paths as a tree of nodes; node 0 is the event itself.

    The rows of a node and of all nodes below it are ``row_start`` to ``row_end - 1``; where ``named``,
    the node's own is ``row_start``.
    """

    parent: NDArray[np.int64]
    named: NDArray[np.bool_]
    row_start: NDArray[np.int64]
    row_end: NDArray[np.int64]
    has_members: NDArray[np.bool_]
    first_element: NDArray[np.int64]
    next_element: NDArray[np.int64]
    element_index: NDArray[np.int64]
    key_start: NDArray[np.int64]
    key_length: NDArray[np.int64]
    key_bytes: NDArray[np.uint8]
    table: NDArray[np.int64]
    has_below: NDArray[np.bool_]
    longest_key: int
    depth: int


class Script(NamedTuple):
    """The members of one line in order: where their lead-in stands and which node they are.

    ``place`` is twice the node of the object, plus one for the first member (which has no comma).
    """

    place: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    node: NDArray[np.int64]


@njit(cache=True, nogil=True, forceinline=True)
def hash_key(buffer, start, length, parent):
    """Where the search for a key of an object starts in the trie's table."""
    head = load_part(buffer, start, min(length, 8))
    tail = load_part(buffer, start + length - 8, 8) if length > 8 else np.uint64(0)
    mixed = (head ^ np.uint64(parent + 1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= (tail + np.uint64(length)) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed *= np.uint64(0x9FB21C651E98DF25)
    return np.int64(mixed >> np.uint64(33))


@njit(cache=True, nogil=True, forceinline=True)
def _find_child(buffer, start, length, parent, trie):
    mask = trie.table.size - 1
    slot = hash_key(buffer, start, length, parent) & mask
    while True:
        node = trie.table[slot]
        if node == NONE:
            return node
        if (
            trie.parent[node] == parent
            and trie.key_length[node] == length
            and same_bytes(buffer, start, trie.key_bytes, trie.key_start[node], length)
        ):
            return node
        slot = (slot + 1) & mask


@njit(cache=True, nogil=True, forceinline=True)
def _read_key(data, i, parent, trie, scratch):
    """From a key's opening quote to the member's value: (position, node)."""
    start = i + 1
    end, escaped = string_end(data, start)
    if end < 0:
        return end, np.int64(NONE)
    node = np.int64(NONE)
    if not escaped:
        if end - start <= trie.longest_key:
            node = _find_child(data, start, end - start, parent, trie)
    elif end - start <= scratch.size:
        length = unescape(data, start, end - start, scratch, 0)
        node = _find_child(scratch, 0, length, parent, trie)
    i = skip_space(data, end + 1)
    if byte_at(data, i) != COLON:
        return ~i, node
    return skip_space(data, i + 1), node


@njit(cache=True, nogil=True, forceinline=True)
def _next_member(data, i, parent, first, trie, scratch):
    """From inside an object to the next member's value, or to after its end: (position, node)."""
    i = skip_space(data, i)
    c = byte_at(data, i)
    if c == CLOSE_OBJECT:
        return i + 1, np.int64(_END)
    if not first:
        if c != COMMA:
            return ~i, np.int64(NONE)
        i = skip_space(data, i + 1)
        c = byte_at(data, i)
    if c != QUOTE:
        return ~i, np.int64(NONE)
    return _read_key(data, i, parent, trie, scratch)


@njit(cache=True, nogil=True, forceinline=True)
def _follow(data, i, place, script, expected, known):
    """The script's entry, from ``expected`` on, whose bytes stand at i; or -1."""
    for entry in range(expected, min(expected + _LOOK_AHEAD, known)):
        length = script.length[entry]
        if (
            script.place[entry] == place
            and i + length <= data.size
            and same_bytes(data, i, data, script.start[entry], length)
        ):
            return entry
    return -1


@njit(cache=True, nogil=True, forceinline=True)
def _member(data, i, node, first, trie, script, expected, known, scratch):
    """The next member of an object, by the script if it goes on like that.

    Gives the position of the member's value, its node (or NONE, _END), the script's entry to expect
    next, and whether the line departed from the script. With ``known`` 0 the script is written.
    """
    place = 2 * node + first
    entry = _follow(data, i, place, script, expected, known)
    if entry >= 0:
        return i + script.length[entry], script.node[entry], entry + 1, 0
    start = i
    i, child = _next_member(data, i, node, first, trie, scratch)
    if known == 0 and expected < _SCRIPT_SIZE:
        script.place[expected] = place
        script.start[expected] = start
        script.length[expected] = i - start
        script.node[expected] = child
        expected += 1
    return i, child, expected, 1


@njit(cache=True, nogil=True, forceinline=True)
def _element(data, i, first, index, wanted, trie):
    """The next element of an array: (position, node or NONE or _END, next node to look for).

    After the last element that a path names, the rest of the array is skipped.
    """
    i = skip_space(data, i)
    c = byte_at(data, i)
    if c == CLOSE_ARRAY:
        return i + 1, np.int64(_END), wanted
    if wanted == NONE:
        return skip_container(data, i, 1), np.int64(_END), wanted
    if not first:
        if c != COMMA:
            return ~i, np.int64(NONE), wanted
        i = skip_space(data, i + 1)
    if trie.element_index[wanted] == index:
        return i, wanted, trie.next_element[wanted]
    return i, np.int64(NONE), wanted


@njit(cache=True, nogil=True, forceinline=True)
def _enter(event, node, trie, seen, kinds, words):
    """Note that a node with others below it has a value; it replaces one of a repeated key."""
    if seen[node] == event:
        for row in range(trie.row_start[node], trie.row_end[node]):
            kinds[row, event] = KIND_MISSING
            words[row, event] = 0
    seen[node] = event
    if trie.named[node]:
        kinds[trie.row_start[node], event] = KIND_OTHER
        words[trie.row_start[node], event] = 0


@njit(cache=True, nogil=True, forceinline=True)
def _opens(c, node, trie):
    """Whether the value that starts with c has members or elements that some path names."""
    if c == OPEN_OBJECT:
        return trie.has_members[node]
    return c == OPEN_ARRAY and trie.first_element[node] != NONE


@njit(cache=True, nogil=True, forceinline=True)
def _take_value(data, i, event, node, trie, kinds, words):
    """Store or skip a value that is not descended into: position after it."""
    if node == NONE or not trie.named[node]:
        return skip_value(data, i)
    i, kind, word = read_value(data, i)
    if i >= 0:
        kinds[trie.row_start[node], event] = kind
        words[trie.row_start[node], event] = word
    return i


@njit(cache=True, nogil=True, forceinline=True)
def _scan_event(data, i, event, trie, script, known, scratch, stack, seen, kinds, words):
    """Store one object's values: (position after it or ~position, script entries, departures).

    ``stack`` holds for each container around the current one: its node, whether it is an object, the
    index of the next element, and the next node among its elements.
    """
    if byte_at(data, i) != OPEN_OBJECT:
        return ~i, 0, 0
    node, in_object, index, wanted = np.int64(0), True, np.int64(0), np.int64(NONE)
    depth = expected = departures = 0
    first = True
    _enter(event, node, trie, seen, kinds, words)
    i += 1
    while i >= 0:
        if in_object:
            i, child, expected, departed = _member(
                data, i, node, first, trie, script, expected, known, scratch
            )
            departures += departed
        else:
            i, child, wanted = _element(data, i, first, index, wanted, trie)
            index += 1
        first = False
        if i < 0:
            break
        if child == _END:
            if depth == 0:
                break
            depth -= 1
            node, in_object = stack[depth, 0], stack[depth, 1] != 0
            index, wanted = stack[depth, 2], stack[depth, 3]
            continue
        if child != NONE and trie.has_below[child]:
            _enter(event, child, trie, seen, kinds, words)
            c = byte_at(data, i)
            if _opens(c, child, trie):
                stack[depth, 0], stack[depth, 1] = node, in_object
                stack[depth, 2], stack[depth, 3] = index, wanted
                depth += 1
                node, in_object, first = child, c == OPEN_OBJECT, True
                index, wanted = np.int64(0), trie.first_element[child]
                i += 1
                continue
        i = _take_value(data, i, event, child, trie, kinds, words)
    return i, expected, departures


@njit(cache=True, nogil=True, forceinline=True)
def scan_lines(data, size, trie, kinds, words):
    """Store the values of all lines; ``kinds`` and ``words`` have a row for each path.

    Parameters
    ----------
    data : uint8[n]
        The lines; the last byte is a newline.
    size : int
        How many lines there must be.
    trie : Trie
    kinds, words : uint8[paths, >= size], int64[paths, >= size]
        Zeros; only values that are there are written.

    Returns
    -------
    (line, position) of the first line that is no JSON object, and of the byte where that showed;
    line = -1 if there is none.
    """
    script = Script(
        np.empty(_SCRIPT_SIZE, np.int64),
        np.empty(_SCRIPT_SIZE, np.int64),
        np.empty(_SCRIPT_SIZE, np.int64),
        np.empty(_SCRIPT_SIZE, np.int64),
    )
    scratch = np.empty(6 * trie.longest_key, np.uint8)
    stack = np.empty((trie.depth + 1, 4), np.int64)
    seen = np.full(trie.parent.size, -1, np.int64)
    i = known = 0
    for event in range(size):
        if i >= data.size:
            return event, i
        i = skip_space(data, i)
        i, entries, departures = _scan_event(
            data, i, event, trie, script, known, scratch, stack, seen, kinds, words
        )
        if i < 0:
            return event, ~i
        i = skip_space(data, i)
        if byte_at(data, i) != NEWLINE:
            return event, i
        i += 1
        if known == 0:
            known = entries
        elif departures > _MOST_DEPARTURES:
            known = 0
    if i < data.size:
        return size, i
    return -1, i


@njit(cache=True, nogil=True, forceinline=True)
def survey_kinds(kinds, words, size):
    """For each row: whether any event has it, the bytes of strings with escapes, and unread numbers."""
    rows = kinds.shape[0]
    present = np.zeros(rows, np.bool_)
    escaped_bytes, unread = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for row in range(rows):
        largest = kinds[row, :size].max() if size else 0
        present[row] = largest > KIND_MISSING
        if largest <= KIND_STRING:
            continue
        for event in range(size):
            if kinds[row, event] == KIND_ESCAPED:
                escaped_bytes[row] += words[row, event] & 0xFFFFFFFF
            elif kinds[row, event] == KIND_UNREAD:
                unread[row] += 1
    return present, escaped_bytes, unread


@njit(cache=True, nogil=True, forceinline=True)
def unescape_strings(data, rows, size, kinds, words, text):
    """Unescape all strings that need it to ``text``, after the data that it begins with: its end."""
    end = data.size
    for row in rows:
        for event in range(size):
            if kinds[row, event] == KIND_ESCAPED:
                word = words[row, event]
                start = end
                end = unescape(data, word >> 32, word & 0xFFFFFFFF, text, end)
                kinds[row, event] = KIND_STRING
                words[row, event] = start << 32 | (end - start)
    return end
