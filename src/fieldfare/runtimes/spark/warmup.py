"""Preparation before the first event: load compiled kernels, start Python workers.

numba caches compiled kernels beside the sources (or in the user's cache if that folder is read-only), so no
later process waits for their compilation.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np
import pyarrow as pa
from pyspark import SparkContext

from fieldfare.filters import compile_filter
from fieldfare.filters.encrypted import ENCRYPTED, compile_encrypted
from fieldfare.matching.evaluation.batches import BatchFilter
from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import Closings, IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.pipeline.access_point import RECORDS, by_space, decoded
from fieldfare.pipeline.match_batch import find_matches
from fieldfare.runtimes.spark.cluster import tasks_folder
from fieldfare.runtimes.spark.distributed.tasks import OpenSlices
from fieldfare.runtimes.spark.range_task import OpenIndex
from fieldfare.storage import open_index_store
from fieldfare.storage.folder import DataFolder

_USUAL = (
    *("a = 'x' OR a > 3", "a < b", "a - b > 2", "s LIKE '%x%'", "LENGTH(s) > 2", "LOWER(s) = 'x'"),
    "CESQL_INT(b) > 2",
)
"""Filters that together use the most common kernels of the evaluation by columns."""
_SELDOM = (
    *("TRIM(s) = 'x'", "LEFT(s, 1) = 'x'", "POSITION('x', s) > b", "CONTAINS(s, t)", "CONCAT(s, t) = 'xy'"),
    *("UPPER(s) LIKE '_x%'", "REPLACE(s, 'x', t) = 'y'", "IN_CIDR(s, '10.0.0.0/8')", "STRING(a) = t"),
    *("DISTANCE_KM(a, b, 1, 2) < 5", "ROUND(a, 1) = 2", "FLOOR(a) < b", "ABS(a) > b", "NUMBER(s) > b"),
    *("INT(s) > b", "BOOLEAN(s)", "DECIMAL(s) > b", "COALESCE(a, b) > 1", "TIME(s) > TIME '12:00:00'"),
    *("HOUR(s) = 3", "TIMESTAMP(s) > TIMESTAMP '2024-01-01T00:00:00Z'", "ANY x IN l SATISFIES (x > 1)"),
    *("ANY x IN l SATISFIES (x.y > 1 AND x.z = 'a')", "1 < ANY(l)", "CARDINALITY(l) > 1", "l[-1] = 2"),
    *("CESQL_STRING(a) = s", "CESQL_BOOL(s)", "CESQL_NOT(s)", "CESQL_EQUAL(a, s)", "CESQL_ADD(a, b) = 2"),
)
"""Filters that together use the less common kernels."""

Rows = Iterator[int]

QUIET_S = 2.0
"""Seconds for which nothing was matched before the workers are warmed."""
KEEP_ALIVE_S = 25.0
"""Interval, in seconds, at which idle workers get work; Spark ends workers after an idle minute."""

_WORDS = ("AA", "UA", "DL", "B6")


def _nothing(rows: Rows) -> Rows:
    yield from rows


def run_kernels_once() -> None:
    """Match a few events against a few hundred filters of every kind, so that all kernels are loaded."""
    part = build_part(_entries())
    # An index of a single filter is what replays use.
    find_matches(_records(40), {"default": Index((build_part(islice(_entries(), 1)),))})
    # Few events are matched by other kernels than many.
    for repeated, closings in (
        (40, Closings()),
        (3, Closings(*(pa.array([1]).to_numpy() for _ in range(2)))),
    ):
        found = find_matches(_records(repeated), {"default": Index((part,), closings)})
    run_independent_kernels_once()
    found.by_subscription()


def run_independent_kernels_once() -> None:
    """Run the kernels that need no index: they read events, and evaluate filters by columns."""
    for space in by_space(_records(40)):
        for _ in decoded(space, [("data", name) for name in ("carrier", "delay", "origin", "x", "n")]):
            pass
    _evaluate(_USUAL)


def run_seldom_kernels_once() -> None:
    """Run the kernels of less common functions: compiled ahead, they do not delay the first filter."""
    _evaluate(_SELDOM)
    _match_encrypted()


def _evaluate(filters: Iterable[str]) -> None:
    event = {"a": 1.5, "b": 2, "s": "x", "t": "y", "l": [1, {"y": 2, "z": "a"}]}
    for text in filters:
        compiled = compile_filter(text)
        columns = decode_json_lines(json.dumps(event).encode() + b"\n", 1, list(compiled.column_paths))
        for batch in ([event], columns):
            BatchFilter(compiled).matches(batch)


def _match_encrypted() -> None:
    """Match events and filters of an encrypted space; the vectors are dummies."""
    ones = base64.b64encode(np.ones(6).tobytes()).decode()
    token = ["0" * 12, False, ["A" * 22 + "=="]]
    filters = [{"e": 1, "r": [ones], "t": tokens} for tokens in ([], [token])]
    text = json.dumps({"any": filters, "c": ""})
    part = build_part([IndexEntry(0, 0, 0, OPEN_END, compile_encrypted(text).compiled, text, ENCRYPTED)])
    data = {"e": 1, "v": ones, "t": {token[0]: "A" * 22 + "=="}}
    line = json.dumps({"data": data}).encode() + b"\n"
    columns = decode_json_lines(line * 8, 8, list(part.paths))
    Index((part,)).collect(columns, np.zeros(8, np.int64))


def _entries() -> Iterator[IndexEntry]:
    filters = [
        f"data.carrier = '{_WORDS[i % 4]}{i}' AND data.delay BETWEEN {i % 60} AND {i % 60 + 40}"
        for i in range(600)
    ]
    filters += [f"data.delay > {i / 4} AND data.distance < {4000 - i}" for i in range(1200)]
    filters += ["data.origin LIKE 'J%K'", "EXISTS(data.x)", "data.delay * 2 > data.distance"]
    filters += [f"data.origin LIKE '%J_{i}%' OR data.carrier LIKE '%{i}'" for i in range(10, 80)]
    filters += [f"data.origin LIKE '%word{i}%'" for i in range(100)]
    filters += [f"data.delay / 3 > {i}" for i in range(30)]
    for number, text in enumerate(filters):
        yield IndexEntry(number, number, 0, OPEN_END, compile_filter(text).compiled, text, "sql")


def _records(repeated: int) -> pa.RecordBatch:
    """Return two records: one with a single event, one with `repeated` events."""
    data = b'{"carrier":"AA0","delay":12.5,"distance":700,"origin":"J\\u0046K","x":null,"n":[1,2]}'
    line = b'{"id":"1","data":' + data + b"}\n"
    return pa.record_batch(
        [
            [0, 1],
            [0, 0],
            ["default", "default"],
            pa.array([1, repeated], pa.int32()),
            pa.array([line, line * repeated], pa.large_binary()),
        ],
        schema=RECORDS,
    )


def warm_workers(context: SparkContext, workers: int, work: Callable[[Rows], Rows] = _nothing) -> None:
    """Run something in a number of Python workers at once, so that there are as many.

    A plain job, as those of a service with one matcher: Java need not load what plans queries.
    """
    context.parallelize(range(workers), workers).mapPartitions(work).collect()


def index_opener(
    context: SparkContext,
    folder: DataFolder,
    workers: int,
    open_index: type[OpenIndex] | type[OpenSlices] = OpenIndex,
) -> Callable[[int], None]:
    """Return a function that maps a manifest's index in a number of Spark's workers, for `WarmKeeper`."""
    seen = tasks_folder(context, folder)

    def warm(manifest: int) -> None:
        if workers:
            warm_workers(context, workers, open_index(seen, manifest) if manifest else _nothing)

    return warm


class WarmKeeper:
    """Keeps the Python workers of an idle service alive, and the newest index mapped in them.

    Spark ends workers that were idle for a minute. The next batch would wait until new ones are forked and
    have opened the index, which takes more than a second with 100,000 subscriptions.

    Parameters
    ----------
    warm : callable
        Gives all workers something to do, and makes them map the manifest with this number; 0 for none.
    """

    def __init__(self, folder: DataFolder, warm: Callable[[int], None]) -> None:
        self._warm = warm
        self._store = open_index_store(folder.index_url)
        self._matched = 0
        self._busy_s = self._warmed_s = 0.0
        self._mapped = 0

    def warm_if_due(self, matched: int, now_s: float) -> None:
        """Warm the workers if that is due; `matched` is the number of matched records."""
        if matched != self._matched:
            self._matched, self._busy_s = matched, now_s
        if now_s - max(self._busy_s, self._warmed_s) < QUIET_S:
            return
        newest = self._store.newest()
        number = newest.number if newest else 0
        if number != self._mapped or now_s - max(self._busy_s, self._warmed_s) >= KEEP_ALIVE_S:
            # Noted first: a failed attempt is not repeated at every call.
            self._mapped, self._warmed_s = number, now_s
            self._warm(number)
