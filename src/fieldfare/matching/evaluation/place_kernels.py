"""Kernels for geographic places."""

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
"""Millimetres per kilometre: the precision to which a distance is rounded."""
_DOUBT_MM, _DOUBT_FAR_MM = 1e-3, 1e-4
"""Upper bound of the difference between two computations of a distance, and its growth towards the
antipodes."""

_NO_NUMBER, KNOWN, _OPEN = 0, 1, 2


@inlined
def _degrees(kinds: Any, words: Any, seconds: Any, place: Any, most: Any) -> Any:
    """Return (whether there is a latitude or longitude, or _OPEN if unknown; the degrees)."""
    kind, word = kinds[place], words[place]
    if not has_arithmetic(kind, word):
        return np.int64(_NO_NUMBER), 0.0
    if kind in (KIND_EXACT, KIND_ASK, KIND_ANY):
        return np.int64(_OPEN), 0.0
    value, away = near_of(kind, word, second_of(kind, seconds, place))
    if kind == KIND_NEAR or (kind == KIND_RATIO and abs(value) + away >= most >= abs(value) - away):
        return np.int64(_OPEN), value
    return np.int64(KNOWN if abs(value) <= most else _NO_NUMBER), value


@inlined
def _distance_mm(phi: Any, phi_2: Any, across: Any) -> Any:
    """Return (a distance in millimetres, the maximum difference between two computations of it)."""
    south, east = math.sin((phi_2 - phi) / 2.0), math.sin(across / 2.0)
    h = min(1.0, south * south + math.cos(phi) * math.cos(phi_2) * east * east)
    distance = 2.0 * RADIUS_KM * _MILLIMETRES * math.asin(math.sqrt(h))
    return distance, _DOUBT_MM + _DOUBT_FAR_MM * math.sqrt(h / max(1.0 - h, 1e-30))


@compiled
def read_degrees(given: Any, most: Any, states: Any, degrees: Any) -> None:
    """Write latitudes or longitudes; a missing or unknown one sets the row's state permanently."""
    kinds, words, seconds = borrowed(given.kinds), borrowed(given.words), borrowed(given.seconds)
    states, degrees, step = borrowed(states), borrowed(degrees), given.step
    for row in range(states.size):
        state, degrees[row] = _degrees(kinds, words, seconds, row * step, most)
        if state == _NO_NUMBER or states[row] == KNOWN:
            states[row] = state


@compiled
def measure_distances(states: Any, degrees: Any, out: Any) -> None:
    """Write the distances of places in kilometres, to a millimetre: kinds, words, second words.

    ``degrees`` has the latitudes and longitudes of the first place, then of the second.
    """
    kinds, words, seconds = borrowed(out[0]), borrowed(out[1]), borrowed(out[2])
    states, latitudes, longitudes = borrowed(states), borrowed(degrees[0]), borrowed(degrees[1])
    latitudes_2, longitudes_2 = borrowed(degrees[2]), borrowed(degrees[3])
    radians = math.pi / 180.0
    for row in range(states.size):
        kinds[row], words[row], seconds[row] = KIND_NULL, 0, 0
        if states[row] != KNOWN:
            kinds[row] = KIND_ASK if states[row] == _OPEN else KIND_NULL
            continue
        phi, phi_2 = latitudes[row] * radians, latitudes_2[row] * radians
        distance, doubt = _distance_mm(phi, phi_2, (longitudes_2[row] - longitudes[row]) * radians)
        whole = np.rint(distance)
        if abs(distance - whole) + doubt < 0.5:
            kinds[row], words[row], seconds[row] = KIND_RATIO, np.int64(whole), _MILLIMETRES
        elif doubt < 1e6:
            kinds[row], words[row] = KIND_NEAR, as_word(distance / _MILLIMETRES)
            seconds[row] = as_word((doubt + 1.0) / _MILLIMETRES)
        else:
            kinds[row] = KIND_ASK
