"""Rows found by needles in the strings of one attribute, for one group of needles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.evaluation.texts import with_case
from fieldfare.matching.evaluation.view import readable
from fieldfare.matching.events.columns import Column
from fieldfare.matching.plain.layout import Needles, Rows
from fieldfare.matching.plain.search.needle_kernels import scan_needles


def scan_strings(
    needles: Needles,
    group: int,
    rows: Rows,
    column: Column,
    text: NDArray[np.uint8],
    by_event: NDArray[np.int32],
    marks: NDArray[np.uint8],
    pairs: NDArray[np.int32],
    count: int,
    most: int,
) -> tuple[NDArray[np.int32], int]:
    """Append (event, subscription) for rows found by a group's needles in its attribute's column."""
    strings = readable(column.kinds), readable(column.words), readable(text)
    if needles.folded[group]:
        strings = with_case(*strings, str.casefold)
    pairs, count = scan_needles(needles, group, rows, *strings, by_event, marks, pairs, count, most)
    return pairs, count
