"""Figure 6(a): saturation rate against matchers, for the three systems, by the paper's search and ours."""

from __future__ import annotations

import altair as alt
from systems import PAPER, SYSTEMS, draw, engine, saturation, table, write_csv

PAPER_GAINS = {5: (3.5, 14.0), 20: (4.2, 67.0)}
"""What the paper's text says: BlueDove's rate over P2P's, and over full replication's."""


def main() -> None:
    rows = []
    for search, service in (("linear search (paper)", PAPER), ("fieldfare's engine", engine())):
        for name, (make, policy) in SYSTEMS.items():
            for matchers in (5, 10, 15, 20):
                rate = saturation(make(matchers), policy, service)
                rows.append(
                    {"search": search, "system": name, "matchers": matchers, "messages_per_s": round(rate)}
                )
                print(rows[-1], flush=True)
    write_csv("figure_6a", rows)
    chart = (
        alt.Chart(table(rows))
        .mark_line(point=True)
        .encode(
            x=alt.X("matchers:Q", scale=alt.Scale(domain=[0, 20])),
            y=alt.Y("messages_per_s:Q", title="saturation rate, messages/s", axis=alt.Axis(format="~s")),
            color=alt.Color("system:N", title=None, sort=list(SYSTEMS)),
        )
        .properties(width=300, height=260)
        .facet(column=alt.Column("search:N", title=None, sort=["linear search (paper)"]))
        .resolve_scale(y="independent")
        .properties(title="Figure 6(a): 40,000 subscriptions")
    )
    draw("figure_6a", chart)


if __name__ == "__main__":
    main()
