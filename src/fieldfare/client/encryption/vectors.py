"""Numbers and ranges as vectors whose product has the right sign: scheme 1 of docs/decisions/encrypted.md.

    event   p = (y1², y1, ..., 1, masks)   sent: r · p M
    range   q ~ (y - a)(b - y)             sent: s · q (M⁻¹)ᵀ

Keys that are older than scheme 2 (`curves`) still use it. Its values can be computed from ciphertexts alone.

Nothing here generates random numbers: callers pass a function that does, in [0, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fieldfare.client.errors import EncryptionError

Vectors = NDArray[np.float64]
Uniform = Callable[[int], Vectors]
"""A function that returns the given number of random numbers in [0, 1)."""

MASKS = 3
"""Number of dimensions with random values in events."""
SPREAD = 2.0
"""Maximum singular value of the matrix; the minimum is its reciprocal."""
OUTER = (1.25, 1.75)
"""Interval of open ends, beyond all values, which are from -1 to 1."""
GONE = (-2.75, -2.25)
"""Interval of missing attributes, beyond every open end."""
ROUNDING = 2.0**-53


def dimensions_of(numbers: int) -> int:
    """Return the number of dimensions of the vectors."""
    return 2 * numbers + 1 + MASKS


@dataclass(frozen=True, slots=True, eq=False)
class Transform:
    """An invertible matrix and its inverse.

    Attributes
    ----------
    error
        Maximum rounding error of a computed product, before scaling.
    """

    forward: Vectors = field(repr=False)
    inverse: Vectors = field(repr=False)
    error: float

    @classmethod
    def draw(cls, numbers: int, uniform: Uniform, spread: float = SPREAD) -> Transform:
        """Create a random transform; its singular values are between 1 / `spread` and `spread`."""
        return cls.of(*draw_matrices(dimensions_of(numbers), uniform, spread), numbers)

    @classmethod
    def of(cls, forward: Vectors, inverse: Vectors, numbers: int) -> Transform:
        """Return the transform with these matrices."""
        return cls(forward, inverse, _worst_error(forward, inverse, numbers))

    def check(self, steps: Sequence[int]) -> None:
        """Raise EncryptionError if two values that differ by one step cannot be told apart."""
        check_steps(steps, self.error, list(map(half_step_margin, steps)))

    def events(self, places: NDArray[np.int64], steps: NDArray[np.int64], uniform: Uniform) -> Vectors:
        """Return the encrypted vectors of events, float64[n, D].

        Parameters
        ----------
        places : int64[n, d]
            The place of each number; -1 if it is missing.
        steps : int64[d]
            The number of steps of each number.
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

    def rows(
        self, ranges: NDArray[np.int64], steps: NDArray[np.int64], uniform: Uniform
    ) -> tuple[Vectors, NDArray[np.int64]]:
        """Return the encrypted rows of ranges: all products are positive exactly for values within the range.

        Parameters
        ----------
        ranges : int64[n, 3]
            For each range, the number's index, the first place and the last place.
        steps : int64[d]
            The number of steps of each number.

        Returns
        -------
        tuple
            The rows, float64[m, D], and the index of each row's range; a range has one or two rows.
        """
        number, first, last = ranges.T
        count, every = steps[number], np.arange(len(ranges))
        ends = OUTER[0] + (OUTER[1] - OUTER[0]) * uniform(4 * len(ranges)).reshape(4, -1)
        half = 1.0 / count
        low = np.where(first > 0, 2.0 * first / count - 1.0 - half, -ends[0])
        high = np.where(last < count, 2.0 * last / count - 1.0 + half, ends[1])
        is_closed = (first > 0) & (last < count)
        split = np.flatnonzero(is_closed & ~(self.error <= _margin(low, high, first, last, count) / 2))
        second = -ends[3, split], high[split], np.zeros(len(split), np.int64), last[split]
        high[split], last = ends[2, split], last.copy()
        last[split] = count[split]
        of = np.concatenate([every, split])
        a, b, i, j = (np.concatenate(both) for both in zip((low, high, first, last), second, strict=True))
        return self._rows(number[of], a, b, _margin(a, b, i, j, count[of]), uniform), of

    def _rows(
        self, number: NDArray[np.int64], a: Vectors, b: Vectors, margin: Vectors, uniform: Uniform
    ) -> Vectors:
        count, size = len(number), len(self.forward)
        coefficients = np.zeros((count, size))
        every = np.arange(count)
        coefficients[every, 2 * number] = -1.0
        coefficients[every, 2 * number + 1] = a + b
        coefficients[:, size - MASKS - 1] = -a * b
        noise = (2.0 * uniform(count * MASKS) - 1.0).reshape(count, MASKS)
        coefficients[:, size - MASKS :] = noise * (margin / 4.0 / MASKS)[:, None]
        scale: Vectors = 4.0 ** uniform(count) / 2.0
        return (coefficients @ self.inverse.T) * scale[:, None]


def draw_matrices(size: int, uniform: Uniform, spread: float) -> tuple[Vectors, Vectors]:
    """Return a random matrix with singular values between 1 / `spread` and `spread`, and its inverse."""
    rotations = [np.linalg.qr(_normal(uniform, size * size).reshape(size, size))[0] for _ in range(2)]
    scales = spread ** (2.0 * uniform(size) - 1.0)
    forward = (rotations[0] * scales) @ rotations[1]
    return forward, np.linalg.inv(forward)


def check_steps(steps: Sequence[int], error: float, margins: Sequence[float]) -> None:
    """Raise EncryptionError if the margin of a number is less than twice the error."""
    for count, margin in zip(steps, margins, strict=True):
        if not error <= margin / 2:
            raise EncryptionError(
                f"this key cannot tell {count:,} steps apart: its worst error is {error:.1e}, half a"
                f" step's margin {margin:.1e}; declare a larger step"
            )


def half_step_margin(steps: int) -> float:
    """Return the minimum margin of a row with an open end."""
    return 1.0 / (4.0 * steps)


def _margin(
    a: Vectors, b: Vectors, first: NDArray[np.int64], last: NDArray[np.int64], steps: NDArray[np.int64]
) -> Vectors:
    """Return for each range the minimum of |(y - a)(b - y)| over all values and missing attributes."""
    near = np.stack([first - 1, first, last, last + 1])
    y = 2.0 * near / steps - 1.0
    y[(near < 0) | (near > steps)] = GONE[1]
    y = np.concatenate([y, np.full((1, len(a)), GONE[1])])
    found: Vectors = np.abs((y - a) * (b - y)).min(axis=0)
    return found


def _worst_error(forward: Vectors, inverse: Vectors, numbers: int) -> float:
    size = len(forward)
    event = float(np.sqrt(numbers * (GONE[0] ** 4 + GONE[0] ** 2) + 1 + MASKS))
    row = float(np.sqrt(1 + (2 * OUTER[1]) ** 2 + OUTER[1] ** 4 + 1))
    norms = float(np.linalg.norm(forward) * np.linalg.norm(inverse))
    residual = float(np.linalg.norm(forward @ inverse - np.eye(size)))
    return event * row * (residual + (4 * (size + 8) + 8) * ROUNDING * norms)


def _normal(uniform: Uniform, count: int) -> Vectors:
    """Return normally distributed random numbers (Box and Muller)."""
    radius = np.sqrt(-2.0 * np.log1p(-uniform(count)))
    found: Vectors = radius * np.cos(2.0 * np.pi * uniform(count))
    return found
