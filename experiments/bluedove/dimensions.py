"""Figure 11(a): the saturation rate with 1 to 4 searchable dimensions, 20 matchers."""

from __future__ import annotations

from systems import MATCHERS, POLICIES, bluedove, draw, saturation, write_csv
from workload_charts import bars

PAPER_GAIN = 5.5
"""Four dimensions over one, section IV.F."""


def main() -> None:
    rows = []
    for dimensions in (1, 2, 3, 4):
        rate = saturation(bluedove(MATCHERS, dimensions), POLICIES["adaptive"])
        rows.append({"dimensions": dimensions, "messages_per_s": round(rate)})
        print(rows[-1], flush=True)
    gain = rows[-1]["messages_per_s"] / rows[0]["messages_per_s"]
    write_csv("figure_11a", rows)
    title = f"Figure 11(a): four dimensions {gain:.1f} times one (paper {PAPER_GAIN})"
    draw("figure_11a", bars(rows, "dimensions", "searchable dimensions", title))


if __name__ == "__main__":
    main()
