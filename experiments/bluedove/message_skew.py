"""Figure 11(c): the saturation rate with messages skewed as the subscriptions are, 20 matchers."""

from __future__ import annotations

from systems import MATCHERS, POLICIES, bluedove, draw, saturation, write_csv
from workload_charts import bars


def main() -> None:
    rows = []
    for skewed in range(5):
        rate = saturation(bluedove(MATCHERS), POLICIES["adaptive"], skewed=skewed)
        rows.append({"skewed_dimensions": skewed, "messages_per_s": round(rate)})
        print(rows[-1], flush=True)
    drop = 1 - rows[-1]["messages_per_s"] / rows[0]["messages_per_s"]
    write_csv("figure_11c", rows)
    title = f"Figure 11(c): {drop:.0%} less with four (paper: more than 50%)"
    draw("figure_11c", bars(rows, "skewed_dimensions", "dimensions with adversely skewed messages", title))


if __name__ == "__main__":
    main()
