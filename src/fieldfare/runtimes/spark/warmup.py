"""Getting ready before the first event: compiled kernels loaded, Python workers running."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from fieldfare.filters import compile_filter
from fieldfare.matching.build import IndexEntry
from fieldfare.matching.index import Index
from fieldfare.matching.part import Closings, build_part
from fieldfare.model import OPEN_END
from fieldfare.pipeline.access_point import RECORDS
from fieldfare.pipeline.match_batch import match_batch

_WORDS = ("AA", "UA", "DL", "B6")


def run_kernels_once() -> None:
    """Match a few events against a few hundred filters of every sort, so that all kernels are loaded."""
    filters = [
        f"data.carrier = '{_WORDS[i % 4]}{i}' AND data.delay BETWEEN {i % 60} AND {i % 60 + 40}"
        for i in range(600)
    ]
    filters += [f"data.delay > {i / 4} AND data.distance < {4000 - i}" for i in range(1200)]
    filters += ["data.origin LIKE 'J%K'", "EXISTS(data.x)", "data.delay * 2 > data.distance"]
    entries = []
    for number, text in enumerate(filters):
        form = compile_filter(text).normal_form
        entries.append(IndexEntry(number, number, 0, OPEN_END, form, text, "sql"))
    part = build_part(entries)
    data = b'{"carrier":"AA0","delay":12.5,"distance":700,"origin":"J\\u0046K","x":null,"n":[1,2]}'
    line = b'{"id":"1","data":' + data + b"}\n"
    records = pa.record_batch(
        [
            [0, 1],
            ["default", "default"],
            pa.array([1, 3], pa.int32()),
            pa.array([line, line * 3], pa.large_binary()),
        ],
        schema=RECORDS,
    )
    for closings in (Closings(), Closings(*(pa.array([1]).to_numpy() for _ in range(2)))):
        match_batch(records, {"default": Index((part,), closings)})


def warm_workers(session: SparkSession, cores: int) -> None:
    """Start the Python workers that the query's tasks will use: two a core, its source's and its own."""

    def touch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    session.range(0, cores * 8, numPartitions=cores * 2).mapInArrow(touch, "id long").mapInArrow(
        touch, "id long"
    ).write.format("noop").mode("overwrite").save()
