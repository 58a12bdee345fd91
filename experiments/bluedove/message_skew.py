"""Figure 11(c): the saturation rate with messages skewed as the subscriptions are, 20 matchers."""

from __future__ import annotations

from typing import Any

from paper_points import SKEWED
from systems import MATCHERS, POLICIES, bluedove, draw, keep, saturation
from workload_charts import bars


def measure() -> list[dict[str, Any]]:
    rows = []
    for skewed in range(5):
        rate = saturation(bluedove(MATCHERS), POLICIES["adaptive"], skewed=skewed)
        rows.append({"skewed_dimensions": skewed, "messages_per_s": round(rate)})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    rows = keep("figure_11c", measure)
    drop = 1 - rows[-1]["messages_per_s"] / rows[0]["messages_per_s"]
    title = f"Figure 11(c): {drop:.0%} less with four (the paper: more than 50%)"
    draw(
        "figure_11c",
        bars(rows, SKEWED, "skewed_dimensions", "dimensions with adversely skewed messages", title),
    )


if __name__ == "__main__":
    main()
