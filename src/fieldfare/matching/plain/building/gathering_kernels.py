"""Decoding of encoded normal forms: msgpack to columns.

An *end* of a piece is a place between the values of an attribute (see ``layout`` for their order)::

    CELL         before the cell `value`
    NUMBERS_END  after all numbers
    STRINGS_END  after all strings
    NUMBER       before the number `value`; +1: after it
    ODD          before a number that no float64 represents, given by its index among these; +1: after it
    STRING       before a string, given by its index among the strings; +1: after it
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.compiled import compiled, inlined
from fieldfare.matching.events.columns import KIND_FLOAT
from fieldfare.matching.events.json_numbers import read_number
from fieldfare.matching.plain.dictionary_kernels import hash_string
from fieldfare.matching.plain.layout import FIRST_NUMBER_CELL

CELL, NUMBERS_END, STRINGS_END = 0, 1, 2
NUMBER, ODD, STRING = 4, 6, 8

FORMAT, NEEDLES_FORMAT, DERIVED_FORMAT = 1, 2, 3
"""The supported versions of the encoding; see ``filters.encoding``."""
IMPLIED = 1 << 30
"""Added to the attribute of a predicate that derived columns imply; see ``derived``."""
NEEDLE_KINDS = 8
"""Needles are grouped by ``attribute * NEEDLE_KINDS + kind``."""

_WHOLE_MAX = 1 << 53
_DIGITS_MAX = 15
"""Maximum digits for which the nearest float64 always prints as the original decimal."""
_LEAST, _MOST = 1e-290, 2.0**53
_BAD = np.int64(-1)


class Interned(NamedTuple):
    """Distinct texts, each with an attribute: `slots` is a hash table of their numbers, `used` counts
    them."""

    slots: NDArray[np.int32]
    attribute: NDArray[np.int32]
    offset: NDArray[np.int64]
    text: NDArray[np.uint8]
    used: NDArray[np.int64]  # [1]

    @classmethod
    def empty(cls) -> Self:
        return cls(
            np.full(16, -1, np.int32),
            np.zeros(0, np.int32),
            np.zeros(1, np.int64),
            np.zeros(0, np.uint8),
            np.zeros(1, np.int64),
        )

    def with_room(self, texts: int, size: int) -> Interned:
        """Return a copy with room for `texts` more texts of `size` bytes together, or the same arrays if they
        suffice."""
        count = int(self.used[0])
        used = int(self.offset[count])
        slots, attribute, offset, text = self.slots, self.attribute, self.offset, self.text
        if used + size > len(text):
            text = _larger(text, used, 2 * (used + size))
        if count + texts > len(attribute):
            attribute = _larger(attribute, count, 2 * (count + texts))
            offset = _larger(offset, count + 1, 2 * (count + texts) + 1)
        if 2 * (count + texts) > len(slots):
            slots = np.full(1 << (4 * (count + texts)).bit_length(), -1, np.int32)
            rehash(slots, attribute, offset, text, count)
        return Interned(slots, attribute, offset, text, self.used)

    def trimmed(self) -> Interned:
        """Return a copy without spare room."""
        count = int(self.used[0])
        offset = self.offset[: count + 1].copy()
        return self._replace(
            attribute=self.attribute[:count].copy(), offset=offset, text=self.text[: offset[-1]].copy()
        )

    def texts(self) -> list[bytes]:
        """Return the texts in order of first occurrence."""
        offset = self.offset[: int(self.used[0]) + 1].tolist()
        return [self.text[a:b].tobytes() for a, b in pairwise(offset)]


def _larger(array: NDArray[Any], used: int, size: int) -> NDArray[Any]:
    larger = np.empty(size, array.dtype)
    larger[:used] = array[:used]
    return larger


class OutputBuffers(NamedTuple):
    """The output buffers of a kernel: the columns of `Gathered`, with room for the worst case."""

    subscription: NDArray[np.int32]
    predicate_start: NDArray[np.int64]
    attribute: NDArray[np.int32]
    piece_start: NDArray[np.int64]
    kind: NDArray[np.uint8]
    value: NDArray[np.float64]
    odd: NDArray[np.int64]  # [., 4]: attribute, start and end among the bytes, number of the end
    confirmed: NDArray[np.uint8]
    needle_start: NDArray[np.int64]
    needle: NDArray[np.int32]

    @classmethod
    def of(cls, size: int, count: int) -> Self:
        """Allocate buffers for `count` normal forms of `size` bytes together.

        A conjunction takes at least 3 bytes, a predicate 10, with up to 5 pieces of atoms; a cut of 3 bytes
        is one end; a needle takes at least 6.
        """
        rows, predicates, ends = size // 3 + 1, size // 10 + 1, 14 * (size // 10 + 1) + size // 3
        return cls(
            np.empty(rows, np.int32),
            np.zeros(rows + 1, np.int64),
            np.empty(predicates, np.int32),
            np.zeros(predicates + 1, np.int64),
            np.empty(ends, np.uint8),
            np.empty(ends, np.float64),
            np.empty((size // 3 + 1, 4), np.int64),
            np.zeros(count, np.uint8),
            np.zeros(rows + 1, np.int64),
            np.empty(size // 6 + 1, np.int32),
        )


@compiled
def _hash(attribute: int, text: Any, start: int, length: int) -> Any:
    return hash_string(text, start, length) ^ ((attribute * 2654435761) & 0xFFFFFFFF)


@compiled
def rehash(slots: Any, attribute: Any, offset: Any, text: Any, count: int) -> None:
    """Insert all texts into a new hash table."""
    mask = len(slots) - 1
    for i in range(count):
        slot = _hash(attribute[i], text, offset[i], offset[i + 1] - offset[i]) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = i


@compiled
def intern(known: Any, attribute: int, data: Any, start: int, length: int) -> Any:
    """Return the number of an attribute's text, adding the text if it is new."""
    mask = len(known.slots) - 1
    slot = _hash(attribute, data, start, length) & mask
    while known.slots[slot] >= 0:
        i = known.slots[slot]
        begin = known.offset[i]
        if known.attribute[i] == attribute and known.offset[i + 1] - begin == length:
            same = True
            for k in range(length):
                if known.text[begin + k] != data[start + k]:
                    same = False
                    break
            if same:
                return np.int64(i)
        slot = (slot + 1) & mask
    i = known.used[0]
    begin = known.offset[i]
    for k in range(length):
        known.text[begin + k] = data[start + k]
    known.attribute[i] = attribute
    known.offset[i + 1] = begin + length
    known.slots[slot] = i
    known.used[0] = i + 1
    return np.int64(i)


@inlined
def _big_endian(data: Any, i: Any, width: Any) -> Any:
    value = np.int64(0)
    for k in range(width):
        value = value << 8 | np.int64(data[i + k])
    return value


@inlined
def _array(data: Any, i: Any) -> Any:
    """Read an array's header: return (position after it or _BAD, number of elements)."""
    byte = np.int64(data[i])
    if byte & 0xF0 == 0x90:
        return i + 1, byte & 0x0F
    if byte == 0xDC:
        return i + 3, _big_endian(data, i + 1, 2)
    if byte == 0xDD:
        return i + 5, _big_endian(data, i + 1, 4)
    return _BAD, np.int64(0)


@inlined
def _string(data: Any, i: Any) -> Any:
    """Read a string's header: return (start of its bytes or _BAD, number of bytes)."""
    byte = np.int64(data[i])
    if byte & 0xE0 == 0xA0:
        return i + 1, byte & 0x1F
    if byte == 0xD9:
        return i + 2, np.int64(data[i + 1])
    if byte == 0xDA:
        return i + 3, _big_endian(data, i + 1, 2)
    if byte == 0xDB:
        return i + 5, _big_endian(data, i + 1, 4)
    return _BAD, np.int64(0)


@inlined
def _integer(data: Any, i: Any) -> Any:
    """Read a 64-bit integer: return (position after it or _BAD, value)."""
    byte = np.int64(data[i])
    if byte < 0x80:
        return i + 1, byte
    if byte >= 0xE0:
        return i + 1, byte - 256
    if 0xCC <= byte <= 0xCF:  # unsigned, of 1, 2, 4, 8 bytes
        width = np.int64(1) << (byte - 0xCC)
        value = _big_endian(data, i + 1, width)
        return (_BAD if value < 0 else i + 1 + width), value
    if 0xD0 <= byte <= 0xD3:
        width = np.int64(1) << (byte - 0xD0)
        value = _big_endian(data, i + 1, width)
        if width < 8 and value >> (8 * width - 1):
            value -= np.int64(1) << (8 * width)
        return i + 1 + width, value
    return _BAD, np.int64(0)


@compiled
def _path(data: Any, i: int, end: int) -> Any:
    """Validate a path, an array of strings and integers: return the position after it, or _BAD."""
    i, steps = _array(data, i)
    if i < 0 or steps == 0:
        return _BAD
    for _ in range(steps):
        if i >= end:
            return _BAD
        after, length = _string(data, i)
        if after < 0:
            after, length = _integer(data, i)
            length = np.int64(0)
        if after < 0 or after + length > end:
            return _BAD
        i = after + length
    return i


@compiled
def _number(data: Any, i: int, end: int) -> Any:
    """Read a number: return (position after it or _BAD, whether a float64 represents it, the float64)."""
    after, whole = _integer(data, i)
    if after >= 0:
        return after, -_WHOLE_MAX <= whole <= _WHOLE_MAX, float(whole)
    start, length = _string(data, i)
    if start < 0 or length == 0 or start + length > end:
        return _BAD, False, 0.0
    stop = start + length
    digits = 0
    for k in range(start, stop):
        byte = data[k]
        if byte == 0x45:  # an E
            break
        if 0x31 <= byte <= 0x39 or (byte == 0x30 and digits):
            digits += 1
    after, kind, word = read_number(data, start)
    number = np.int64(word).view(np.float64)
    plain = after == stop and kind == KIND_FLOAT and digits <= _DIGITS_MAX and _LEAST < abs(number) < _MOST
    return stop, plain, number


@compiled
def _numbers(data: Any, i: int, end: int, attribute: int, room: Any, ends: int, odd: int) -> Any:
    """Read ranges of numbers: return (position after them or _BAD, new number of ends, of odd numbers)."""
    i, fields = _array(data, i)
    if i < 0 or fields != 2 or data[i] & 0xFE != 0xC2:
        return _BAD, ends, odd
    first = ends
    if data[i] == 0xC3:
        room.kind[ends], room.value[ends] = CELL, FIRST_NUMBER_CELL
        ends += 1
    i, cuts = _array(data, i + 1)
    if i < 0:
        return _BAD, ends, odd
    for _ in range(cuts):
        if i >= end or data[i] != 0x92:
            return _BAD, ends, odd
        start = i + 1
        i, plain, number = _number(data, start, end)
        if i < 0 or i >= end or data[i] > 1:
            return _BAD, ends, odd
        if plain:
            room.kind[ends], room.value[ends] = NUMBER + data[i], number
        else:
            room.kind[ends] = ODD + data[i]
            room.odd[odd, 0], room.odd[odd, 1], room.odd[odd, 2], room.odd[odd, 3] = attribute, start, i, ends
            odd += 1
        ends += 1
        i += 1
    if (ends - first) & 1:
        room.kind[ends], room.value[ends] = NUMBERS_END, 0.0
        ends += 1
    return i, ends, odd


@compiled
def _strings(data: Any, i: int, end: int, attribute: int, strings: Any, room: Any, ends: int) -> Any:
    """Read ranges of strings: return (position after them or _BAD, new number of ends)."""
    i, fields = _array(data, i)
    if i < 0 or fields != 2 or data[i] & 0xFE != 0xC2:
        return _BAD, ends
    first = ends
    if data[i] == 0xC3:
        room.kind[ends], room.value[ends] = NUMBERS_END, 0.0
        ends += 1
    i, cuts = _array(data, i + 1)
    if i < 0:
        return _BAD, ends
    for _ in range(cuts):
        if i >= end or data[i] != 0x92:
            return _BAD, ends
        i, length = _string(data, i + 1)
        if i < 0 or i + length >= end or data[i + length] > 1:
            return _BAD, ends
        place = intern(strings, attribute, data, i, length)
        i += length
        room.kind[ends], room.value[ends] = STRING + data[i], float(place)
        ends += 1
        i += 1
    if (ends - first) & 1:
        room.kind[ends], room.value[ends] = STRINGS_END, 0.0
        ends += 1
    return i, ends


@compiled
def _constraint(data: Any, i: int, end: int, paths: Any, strings: Any, room: Any, places: Any) -> Any:
    """Read one attribute's set: return the position after it, or _BAD; places: predicates, ends, odd
    numbers."""
    if i >= end or data[i] != 0x94:
        return _BAD
    start = i + 1
    i = _path(data, start, end)
    if i < 0:
        return _BAD
    attribute = intern(paths, 0, data, start, i - start)
    if i >= end or data[i] > 63:
        return _BAD
    atoms, ends = np.int64(data[i]), places[1]
    implied = IMPLIED if atoms >> FIRST_NUMBER_CELL else 0
    for cell in range(FIRST_NUMBER_CELL):
        if atoms >> cell & 1:
            room.kind[ends], room.value[ends] = CELL, cell
            room.kind[ends + 1], room.value[ends + 1] = CELL, cell + 1
            ends += 2
    i, ends, places[2] = _numbers(data, i + 1, end, attribute, room, ends, places[2])
    if i < 0:
        return _BAD
    i, ends = _strings(data, i, end, attribute, strings, room, ends)
    room.attribute[places[0]] = attribute + implied
    places[0] += 1
    places[1] = ends
    room.piece_start[places[0]] = ends >> 1
    return i


@compiled
def _needle(data: Any, i: int, end: int, paths: Any, needles: Any, room: Any, places: Any) -> Any:
    """Read one needle: return the position after it, or _BAD; places[3] counts needles."""
    if i >= end or data[i] != 0x93:
        return _BAD
    start = i + 1
    i = _path(data, start, end)
    if i < 0:
        return _BAD
    attribute = intern(paths, 0, data, start, i - start)
    text, length = _string(data, i)
    if i >= end or text < 0 or length == 0 or text + length >= end or data[text + length] >= NEEDLE_KINDS:
        return _BAD
    kind = np.int64(data[text + length])
    room.needle[places[3]] = intern(needles, attribute * NEEDLE_KINDS + kind, data, text, length)
    places[3] += 1
    return text + length + 1


@compiled
def _parts(data: Any, i: int, end: int, fields: int, known: Any, room: Any, places: Any) -> Any:
    """Read the parts of a conjunction: return (position after them or _BAD, whether it is unsatisfiable)."""
    paths, strings, needles = known
    is_empty = False
    i, constraints = _array(data, i)
    if i < 0:
        return _BAD, is_empty
    for _ in range(constraints):
        ends = places[1]
        i = _constraint(data, i, end, paths, strings, room, places)
        if i < 0:
            return _BAD, is_empty
        is_empty |= places[1] == ends
    if fields == 3:
        i, count = _array(data, i)
        if i < 0 or i > end:
            return _BAD, is_empty
        for _ in range(count):
            i = _needle(data, i, end, paths, needles, room, places)
            if i < 0:
                return _BAD, is_empty
    return i, is_empty


@compiled
def decode_forms(data: Any, starts: Any, first: int, known: Any, room: Any) -> Any:
    """Read normal forms, of the subscriptions from `first` on, into `room`.

    `known` are the paths, strings and needles read before. Returns the numbers of rows, predicates, ends, odd
    numbers and needles, and the index of an invalid form, or -1. A conjunction with an empty set is left out;
    a subscription may have to be confirmed if one of its other conjunctions is inexact or has needles, or if
    there are derived columns.
    """
    places = np.zeros(4, np.int64)
    counts = np.zeros(5, np.int64)
    rows = 0
    for form in range(len(starts) - 1):
        i, end = starts[form], starts[form + 1]
        if i + 2 >= end or data[i] != 0x92 or not (FORMAT <= data[i + 1] <= DERIVED_FORMAT):
            return counts, form
        fields = 2 if data[i + 1] == FORMAT else 3
        derives = data[i + 1] == DERIVED_FORMAT
        i, conjunctions = _array(data, i + 2)
        if i < 0:
            return counts, form
        for _ in range(conjunctions):
            if i + 1 >= end or data[i] != 0x90 + fields or data[i + 1] & 0xFE != 0xC2:
                return counts, form
            exact = data[i + 1] == 0xC3
            before = places[0], places[1], places[2], places[3]
            i, is_empty = _parts(data, i + 2, end, fields, known, room, places)
            if i < 0:
                return counts, form
            if is_empty:
                places[0], places[1], places[2], places[3] = before
                continue
            room.subscription[rows] = first + form if exact else ~(first + form)
            room.confirmed[form] |= not exact or derives or places[3] > before[3]
            rows += 1
            room.predicate_start[rows] = places[0]
            room.needle_start[rows] = places[3]
        if i != end:
            return counts, form
    counts[0] = rows
    counts[1:] = places
    return counts, -1
