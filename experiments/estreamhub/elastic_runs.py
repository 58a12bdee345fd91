"""Common parts of the programs in this folder: runs, results, the market's days, and the paper's figures.

There are two policies: ``the paper's rules`` is `ElasticityPolicy` with its defaults; ``fewer moves`` counts
each move like 20 MB of state, so that a few large slices move instead of many small ones, and releases no
hosts for three minutes after it added some.
"""

from __future__ import annotations

import gzip
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from results_folder import ResultsFolder, as_data  # noqa: E402

from fieldfare.elasticity.enforcer import ElasticityPolicy, Enforcer  # noqa: E402
from fieldfare_lab.simulation.estreamhub.cluster import ClusterModel, ElasticCluster  # noqa: E402
from fieldfare_lab.simulation.estreamhub.engine import CostModel  # noqa: E402

RESULTS = ResultsFolder(HERE / "results")
PAPERS, OURS = "the paper's rules", "fewer moves"
POLICIES = {PAPERS: ElasticityPolicy(), OURS: ElasticityPolicy(move_bytes=20_000_000, calm_s=180.0)}
BIN_S = 30
"""The paper's period for averages (section VI.E)."""
SEEDS = range(1, 11)
"""Seeds of the Poisson arrivals: each run is repeated with all of them; the pictures show the first."""
ENVELOPE = (40.0, 70.0)
"""CPU in per cent within which the hosts of Figure 8 stay, according to the paper."""
COLOUR = "firebrick"

TICKS = "us_ticks_per_second_2013-10-07_11.csv.gz"
DATA = Path(os.environ.get("FIELDFARE_SHARED_DATA", HERE.parents[2] / "shared" / "data"))
FIRST_S, SPEED, SPAN_S = 24_000, 20, 2400
"""40 minutes at 20 times the speed, from 6:40 Eastern time on. The paper says 10 times, and that an hour is
3 minutes: only 20 times gives that, and its day of 13 hours in 40 minutes."""
PEAK_PER_S = 190.0
MARKET_DAYS = ("7 October", "8 October", "9 October", "10 October", "11 October")


def ticks() -> NDArray[np.int64] | None:
    """Ticks of each second of five days, one column per day; None, with a message, if the file is missing."""
    path = DATA / TICKS
    if not path.exists():
        print(f"skipped: {TICKS} is not there (FIELDFARE_SHARED_DATA names its folder)")
        return None
    with gzip.open(path, "rt") as file:
        return np.loadtxt(file, delimiter=",", skiprows=1, dtype=np.int64)


def market_rates(found: NDArray[np.int64], day: int) -> NDArray[np.float64]:
    """Publications per second of the experiment, for each of its seconds.

    The paper plots means over 30 s and has a peak of 190/s there, so the largest mean over 30 s is scaled
    to that. Single seconds, each 20 s of the trace, reach up to 440/s.
    """
    means = found[:, day + 1].reshape(-1, SPEED).mean(1)
    first = (FIRST_S - int(found[0, 0])) // SPEED
    means = means[first : first + SPAN_S]
    return np.asarray(means * (PEAK_PER_S / means.reshape(-1, BIN_S).mean(1).max()))


def arrivals_of(rates: NDArray[np.float64], seed: int = 1) -> NDArray[np.float64]:
    """Poisson arrivals, each second with its own rate."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rates)
    return np.sort(np.repeat(np.arange(len(rates)), counts) + rng.uniform(0, 1, counts.sum()))


def run(
    arrived_s: NDArray[np.float64],
    until_s: float,
    enforcer: Enforcer,
    cost: CostModel | None = None,
    model: ClusterModel | None = None,
) -> ElasticCluster:
    """A run that starts with one host."""
    cluster = ElasticCluster(cost or CostModel(), arrived_s, enforcer, model)
    cluster.run(until_s)
    return cluster


def summary(cluster: ElasticCluster, until_s: float) -> dict[str, Any]:
    """The results of a run as one row.

    `late_periods` counts the periods of 30 s whose mean delay is over a second. `envelope_share` is the share
    of hosts' 30-s means within `ENVELOPE`, in periods with two hosts or more: a single host has no lower
    bound, as it cannot be released.
    """
    periods = over_time(cluster, until_s)
    hosts_in = [cpu for loads in host_loads(cluster).values() if len(loads) > 1 for cpu in loads]
    delay_s = cluster.engine.delay_s[~np.isnan(cluster.engine.delay_s)]
    hosts = [count for _, count in cluster.records.hosts]
    moves = cluster.records.moves
    return {
        "publications": len(cluster.engine.delay_s),
        "unfinished": int(np.isnan(cluster.engine.delay_s).sum()),
        "delay_mean_s": round(float(delay_s.mean()), 4),
        "delay_p50_s": round(float(np.percentile(delay_s, 50)), 4),
        "delay_p99_s": round(float(np.percentile(delay_s, 99)), 4),
        "delay_max_s": round(float(delay_s.max()), 4),
        "period_max_s": max(row["delay_mean_s"] for row in periods if row["delay_mean_s"] != ""),
        "late_periods": sum(row["delay_mean_s"] > 1 for row in periods if row["delay_mean_s"] != ""),
        "hosts_last": periods[-1]["hosts"],
        "envelope_share": round(statistics.mean(ENVELOPE[0] <= cpu <= ENVELOPE[1] for cpu in hosts_in), 4)
        if hosts_in
        else "",
        "hosts_max": max(hosts),
        "host_seconds": sum(hosts),
        "migrations": len(moves),
        "stopped_mean_ms": round(1000 * float(np.nanmean([m.active_s - m.stopped_s for m in moves])), 1),
    }


def spread(runs: Sequence[dict[str, Any]], field: str, form: str = ",.0f", scale: float = 1.0) -> str:
    """The median of a field over runs of several seeds, with the smallest and the largest in brackets."""
    values = [scale * float(run[field]) for run in runs]
    middle, least, most = (format(f(values), form) for f in (statistics.median, min, max))
    return middle if least == most else f"{middle} ({least} to {most})"


def host_loads(cluster: ElasticCluster) -> dict[int, list[float]]:
    """Each period's mean CPU of each host that existed for more than half of it, in per cent."""
    loads: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for now_s, host, load in cluster.records.loads:
        loads[int(now_s // BIN_S)][host].append(load)
    return {
        period: [100 * float(np.mean(each)) for each in hosts.values() if len(each) > BIN_S / 2]
        for period, hosts in loads.items()
    }


def over_time(cluster: ElasticCluster, until_s: float) -> list[dict[str, Any]]:
    """Rate, hosts, load and delay in periods of 30 s, as in Figures 8 and 9."""
    engine = cluster.engine
    at = (engine.arrived_s // BIN_S).astype(int)
    loads = host_loads(cluster)
    hosts: dict[int, list[int]] = defaultdict(list)
    for now_s, count in cluster.records.hosts:
        hosts[int((now_s - 1) // BIN_S)].append(count)
    rows = []
    for i in range(int(until_s // BIN_S)):
        delay_s = engine.delay_s[at == i]
        delay_s = delay_s[~np.isnan(delay_s)]
        means = loads[i]
        rows.append(
            {
                "time_s": i * BIN_S,
                "rate_per_s": round(int((at == i).sum()) / BIN_S, 2),
                "hosts": max(hosts[i]),
                "cpu_min": round(min(means), 1),
                "cpu_mean": round(sum(means) / len(means), 1),
                "cpu_max": round(max(means), 1),
                "delay_mean_s": round(float(delay_s.mean()), 4) if len(delay_s) else "",
                "delay_deviation_s": round(float(delay_s.std()), 4) if len(delay_s) else "",
            }
        )
    return rows


def panels(
    rows: list[dict[str, Any]],
    by: str,
    paper_hosts: list[dict[str, Any]],
    delay_scale: alt.Scale,
    said: str = "",
    **beside: Any,
) -> Any:
    """Figures 8 and 9: four pictures, one below another.

    `by` is the field that distinguishes runs; `said` is the paper's statement about delays of a second;
    `beside` is the position of the words of `paper_hosts` relative to their points, as in Vega-Lite's
    ``mark_text``.
    """
    last_s = max(row["time_s"] for row in rows) + BIN_S
    x = alt.X("time_s:Q", title=None, scale=alt.Scale(domain=[0, last_s], nice=False))
    base = alt.Chart(as_data(rows), width=560, height=110).encode(
        x=x,
        color=alt.Color(
            f"{by}:N",
            title=by,
            sort=None,
            scale=alt.Scale(scheme="category10"),
            legend=alt.Legend(labelLimit=300),
        ),
    )
    rate = base.mark_line().encode(y=alt.Y("rate_per_s:Q", title="publications/s"))
    points = alt.Chart(as_data(paper_hosts))
    hosts = (
        base.mark_line(interpolate="step-after").encode(y=alt.Y("hosts:Q", title="hosts"))
        + points.mark_point(shape="diamond", size=90, filled=True, color=COLOUR, opacity=1).encode(
            x=x, y="hosts:Q"
        )
        + points.mark_text(color=COLOUR, **beside).encode(x=x, y="hosts:Q", text="words:N")
    )
    rule = alt.Chart(as_data([{"cpu": bound} for bound in (30, 50, 70)]))
    cpu = (
        base.mark_area(opacity=0.2).encode(
            y=alt.Y("cpu_min:Q", title="host CPU, %", scale=alt.Scale(domain=[0, 100])), y2="cpu_max:Q"
        )
        + base.mark_line().encode(y="cpu_mean:Q")
        + rule.mark_rule(strokeDash=[4, 4], color="gray").encode(y="cpu:Q")
    )
    heard = base.properties(data=as_data([row for row in rows if row["delay_mean_s"] != ""]))
    delay = heard.mark_line(clip=True).encode(
        x=alt.X("time_s:Q", title="time, s", scale=alt.Scale(domain=[0, last_s], nice=False)),
        y=alt.Y("delay_mean_s:Q", title="mean delay, s", scale=delay_scale, axis=alt.Axis(tickCount=4)),
    )
    if said:
        second = alt.Chart(as_data([{"delay_s": 1.0, "words": said}])).encode(y="delay_s:Q")
        words = second.mark_text(color=COLOUR, align="left", dx=-275, dy=-8).encode(text="words:N")
        delay = delay + second.mark_rule(color=COLOUR) + words
    return alt.vconcat(rate, hosts, cpu, delay)
