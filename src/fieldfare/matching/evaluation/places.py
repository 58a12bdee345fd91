"""Geographic places and IP addresses, by columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.evaluation import address_kernels, place_kernels
from fieldfare.matching.evaluation.numbers import fresh, step_of
from fieldfare.matching.evaluation.operands import filled
from fieldfare.matching.evaluation.view import Values


def distance(size: int, *given: Values) -> Values:
    """DISTANCE_KM(latitude, longitude, latitude_2, longitude_2)."""
    states: Any = np.full(size, place_kernels.KNOWN, np.uint8)
    degrees: Any = [np.empty(size) for _ in given]
    for each, most, read in zip(given, (90.0, 180.0, 90.0, 180.0), degrees, strict=True):
        place_kernels.read_degrees(each, most, states, read)
    out = fresh(size)
    place_kernels.measure_distances(states, tuple(degrees), out)
    return filled(*out, step=step_of(*given))


def in_block(size: int, address: Values, block: Values) -> Values:
    """IN_CIDR(address, block)."""
    kinds: Any = np.empty(size, np.uint8)
    address_kernels.find_addresses(address, block, kinds)
    return filled(kinds, np.zeros(size, np.int64), step=step_of(address, block))
