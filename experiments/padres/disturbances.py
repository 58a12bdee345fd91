"""Beyond the paper: rates that swing, interests whose skew changes, and a broker that comes later.

* *slow swings*: half the publishers double and halve their rates every 300 s.
* *fast swings*: every 20 s, faster than loads are measured.
* *changing skew*: every 600 s another eighth of the publishers publishes eight times as often.
* *new broker*: B4, more than half of all capacity, starts at 1,500 s.

Local set-up, 4,000 s.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

from balancing_runs import FEW_SEEDS, PROCESSES, RESULTS, has_quotes, moves_max, quotes, spans, variant_of

from fieldfare_lab.simulation.balancing.setups import LOCAL, LOCAL_SET_UP
from fieldfare_lab.simulation.balancing.system import BalancedBrokers

SLOW, FAST, SKEW, LATE = KINDS = ("slow swings", "fast swings", "changing skew", "new broker")
STARTS_S, SWING_S, FAST_S, SKEW_S, LATE_S = 1_500.0, 300.0, 20.0, 600.0, 1_500.0
END_S = LOCAL_SET_UP.until_s


def disturb(brokers: BalancedBrokers, kind: str) -> None:
    """Schedule the disturbance."""
    publishers = range(len(brokers.market.intervals_s))
    every_s = {SLOW: SWING_S, FAST: FAST_S, SKEW: SKEW_S}.get(kind, END_S)
    for number in range(int((END_S - STARTS_S) / every_s)):
        at_s = STARTS_S + every_s * number
        if kind in (SLOW, FAST):
            brokers.set_speeds(at_s, dict.fromkeys(publishers[::2], 2.0 if number % 2 == 0 else 1.0))
        elif kind == SKEW:
            loud = number % 8
            brokers.set_speeds(at_s, {each: 8.0 if each % 8 == loud else 1.0 for each in publishers})


def run_of(arguments: tuple[str, int]) -> dict[str, Any]:
    """Run a disturbance with a seed."""
    kind, seed = arguments
    set_up = replace(variant_of(LOCAL_SET_UP, "ours"), step_s=1e9)
    late = {"B4": LATE_S} if kind == LATE else {}
    brokers = replace(set_up, starts_s=late).build(quotes(), seed)
    disturb(brokers, kind)
    brokers.run(END_S)
    names = list(LOCAL[0].edges)
    moved = [at for at, *_ in brokers.records.moves if at >= STARTS_S]
    found = {
        "kind": kind,
        "seed": seed,
        "moves": len(moved),
        "moves_max": moves_max(brokers, STARTS_S, 1e9),
        "last_move_s": round(max(moved, default=0)),
        **{f"span_{name}": value for name, value in spans(brokers, names, 2_500, END_S).items()},
        "lost": brokers.lost(),
        "doubled": brokers.doubled_or_foreign(),
    }
    print(found, flush=True)
    return found


def main() -> None:
    if not has_quotes():
        return
    with ProcessPoolExecutor(PROCESSES) as pool:
        wanted = [(kind, seed) for kind in KINDS for seed in FEW_SEEDS]
        RESULTS.write("disturbances", list(pool.map(run_of, wanted)))


if __name__ == "__main__":
    main()
