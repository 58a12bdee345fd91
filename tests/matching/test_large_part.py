"""Parts large enough for tables, tiles under a cell, open tiles and quantile buckets, compared with the
evaluator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matching_support import entry

from fieldfare.filters import NormalForm
from fieldfare.filters.values import ABSENT
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare_lab.workloads.synthetic import WORKLOADS

pytestmark = pytest.mark.long


def _truth(forms: list[NormalForm], events: ColumnBatch, event: int) -> list[int]:
    values = {path: events.value(path, event) for path in events.columns}
    return [
        n
        for n, form in enumerate(forms)
        if any(
            all(values.get(path, ABSENT) in allowed for path, allowed in conjunction.constraints)
            for conjunction in form.conjunctions
        )
    ]


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_thousands_of_filters_match_like_the_naive_evaluator(name: str) -> None:
    forms = list(WORKLOADS[name].normal_forms(5000, 11))
    events = WORKLOADS[name].events(24, 12)
    part = build_part(entry(n, form) for n, form in enumerate(forms))  # type: ignore[arg-type]
    found = Index((part,)).match(events, np.zeros(24, np.int64)).lists()
    assert found == [_truth(forms, events, event) for event in range(24)]


def test_the_kernels_agree_without_compilation() -> None:
    """The compiled loops and the same loops in plain Python agree on a small mixed part."""
    program = (
        "import numpy as np\n"
        "from fieldfare.matching.index import Index\n"
        "from fieldfare.matching.part import build_part\n"
        "from fieldfare.matching.versions import IndexEntry\n"
        "from fieldfare_lab.workloads.synthetic import WORKLOADS\n"
        "for name in sorted(WORKLOADS):\n"
        "    forms = enumerate(WORKLOADS[name].normal_forms(120, 3))\n"
        "    part = build_part(IndexEntry(n, n, 0, 9, form, '', 'sql') for n, form in forms)\n"
        "    for size in (20, 2):\n"
        "        events, offsets = WORKLOADS[name].events(size, 4), np.arange(size, dtype=np.int64)\n"
        "        print(Index((part,)).match(events, offsets).lists())\n"
    )
    source = Path(__file__).parents[2] / "src"
    outputs = []
    for disabled in ("0", "1"):
        settings = {**os.environ, "NUMBA_DISABLE_JIT": disabled, "PYTHONPATH": str(source)}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=settings,
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
        )
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert outputs[0].count("[") > 40
