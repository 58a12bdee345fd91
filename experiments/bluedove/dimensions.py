"""Figure 11(a): the saturation rate with 1 to 4 searchable dimensions, 20 matchers."""

from __future__ import annotations

from typing import Any

from paper_points import DIMENSIONS
from systems import MATCHERS, POLICIES, bluedove, draw, keep, saturation
from workload_charts import bars


def measure() -> list[dict[str, Any]]:
    rows = []
    for dimensions in (1, 2, 3, 4):
        rate = saturation(bluedove(MATCHERS, dimensions), POLICIES["adaptive"])
        rows.append({"dimensions": dimensions, "messages_per_s": round(rate)})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    rows = keep("figure_11a", measure)
    gain = rows[-1]["messages_per_s"] / rows[0]["messages_per_s"]
    title = f"Figure 11(a): four dimensions {gain:.1f} times one (the paper: 5.5)"
    draw("figure_11a", bars(rows, DIMENSIONS, "dimensions", "searchable dimensions", title))


if __name__ == "__main__":
    main()
