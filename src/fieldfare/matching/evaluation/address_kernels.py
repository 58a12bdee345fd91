"""Kernel for IP addresses.

An address is its version (0 for none) and two uint64, the first of which is 0 in version 4. The semantics are
those of Python's ``ipaddress`` as used by ``filters.functions.networks``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import borrowed, compiled, inlined
from fieldfare.matching.evaluation.kinds import KIND_ANY
from fieldfare.matching.evaluation.text_kernels import fetch_ahead
from fieldfare.matching.events.columns import KIND_FALSE, KIND_NULL, KIND_STRING, KIND_TRUE

_COLON, _POINT, _SLASH = 0x3A, 0x2E, 0x2F
_NONE, _GROUP, _REST = np.uint64(0), np.uint64(16), np.uint64(48)


@inlined
def _octets(text: Any, i: Any, end: Any) -> Any:
    """Parse a version 4 address; return it as a number, or -1."""
    address, octet, digits, octets = np.int64(0), np.int64(0), 0, 1
    for k in range(i, end):
        byte = text[np.uint64(k)]
        digit = np.int64(byte) ^ 0x30
        if byte == _POINT:
            if digits == 0 or octets == 4:
                return np.int64(-1)
            address, octet, digits, octets = address << 8 | octet, np.int64(0), 0, octets + 1
        elif digit < 10 and not (digits > 0 and octet == 0) and 10 * octet + digit < 256:
            octet, digits = 10 * octet + digit, digits + 1
        else:
            return np.int64(-1)
    return address << 8 | octet if digits > 0 and octets == 4 else np.int64(-1)


@inlined
def _hexadecimal(byte: Any) -> Any:
    """Return the value of a hexadecimal digit, or -1."""
    digit, letter = np.int64(byte) ^ 0x30, (np.int64(byte) | 0x20) - 0x61
    if digit < 10:
        return digit
    return letter + 10 if 0 <= letter < 6 else np.int64(-1)


@inlined
def _pushed(high: Any, low: Any, group: Any) -> Any:
    """Shift 128 bits left by 16, and append 16 bits."""
    return high << _GROUP | low >> _REST, low << _GROUP | np.uint64(group)


@inlined
def _groups(text: Any, i: Any, end: Any) -> Any:
    """Parse a version 6 address; return (version, high, low)."""
    none = (np.int64(0), _NONE, _NONE)
    high, low, count = _NONE, _NONE, 0
    high_before, low_before, before, has_gap = _NONE, _NONE, 0, False
    if end - i >= 2 and text[np.uint64(i)] == _COLON and text[np.uint64(i + 1)] == _COLON:
        has_gap, i = True, i + 2
    while i < end:
        start, group = i, np.int64(0)
        while i < end and i - start <= 4 and _hexadecimal(text[np.uint64(i)]) >= 0:
            group = group << 4 | _hexadecimal(text[np.uint64(i)])
            i += 1
        if i < end and text[np.uint64(i)] == _POINT:  # the last 32 bits, in version 4 notation
            address = _octets(text, start, end)
            if address < 0:
                return none
            high, low = _pushed(high, low, address >> 16)
            high, low = _pushed(high, low, address & 0xFFFF)
            count, i = count + 2, end
            break
        if not 1 <= i - start <= 4:
            return none
        high, low = _pushed(high, low, group)
        count += 1
        if i == end:
            break
        i += 1
        if text[np.uint64(i - 1)] != _COLON or i == end:
            return none
        if text[np.uint64(i)] == _COLON:
            if has_gap:
                return none
            high_before, low_before, before, has_gap = high, low, count, True
            high, low, count, i = _NONE, _NONE, 0, i + 1
    if not (before + count <= 7 if has_gap else count == 8):
        return none
    for _ in range(8 - before):
        high_before, low_before = _pushed(high_before, low_before, np.int64(0))
    return np.int64(6), high | high_before, low | low_before


@inlined
def _address(text: Any, start: Any, end: Any) -> Any:
    """Parse an address; return (version, high, low)."""
    for k in range(start, end):
        if text[np.uint64(k)] == _COLON:
            return _groups(text, start, end)
    address = _octets(text, start, end)
    return (np.int64(4), _NONE, np.uint64(address)) if address >= 0 else (np.int64(0), _NONE, _NONE)


@inlined
def _block(text: Any, start: Any, end: Any) -> Any:
    """Parse a block; return (version, high, low, number of varying bits)."""
    slash = start
    while slash < end and text[np.uint64(slash)] != _SLASH:
        slash += 1
    version, high, low = _address(text, start, slash)
    width = np.int64(32 if version == 4 else 128)
    if slash == end:
        return version, high, low, np.int64(0)
    bits = np.int64(0 if 1 <= end - slash - 1 <= 3 else 1_000)
    for k in range(slash + 1, end):
        digit = np.int64(text[np.uint64(k)]) ^ 0x30
        bits = min(10 * bits + digit, np.int64(1_000)) if digit < 10 else np.int64(1_000)
    return (version, high, low, width - bits) if bits <= width else (np.int64(0), _NONE, _NONE, np.int64(0))


@inlined
def _same_but_for(high: Any, low: Any, bits: Any) -> Any:
    """Whether at most the lowest `bits` of 128 bits are set."""
    if bits >= 128:
        return True
    if bits >= 64:
        return high >> np.uint64(bits - 64) == _NONE
    return high == _NONE and low >> np.uint64(bits) == _NONE


@compiled
def find_addresses(address: Any, block: Any, kinds: Any) -> None:
    """Write whether addresses are in blocks."""
    given_kinds, given_words, text = borrowed(address.kinds), borrowed(address.words), borrowed(address.text)
    block_kinds, block_words, blocks = borrowed(block.kinds), borrowed(block.words), borrowed(block.text)
    kinds, step, block_step = borrowed(kinds), address.step, block.step
    version, high, low, varying = np.int64(0), _NONE, _NONE, np.int64(0)
    for row in range(kinds.size):
        fetch_ahead(text, given_words, row, step)
        kind, word, k = given_kinds[row * step], given_words[row * step], row * block_step
        other = block_kinds[k]
        if other == KIND_STRING and (row == 0 or block_step):
            start = block_words[k] >> 32
            version, high, low, varying = _block(blocks, start, start + (block_words[k] & 0xFFFFFFFF))
        if kind not in (KIND_STRING, KIND_ANY) or other not in (KIND_STRING, KIND_ANY):
            kinds[row] = KIND_NULL
        elif kind == KIND_ANY or other == KIND_ANY:
            kinds[row] = KIND_ANY
        else:
            found, a, b = _address(text, word >> 32, (word >> 32) + (word & 0xFFFFFFFF))
            if found == 0 or version == 0:
                kinds[row] = KIND_NULL
            else:
                inside = found == version and _same_but_for(a ^ high, b ^ low, varying)
                kinds[row] = KIND_TRUE if inside else KIND_FALSE
