"""Attacks on what ASPE does not protect, as listed in docs/encrypted-spaces.md.

Scheme 1 is that of keys made before `curves`; scheme 2 is that of new keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fieldfare.client.encryption.curves import Curves, CurveTransform
from fieldfare.client.encryption.vectors import GONE, OUTER, SPREAD, Transform, dimensions_of

STEPS = 1000
EVENTS, FILTERS = 200, 200
SPANNED = {1: (3, 0.02), 2: (6, 0.001)}
"""By scheme: the dimensions that the rows of one number span, and their maximum distance from this span."""

Numbers = NDArray[Any]


def ranks(values: Numbers) -> Numbers:
    return np.argsort(np.argsort(values))


def make_transform(scheme: int, numbers: int, random: np.random.Generator) -> Transform | CurveTransform:
    if scheme == 1:
        return Transform.draw(numbers, random.random)
    return CurveTransform.draw(Curves.draw([STEPS] * numbers, random.random), random.random, SPREAD)


def observed(scheme: int, numbers: int, seed: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Positions of events, some missing; events and rows of one-sided filters as sent; each row's number."""
    random = np.random.default_rng(seed)
    transform = make_transform(scheme, numbers, random)
    places = random.integers(0, STEPS + 1, (EVENTS, numbers))
    places[random.random(places.shape) < 0.1] = -1
    of = np.repeat(np.arange(numbers), FILTERS)
    bounds = random.integers(1, STEPS, len(of))
    below = random.random(len(of)) < 0.5
    ranges = np.stack([of, np.where(below, 0, bounds), np.where(below, bounds - 1, STEPS)], axis=1)
    shuffled = random.permutation(len(of))
    steps = np.full(numbers, STEPS)
    rows = transform.rows(ranges[shuffled], steps, random.random)[0]
    return places, transform.events(places, steps, random.random), rows, of[shuffled]


def groups_of(rows: Numbers, scheme: int, numbers: int, seed: int) -> list[Numbers]:
    """Cluster rows by number, from the rows alone: a few rows of one number span all others of it
    (RANSAC)."""
    random = np.random.default_rng(seed)
    dimensions, near = SPANNED[scheme]
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    left, found = np.arange(len(rows)), []

    def spanned_by(some: Numbers) -> Numbers:
        basis = np.linalg.svd(unit[some], full_matrices=False)[2][:dimensions]
        return np.linalg.norm(unit[left] - unit[left] @ basis.T @ basis, axis=1) < near

    for _ in range(100_000):
        same = spanned_by(random.choice(left, dimensions, replace=False))
        for _ in range(10 if np.count_nonzero(same) > FILTERS // 8 else 0):
            same = spanned_by(left[same])
        if np.count_nonzero(same) < 0.9 * FILTERS:
            continue
        found.append(left[same])
        left = left[~same]
        if len(found) == numbers:
            break
    return found


def read_values(events: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Recover the values of one number, from 0 to 1, and which are missing, from vectors alone.

    The rows' three largest directions show events as points of a conic, a distorted circle. An event that no
    filter finds is missing. Along the circle lie the open ends of one side, the values, and the open ends of
    the other side. The positions of these three are equal for every key of scheme 1, and determine scale and
    origin.
    """
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    missing = ~(rows @ events.T > 0).any(axis=0)
    seen = np.linalg.svd(rows)[2][:3].T
    points, lines = events @ seen, rows @ seen
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    i, j = np.triu_indices(3)
    conic = np.zeros((3, 3))
    conic[i, j] = np.linalg.svd(points[:, i] * points[:, j])[2][-1]
    values, axes = np.linalg.eigh(conic + conic.T)
    if values[1] < 0:
        values, axes = values[::-1], axes[:, ::-1]
    scale = np.sqrt(np.abs(values))
    points, lines = points @ axes * scale, lines @ axes / scale
    points *= np.sign(points[:, :1])
    middle, half = (
        np.arctan2(lines[:, 2], lines[:, 1]),
        np.arccos(np.clip(-lines[:, 0] / np.hypot(lines[:, 1], lines[:, 2]), -1, 1)),
    )
    angles = np.arctan2(points[:, 2], points[:, 1])
    cut = np.angle(np.exp(1j * angles[missing]).mean())
    at = np.mod(angles - cut, 2 * np.pi)
    ends = np.sort(np.mod(np.stack([middle - half, middle + half]) - cut, 2 * np.pi), axis=0)
    low, high = (
        np.median(ends[0, ends[1] < at[~missing].max()]),
        np.median(ends[1, ends[0] > at[~missing].min()]),
    )
    low, high, at = (np.tan((each - np.pi) / 2) for each in (low, high, at))
    gone, outer = sum(GONE) / 2, sum(OUTER) / 2
    guesses = []
    for first, last in ((-outer, outer), (outer, -outer)):
        pole = ((first - gone) * low - (last - gone) * high) / (first - last)
        guesses.append(gone + (first - gone) * (low - pole) / (at - pole))
    best = max(guesses, key=lambda y: np.count_nonzero(np.abs(y[~missing]) < 1.05))
    return np.clip((best + 1) / 2, 0, 1), missing


def error_of(guessed: Numbers, places: Numbers) -> float:
    """The median error, as a share of the range."""
    return float(np.median(np.abs(guessed - places / STEPS)[places >= 0]))


@pytest.mark.long
def test_values_of_one_number_follow_from_vectors_alone_under_scheme_1_only() -> None:
    """With 200 events and 200 one-sided filters and no known plaintext: a few per cent error, all missing
    found."""
    errors: dict[int, list[float]] = {1: [], 2: []}
    for scheme, found in errors.items():
        for seed in range(12):
            places, events, rows, _ = observed(scheme, 1, seed)
            guessed, missing = read_values(events, rows)
            assert np.array_equal(missing, places[:, 0] < 0)
            found.append(error_of(guessed, places[:, 0]))
    assert np.median(errors[1]) < 0.02 and max(errors[1]) < 0.06
    assert np.median(errors[2]) > 0.15 and min(errors[2]) > 0.03


@pytest.mark.long
def test_values_of_four_numbers_follow_from_vectors_alone_under_scheme_1_only() -> None:
    """Rows form groups by number under both schemes, so each number can be attacked separately."""
    errors: dict[int, list[float]] = {1: [], 2: []}
    for scheme, found in errors.items():
        for seed in range(3):
            places, events, rows, of = observed(scheme, 4, seed)
            groups = groups_of(rows, scheme, 4, seed)
            assert len(groups) == 4
            for group in groups:
                names, counts = np.unique(of[group], return_counts=True)
                assert counts.max() > 0.95 * FILTERS and counts.sum() - counts.max() < 0.05 * FILTERS
                guessed, _ = read_values(events, rows[group])
                found.append(error_of(guessed, places[:, names[counts.argmax()]]))
    assert np.median(errors[1]) < 0.05
    assert np.median(errors[2]) > 0.15


def test_rows_of_one_number_have_no_small_directions_under_scheme_2() -> None:
    """Under scheme 1 the masks' noise, below a quarter of the margin, reveals the three significant
    directions."""

    def shares(scheme: int) -> Numbers:
        _, events, rows, _ = observed(scheme, 1, 5)
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        sizes = np.linalg.svd(unit @ (events / np.linalg.norm(events, axis=1, keepdims=True)).T)[1]
        return sizes[:6] / sizes[0]

    assert shares(1)[3] < 1e-3
    assert shares(2)[5] > 1e-3


def test_a_secret_curve_is_not_a_straight_line() -> None:
    """An attacker who recovers a curve, by any algebra, knows the order of values, and distorted
    distances."""
    distorted = []
    for seed in range(100):
        curves = Curves.draw([STEPS], np.random.default_rng(seed).random)
        x, _ = curves.points(0, curves.inside(0, np.arange(STEPS + 1)[:, None]))
        assert (np.diff(x, axis=0) > 0).all()
        straight = (x - x[0]) / (x[-1] - x[0])
        distorted.append(np.median(np.abs(straight - np.arange(STEPS + 1)[:, None] / STEPS), axis=0))
    assert np.median(distorted) > 0.12 and np.quantile(distorted, 0.05) > 0.05


@pytest.mark.parametrize("scheme", [1, 2])
def test_the_order_of_values_follows_from_the_matches(scheme: int) -> None:
    """From ciphertext alone, by seriation: events found together by many filters are neighbours.

    If values are spread evenly, or as the attacker knows, their order determines them.
    """
    random = np.random.default_rng(1)
    transform = make_transform(scheme, 1, random)
    values = random.choice(STEPS + 1, 150, replace=False)
    ends = np.sort(random.integers(0, STEPS + 1, (600, 2)), axis=1)
    events = transform.events(values[:, None], np.array([STEPS]), random.random)
    ranges = np.insert(ends, 0, 0, axis=1)
    rows = transform.rows(ranges, np.array([STEPS]), random.random)[0][: len(ranges)]
    found = (rows @ events.T > 0).astype(float)  # the only input of the attack
    together = found.T @ found
    laplacian = np.diag(together.sum(axis=1)) - together
    order = np.linalg.eigh(laplacian)[1][:, 1]  # Fiedler's vector (Atkins, Boman, Hendrickson 1998)
    correlation = np.corrcoef(ranks(order), ranks(values))[0, 1]
    assert abs(correlation) > 0.97
    guessed = ranks(order) / len(order)
    guessed = guessed if correlation > 0 else 1 - guessed
    assert np.median(np.abs(guessed - values / STEPS)) < 0.05


def test_known_events_bracket_all_others() -> None:
    """Given the order, each known event tells of every other on which side of it that lies."""
    random = np.random.default_rng(4)
    values = np.floor((STEPS + 1) * random.random(300) ** 3).astype(int)
    order = ranks(values + random.random(len(values)) / 2)  # from matches, as in the test above
    for known, off in ((10, 0.02), (40, 0.005)):
        at = np.sort(random.choice(len(values), known, replace=False))
        at = at[np.argsort(order[at])]
        guessed = np.interp(order, order[at], values[at])
        assert np.median(np.abs(guessed - values)) / STEPS < off


def test_three_known_events_read_all_others_of_a_space_with_one_number() -> None:
    """Under scheme 1, an attack on the vectors' shape needs fewer known events.

    Except for the masks, which rows almost ignore, a vector is a multiple of (y², y, 1) times a matrix. Such
    points lie on a conic. Seen from one of them, the directions of the others are a quotient of linear
    functions of y, which three events determine.
    """
    random = np.random.default_rng(3)
    transform = Transform.draw(1, random.random)
    values = random.choice(STEPS + 1, 150, replace=False)
    ends = np.sort(random.integers(0, STEPS + 1, (600, 2)), axis=1)
    events = transform.events(values[:, None], np.array([STEPS]), random.random)
    ranges = np.insert(ends, 0, 0, axis=1)
    rows = transform.rows(ranges, np.array([STEPS]), random.random)[0][: len(ranges)]
    points = events @ np.linalg.svd(rows / np.linalg.norm(rows, axis=1, keepdims=True))[2][:3].T
    seen = points[1:] @ np.linalg.svd(points[:1])[2][1:].T
    known = values[1:4, None] / STEPS
    above, below = np.split(np.linalg.svd(np.hstack([seen[:3], -known * seen[:3]]))[2][-1], 2)
    guessed = (seen @ above) / (seen @ below) * STEPS
    assert np.array_equal(np.round(guessed), values[1:])


@pytest.mark.parametrize("numbers", [1, 2, 4])
def test_known_events_twice_the_dimensions_read_all_others_under_scheme_1_only(numbers: int) -> None:
    """With known plaintexts, by linear algebra: a value is a quotient of two linear forms of the vector."""
    enough = 2 * dimensions_of(numbers) - 2

    def read(scheme: int, known: int) -> float:
        """The share of the other events' first numbers recovered from `known` known events."""
        random = np.random.default_rng(2)
        transform = make_transform(scheme, numbers, random)
        places = random.integers(0, STEPS + 1, (400, numbers))
        events = transform.events(places, np.full(numbers, STEPS), random.random)
        x = places[:known, :1] / STEPS
        spanned = np.linalg.svd(np.hstack([events[:known], -x * events[:known]]))[2]
        above, below = np.split(spanned[-1], 2)
        guessed = (events[known:] @ above) / (events[known:] @ below) * STEPS
        return float(np.mean(np.abs(guessed - places[known:, 0]) < 0.5))

    assert read(1, enough) > 0.99
    assert read(1, enough - 1) < 0.2
    assert max(read(2, known) for known in (enough, 3 * enough, 10 * enough)) < 0.2


def test_linear_algebra_on_known_events_comes_near_the_others_under_scheme_2() -> None:
    """A secret curve is bent, but not everywhere: a quotient of linear forms follows it roughly."""
    errors = []
    for seed in range(10):
        random = np.random.default_rng(seed)
        places = random.integers(0, STEPS + 1, (400, 1))
        events = make_transform(2, 1, random).events(places, np.array([STEPS]), random.random)
        x = places[:22] / STEPS
        above, below = np.split(np.linalg.svd(np.hstack([events[:22], -x * events[:22]]))[2][-1], 2)
        guessed = (events[22:] @ above) / (events[22:] @ below)
        errors.append(error_of(guessed, places[22:, 0]))
    assert 0.005 < np.median(errors) < 0.06
