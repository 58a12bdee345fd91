"""Rows found by a text that a string must contain: the choice of rows and texts, and their tables.

Each row with needles uses its least likely one, if finding the row by it costs less than by its single values
or in a tile, where it would be a candidate for every event that has a string, and its filter would have to be
evaluated. Strings are searched once for all needles of an attribute, which pays from some number of rows on.

The probability that an event contains a needle is estimated from the needle's letters, and from the number of
filters that ask for it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.needles import AT_END, AT_START, FOLDED
from fieldfare.matching.plain.building.gathering import NO_NEEDLES, NeedleTexts
from fieldfare.matching.plain.building.gathering_kernels import NEEDLE_KINDS
from fieldfare.matching.plain.building.needle_kernels import choose_grams, set_bits
from fieldfare.matching.plain.grams import (
    ANCHORS_SHIFT,
    AT_END_BIT,
    AT_START_BIT,
    BYTES_SHIFT,
    HASH_BITS,
    OFFSET_SHIFT,
    PLACE_SHIFT,
)
from fieldfare.matching.plain.layout import Needles, starts_of

SCAN_NS = 1000.0
"""Cost of searching a string, in ns."""
ENTRY_NS = 5.0
"""Cost of each row of a needle that was found, in ns."""
CONFIRM_NS = 60.0
"""Cost of evaluating a filter for a candidate, in ns."""

LETTERS_SHARE = 100.0
"""Expected occurrences of a text of no letters per event: the number of possible places."""
ALPHABET = 8.0
"""The factor by which each additional letter makes a text rarer."""
WORDS = 12
"""Approximate number of words per event that may be needles."""

FEW_NEEDLES = 1 << 14
"""Maximum needles stored under few sizes of grams: checking each size dominates the cost of a string."""
FEW_SIZES, SIZES = (1, 2, 3, 4), (1, 2, 3, 4, 6, 8)
BITS_PER_NEEDLE = 16
BITS_WIDTH_MAX = 27

NO_NEEDLE = -1


class RowNeedles(NamedTuple):
    """All needles of all rows: the row, the needle, and the estimated probability that an event contains
    it."""

    row: NDArray[np.int64]
    needle: NDArray[np.int32]
    share: NDArray[np.float64]


def choose_needles(
    needle_start: NDArray[np.int64],
    needle: NDArray[np.int32],
    texts: NeedleTexts,
    exact: NDArray[np.bool_],
    key_share: NDArray[np.float64],
) -> NDArray[np.int32]:
    """Choose the needle by which each row is found, or NO_NEEDLE.

    Parameters
    ----------
    needle_start, needle
        The needles of each row.
    exact : bool[R]
        Whether a row with all its needles needs no confirmation.
    key_share : float64[R]
        The estimated probability that an event has the single values that the row requires.
    """
    counts = np.diff(needle_start)
    row = np.repeat(np.arange(len(counts)), counts)
    sought = RowNeedles(row, needle, _shares(needle, texts))
    group = texts.code[sought.needle] & ~(AT_START | AT_END)
    decided = (counts[row] == 1) & exact[row]
    confirmed_ns = np.where(decided, 0.0, key_share[row] * CONFIRM_NS)
    cost = sought.share * (ENTRY_NS + confirmed_ns)
    saved = key_share[row] * (ENTRY_NS + CONFIRM_NS) - cost
    chosen = np.full(len(counts), NO_NEEDLE, np.int32)
    useful = np.flatnonzero(saved > 0)
    for is_last in (False, True):
        order = useful[np.lexsort((cost[useful], row[useful]))]
        best = order[np.flatnonzero(np.diff(row[order], prepend=-1))]
        if is_last:
            chosen[row[best]] = sought.needle[best]
            break
        groups, place = np.unique(group[best], return_inverse=True)
        paying = groups[np.bincount(place, saved[best], minlength=len(groups)) > SCAN_NS]
        useful = useful[np.isin(group[useful], paying)]
    return chosen


def _shares(needle: NDArray[np.int32], texts: NeedleTexts) -> NDArray[np.float64]:
    """Estimate the probability that an event contains each needle."""
    letters = np.zeros(len(texts.text) + 1, np.int64)
    np.cumsum((texts.text < 0xC0), out=letters[1:])  # counts 1 for a letter of two bytes, 2 for one of three
    size = np.diff(letters[texts.offset]) + ((texts.code & (AT_START | AT_END)) != 0)
    by_letters = LETTERS_SHARE * ALPHABET ** -size.astype(np.float64)
    asked = np.bincount(needle, minlength=len(texts.code))
    groups, group = np.unique(texts.code & ~(AT_START | AT_END), return_inverse=True)
    asked_total = np.bincount(group, asked, minlength=len(groups))
    by_filters = WORDS * asked / np.maximum(asked_total[group], 1)
    found: NDArray[np.float64] = np.minimum(np.maximum(by_letters, by_filters), 1.0)[needle]
    return found


def pack_needles(
    chosen: NDArray[np.int32], texts: NeedleTexts, checks: NDArray[np.uint32]
) -> tuple[Needles, NDArray[np.int64]]:
    """Build the tables for rows with a chosen needle; their `row` is an index into the second result, the
    rows."""
    rows = np.flatnonzero(chosen != NO_NEEDLE)
    used, needle_of_row = np.unique(chosen[rows], return_inverse=True)
    code = texts.code[used] & ~(AT_START | AT_END)
    grouped = np.argsort(code, kind="stable")
    codes, first = np.unique(code[grouped], return_index=True)
    tables = [_table(texts, used[mine], mine) for mine in np.split(grouped, first[1:]) if len(mine)]
    order = np.concatenate([table.order for table in tables] + [np.zeros(0, np.int64)])
    rank = np.empty(len(used), np.int64)
    rank[order] = np.arange(len(order))
    entry_of_row = rank[needle_of_row]
    by_entry = np.argsort(entry_of_row, kind="stable")
    before = np.cumsum([0, *(len(table.order) for table in tables)])
    size = [table.sizes for table in tables]
    needles = Needles(
        attribute=(codes // NEEDLE_KINDS).astype(np.int32),
        folded=(codes & FOLDED).astype(np.uint8),
        size_start=starts_of(list(map(len, size))),
        size=np.array([each for sizes in size for each in sizes], np.uint8),
        bits_start=starts_of([len(table.bits) for table in tables]),
        bits_width=np.array([table.bits_width for table in tables], np.uint8),
        bits=np.concatenate([table.bits for table in tables] + [np.zeros(0, np.uint8)]),
        slot_start=starts_of([len(table.slots) for table in tables]),
        slot_width=np.array([table.slot_width for table in tables], np.uint8),
        slot=np.concatenate(
            [table.slots + base for table, base in zip(tables, before, strict=False)]
            + [np.zeros(0, np.int64)]
        ).astype(np.int32),
        entry=np.zeros(0, np.int64),
        text=np.zeros(0, np.uint8),
        row_start=starts_of(np.bincount(entry_of_row, minlength=len(order))).astype(np.int32),
        row=np.arange(len(rows), dtype=np.int32),
        check=checks[rows[by_entry]],
    )
    return _with_entries(needles, texts, used[order], tables), rows[by_entry]


class _Table(NamedTuple):
    """The tables of one group; `order` maps entries to needles, as indices among those used."""

    order: NDArray[np.int64]
    sizes: list[int]
    bits_width: int
    bits: NDArray[np.uint8]
    slot_width: int
    slots: NDArray[np.int64]
    at: NDArray[np.int64]
    hashes: NDArray[np.int64]


def _table(texts: NeedleTexts, needles: NDArray[np.int32], place: NDArray[np.int64]) -> _Table:
    count = len(needles)
    lengths = texts.offset[needles + 1] - texts.offset[needles]
    sizes = np.array(FEW_SIZES if count <= FEW_NEEDLES else SIZES, np.int64)
    sizes = np.unique(sizes[np.searchsorted(sizes, lengths, side="right") - 1])
    at, hashes = np.zeros(count, np.int64), np.zeros(count, np.int64)
    choose_grams(texts.offset, texts.text, needles, sizes, at, hashes)
    bits_width = min(BITS_WIDTH_MAX, max(12, (BITS_PER_NEEDLE * count).bit_length()))
    bits = np.zeros(1 << (bits_width - 3), np.uint8)
    set_bits(hashes, bits_width, bits)
    slot_width = max(4, (2 * count).bit_length())
    slots = hashes >> (HASH_BITS - slot_width)
    order = np.argsort(slots, kind="stable")
    return _Table(
        order=place[order],
        sizes=sizes.tolist(),
        bits_width=bits_width,
        bits=bits,
        slot_width=slot_width,
        slots=starts_of(np.bincount(slots, minlength=1 << slot_width)),
        at=at[order],
        hashes=hashes[order],
    )


def _with_entries(
    needles: Needles, texts: NeedleTexts, order: NDArray[np.int32], tables: list[_Table]
) -> Needles:
    """Add the entries' records and texts, in the order in which they are read."""
    lengths = texts.offset[order + 1] - texts.offset[order]
    offset = starts_of(lengths)
    text = texts.text[np.arange(offset[-1]) + np.repeat(texts.offset[order] - offset[:-1], lengths)]
    none = [np.zeros(0, np.int64)]
    at, hashes = (
        np.concatenate([getattr(table, name) for table in tables] + none) for name in ("at", "hashes")
    )
    kind = texts.code[order].astype(np.int64)
    anchors = np.where(kind & AT_START, AT_START_BIT, 0) | np.where(kind & AT_END, AT_END_BIT, 0)
    entry = (
        offset[:-1] << OFFSET_SHIFT
        | lengths << BYTES_SHIFT
        | at << PLACE_SHIFT
        | anchors << ANCHORS_SHIFT
        | hashes & (1 << ANCHORS_SHIFT) - 1
    )
    return needles._replace(entry=entry, text=text)


NO_ROWS, _ = pack_needles(np.zeros(0, np.int32), NO_NEEDLES, np.zeros(0, np.uint32))
"""The tables of a part without needles."""
