"""How many hosts there may be, as it is said on a command line."""

from __future__ import annotations

import pytest

from fieldfare.elasticity.bounds import HostBounds, HostSchedule


def test_the_first_part_of_a_day_that_has_a_minute_counts() -> None:
    """A market's day: more before it opens, and nothing at night, which goes over midnight."""
    schedule = HostSchedule.parsed("2..8", ["09:00-17:30=4..8", "22:00-06:00=1", "05:00-07:00=3"])
    said = {minute: schedule.at(60 * (minute // 100) + minute % 100) for minute in (859, 900, 1729, 1730)}
    assert said == {859: (2, 8), 900: (4, 8), 1729: (4, 8), 1730: (2, 8)}
    assert schedule.at(0) == schedule.at(5 * 60 + 59) == schedule.at(22 * 60) == HostBounds(1, 1)
    assert schedule.at(6 * 60) == HostBounds(3, 3)


@pytest.mark.parametrize(
    "text", ["", "0", "0..3", "4..3", "1..1001", "1...3", "a..b", "-1..3", "1,3", "9" * 30]
)
def test_invalid_bounds_are_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match=repr(text)):
        HostSchedule.parsed(text)


@pytest.mark.parametrize(
    "text",
    ["9:00-17:00=2", "09:00-17:00", "09:00-09:00=2", "25:00-26:00=2", "09:60-10:00=2", "09:00-10:00=0"],
)
def test_an_invalid_span_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match=repr(text)):
        HostSchedule.parsed("1..2", [text])
