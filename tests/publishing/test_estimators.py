"""The running estimates."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fieldfare.publishing.estimators import MovingAverage, RecentExtreme


def test_an_average_begins_with_its_first_sample_and_then_forgets() -> None:
    average = MovingAverage(0.5)
    assert average.value is None
    assert [average.add(sample) for sample in (8.0, 4.0, 4.0)] == [8.0, 6.0, 5.0]


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(-100, 100)), min_size=1, max_size=40),
    st.booleans(),
)
def test_an_extreme_is_that_of_the_samples_of_the_window(
    steps: list[tuple[float, float]], most: bool
) -> None:
    extreme = RecentExtreme(5.0, most=most)
    assert extreme.value is None
    now_s, samples = 0.0, []
    for step_s, sample in steps:
        now_s += step_s
        samples.append((now_s, sample))
        recent = [value for at_s, value in samples if at_s >= now_s - 5.0]
        expected = max(recent) if most else min(recent)
        assert extreme.add(sample, now_s) == expected == extreme.value
