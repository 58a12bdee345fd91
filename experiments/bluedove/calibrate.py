"""How long the engine takes for an event: ``python experiments/bluedove/calibrate.py``.

Builds an index of so many W-BLUEDOVE subscriptions and does with it what a task of the pipeline does between
reading records and writing matches: groups of events are matched, and the matches of a block of the match log
are put in order by subscription. Everything on one core; the processor's time counts, and of several rounds
the least, so that others on the machine disturb little. Writes ``calibration.json``, which all simulations
with the engine read, so that they give the same on every machine. Run it again to see what they would give on
yours. The file also says what was measured: sizes of batches, the format of the index, a digest of the code;
a test fails when the engine is not that one any more.

The paper's matcher searches linearly, in a time that the paper does not say. One figure fixes it: BlueDove
with 20 matchers and 40,000 subscriptions saturates at 114,000 messages a second. ``systems.py`` has
it.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import repeat
from pathlib import Path
from time import process_time
from types import ModuleType
from typing import Any

import numpy as np

from fieldfare.matching import compiled, grouping, versions
from fieldfare.matching.files import FORMAT
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.plain import codes, dictionary_kernels, layout
from fieldfare.matching.plain.building import tile_packing
from fieldfare.matching.plain.search import access_kernels, kernels, lanes, left_lanes, tile_kernels, vectors
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.runtimes.spark.range_task import BLOCK_SLOTS, GROUP_EVENTS
from fieldfare_lab.workloads.synthetic import WORKLOADS

FILE = Path(__file__).resolve().parent / "calibration.json"
SIZES = [1, 250, 500, 1000, 2000, 4000, 8000, 16_000, 40_000]
BLOCK_GROUPS = 8
"""Groups of events in a block, at most: it counts them in 16 bits."""
ENGINE: list[ModuleType] = [
    *(compiled, layout, codes, dictionary_kernels, tile_packing),
    *(kernels, access_kernels, tile_kernels, lanes, left_lanes, vectors, versions, grouping),
]
"""The modules that decide the time of ranges of numbers."""
WHOLE = [compiled, tile_packing, lanes, left_lanes, vectors]
"""Those of which every function does; of the others those that are compiled."""


def code_of(modules: Iterable[ModuleType]) -> dict[str, str]:
    """A digest of each function and constant, by name, in whatever module it stands."""
    found: dict[str, str] = {}
    for module in modules:
        text = Path(module.__file__ or "").read_text()
        for name, digest in sorted(digests(text, whole=module in WHOLE).items()):
            found[name] = " ".join(sorted([*found.get(name, "").split(), digest]))
    return dict(sorted(found.items()))


def digests(text: str, *, whole: bool) -> dict[str, str]:
    """Of a module's functions (or of the compiled ones) and of its constants that are numbers.

    Comments, docstrings, imports and line breaks do not count.
    """
    found: dict[str, str] = {}
    for node in ast.parse(text).body:
        names: list[str] = []
        if isinstance(node, ast.FunctionDef) and (whole or node.decorator_list):
            names = [node.name]
        elif isinstance(node, ast.Assign) and _is_number(node.value):
            names = [each.id for each in ast.walk(node.targets[0]) if isinstance(each, ast.Name)]
        if names:
            digest = hashlib.sha256(ast.dump(_without_texts(node)).encode()).hexdigest()[:12]
            found |= dict.fromkeys(names, digest)
    return found


def _is_number(value: ast.expr) -> bool:
    """Whether a constant is a number, or some: no array, and no type."""
    calls = [ast.unparse(node.func) for node in ast.walk(value) if isinstance(node, ast.Call)]
    return all(re.fullmatch(r"np\.(u?int|float)\d+", call) for call in calls)


def _without_texts(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return tree


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def measured_engine() -> dict[str, Any]:
    """What must be the same for a calibration to be this engine's."""
    return {
        "group_events": GROUP_EVENTS,
        "block_events": BLOCK_GROUPS * GROUP_EVENTS,
        "block_slots": BLOCK_SLOTS,
        "index_format": FORMAT,
        "code": code_of(ENGINE),
    }


def part_of(size: int) -> Part:
    """An index of so many subscriptions."""
    forms = WORKLOADS["bluedove"].normal_forms(size, 1)
    return build_part(
        IndexEntry(number, number, 0, OPEN_END, form, "", "sql") for number, form in enumerate(forms)
    )


def measure(sizes: Sequence[int], rounds: int) -> list[dict[str, float]]:
    """Microseconds of one core for one event among so many subscriptions, the least of some rounds; all
    sizes take turns.
    """
    indexes = [Index((part_of(size),)) for size in sizes]
    groups = [WORKLOADS["bluedove"].events(GROUP_EVENTS, 2 + seed) for seed in range(BLOCK_GROUPS)]
    offsets = np.zeros(GROUP_EVENTS, np.int64)
    best_s = [float("inf")] * len(sizes)
    for _ in repeat(None, rounds + 1):  # the first compiles
        for i, index in enumerate(indexes):
            started_s = process_time()
            found = [
                pairs.behind(place * GROUP_EVENTS)
                for place, events in enumerate(groups)
                for pairs in index.collect(events, offsets)
            ]
            grouping.group_by_subscription(found)
            best_s[i] = min(best_s[i], process_time() - started_s)
    events = BLOCK_GROUPS * GROUP_EVENTS
    return [
        {"subscriptions": size, "event_us": round(1e6 * best / events, 4)}
        for size, best in zip(sizes, best_s, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    rows = measure(SIZES, options.rounds)
    rows[0]["subscriptions"] = 0  # the smallest index that can be built stands for an empty one
    found = {"engine": rows, "workload": "bluedove", "cores": 1, "measured": measured_engine()}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
