"""Numbers and ranges as vectors whose product has the right sign: docs/decisions/encrypted.md.

    event   p = (y1², y1, ..., 1, masks)   sent: r · p M
    range   q ~ (y - a)(b - y)             sent: s · q (M⁻¹)ᵀ

Nothing here draws a number: who calls gives what is random, as numbers of [0, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldfare.client.encrypting import EncryptionError

Vectors = NDArray[np.float64]
Uniform = Callable[[int], Vectors]
"""Gives so many random numbers of [0, 1)."""

MASKS = 3
"""Dimensions in which an event is random."""
SPREAD = 2.0
"""The matrix stretches by at most this, and by at least one over it."""
OUTER = (1.25, 1.75)
"""Where an open end lies beyond all values, which are from -1 to 1."""
GONE = (-2.75, -2.25)
"""Where an attribute lies that is missing: beyond every open end."""
ROUNDING = 2.0**-53


def dimensions_of(numbers: int) -> int:
    """How many dimensions the vectors have."""
    return 2 * numbers + 1 + MASKS


@dataclass(frozen=True, slots=True, eq=False)
class Transform:
    """An invertible matrix and its inverse.

    Attributes
    ----------
    error
        What a computed product may be off by, at most, before it is scaled.
    """

    forward: Vectors
    inverse: Vectors
    error: float

    @classmethod
    def draw(cls, numbers: int, uniform: Uniform, spread: float = SPREAD) -> Transform:
        """A random one; `spread` is how badly it is conditioned, one over it to it."""
        size = dimensions_of(numbers)
        rotations = [np.linalg.qr(_normal(uniform, size * size).reshape(size, size))[0] for _ in range(2)]
        scales = spread ** (2.0 * uniform(size) - 1.0)
        forward = (rotations[0] * scales) @ rotations[1]
        inverse = np.linalg.inv(forward)
        return cls(forward, inverse, _worst_error(forward, inverse, numbers))

    def check(self, steps: Sequence[int]) -> None:
        """EncryptionError if it cannot tell two values apart that are a step from one another."""
        for count in steps:
            if not self.error <= half_step_margin(count) / 2:
                raise EncryptionError(
                    f"this key cannot tell {count:,} steps apart: its worst error is {self.error:.1e}, half a"
                    f" step's margin {half_step_margin(count):.1e}; declare a larger step"
                )

    def events(self, places: NDArray[np.int64], steps: NDArray[np.int64], uniform: Uniform) -> Vectors:
        """Events as they are sent: float64[n, D].

        Parameters
        ----------
        places : int64[n, d]
            Of each number; -1 where it is missing.
        steps : int64[d]
            How many steps each has.
        """
        count, numbers = places.shape
        size = dimensions_of(numbers)
        y = 2.0 * places / steps - 1.0
        gone = places < 0
        y[gone] = GONE[0] + (GONE[1] - GONE[0]) * uniform(int(np.count_nonzero(gone)))
        points = np.empty((count, size))
        points[:, 0 : 2 * numbers : 2] = y * y
        points[:, 1 : 2 * numbers : 2] = y
        points[:, 2 * numbers] = 1.0
        points[:, 2 * numbers + 1 :] = (2.0 * uniform(count * MASKS) - 1.0).reshape(count, MASKS)
        scale: Vectors = 4.0 ** uniform(count) / 2.0
        return (points @ self.forward) * scale[:, None]

    def rows(self, number: int, first: int, last: int, steps: int, uniform: Uniform) -> list[Vectors]:
        """A range of places as rows that are all positive exactly where a value lies in it."""
        ends = OUTER[0] + (OUTER[1] - OUTER[0]) * uniform(4)
        half = 1.0 / steps
        low = 2.0 * first / steps - 1.0 - half if first > 0 else -float(ends[0])
        high = 2.0 * last / steps - 1.0 + half if last < steps else float(ends[1])
        whole = _margin(low, high, first, last, steps)
        if first > 0 and last < steps and not self.error <= whole / 2:
            parts = [(low, float(ends[2]), first, steps), (-float(ends[3]), high, 0, last)]
        else:
            parts = [(low, high, first, last)]
        return [self._row(number, a, b, _margin(a, b, i, j, steps), uniform) for a, b, i, j in parts]

    def _row(self, number: int, a: float, b: float, margin: float, uniform: Uniform) -> Vectors:
        size = len(self.forward)
        coefficients = np.zeros(size)
        coefficients[2 * number : 2 * number + 2] = -1.0, a + b
        coefficients[size - MASKS - 1] = -a * b
        noise = 2.0 * uniform(MASKS) - 1.0
        coefficients[size - MASKS :] = noise * (margin / 4.0 / MASKS)
        row: Vectors = (self.inverse @ coefficients) * float(4.0 ** uniform(1)[0] / 2.0)
        return row


def half_step_margin(steps: int) -> float:
    """The margin that a row with an open end has at least."""
    return 1.0 / (4.0 * steps)


def _margin(a: float, b: float, first: int, last: int, steps: int) -> float:
    """The least |(y - a)(b - y)| of all values, and of what is missing."""
    near = [place for place in (first - 1, first, last, last + 1) if 0 <= place <= steps]
    values = [2.0 * place / steps - 1.0 for place in near]
    return min(abs((y - a) * (b - y)) for y in [*values, GONE[1]])


def _worst_error(forward: Vectors, inverse: Vectors, numbers: int) -> float:
    size = len(forward)
    event = float(np.sqrt(numbers * (GONE[0] ** 4 + GONE[0] ** 2) + 1 + MASKS))
    row = float(np.sqrt(1 + (2 * OUTER[1]) ** 2 + OUTER[1] ** 4 + 1))
    norms = float(np.linalg.norm(forward) * np.linalg.norm(inverse))
    residual = float(np.linalg.norm(forward @ inverse - np.eye(size)))
    return event * row * (residual + (4 * (size + 8) + 8) * ROUNDING * norms)


def _normal(uniform: Uniform, count: int) -> Vectors:
    """Normally distributed numbers (Box and Muller)."""
    radius = np.sqrt(-2.0 * np.log1p(-uniform(count)))
    found: Vectors = radius * np.cos(2.0 * np.pi * uniform(count))
    return found
