"""The engine's time per event: ``python experiments/bluedove/calibrate.py``.

Builds indexes of several numbers of W-BLUEDOVE subscriptions, and does the work of a task of the pipeline
between reading records and writing matches: it matches groups of events, and sorts the matches of a block of
the match log by subscription. Everything runs on one core. The figures are processor time, the minimum of
several rounds, so that other load on the machine has little effect. Writes ``calibration.json``, which all
simulations with the engine read, so that their results are equal on every machine. Run it again to get the
results for your machine. The file also records what was measured: sizes of batches, the format of the index,
a digest of the code; a test fails if the engine has changed since.

The paper's matcher searches linearly; the paper does not give its speed. One figure determines it: BlueDove
with 20 matchers and 40,000 subscriptions saturates at 114,000 messages per second. It is in ``systems.py``.
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

from fieldfare.matching import compiled, grouping, pairs, versions
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
"""Maximum groups of events in a block, which counts them in 16 bits."""
ENGINE: list[ModuleType] = [
    *(compiled, layout, codes, dictionary_kernels, tile_packing),
    *(kernels, access_kernels, tile_kernels, lanes, left_lanes, vectors, versions, grouping, pairs),
]
"""The modules that determine the time for ranges of numbers."""
WHOLE = [compiled, tile_packing, lanes, left_lanes, vectors]
"""The modules all of whose functions count; of the others only compiled functions count."""


def code_of(modules: Iterable[ModuleType]) -> dict[str, str]:
    """A digest of each function and constant, by name, in any of the modules."""
    found: dict[str, str] = {}
    for module in modules:
        text = Path(module.__file__ or "").read_text()
        for name, digest in sorted(digests(text, whole=module in WHOLE).items()):
            found[name] = " ".join(sorted([*found.get(name, "").split(), digest]))
    return dict(sorted(found.items()))


def digests(text: str, *, whole: bool) -> dict[str, str]:
    """Digests of a module's functions (or only the compiled ones) and of its numeric constants.

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
    """Whether a constant is a number or several numbers, not an array or a type."""
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
    """The properties that must be unchanged for a calibration to be valid for this engine."""
    return {
        "group_events": GROUP_EVENTS,
        "block_events": BLOCK_GROUPS * GROUP_EVENTS,
        "block_slots": BLOCK_SLOTS,
        "index_format": FORMAT,
        "code": code_of(ENGINE),
    }


def part_of(size: int) -> Part:
    """An index of a number of subscriptions."""
    forms = WORKLOADS["bluedove"].normal_forms(size, 1)
    return build_part(
        IndexEntry(number, number, 0, OPEN_END, form, "", "sql") for number, form in enumerate(forms)
    )


def measure(sizes: Sequence[int], rounds: int) -> list[dict[str, float]]:
    """Microseconds of one core per event, by number of subscriptions: the minimum of some rounds.

    All sizes alternate.
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
    rows[0]["subscriptions"] = 0  # the smallest index that can be built represents an empty one
    found = {"engine": rows, "workload": "bluedove", "cores": 1, "measured": measured_engine()}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
