"""Matching files: events in Parquet or JSON lines against a file of subscriptions, as one Spark job.

JSON lines go through the same ``match_batch`` as the service's events; Parquet through the DataFrame API's
kernel. Tasks write what they find themselves, in the format wanted; the pieces become one file at the end.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from fieldfare.matching.columns import ColumnBatch
from fieldfare.matching.json_decoder import DecodeError
from fieldfare.pipeline.match_batch import match_batch
from fieldfare.runtimes.spark.compile import compile_subscriptions
from fieldfare.runtimes.spark.json_lines import Chunk, chunks_of, json_line_files, line_starts, read_chunk
from fieldfare.runtimes.spark.match import OUTPUT_ROWS, matching_rows, open_shipped, ship_index
from fieldfare.runtimes.spark.output import OUTPUT_FORMATS, PieceWriter, join_pieces
from fieldfare.runtimes.spark.saved_index import SavedIndex
from fieldfare.runtimes.spark.session import SparkSettings, service_session, usable_cores

SUBSCRIPTION_FORMATS = (".csv", ".jsonl", ".ndjson", ".json", ".parquet")
_COUNTS = pa.schema([pa.field("events", pa.int64()), pa.field("matches", pa.int64())])
_COUNTS_SQL = "events long, matches long"
_CHUNKS_SQL = "path string, start long, end long, first_line long, lines long"
