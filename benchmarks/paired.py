"""A benchmark in two checkouts, in turns: ``python benchmarks/paired.py --before FOLDER -- matching.py ...``.

The arguments after ``--`` are a benchmark of this folder that has ``--json``, with its options. Each run is a
process, of the checkout before and of this one, in alternating order (before, now, now, before, ...), so that
other load on the machine affects both equally. ``ratio`` is the median of now / before over the pairs,
``from`` and ``to`` are the minimum and maximum.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent


def figures_of(checkout: Path, command: list[str]) -> dict[str, float]:
    """The numbers that a benchmark of a checkout prints as its last line."""
    done = subprocess.run(
        [sys.executable, str(checkout / "benchmarks" / command[0]), *command[1:], "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([f"{checkout}/src", f"{checkout}/lab"])},
        stdout=subprocess.PIPE,
        check=True,
    )
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {name: value for name, value in document.items() if type(value) in (int, float)}


def compared(pairs: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return each figure that both checkouts print, before and now, if it differs in some pair."""
    found = {}
    for name in pairs[0][0]:
        values = [(before[name], now[name]) for before, now in pairs if name in before and name in now]
        if all(before == now for before, now in values) or not all(before for before, _ in values):
            continue
        ratios = [now / before for before, now in values]
        found[name] = {
            "before": statistics.median(before for before, _ in values),
            "now": statistics.median(now for _, now in values),
            "ratio": round(statistics.median(ratios), 4),
            "from": round(min(ratios), 4),
            "to": round(max(ratios), 4),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="folder of the other checkout")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("benchmark", nargs="+", help="a benchmark of this folder, and its options")
    options = parser.parse_args()
    checkouts = [options.before.resolve(), HERE]
    for checkout in checkouts:
        figures_of(checkout, options.benchmark)  # Warm up: kernels are compiled and files are read.
    pairs = []
    for turn in range(options.pairs):
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        done = {place: figures_of(checkouts[place], options.benchmark) for place in order}
        pairs.append((done[0], done[1]))
        print(json.dumps(pairs[-1]), file=sys.stderr)
    print(json.dumps({"benchmark": options.benchmark, "pairs": options.pairs, "figures": compared(pairs)}))


if __name__ == "__main__":
    main()
