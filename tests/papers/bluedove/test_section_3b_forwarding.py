"""Li et al. 2011 (BlueDove), section III.B: performance-aware forwarding, its examples by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fieldfare.filters import Conjunction, NormalForm
from fieldfare.forwarding import (
    Adaptive,
    ForwardingPolicy,
    LoadReport,
    LoadTable,
    ResponseTime,
    SubscriptionCount,
    forward_batch,
)
from fieldfare.matching.events.columns import KIND_INT, Column, ColumnBatch
from fieldfare.partitioning import AttributeSpace, extents_of
from fieldfare_lab.axes import numeric_axis
from fieldfare_lab.workloads.synthetic import closed_range

X, Y = ("x",), ("y",)
A, B, C, D = range(4)


def test_figure_3_the_message_goes_to_the_matcher_with_fewest_subscriptions() -> None:
    """Figure 3: 4 x 4 segments, hot spots in row Y1 and column X2; the message lies in X4 and Y1.

    D owns X4 with 4 subscriptions, A owns Y1 with 13: the message is forwarded to D and matched against
    its set on dimension X. (The text of III.B.1 once names C for A; the caption and III.A.2 name A. How
    many subscriptions the other cells have is read off no table in the text, and made up here.)
    """
    cells = {
        (1, 1): 3,
        (2, 1): 5,
        (3, 1): 2,
        (4, 1): 3,
        (2, 2): 3,
        (2, 3): 4,
        (2, 4): 2,
        (4, 3): 1,
        (1, 4): 2,
    }
    forms = [small_rectangle(x, y, place) for (x, y), count in cells.items() for place in range(count)]
    axes = (numeric_axis(X, [10, 20, 30]), numeric_axis(Y, [10, 20, 30]))
    space = AttributeSpace(axes, ((A, B, C, D), (A, B, C, D)))
    sizes = space.place(extents_of(enumerate(forms), (X, Y))).sizes
    assert dict(zip(("D on X", "A on Y"), sizes[[3, 4]].tolist(), strict=True)) == {"D on X": 4, "A on Y": 13}
    loads = LoadTable(len(space.slices))
    loads.take(LoadReport(i, 0.0, 0, 0.0, 0.0, size) for i, size in enumerate(sizes.tolist()))
    message = ColumnBatch(1, {X: whole(35), Y: whole(5)})
    (chosen,) = forward_batch(SubscriptionCount(), space.route(message), loads, 0.0).chosen.tolist()
    assert (space.slices[chosen].matcher, space.slices[chosen].dimension) == (D, 0)


def small_rectangle(x: int, y: int, place: int) -> NormalForm:
    """A subscription inside the cell of column x and row y."""
    ranges = [(path, closed_range(10 * n - 9 + place, 10 * n - 8 + place)) for path, n in ((X, x), (Y, y))]
    return NormalForm((Conjunction(tuple(ranges)),))


def whole(value: int) -> Column:
    return Column(np.array([KIND_INT], np.uint8), np.array([value], np.int64))


def processing_time_s(policy: ForwardingPolicy, report: LoadReport, now: float) -> float:
    loads = LoadTable(1)
    loads.take([report])
    return float(policy.costs(loads, now, np.array([[0]], np.int32), np.zeros(1))[0, 0])


def test_the_processing_time_is_extrapolated_linearly_from_the_last_update() -> None:
    """Section III.B.2: q_t = q_t' + (λ - μ)(t - t'), and the next message takes (q_t + 1) / μ.

    By hand: 40 messages waited at t' = 10 s, 120 arrive and 100 are matched each second. At 10.5 s there
    are 40 + 20 x 0.5 = 50, so the next one is done after 51 / 100 s.
    """
    report = LoadReport(0, 10.0, 40, 120.0, 100.0, 1)
    assert processing_time_s(Adaptive(), report, 10.5) == pytest.approx(0.51)
    assert processing_time_s(ResponseTime(), report, 10.5) == pytest.approx(0.41)


def test_a_queue_that_empties_is_not_extrapolated_below_zero() -> None:
    """A deviation: the formula gives 10 - 50 x 1 = -40 messages after a second; there are none."""
    report = LoadReport(0, 0.0, 10, 50.0, 100.0, 1)
    assert processing_time_s(Adaptive(), report, 1.0) == pytest.approx(0.01)


def test_figure_4_the_extrapolation_redirects_to_b_before_the_next_update() -> None:
    """Figure 4: equal rates, A's queue is shorter at first; updates come every second.

    By hand: at the update A has 10 waiting, B 60; both match 100 a second. All messages have gone to A,
    300 a second, none to B. A's queue is estimated at 10 + 200 t, B's at 60 - 100 t: after 50 / 300 s
    they are equal. Without the extrapolation A stays the choice until the next update.
    """
    loads = LoadTable(2)
    loads.take([LoadReport(0, 0.0, 10, 300.0, 100.0, 1), LoadReport(1, 0.0, 60, 0.0, 100.0, 1)])
    either = np.array([[0, 1]], np.int32)

    def choice(policy: ForwardingPolicy, now: float) -> int:
        return int(policy.costs(loads, now, either, np.zeros(2)).argmin())

    assert [choice(Adaptive(), now) for now in (0.0, 0.16, 0.17, 0.9)] == [0, 0, 1, 1]
    assert [choice(ResponseTime(), now) for now in (0.0, 0.16, 0.17, 0.9)] == [0, 0, 0, 0]
