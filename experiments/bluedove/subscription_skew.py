"""Figure 11(b): the saturation rate with less and less skewed subscriptions, 20 matchers."""

from __future__ import annotations

from systems import MATCHERS, POLICIES, bluedove, draw, peer_to_peer, saturation, subscriptions, write_csv
from workload_charts import bars

PAPER_DROP = 0.4
"""Almost 40% less at a standard deviation of 1000 than at 250, section IV.F."""


def main() -> None:
    rows = []
    for deviation in (250, 500, 750, 1000):
        stored = subscriptions(deviation=float(deviation))
        rate = saturation(bluedove(MATCHERS), POLICIES["adaptive"], stored=stored)
        rows.append({"deviation": deviation, "messages_per_s": round(rate)})
        print(rows[-1], flush=True)
    rate = saturation(peer_to_peer(MATCHERS), POLICIES["adaptive"])
    print(f"P2P at 250: {rate:.0f}", flush=True)
    drop = 1 - rows[-1]["messages_per_s"] / rows[0]["messages_per_s"]
    write_csv("figure_11b", rows)
    title = f"Figure 11(b): {drop:.0%} less at 1000 (paper: almost {PAPER_DROP:.0%})"
    draw("figure_11b", bars(rows, "deviation", "standard deviation of subscriptions", title))


if __name__ == "__main__":
    main()
