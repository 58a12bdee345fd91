"""The compiled loop over places on the Earth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fieldfare.filters.functions.geography import RADIUS_KM
from fieldfare.matching.compiled import borrowed, compiled, inlined
from fieldfare.matching.evaluation.exact_numbers import as_word, has_arithmetic, near_of, second_of
from fieldfare.matching.evaluation.kinds import KIND_ANY, KIND_ASK, KIND_NEAR, KIND_RATIO
from fieldfare.matching.events.columns import KIND_EXACT, KIND_NULL

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
