"""Numbers as points of secret convex curves, ranges as chords: scheme 2 of docs/decisions/encrypted.md.

    event   p = (u1 (z, x, ..., 1), u2 (z, x, ..., 1))         sent: r · p M
    range   q = (v1 (-1, slope, ..., offset), v2 (the same))   sent: s · q (M⁻¹)ᵀ

Each number has its own curve in each of the two blocks: x is a secret rising function of the value, z a
secret convex function of x. The chord between a range's two bounds lies above the curve exactly inside the
range, so both blocks have the same sign, and so has their sum with the random positive weights u and v.

Nothing here generates random numbers: callers pass a function that does, in [0, 1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.client.encryption.vectors import ROUNDING, Uniform, Vectors, check_steps, draw_matrices

BLOCKS = 2
STEEPNESS = (1, 3, 9, 27)
"""Steepness of x in the four largest parts of a number's values, in a random order."""
FINER = ((16, 2, 4), (64, 1, 2), (256, 1, 2))
"""Finer parts: their number, and the smallest and largest factor of the steepness of each."""
PARTS = FINER[-1][0]
LENGTHS = ((16, 1, 3), (256, 1, 4))
"""Lengths of parts, in values, as (parts, smallest factor, largest factor): so breaks reveal no value."""
BENDS = (16, 1, 4)
"""Curvature of the parts of a curve, as (parts, smallest factor, largest factor)."""
WEIGHTS = (0.25, 0.75)
"""Bounds of a block's weight; a vector's two weights add up to 1."""
JITTER = 0.15
"""Maximum distance of an event from its place, in places."""
GAP = (0.45, 0.55)
"""Smallest and largest position of a bound between two places."""
OUTER = (0.3, 0.45, 0.6, 0.85)
"""Minimum distances, within the outer pieces, where open ends and then missing attributes begin and end; up
to 0.1 is added at random."""
SLOPE_ERROR = 64.0 * ROUNDING
"""Maximum error of a chord's slope from rounding its two points, if they are 1 apart."""


def dimensions_of(numbers: int) -> int:
    """Return the number of dimensions of the vectors."""
    return BLOCKS * (2 * numbers + 1)


@dataclass(frozen=True, slots=True)
class Curves:
    """The curves of all numbers: pieces that are straight in x and quadratic in z, by a parameter t.

    Piece 0 holds missing attributes and, next to the values, the lower open ends of ranges. The `PARTS`
    pieces of the values follow. The last piece mirrors piece 0.

    Attributes
    ----------
    steps : int64[d]
        The number of steps of each number.
    knots : float64[d, BLOCKS, PARTS + 1]
        Where the pieces of the values begin and end, from 0 (a step before the first value) to 1.
    x : float64[2, d, BLOCKS, pieces]
        Coefficients of x as a function of the fraction of t within its piece.
    z : float64[3, d, BLOCKS, pieces]
        Coefficients of z.
    outer : float64[4, d, BLOCKS]
        Distances from the values where open ends, and then missing attributes, begin and end, in pieces.
    """

    steps: NDArray[np.int64]
    knots: Vectors = field(repr=False)
    x: Vectors = field(repr=False)
    z: Vectors = field(repr=False)
    outer: Vectors = field(repr=False)

    @classmethod
    def draw(cls, steps: Sequence[int], uniform: Uniform) -> Curves:
        """Create random curves; the same random numbers give the same curves on every machine."""
        shape = (len(steps), BLOCKS)
        count = len(steps) * BLOCKS

        def factors(parts: int, least: int, largest: int) -> Vectors:
            drawn = least + (largest - least) * uniform(count * parts)
            return np.repeat(drawn.reshape(*shape, parts), PARTS // parts, axis=2)

        lengths = math.prod(itertools.starmap(factors, LENGTHS), start=np.ones(1))
        order = np.argsort(uniform(4 * count).reshape(*shape, 4), axis=2)
        steepness = np.repeat(np.array(STEEPNESS, float)[order], PARTS // 4, axis=2)
        widths = lengths * math.prod(itertools.starmap(factors, FINER), start=steepness)
        widths = 2.0 * widths / widths.sum(axis=2, keepdims=True)
        knots = np.pad(np.cumsum(lengths, axis=2), ((0, 0), (0, 0), (1, 0))) / lengths.sum(
            axis=2, keepdims=True
        )
        ends = 0.4 + 0.2 * uniform(2 * count).reshape(*shape, 2)
        widths = np.concatenate([ends[:, :, :1], widths, ends[:, :, 1:]], axis=2)
        bends = np.pad(factors(*BENDS), ((0, 0), (0, 0), (1, 1)), mode="edge")
        slopes = np.cumsum(2.0 * bends * widths, axis=2)
        slopes = np.concatenate([np.zeros((*shape, 1)), slopes[:, :, :-1]], axis=2)
        # Subtract the slope of the chord over all values, or z would be large at one end.
        rises = slopes * widths + bends * widths * widths
        slopes -= rises[:, :, 1:-1].sum(axis=2, keepdims=True) / 2.0
        rises = slopes * widths + bends * widths * widths
        starts_z = np.cumsum(rises, axis=2) - rises - rises[:, :, :1]
        largest = np.maximum(np.abs(starts_z).max(axis=2), np.abs(starts_z + rises).max(axis=2))[:, :, None]
        starts_x = np.cumsum(widths, axis=2) - widths - widths[:, :, :1] - 1.0
        x = np.stack([starts_x, widths])
        z = np.stack([starts_z, slopes * widths, bends * widths * widths]) / largest
        outer = np.array(OUTER).reshape(4, 1, 1) + 0.1 * uniform(4 * count).reshape(4, *shape)
        return cls(np.array(steps, np.int64), knots, x, z, outer)

    def inside(self, number: Any, place: Any) -> Vectors:
        """Return the parameters t of places, which may be fractional; the last axis is the block."""
        where = (place + 1.0) / (self.steps[number] + 2.0)
        row = BLOCKS * number + np.arange(BLOCKS)
        starts = self.knots[:, :, :-1] + 2.0 * np.arange(BLOCKS * len(self.steps)).reshape(-1, BLOCKS, 1)
        piece = np.searchsorted(starts.reshape(-1), where + 2.0 * row, "right") - 1 - PARTS * row
        piece = np.clip(piece, 0, PARTS - 1)
        first, end = (self.knots[number, np.arange(BLOCKS), piece + each] for each in (0, 1))
        found: Vectors = 1.0 + piece + (where - first) / (end - first)
        return found

    def points(self, number: Any, t: Vectors) -> tuple[Vectors, Vectors]:
        """Return x and z of parameters t; the last axis is the block."""
        piece = np.clip(np.floor(t), 0, PARTS + 1).astype(np.int64)
        at = (number, np.arange(BLOCKS), piece)
        passed = t - piece
        (x0, x1), (z0, z1, z2) = (coefficients[:, *at] for coefficients in (self.x, self.z))
        return x0 + passed * x1, z0 + passed * (z1 + passed * z2)

    def between(self, number: Any, first: int, is_high: Any, uniform: Uniform) -> Vectors:
        """Return random parameters beyond all values, between two of `outer`; the last axis is the block."""
        low, high = self.outer[first, number], self.outer[first + 1, number]
        away = low + (high - low) * uniform(low.size).reshape(low.shape)
        found: Vectors = np.where(is_high, PARTS + 1.0 + away, 1.0 - away)
        return found

    def least_margin(self) -> Vectors:
        """Return the minimum distance of a chord with an open end from the curve, for each number."""
        bend = (self.z[2] / self.x[1] ** 2).min(axis=2)
        steepness = self.x[1, :, :, 1:-1] / np.diff(self.knots, axis=2)
        place = steepness.min(axis=2) / (self.steps + 2.0)[:, None]
        found: Vectors = (bend * (GAP[0] - JITTER) * place * self.end_least).min(axis=1) * _least_weight()
        return found

    @property
    def end_least(self) -> float:
        """Minimum distance, in x, of an open end from any value."""
        return float((self.outer[0, :, :, None] * self.x[1][:, :, [0, -1]]).min(initial=1.0))

    def largest(self) -> tuple[float, float]:
        """Return upper bounds of the norms of an event's point and of a range's chords."""
        point = np.sqrt(1.0 + 4.0 * len(self.steps))  # z is at most 1, and x at most 1.6
        slope = np.abs(np.stack([self.z[1], self.z[1] + 2.0 * self.z[2]]) / self.x[1]).max(initial=0.0)
        return float(point), float(np.sqrt(1.0 + slope**2 + (1.0 + 1.6 * slope) ** 2) + 1.0)


def _least_weight() -> float:
    return 2.0 * WEIGHTS[0] * WEIGHTS[1]


@dataclass(frozen=True, slots=True, eq=False)
class CurveTransform:
    """Secret curves, an invertible matrix and its inverse.

    Attributes
    ----------
    error
        Maximum rounding error of a computed product, before scaling.
    """

    curves: Curves = field(repr=False)
    forward: Vectors = field(repr=False)
    inverse: Vectors = field(repr=False)
    error: float

    @classmethod
    def draw(cls, curves: Curves, uniform: Uniform, spread: float) -> CurveTransform:
        """Create a random matrix for curves; its singular values are between 1 / `spread` and `spread`."""
        return cls.of(curves, *draw_matrices(dimensions_of(len(curves.steps)), uniform, spread))

    @classmethod
    def of(cls, curves: Curves, forward: Vectors, inverse: Vectors) -> CurveTransform:
        """Return the transform with these matrices."""
        error = _worst_error(forward, inverse, *curves.largest())
        return cls(curves, forward, inverse, error + SLOPE_ERROR / curves.end_least)

    def check(self, steps: Sequence[int]) -> None:
        """Raise EncryptionError if two values that differ by one step cannot be told apart."""
        check_steps(steps, self.error, self.curves.least_margin().tolist())

    def events(self, places: NDArray[np.int64], steps: NDArray[np.int64], uniform: Uniform) -> Vectors:
        """Return the encrypted vectors of events, float64[n, D]. See `vectors.Transform`."""
        count, numbers = places.shape
        number = np.arange(numbers)[None, :, None]
        shape = (count, numbers, BLOCKS)
        place = places[:, :, None] + JITTER * (2.0 * uniform(count * numbers * BLOCKS).reshape(shape) - 1.0)
        is_high = uniform(count * numbers).reshape(count, numbers, 1) < 0.5
        every = np.broadcast_to(number[:, :, 0], (count, numbers))
        away = self.curves.between(every, 2, is_high, uniform)
        t = np.where(places[:, :, None] < 0, away, self.curves.inside(number, place))
        x, z = self.curves.points(number, t)
        points = np.ones((count, BLOCKS, 2 * numbers + 1))
        points[:, :, 0 : 2 * numbers : 2] = z.transpose(0, 2, 1)
        points[:, :, 1 : 2 * numbers : 2] = x.transpose(0, 2, 1)
        return _sent(points * _weights(count, uniform)[:, :, None], self.forward, uniform)

    def rows(
        self, ranges: NDArray[np.int64], steps: NDArray[np.int64], uniform: Uniform
    ) -> tuple[Vectors, NDArray[np.int64]]:
        """Return the encrypted rows of ranges, and the range of each row. See `vectors.Transform`."""
        number, first, last = ranges.T
        of = np.arange(len(ranges))
        coefficients, margin, error = self._chords(number, first, last, uniform)
        split = np.flatnonzero((first > 0) & (last < steps[number]) & ~(error <= margin / 2))
        if len(split):
            n, i, j = number[split], first[split], last[split]
            lower = self._chords(n, i, steps[n], uniform)
            upper = self._chords(n, np.zeros_like(j), j, uniform)
            coefficients[split], margin[split] = lower[0], lower[1]
            coefficients, margin = (
                np.concatenate([coefficients, upper[0]]),
                np.concatenate([margin, upper[1]]),
            )
            of, number = np.concatenate([of, split]), np.concatenate([number, n])
        every = np.arange(len(of))
        rows = np.zeros((len(of), BLOCKS, (self.forward.shape[0]) // BLOCKS))
        # Noise in all other attributes: for any event it adds up to at most a quarter of the margin.
        noise = 2.0 * uniform(rows.size).reshape(rows.shape) - 1.0
        rows += noise * (margin / 4.0 / (1.6 * rows[0].size if len(rows) else 1.0))[:, None, None]
        rows[every, :, 2 * number] += coefficients[:, :, 0]
        rows[every, :, 2 * number + 1] += coefficients[:, :, 1]
        rows[:, :, -1] += coefficients[:, :, 2]
        return _sent(rows, self.inverse.T, uniform), of

    def _chords(
        self, number: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64], uniform: Uniform
    ) -> tuple[Vectors, Vectors, Vectors]:
        """Return weighted chords, float64[n, BLOCKS, 3], their margins, and their maximum rounding errors."""
        curves, count = self.curves, len(number)
        n = number[:, None]
        gaps = (GAP[0] + (GAP[1] - GAP[0]) * uniform(2 * count * BLOCKS)).reshape(2, count, BLOCKS)
        lower = np.where(
            first[:, None] > 0,
            curves.inside(n, first[:, None] - gaps[0]),
            curves.between(number, 0, False, uniform),
        )
        upper = np.where(
            (last < curves.steps[number])[:, None],
            curves.inside(n, last[:, None] + gaps[1]),
            curves.between(number, 0, True, uniform),
        )
        (xa, za), (xb, zb) = (curves.points(n, t) for t in (lower, upper))
        slope = (zb - za) / (xb - xa)
        chords = np.stack([np.full_like(slope, -1.0), slope, za - slope * xa], axis=2)
        missing = curves.outer[2, number]
        nearest = [
            curves.inside(n, np.maximum(first - 1, 0)[:, None] + JITTER),
            curves.inside(n, first[:, None] - JITTER),
            curves.inside(n, last[:, None] + JITTER),
            curves.inside(n, np.minimum(last + 1, curves.steps[number])[:, None] - JITTER),
            1.0 - missing,
            PARTS + 1.0 + missing,
        ]
        margin = np.full((count, BLOCKS), np.inf)
        for t, counts in zip(
            nearest, (first > 0, True, True, last < curves.steps[number], True, True), strict=True
        ):
            x, z = curves.points(n, t)
            above = np.abs(slope * (x - xa) + za - z)
            margin = np.minimum(margin, np.where(np.asarray(counts).reshape(-1, 1), above, np.inf))
        # Rounding of the two points changes the slope, the more the closer they are.
        error = self.error + SLOPE_ERROR / (xb - xa).min(axis=1)
        return chords * _weights(count, uniform)[:, :, None], margin.min(axis=1) * _least_weight(), error


def _weights(count: int, uniform: Uniform) -> Vectors:
    """Return the blocks' weights, float64[n, BLOCKS]."""
    first = WEIGHTS[0] + (WEIGHTS[1] - WEIGHTS[0]) * uniform(count)
    return np.stack([first, 1.0 - first], axis=1)


def _sent(blocks: Vectors, matrix: Vectors, uniform: Uniform) -> Vectors:
    """Return vectors multiplied by a matrix and scaled to random lengths."""
    found: Vectors = blocks.reshape(len(blocks), len(matrix)) @ matrix
    lengths = np.linalg.norm(found, axis=1)
    scale: Vectors = 4.0 ** uniform(len(found)) / 2.0
    found *= (scale / lengths)[:, None]
    return found


def _worst_error(forward: Vectors, inverse: Vectors, point: float, chord: float) -> float:
    """Return a bound of the rounding error: Higham 2002, section 3.5, with 2-norms."""
    size = len(forward)
    norms = [float(np.linalg.norm(each, 2)) for each in (forward, inverse, np.abs(forward), np.abs(inverse))]
    plain, absolute = norms[:2], norms[2:]
    residual = float(np.linalg.norm(forward @ inverse - np.eye(size), 2))
    products = (absolute[0] + plain[0]) * (absolute[1] + plain[1])
    return point * chord * (residual + (size + 8) * ROUNDING * products)
