"""The points that the text of Li et al. 2011 gives, for our pictures: the paper's pictures are not available.

Rates are computed from the text's ratios and the only printed rate: BlueDove with 20 matchers and 40,000
subscriptions saturates at 114,000 messages per second (caption of Figure 5).
"""

from __future__ import annotations

from typing import Any

import altair as alt

SATURATION_PER_S = 114_000
"""Caption of Figure 5."""

PAPER = "the paper"
COLOUR = "firebrick"

GAINS = {"P2P": {5: 3.5, 20: 4.2}, "full replication": {5: 14.0, 20: 67.0}}
"""Figure 6(a): BlueDove's rate divided by the others', by matchers. Section IV.C."""
CAPACITY_GAINS = {"P2P": {20: 4.0}, "full replication": {20: 30.0}}
"""Figure 6(b): BlueDove's number of subscriptions divided by the others'. Section IV.C."""
RATES = {20: {"BlueDove": SATURATION_PER_S} | {name: SATURATION_PER_S / GAINS[name][20] for name in GAINS}}
"""Figure 6(a): computed from the gains."""
POLICY_RATES = {
    "adaptive": SATURATION_PER_S,
    "response time": SATURATION_PER_S / 1.1,
    "subscription amount": SATURATION_PER_S / 1.2,
    "random": SATURATION_PER_S / 3.5,
}
"""Figure 7: computed from the ratios of section IV.D."""
LOAD_DEVIATION = {"BlueDove": 0.14, "P2P": 0.82}
"""Figure 8: standard deviation over mean, section IV.D."""
RELIEF_S = 5.0
"""Figure 9: time from adding a matcher until the response time falls, on average. Section IV.E."""
LOST_SHARE, LOSS_S = 0.05, 17.5
"""Figure 10: "around 5%", and the time until no messages are lost, on average. Section IV.E."""
DIMENSIONS = {1: SATURATION_PER_S / 5.5, 4: SATURATION_PER_S}
"""Figure 11(a): four dimensions have 5.5 times the rate of one. Section IV.F."""
DEVIATIONS = {250: SATURATION_PER_S, 1000: 0.6 * SATURATION_PER_S}
"""Figure 11(b): "almost 40%" less, so slightly above this. Section IV.F."""
SKEWED = {0: SATURATION_PER_S, 4: 50_000}
"""Figure 11(c): "more than 50%" less, "~50K". Section IV.F."""


def marks(rows: list[dict[str, Any]]) -> alt.Chart:
    """Diamonds that mark the paper's points; the rows need ``source``."""
    return alt.Chart(alt.InlineData(values=rows)).mark_point(
        shape="diamond", size=90, filled=True, color=COLOUR, opacity=1, stroke="white"
    )
