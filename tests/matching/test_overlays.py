"""The overlay of a part is equal whether it is computed from scratch or from an earlier one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.matching.versions import NOTHING_CLOSED, Overlay, closed_of

closings = st.dictionaries(st.integers(0, 40), st.integers(5, 7), max_size=12)


def _ended(version: np.ndarray, overlay: Overlay) -> dict[int, int]:
    """The closed versions, as the kernels read them."""
    bits = np.unpackbits(overlay.closed, bitorder="little")
    assert not len(bits) or np.flatnonzero(bits).tolist() == overlay.subscription.tolist()
    return dict(zip(version[overlay.subscription].tolist(), overlay.valid_to.tolist(), strict=True))


def _sorted(ends: Mapping[int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(sorted(ends), np.int64), np.array([ends[v] for v in sorted(ends)], np.int64)


@settings(max_examples=drawn(200))
@given(
    st.sets(st.integers(0, 40), min_size=1),
    st.lists(st.tuples(closings, st.booleans()), min_size=1, max_size=4),
)
def test_closings_end_their_versions(held: set[int], changes: list[tuple[dict[int, int], bool]]) -> None:
    """Closings are added one after another; sometimes folded ones are removed."""
    version, known, all_closings = np.array(sorted(held), np.int64), NOTHING_CLOSED, dict[int, int]()
    for found, anew in changes:
        all_closings = found if anew else {**found, **all_closings}
        known = closed_of(version, *_sorted(all_closings), known)
        expected = {number: end for number, end in all_closings.items() if number in held}
        assert _ended(version, known.overlay) == expected
