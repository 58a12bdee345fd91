"""Kernels that read JSON tokens from bytes, used by the decoder.

The buffer ends in a newline, and a newline is not allowed inside a line's JSON, so every loop that stops at
an unexpected byte stops at the buffer's end without testing for it. A position returned as ``~i`` (negative)
means: invalid JSON from byte ``i`` on.

Strings are searched eight bytes at a time, as one little-endian word (the usual tricks: a byte of
``(w - 0x01...) & ~w & 0x80...`` has its top bit set if the byte of w is zero; the lowest such bit is always
correct, higher ones may be the result of a borrow).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import compiled, inlined
from fieldfare.matching.events.columns import (
    KIND_FALSE,
    KIND_NULL,
    KIND_OTHER,
    KIND_STRING,
    KIND_TRUE,
)
from fieldfare.matching.events.json_numbers import read_number

KIND_ESCAPED = 101
"""A string in the payload, with escapes; the decoder replaces it by KIND_STRING."""

QUOTE, BACKSLASH, COMMA, COLON, NEWLINE = 0x22, 0x5C, 0x2C, 0x3A, 0x0A
OPEN_OBJECT, CLOSE_OBJECT, OPEN_ARRAY, CLOSE_ARRAY = 0x7B, 0x7D, 0x5B, 0x5D
REPLACEMENT = 0xFFFD

_EVERY_01 = np.uint64(0x0101010101010101)
_EVERY_80 = np.uint64(0x8080808080808080)
_EVERY_20 = np.uint64(0x2020202020202020)
_EVERY_QUOTE = np.uint64(0x2222222222222222)
_EVERY_BACKSLASH = np.uint64(0x5C5C5C5C5C5C5C5C)
_ONE, _SEVEN, _EIGHT, _TOP_BYTE = np.uint64(1), np.uint64(7), np.uint64(8), np.uint64(56)
_NO_BITS = np.uint64(0)


def _table(default: int, entries: dict[bytes, int]) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    table = np.full(256, default, np.int16)
    for characters, value in entries.items():
        table[list(characters)] = value
    return table


_CONTROLS = bytes(range(32))
_STOPS_STRING = _table(0, {_CONTROLS: 1, b'"\\': 1})
_PLAIN, _STRING, _OPEN, _CLOSE, _BROKEN = 0, 1, 2, 3, 4
_STRUCTURE = _table(_PLAIN, {_CONTROLS: _BROKEN, b"\t\r": _PLAIN, b'"': _STRING, b"{[": _OPEN, b"}]": _CLOSE})
_IN_SCALAR = _table(0, {b"0123456789+-.eE": 1, b"truefalsn": 1})
_HEXADECIMAL = _table(-1, {b"%c" % c: int(chr(c), 16) for c in b"0123456789abcdefABCDEF"})
_UNESCAPED = _table(-1, {b'"': 0x22, b"\\": 0x5C, b"/": 0x2F, b"b": 8, b"f": 12, b"n": 10, b"r": 13, b"t": 9})


@inlined
def byte_at(data: Any, i: Any) -> Any:
    """Return one byte; the unsigned index avoids numba's handling of negative ones."""
    return data[np.uint64(i)]


@inlined
def load_word(data: Any, i: Any) -> Any:
    """Return bytes i to i + 7 as one number (compiles to a single load)."""
    at = np.uint64(i)
    word = np.uint64(data[at])
    for k in range(1, 8):
        word |= np.uint64(data[at + np.uint64(k)]) << np.uint64(8 * k)
    return word


@inlined
def load_part(data: Any, i: Any, length: Any) -> Any:
    """Return bytes i to i + length - 1, at most eight, as one number."""
    if length <= 0:
        return _NO_BITS
    if i + 8 <= data.size:
        return load_word(data, i) & (~_NO_BITS >> np.uint64(64 - 8 * length))
    word = _NO_BITS
    for k in range(length):
        word |= np.uint64(byte_at(data, i + k)) << np.uint64(8 * k)
    return word


@inlined
def same_bytes(data: Any, i: Any, other: Any, j: Any, length: Any) -> Any:
    """Whether data[i : i + length] equals other[j : j + length]; both lie within their buffers."""
    while length > 8:
        if load_word(data, i) != load_word(other, j):
            return False
        i += 8
        j += 8
        length -= 8
    return load_part(data, i, length) == load_part(other, j, length)


@inlined
def skip_space(data: Any, i: Any) -> Any:
    while True:
        c = byte_at(data, i)
        if c > 32 or not (c == 32 or c == 9 or c == 13):
            return i
        i += 1


@inlined
def _find_string_stop(data: Any, i: Any) -> Any:
    """Return the offset of the next quote, backslash or control character at or after i."""
    last = data.size - 8
    while i <= last:
        word = load_word(data, i)
        quotes = word ^ _EVERY_QUOTE
        backslashes = word ^ _EVERY_BACKSLASH
        stops = (
            ((quotes - _EVERY_01) & ~quotes)
            | ((backslashes - _EVERY_01) & ~backslashes)
            | ((word - _EVERY_20) & ~word)
        ) & _EVERY_80
        if stops != _NO_BITS:
            below = (stops >> _SEVEN) - _ONE & ~(stops >> _SEVEN)
            return i + np.int64(((below & _EVERY_01) * _EVERY_01) >> _TOP_BYTE)
        i += 8
    while _STOPS_STRING[byte_at(data, i)] == 0:
        i += 1
    return i


@inlined
def string_end(data: Any, i: Any) -> Any:
    """Scan from after the opening quote to the closing one: return (its position, whether there are
    escapes)."""
    escaped = False
    while True:
        i = _find_string_stop(data, i)
        c = byte_at(data, i)
        if c == QUOTE:
            return i, escaped
        if c != BACKSLASH:
            return ~i, escaped
        escaped = True
        c = byte_at(data, i + 1)
        if _UNESCAPED[c] >= 0:
            i += 2
        elif c == 0x75:  # u
            if hexadecimal(data, i + 2) < 0:
                return ~i, escaped
            i += 6
        else:
            return ~i, escaped


@compiled
def hexadecimal(data: Any, i: Any) -> Any:
    """Parse four hexadecimal digits; return the number, or -1."""
    number = np.int64(0)
    for k in range(4):
        digit = np.int64(_HEXADECIMAL[byte_at(data, i + k)])
        if digit < 0:
            return np.int64(-1)
        number = number * 16 + digit
    return number


@compiled
def unescape(data: Any, start: Any, length: Any, out: Any, end: Any) -> Any:
    """Write a string with validated escapes to ``out`` from ``end`` on; return the new end.

    A lone surrogate becomes U+FFFD. The output is never longer than the input.
    """
    i, stop = start, start + length
    while i < stop:
        c = byte_at(data, i)
        if c != BACKSLASH:
            out[end] = c
            i, end = i + 1, end + 1
            continue
        c = byte_at(data, i + 1)
        if c != 0x75:
            out[end] = _UNESCAPED[c]
            i, end = i + 2, end + 1
            continue
        code = hexadecimal(data, i + 2)
        i += 6
        if 0xD800 <= code < 0xE000:
            low = np.int64(0)
            if code < 0xDC00 and i + 6 <= stop and data[i] == BACKSLASH and data[i + 1] == 0x75:
                low = hexadecimal(data, i + 2)
            if 0xDC00 <= low < 0xE000:
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                i += 6
            else:
                code = np.int64(REPLACEMENT)
        end = _write_utf8(code, out, end)
    return end


@compiled
def _write_utf8(code: Any, out: Any, end: Any) -> Any:
    if code < 0x80:
        out[end] = code
        return end + 1
    if code < 0x800:
        out[end] = 0xC0 | code >> 6
        out[end + 1] = 0x80 | code & 0x3F
        return end + 2
    if code < 0x10000:
        out[end] = 0xE0 | code >> 12
        out[end + 1] = 0x80 | code >> 6 & 0x3F
        out[end + 2] = 0x80 | code & 0x3F
        return end + 3
    out[end] = 0xF0 | code >> 18
    out[end + 1] = 0x80 | code >> 12 & 0x3F
    out[end + 2] = 0x80 | code >> 6 & 0x3F
    out[end + 3] = 0x80 | code & 0x3F
    return end + 4


@compiled
def skip_container(data: Any, i: Any, depth: Any) -> Any:
    """Scan from inside ``depth`` open brackets to after the one that closes the outermost.

    Strings and the balance of brackets are checked, but not the grammar.
    """
    while True:
        structure = _STRUCTURE[byte_at(data, i)]
        i += 1
        if structure == _PLAIN:
            continue
        if structure == _STRING:
            i, _ = string_end(data, i)
            if i < 0:
                return i
            i += 1
        elif structure == _OPEN:
            depth += 1
        elif structure == _CLOSE:
            depth -= 1
            if depth == 0:
                return i
        else:
            return ~(i - 1)


@inlined
def skip_value(data: Any, i: Any) -> Any:
    """Return the position after the value that starts at i."""
    structure = _STRUCTURE[byte_at(data, i)]
    if structure == _STRING:
        i, _ = string_end(data, i + 1)
        return i if i < 0 else i + 1
    if structure == _OPEN:
        return skip_container(data, i + 1, 1)
    start = i
    while _IN_SCALAR[byte_at(data, i)] != 0:
        i += 1
    return i if i > start else ~start


@inlined
def read_value(data: Any, i: Any) -> Any:
    """Read the value that starts at i: return (position after it, kind, word)."""
    c = byte_at(data, i)
    nothing = np.int64(0)
    if c == QUOTE:
        end, escaped = string_end(data, i + 1)
        if end < 0:
            return end, 0, nothing
        kind = KIND_ESCAPED if escaped else KIND_STRING
        return end + 1, kind, (i + 1) << 32 | (end - i - 1)
    if _STRUCTURE[c] == _OPEN:
        end = skip_container(data, i + 1, 1)
        return end, KIND_OTHER, i << 32 | (end - i)
    if c == 0x74:
        return _literal(data, i, b"true"), KIND_TRUE, nothing
    if c == 0x66:
        return _literal(data, i, b"false"), KIND_FALSE, nothing
    if c == 0x6E:
        return _literal(data, i, b"null"), KIND_NULL, nothing
    return read_number(data, i)


@compiled
def _literal(data: Any, i: Any, text: Any) -> Any:
    for k in range(len(text)):
        if byte_at(data, i + k) != text[k]:
            return ~i
    return i + len(text)
