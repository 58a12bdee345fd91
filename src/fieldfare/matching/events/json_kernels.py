"""The decoder's loop: one pass over JSON lines that stores the values of a trie of paths.

Events of one stream are similar: an event's members come in the order of the previous event, with the same
keys and white space. The scan therefore keeps a *script* of a line: for every member, the bytes between the
previous value and the member's value (``,"symbol":``), and the trie's node. On the following lines it
compares these bytes first, and is then at the value; only if they differ does it read the key and look it up.
A line that departs from the script too often is recorded as the next script.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import borrowed, compiled, inlined
from fieldfare.matching.events.columns import KIND_MISSING, KIND_OTHER, KIND_STRING
from fieldfare.matching.events.json_bytes import (
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
from fieldfare.matching.events.json_numbers import KIND_UNREAD

NONE = -1
"""No node: a member that no path names, or the end of a list of nodes."""
_END = -2
"""The container's closing bracket came instead of a member."""

_LOOK_AHEAD = 3
_DEPARTURES_MAX = 2


# The columns of ``nodes``. The rows of a node and of all nodes below it are _ROW to _ROW_END - 1; if _NAMED,
# the node's own row is _ROW. A node's number is less than those of the nodes below it.
PARENT, NAMED, ROW, ROW_END, HAS_BELOW, HAS_MEMBERS = 0, 1, 2, 3, 4, 5
FIRST_ELEMENT, NEXT_ELEMENT, ELEMENT_INDEX, KEY_START, KEY_LENGTH, SEEN = 6, 7, 8, 9, 10, 11
NODE_FIELDS = 12

# The columns of ``script``: twice the node of the object, plus one for the first member (which has no comma);
# the start and the number of the bytes before the value; the node of the member.
_PLACE, _START, _LENGTH, _NODE = 0, 1, 2, 3
SCRIPT_FIELDS = 4

# The columns of ``stack``, for each container around the current one: its node, whether it is an object, the
# index of the next element, the next node among its elements, and the container's start.
STACK_FIELDS = 5


@compiled
def hash_key(buffer: Any, start: Any, length: Any, parent: Any) -> Any:
    """Return the hash at which the search for an object's key starts in the trie's table."""
    head = load_part(buffer, start, min(length, 8))
    tail = load_part(buffer, start + length - 8, 8) if length > 8 else np.uint64(0)
    mixed = (head ^ np.uint64(parent + 1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= (tail + np.uint64(length)) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed *= np.uint64(0x9FB21C651E98DF25)
    return np.int64(mixed >> np.uint64(33))


@compiled
def _find_child(buffer: Any, start: Any, length: Any, parent: Any, nodes: Any, keys: Any, table: Any) -> Any:
    mask = table.size - 1
    slot = hash_key(buffer, start, length, parent) & mask
    while True:
        node = table[slot]
        if node == NONE:
            return node
        if (
            nodes[node, PARENT] == parent
            and nodes[node, KEY_LENGTH] == length
            and same_bytes(buffer, start, keys, nodes[node, KEY_START], length)
        ):
            return node
        slot = (slot + 1) & mask


@compiled
def _read_key(data: Any, i: Any, parent: Any, nodes: Any, keys: Any, table: Any, scratch: Any) -> Any:
    """Read from a key's opening quote to the member's value: return (position, node)."""
    start = i + 1
    end, escaped = string_end(data, start)
    if end < 0:
        return end, np.int64(NONE)
    node = np.int64(NONE)
    if not escaped:
        node = _find_child(data, start, end - start, parent, nodes, keys, table)
    elif end - start <= scratch.size:
        length = unescape(data, start, end - start, scratch, 0)
        node = _find_child(scratch, 0, length, parent, nodes, keys, table)
    i = skip_space(data, end + 1)
    if byte_at(data, i) != COLON:
        return ~i, node
    return skip_space(data, i + 1), node


@compiled
def _next_member(
    data: Any, i: Any, parent: Any, first: Any, nodes: Any, keys: Any, table: Any, scratch: Any
) -> Any:
    """Read from inside an object to the next member's value, or to after its end: return (position, node)."""
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
    return _read_key(data, i, parent, nodes, keys, table, scratch)


@inlined
def _follow(data: Any, i: Any, place: Any, script: Any, expected: Any, known: Any) -> Any:
    """Return the script's entry, from ``expected`` on, whose bytes are at i; or -1."""
    for entry in range(expected, min(expected + _LOOK_AHEAD, known)):
        length = script[entry, _LENGTH]
        if (
            script[entry, _PLACE] == place
            and i + length <= data.size
            and same_bytes(data, i, data, script[entry, _START], length)
        ):
            return entry
    return -1


@inlined
def _member(
    data: Any,
    i: Any,
    node: Any,
    first: Any,
    nodes: Any,
    keys: Any,
    table: Any,
    script: Any,
    expected: Any,
    known: Any,
    scratch: Any,
) -> Any:
    """Read the next member of an object, using the script if it matches.

    Returns the position of the member's value, its node (or NONE, _END), the script's entry to expect next,
    and whether the line departed from the script. With ``known`` 0 the script is recorded.
    """
    place = 2 * node + first
    entry = _follow(data, i, place, script, expected, known)
    if entry >= 0:
        # This line may have white space before the value where the script's line has none.
        return skip_space(data, i + script[entry, _LENGTH]), script[entry, _NODE], entry + 1, 0
    start = i
    i, child = _next_member(data, i, node, first, nodes, keys, table, scratch)
    if known == 0 and expected < script.shape[0]:
        script[expected, _PLACE] = place
        script[expected, _START] = start
        script[expected, _LENGTH] = i - start
        script[expected, _NODE] = child
        expected += 1
    return i, child, expected, 1


@inlined
def _element(data: Any, i: Any, first: Any, index: Any, wanted: Any, nodes: Any) -> Any:
    """Read the next element of an array: return (position, node or NONE or _END, next node to look for).

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
    if nodes[wanted, ELEMENT_INDEX] == index:
        return i, wanted, nodes[wanted, NEXT_ELEMENT]
    return i, np.int64(NONE), wanted


@inlined
def _enter(event: Any, node: Any, nodes: Any, kinds: Any, words: Any) -> Any:
    """Record that a node with others below it has a value; it replaces that of a repeated key."""
    if nodes[node, SEEN] == event:
        for row in range(nodes[node, ROW], nodes[node, ROW_END]):
            kinds[row, event] = KIND_MISSING
            words[row, event] = 0
    nodes[node, SEEN] = event
    if nodes[node, NAMED]:
        kinds[nodes[node, ROW], event] = KIND_OTHER
        words[nodes[node, ROW], event] = 0


@inlined
def _opens(c: Any, node: Any, nodes: Any) -> Any:
    """Whether the value that starts with c has members or elements that some path names."""
    if c == OPEN_OBJECT:
        return nodes[node, HAS_MEMBERS]
    return c == OPEN_ARRAY and nodes[node, FIRST_ELEMENT] != NONE


@inlined
def _take_value(data: Any, i: Any, event: Any, node: Any, nodes: Any, kinds: Any, words: Any) -> Any:
    """Store or skip a value that is not descended into; return the position after it."""
    if node == NONE or not nodes[node, NAMED]:
        return skip_value(data, i)
    i, kind, word = read_value(data, i)
    if i >= 0:
        kinds[nodes[node, ROW], event] = kind
        words[nodes[node, ROW], event] = word
    return i


@inlined
def _scan_event(
    data: Any,
    i: Any,
    event: Any,
    nodes: Any,
    keys: Any,
    table: Any,
    script: Any,
    known: Any,
    scratch: Any,
    stack: Any,
    kinds: Any,
    words: Any,
) -> Any:
    """Store one object's values: return (position after it or ~position, script entries, departures).

    A container that a path names is stored as the place of its text when it ends.
    """
    if byte_at(data, i) != OPEN_OBJECT:
        return ~i, 0, 0
    node, in_object, index, wanted = np.int64(0), True, np.int64(0), np.int64(NONE)
    depth = expected = departures = 0
    first, start = True, i
    _enter(event, node, nodes, kinds, words)
    i += 1
    while i >= 0:
        if in_object:
            i, child, expected, departed = _member(
                data, i, node, first, nodes, keys, table, script, expected, known, scratch
            )
            departures += departed
        else:
            i, child, wanted = _element(data, i, first, index, wanted, nodes)
            index += 1
        first = False
        if i < 0:
            break
        if child == _END:
            if nodes[node, NAMED]:
                words[nodes[node, ROW], event] = start << 32 | (i - start)
            if depth == 0:
                break
            depth -= 1
            node, in_object = stack[depth, 0], stack[depth, 1] != 0
            index, wanted, start = stack[depth, 2], stack[depth, 3], stack[depth, 4]
            continue
        if child != NONE and nodes[child, HAS_BELOW]:
            _enter(event, child, nodes, kinds, words)
            c = byte_at(data, i)
            if _opens(c, child, nodes):
                stack[depth, 0], stack[depth, 1] = node, in_object
                stack[depth, 2], stack[depth, 3], stack[depth, 4] = index, wanted, start
                depth += 1
                node, in_object, first, start = child, c == OPEN_OBJECT, True, i
                index, wanted = np.int64(0), nodes[child, FIRST_ELEMENT]
                i += 1
                continue
        i = _take_value(data, i, event, child, nodes, kinds, words)
    return i, expected, departures


@compiled
def scan_lines(
    data: Any,
    size: Any,
    nodes: Any,
    keys: Any,
    table: Any,
    script: Any,
    scratch: Any,
    stack: Any,
    kinds: Any,
    words: Any,
) -> Any:
    """Store the values of all lines; ``kinds`` and ``words`` have a row for each path.

    Parameters
    ----------
    data : uint8[n]
        The lines; the last byte is a newline.
    size : int
        The required number of lines.
    nodes : int64[m, NODE_FIELDS]
        The steps of all paths as a tree of nodes; node 0 is the event itself. Their SEEN is written.
    keys : uint8[k]
        The keys of all nodes.
    table : int64[power of two]
        A hash table (open addressing by ``hash_key``) of the nodes that are members.
    script, scratch, stack : int64[any, SCRIPT_FIELDS], uint8[6 * longest key], int64[depth, STACK_FIELDS]
        Working memory of any content; the depth is that of the tree.
    kinds, words : uint8[paths, >= size], int64[paths, >= size]
        Zeros; only present values are written.

    Returns
    -------
    (line, position) of the first line that is not a JSON object, and of the byte of the error; line = -1 if
    all lines
    are valid.
    """
    data, nodes, keys, table = borrowed(data), borrowed(nodes), borrowed(keys), borrowed(table)
    script, scratch, stack = borrowed(script), borrowed(scratch), borrowed(stack)
    kinds, words = borrowed(kinds), borrowed(words)
    i = known = 0
    for event in range(size):
        if i >= data.size:
            return event, i
        i = skip_space(data, i)
        i, entries, departures = _scan_event(
            data, i, event, nodes, keys, table, script, known, scratch, stack, kinds, words
        )
        if i < 0:
            return event, ~i
        i = skip_space(data, i)
        if byte_at(data, i) != NEWLINE:
            return event, i
        i += 1
        if known == 0:
            known = entries
        elif departures > _DEPARTURES_MAX:
            known = 0
    if i < data.size:
        return size, i
    return -1, i


@compiled
def survey_kinds(kinds: Any, words: Any, size: Any) -> Any:
    """Return for each row whether any event has it, the bytes of strings with escapes, and the unread
    numbers."""
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


@compiled
def unescape_strings(data: Any, rows: Any, size: Any, kinds: Any, words: Any, text: Any) -> Any:
    """Unescape all strings that need it to ``text``, after the data that it begins with; return its end."""
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
