"""Matching a DataFrame with the subscriptions distributed over matchers.

    events ─▶ route (AP) ─▶ shuffled by matcher ─▶ match each slice's events (M) ─▶ ids of what each matches

A subscription meets an event once, wherever it is stored, so no merge is needed after M.

If events can go to several matchers, tasks first match the sample on each slice and report the time: the plan
is made once, so measurements of its own tasks would come too late. The executors have the index afterwards.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fieldfare.forwarding import LoadReport, LoadTable, policy_of
from fieldfare.matching.events.arrow_decoder import columns_from_arrow
from fieldfare.model import Path as AttributePath
from fieldfare.partitioning.placing import read_extents
from fieldfare.pipeline.dispatch import Forwarding
from fieldfare.pipeline.slices import Searched
from fieldfare.planning.choosing import choose_partitioning
from fieldfare.runtimes.spark.compile import CompiledSubscriptions
from fieldfare.runtimes.spark.event_columns import EventColumns, by_place, one_row_each, place_name
from fieldfare.runtimes.spark.matching_rows import lists_of_ids, match_rows
from fieldfare.runtimes.spark.saved_index import SavedIndex
from fieldfare.runtimes.spark.shipping import ShippedIndex, ship_index

VISIT, MATCHER, SLICE = "visit", "matcher", "slice"
_MEASURED = "slice long, events long, seconds double"
SAMPLE_EVENTS = 4096
MEASURED_TIMES = 3


@dataclass(frozen=True, slots=True)
class Partitioned:
    """How `match` distributes subscriptions over matchers.

    Attributes
    ----------
    partitioning : str
        ``attribute_space`` (BlueDove: a subscription is stored for each of the searched attributes, and an
        event goes to one matcher), ``single_attribute`` (likewise with one attribute), ``hash`` (each
        subscription once; every event goes to all matchers) or ``replicated`` (everything everywhere). If no
        attribute narrows the search, the first two become ``hash``.
    matchers : int, optional
        Number of matchers. Default: as many as tasks run at once.
    forwarding : str
        How to select one of an event's candidate matchers: ``adaptive``, ``response_time``,
        ``subscription_count``, ``random`` or ``balanced``. Slices' times are measured once, with the sample.
    segments_per_matcher : int
        Number of segments per matcher that an attribute is cut into. More: an event meets fewer
        subscriptions; fewer: a subscription is stored less often.
    sample : DataFrame, optional
        Events that determine where to cut; required for streaming events. Default: the first events.
    """

    partitioning: str = "attribute_space"
    matchers: int | None = None
    forwarding: str = "adaptive"
    segments_per_matcher: int = 1
    sample: DataFrame | None = None


def match_partitioned(events: DataFrame, compiled: CompiledSubscriptions, settings: Partitioned) -> DataFrame:
    """Return the events, by position, and in `found` the ids of their matches at one matcher."""
    session = events.sparkSession
    matchers = settings.matchers if settings.matchers is not None else session.sparkContext.defaultParallelism
    looked_at = settings.sample
    if looked_at is None:
        if events.isStreaming and settings.partitioning in ("attribute_space", "single_attribute"):
            raise ValueError(f"{settings.partitioning} of streaming events needs a sample: pass one")
        looked_at = events
    entries = list(compiled.entries())
    extents = read_extents(entries)
    sample = columns_from_arrow(_first_batch(looked_at, extents.attributes), tuple(extents.attributes))
    partitioning = choose_partitioning(
        settings.partitioning, matchers, extents, sample, settings.segments_per_matcher
    )
    holders = [part.matcher for part in partitioning.slices]
    policy = policy_of(settings.forwarding, holders, np.random.default_rng(0))
    with tempfile.TemporaryDirectory(prefix="fieldfare-") as folder:
        index = Path(folder) / "index"
        saved = SavedIndex.write(index, compiled, partitioning, entries, extents)
        shipped = ship_index(session, saved, index)
        routing = EventColumns.of(events.schema, partitioning.paths)
        matching = EventColumns.of(events.schema, saved.slices.paths)
        loads = LoadTable.of_sizes([part.size for part in saved.space.slices])
        # Slices with the same content are equally fast, and a single one is no choice.
        is_choice = (
            partitioning.route(sample).candidates.shape[1] > 1 and len(set(partitioning.originals)) > 1
        )
        if policy.by_rate and is_choice:
            known = MeasureSlices(shipped, _first_batch(looked_at, saved.slices.paths))
            loads.take(known.reports(session, 1 + max(holders)))
    route = routing.call(
        RouteRows(shipped, Forwarding(settings.forwarding, loads)), f"struct<{MATCHER}: int, {SLICE}: int>"
    )
    visits = one_row_each(by_place(events), VISIT, route)
    visits = visits.withColumns({name: F.col(VISIT).getField(name) for name in (MATCHER, SLICE)})
    found = matching.call(MatchSlices(shipped), "string", F.col(SLICE))
    return visits.repartitionById(1 + max(holders), MATCHER).withColumn("found", found)


def _first_batch(events: DataFrame, paths: Iterable[AttributePath]) -> pa.RecordBatch:
    """Return the first `SAMPLE_EVENTS` events, with the columns of some attributes."""
    columns = EventColumns.of(events.schema, paths)
    named = [column.alias(place_name(place)) for place, column in enumerate(columns.columns)]
    found = by_place(events).select(*named).limit(SAMPLE_EVENTS).toArrow().combine_chunks()
    chunks = [each.chunk(0) if each.num_chunks else pa.array([], each.type) for each in found.columns]
    return pa.RecordBatch.from_arrays(chunks, names=columns.names)


@dataclass(frozen=True, slots=True)
class RouteRows:
    """AP: yields, for each event, the slices that it visits and their matchers."""

    shipped: ShippedIndex
    forwarding: Forwarding

    def __call__(self, events: pa.RecordBatch, _more: Sequence[pa.Array]) -> Iterator[pa.Array]:
        slices = self.shipped.open().slices
        columns = columns_from_arrow(events, slices.partitioning.paths)
        visits: list[NDArray[np.int64]] = [np.zeros((0, 3), np.int64)]
        for part in slices.dispatch(columns, self.forwarding):
            for number, positions in zip(part.slices, part.positions, strict=True):
                visit = np.full((len(positions), 3), (0, part.matcher, number), np.int64)
                visit[:, 0] = part.events[positions]
                visits.append(visit)
        found = np.concatenate(visits)
        event, matcher, numbers = found[np.argsort(found[:, 0], kind="stable")].T
        bounds = np.searchsorted(event, np.arange(events.num_rows + 1))
        places = [pa.array(matcher, pa.int32()), pa.array(numbers, pa.int32())]
        yield pa.ListArray.from_arrays(
            pa.array(bounds, pa.int32()), pa.StructArray.from_arrays(places, [MATCHER, SLICE])
        )


@dataclass(frozen=True, slots=True)
class MatchSlices:
    """M: yields, for each event, the ids of its matches in the slice that it visits here."""

    shipped: ShippedIndex

    def __call__(self, events: pa.RecordBatch, more: Sequence[pa.Array]) -> Iterator[pa.Array]:
        saved, slices = self.shipped.open(), more[0].to_numpy()
        order = np.argsort(slices, kind="stable")
        counts, found = np.zeros(len(slices), np.int64), [pa.array([], pa.uint32())]
        for number in np.unique(slices).tolist():
            rows = np.flatnonzero(slices == number)
            bounds, subscriptions = match_rows(events.take(pa.array(rows)), saved.slices.index(number))
            counts[rows] = np.diff(bounds)
            found.append(pa.array(subscriptions, pa.uint32()))
        starts = pa.array(_starts(counts[order]), pa.int32())
        by_slice = pa.ListArray.from_arrays(starts, pa.concat_arrays(found))
        numbers = by_slice.take(pa.array(np.argsort(order))).flatten().to_numpy()
        yield from lists_of_ids(_starts(counts), numbers, saved.ids)


@dataclass(frozen=True, slots=True)
class MeasureSlices:
    """A function for ``mapInArrow``: measures slices' times for their share of a sample's events."""

    shipped: ShippedIndex
    sample: pa.RecordBatch

    def reports(self, session: SparkSession, tasks: int) -> list[LoadReport]:
        """Return the tasks' measurements; slices that no sampled event may visit are left out."""
        parts = self.shipped.space.slices
        rows = session.range(0, len(parts), 1, tasks).mapInArrow(self, _MEASURED).collect()
        return [
            LoadReport(row[SLICE], 0.0, 0.0, 0.0, row.events / row.seconds, parts[row[SLICE]].size)
            for row in rows
        ]

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slices = self.shipped.open().slices
        columns = columns_from_arrow(self.sample, slices.partitioning.paths)
        candidates = slices.partitioning.route(columns).candidates
        for number in (number for batch in numbers for number in batch.column(0).to_pylist()):
            visitors = np.flatnonzero((candidates == number).any(axis=1))
            if not len(visitors):
                continue
            # The same number everywhere, some events more than once, so that a batch's fixed cost weighs
            # equally.
            events = self.sample.take(pa.array(np.resize(visitors, SAMPLE_EVENTS)))
            index = slices.index(number)
            took_s = [self._time_s(events, index) for _ in range(1 + MEASURED_TIMES)]
            # The first run maps the slice and loads kernels; of the others the least disturbed one counts.
            values = ([number], [SAMPLE_EVENTS], [min(took_s[1:])])
            yield pa.RecordBatch.from_arrays([*map(pa.array, values)], names=[SLICE, "events", "seconds"])

    def _time_s(self, events: pa.RecordBatch, index: Searched) -> float:
        started_s = time.perf_counter()
        match_rows(events, index)
        return time.perf_counter() - started_s


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each of several consecutive lists begins, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
