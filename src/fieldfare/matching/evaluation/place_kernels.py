"""The compiled loops over places on the Earth and over addresses of the Internet."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fieldfare.filters.functions.geography import RADIUS_KM
from fieldfare.matching.compiled import borrowed, compiled, inlined
from fieldfare.matching.evaluation.exact_numbers import as_word, has_arithmetic, near_of, second_of
from fieldfare.matching.evaluation.kinds import KIND_ANY, KIND_ASK, KIND_NEAR, KIND_RATIO
from fieldfare.matching.evaluation.text_kernels import fetch_ahead
from fieldfare.matching.events.columns import KIND_EXACT, KIND_FALSE, KIND_NULL, KIND_STRING, KIND_TRUE

_MILLIMETRES = 1_000_000
"""In a kilometre: what a distance is rounded to."""
_SURE_DEGREES = 1e-13
_DOUBT_MM, _DOUBT_FAR_MM = 1e-3, 1e-4
"""More than two computations of a distance differ by, and what grows towards the antipodes."""

_NO_NUMBER, _KNOWN, _OPEN = 0, 1, 2


@inlined
def _degrees(given: Any, row: Any, most: Any) -> Any:
    """(whether there is a latitude or longitude, or that is open; the degrees)."""
    place = row * given.step
    kind, word = given.kinds[place], given.words[place]
    if not has_arithmetic(kind, word):
        return np.int64(_NO_NUMBER), 0.0
    if kind in (KIND_EXACT, KIND_ASK, KIND_ANY):
        return np.int64(_OPEN), 0.0
    value, away = near_of(kind, word, second_of(kind, given.seconds, place))
    if kind == KIND_NEAR or (kind == KIND_RATIO and abs(value) + away >= most >= abs(value) - away):
        return np.int64(_OPEN), value
    return np.int64(_KNOWN if abs(value) <= most else _NO_NUMBER), value


@inlined
def _distance_mm(phi: Any, phi_2: Any, across: Any) -> Any:
    """(a distance in millimetres, how far two computations of it may be apart)."""
    south, east = math.sin((phi_2 - phi) / 2.0), math.sin(across / 2.0)
    h = min(1.0, south * south + math.cos(phi) * math.cos(phi_2) * east * east)
    distance = 2.0 * RADIUS_KM * _MILLIMETRES * math.asin(math.sqrt(h))
    return distance, _DOUBT_MM + _DOUBT_FAR_MM * math.sqrt(h / max(1.0 - h, 1e-30))


@compiled
def measure_distances(
    latitude: Any, longitude: Any, latitude_2: Any, longitude_2: Any, kinds: Any, words: Any, seconds: Any
) -> None:
    """Write the distances of places in kilometres, to a millimetre."""
    kinds, words, seconds = borrowed(kinds), borrowed(words), borrowed(seconds)
    radians = math.pi / 180.0
    for row in range(kinds.size):
        a, south = _degrees(latitude, row, 90.0)
        b, west = _degrees(longitude, row, 180.0)
        c, north = _degrees(latitude_2, row, 90.0)
        d, east = _degrees(longitude_2, row, 180.0)
        kinds[row], words[row], seconds[row] = KIND_NULL, 0, 0
        if a == _NO_NUMBER or b == _NO_NUMBER or c == _NO_NUMBER or d == _NO_NUMBER:
            continue
        kinds[row] = KIND_ASK
        if a == _OPEN or b == _OPEN or c == _OPEN or d == _OPEN:
            continue
        distance, doubt = _distance_mm(south * radians, north * radians, (east - west) * radians)
        whole = np.rint(distance)
        if abs(distance - whole) + doubt < 0.5:
            kinds[row], words[row], seconds[row] = KIND_RATIO, np.int64(whole), _MILLIMETRES
        elif doubt < 1e6:
            kinds[row], words[row] = KIND_NEAR, as_word(distance / _MILLIMETRES)
            seconds[row] = as_word((doubt + 1.0) / _MILLIMETRES)


_NO_ADDRESS = -1
_SIX = -2
"""Perhaps an address of version 6."""


@inlined
def _address(text: Any, i: Any, end: Any) -> Any:
    """An address of version 4 as a number, _NO_ADDRESS, or _SIX."""
    address, octet, digits, octets = np.int64(0), np.int64(0), 0, 1
    known: Any = True
    for k in range(i, end):
        byte = text[np.uint64(k)]
        if byte == 0x3A:
            return np.int64(_SIX)
        digit = np.int64(byte) ^ 0x30
        if byte == 0x2E:
            known = known and digits > 0 and octets < 4
            address, octet, digits, octets = address << 8 | octet, np.int64(0), 0, octets + 1
        elif digit < 10 and digits < 3 and not (digits > 0 and octet == 0):
            octet, digits = 10 * octet + digit, digits + 1
            known = known and octet < 256
        else:
            known = False
    if not known or digits == 0 or octets != 4:
        return np.int64(_NO_ADDRESS)
    return address << 8 | octet


@inlined
def _block(text: Any, start: Any, end: Any) -> Any:
    """(the address of a block, or _NO_ADDRESS or _SIX; how many bits of it vary)."""
    slash = start
    while slash < end and text[np.uint64(slash)] != 0x2F:
        slash += 1
    address = _address(text, start, slash)
    if slash == end or address < 0:
        return address, np.int64(0)
    if not 1 <= end - slash - 1 <= 3:
        return np.int64(_NO_ADDRESS), np.int64(0)
    bits = np.int64(0)
    for k in range(slash + 1, end):
        digit = np.int64(text[np.uint64(k)]) ^ 0x30
        bits = 10 * bits + digit if digit < 10 else np.int64(1_000)
    return (address, 32 - bits) if bits <= 32 else (np.int64(_NO_ADDRESS), np.int64(0))


@compiled
def find_addresses(address: Any, block: Any, kinds: Any) -> None:
    """Write whether addresses are in blocks; those of version 6 are left to Python."""
    given_kinds, given_words, text = borrowed(address.kinds), borrowed(address.words), borrowed(address.text)
    block_kinds, block_words, blocks = borrowed(block.kinds), borrowed(block.words), borrowed(block.text)
    kinds, step = borrowed(kinds), address.step
    network, varying = np.int64(_NO_ADDRESS), np.int64(0)
    for row in range(kinds.size):
        fetch_ahead(text, given_words, row, step)
        kind, word = given_kinds[row * step], given_words[row * step]
        other, k = block_kinds[row * block.step], row * block.step
        if other == KIND_STRING and (row == 0 or block.step):
            start = block_words[k] >> 32
            network, varying = _block(blocks, start, start + (block_words[k] & 0xFFFFFFFF))
        if kind not in (KIND_STRING, KIND_ANY) or other not in (KIND_STRING, KIND_ANY):
            kinds[row] = KIND_NULL
            continue
        if kind == KIND_ANY or other == KIND_ANY:
            kinds[row] = KIND_ANY
            continue
        found = _address(text, word >> 32, (word >> 32) + (word & 0xFFFFFFFF))
        if found == _NO_ADDRESS or network == _NO_ADDRESS:
            kinds[row] = KIND_NULL
        elif found == _SIX or network == _SIX:
            kinds[row] = KIND_ANY
        else:
            kinds[row] = KIND_TRUE if (found ^ network) >> varying == 0 else KIND_FALSE
