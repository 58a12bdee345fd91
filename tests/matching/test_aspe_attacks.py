"""What ASPE does not protect, carried out: docs/encrypted-spaces.md says it, these show that it is so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fieldfare.client.encryption.vectors import Transform, dimensions_of

STEPS = 1000


def ranks(values: NDArray[Any]) -> NDArray[Any]:
    return np.argsort(np.argsort(values))


def test_the_order_of_values_follows_from_who_matches_whom() -> None:
    """From ciphertext alone, by seriation: events that many filters find together lie beside one another."""
    random = np.random.default_rng(1)
    transform = Transform.draw(1, random.random)
    values = random.choice(STEPS + 1, 150, replace=False)
    ends = np.sort(random.integers(0, STEPS + 1, (600, 2)), axis=1)
    events = transform.events(values[:, None], np.array([STEPS]), random.random)
    ranges = np.insert(ends, 0, 0, axis=1)
    rows = transform.rows(ranges, np.array([STEPS]), random.random)[0][: len(ranges)]
    found = (rows @ events.T > 0).astype(float)  # all that is used from here on
    together = found.T @ found
    laplacian = np.diag(together.sum(axis=1)) - together
    order = np.linalg.eigh(laplacian)[1][:, 1]  # Fiedler's vector (Atkins, Boman, Hendrickson 1998)
    correlation = np.corrcoef(ranks(order), ranks(values))[0, 1]
    assert abs(correlation) > 0.97


def test_three_known_events_read_all_others_of_a_space_with_one_number() -> None:
    """Who uses the vectors' shape needs fewer.

    But for the masks, which rows all but ignore, a vector is a multiple of (y², y, 1) times a matrix. Such
    points lie on a conic. Seen from one of them, the others are in directions that are a quotient of linear
    functions of y, and three events say which.
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
def test_as_many_known_events_as_twice_the_dimensions_read_all_others(numbers: int) -> None:
    """With known plaintexts, by linear algebra: a value is a quotient of two linear forms of the vector."""
    random = np.random.default_rng(2)
    transform = Transform.draw(numbers, random.random)
    places = random.integers(0, STEPS + 1, (400, numbers))
    events = transform.events(places, np.full(numbers, STEPS), random.random)
    enough = 2 * dimensions_of(numbers) - 2

    def read(known: int) -> float:
        """Which share of the other events' first numbers is read with so many known ones."""
        x = places[:known, :1] / STEPS
        spanned = np.linalg.svd(np.hstack([events[:known], -x * events[:known]]))[2]
        above, below = np.split(spanned[-1], 2)
        guessed = (events[known:] @ above) / (events[known:] @ below) * STEPS
        return float(np.mean(np.abs(guessed - places[known:, 0]) < 0.5))

    assert read(enough) > 0.99
    assert read(enough - 1) < 0.2
