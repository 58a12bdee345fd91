"""Matching a DataFrame with the subscriptions spread over matchers.

    events ─▶ route (AP) ─▶ shuffled by matcher ─▶ match each slice's events (M) ─▶ a row for each match

A subscription meets an event once, wherever it is stored, so there is nothing to merge after M.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StructField, StructType

from fieldfare.matching.arrow_decoder import columns_from_arrow
from fieldfare.pipeline.dispatch import dispatch
from fieldfare.runtimes.spark.compile import CompiledSubscriptions
from fieldfare.runtimes.spark.matching_rows import matching_rows
from fieldfare.runtimes.spark.partitioned.sliced_index import SlicedIndex, choose_partitioning, read_extents
from fieldfare.runtimes.spark.partitioned.tasks import policy_of
from fieldfare.runtimes.spark.shipping import ship_files, shipped_file

MATCHER, SLICE = "__fieldfare_matcher", "__fieldfare_slice"
SAMPLE_EVENTS = 4096
IDS_FILE = "ids.arrow"


@dataclass(frozen=True, slots=True)
class Partitioned:
    """How `match` spreads subscriptions over matchers.

    Attributes
    ----------
    partitioning : str
        ``attribute_space`` (BlueDove: a subscription is stored for each of the attributes that are searched,
        and an event goes to one matcher), ``single_attribute`` (the same with one attribute), ``hash`` (each
        subscription once; every event goes to all matchers) or ``replicated`` (everything everywhere).
        Where no attribute narrows the search, the first two become ``hash``.
    matchers : int, optional
        Default: as many as tasks run at once.
    forwarding : str
        To which of its candidates an event goes: ``adaptive``, ``response_time``, ``subscription_count``,
        ``random`` or ``balanced``. Loads are not measured here: they are taken from the subscriptions.
    segments_per_matcher : int
        Into how many pieces for each matcher an attribute is cut. More: an event meets fewer subscriptions;
        fewer: a subscription is stored less often.
    sample : DataFrame, optional
        Events from which to learn where to cut; needed where the events are streaming. Default: the first of
        the events.
    """

    partitioning: str = "attribute_space"
    matchers: int | None = None
    forwarding: str = "adaptive"
    segments_per_matcher: int = 1
    sample: DataFrame | None = None


def match_partitioned(
    events: DataFrame,
    compiled: CompiledSubscriptions,
    keep: Sequence[str],
    output: StructType,
    settings: Partitioned,
) -> DataFrame:
    """The matches of events with compiled subscriptions; see `match`."""
    session = events.sparkSession
    matchers = settings.matchers if settings.matchers is not None else session.sparkContext.defaultParallelism
    looked_at = settings.sample
    if looked_at is None:
        if events.isStreaming and settings.partitioning in ("attribute_space", "single_attribute"):
            raise ValueError(f"{settings.partitioning} of streaming events needs a sample of them")
        looked_at = events
    entries = list(compiled.entries())
    extents = read_extents(entries)
    sample = columns_from_arrow(_first_batch(looked_at), tuple(extents.attributes))
    partitioning = choose_partitioning(
        settings.partitioning, matchers, extents, sample, settings.segments_per_matcher
    )
    with tempfile.TemporaryDirectory(prefix="fieldfare-") as folder:
        sliced = SlicedIndex.write(Path(folder), entries, extents, partitioning)
        policy_of(settings.forwarding, sliced, [0])
        ids = Path(folder) / IDS_FILE
        with pa.OSFile(str(ids), "wb") as file, pa.ipc.new_file(file, _IDS) as writer:
            writer.write_table(compiled.table.select(["id"]).combine_chunks().cast(_IDS))
        files = [Path(file) for file in dict.fromkeys(sliced.files)]
        shipped = ship_files(session, [*files, ids])
    there = SlicedIndex(partitioning, tuple(f"{shipped}.{Path(f).name}" for f in sliced.files), sliced.sizes)
    routed = StructType(
        [*events.schema, StructField(MATCHER, IntegerType()), StructField(SLICE, IntegerType())]
    )
    return (
        events.mapInArrow(RouteRows(there, settings.forwarding), routed)
        .repartitionById(there.matcher_count, MATCHER)
        .mapInArrow(MatchSlices(there, shipped, tuple(keep)), output)
    )


_IDS = pa.schema([pa.field("id", pa.string())])


def _first_batch(events: DataFrame) -> pa.RecordBatch:
    batches = events.limit(SAMPLE_EVENTS).toArrow().combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], events.limit(0).toArrow().schema)


@dataclass(frozen=True, slots=True)
class RouteRows:
    """AP: rows of events in; each once for every slice that it visits, with slice and matcher, out."""

    sliced: SlicedIndex
    forwarding: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loads, policy = self.sliced.loads(), policy_of(self.forwarding, self.sliced, [0])
        partitioning = self.sliced.partitioning
        for batch in batches:
            columns = columns_from_arrow(batch, partitioning.paths)
            for part in dispatch(columns, partitioning, policy, loads, 0.0):
                for number, positions in zip(part.slices, part.positions, strict=True):
                    rows = batch.take(pa.array(part.events[positions]))
                    places = [pa.array(np.full(len(positions), n, np.int32)) for n in (part.matcher, number)]
                    names = [*batch.schema.names, MATCHER, SLICE]
                    yield pa.RecordBatch.from_arrays([*rows.columns, *places], names=names)


@dataclass(frozen=True, slots=True)
class MatchSlices:
    """M: events and the slices that they visit in, a row for each match out."""

    sliced: SlicedIndex
    shipped: str
    keep: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ids = _ids(self.shipped)
        for batch in batches:
            slices = batch.column(SLICE).to_numpy()
            for number in np.unique(slices).tolist():
                events = batch.take(pa.array(np.flatnonzero(slices == number)))
                yield from matching_rows(events, self.sliced.index_of(number), ids, self.keep)


@lru_cache(maxsize=4)
def _ids(shipped: str) -> pa.Array:
    table = pa.ipc.open_file(pa.memory_map(str(shipped_file(shipped, IDS_FILE)))).read_all()
    return table.column("id").combine_chunks()
