"""Subscriptions compiled once and kept: a folder with the index and what its numbers stand for."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StructType

from fieldfare.filters import FilterError, compile_filter
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.versions import Closings
from fieldfare.runtimes.spark.attributes import can_have, check_attributes
from fieldfare.runtimes.spark.compile import SHOWN_PROBLEMS, CompiledSubscriptions, SubscriptionsError

PART_FILE = "index.part"
NAMES_FILE = "subscriptions.arrow"


@dataclass(frozen=True, slots=True)
class SavedIndex:
    """An index, mapped, and the table (id, filter, dialect) whose rows its numbers are."""

    index: Index
    names: pa.Table

    @property
    def ids(self) -> pa.Array:
        return self.names.column("id").combine_chunks()

    @classmethod
    def write(cls, folder: Path, compiled: CompiledSubscriptions) -> None:
        """Write a folder; it is there whole or not at all. An index that was there before is replaced."""
        if folder.exists() and not (folder / PART_FILE).exists():
            raise FileExistsError(f"{folder} exists and is not a saved index")
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            build_part(compiled.entries()).save(partial / PART_FILE)
            names = compiled.table.select(["id", "filter", "dialect"]).combine_chunks()
            with (
                pa.OSFile(str(partial / NAMES_FILE), "wb") as file,
                pa.ipc.new_file(file, names.schema) as writer,
            ):
                writer.write_table(names)
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    @classmethod
    def open(cls, folder: Path) -> SavedIndex:
        """Map a folder that `write` made; FileNotFoundError when there is none."""
        return cls.open_files(folder / PART_FILE, folder / NAMES_FILE)

    @classmethod
    def open_files(cls, part: Path, names: Path) -> SavedIndex:
        """Map the two files of an index, wherever they lie."""
        for path in (part, names):
            if not path.exists():
                raise FileNotFoundError(f"there is no saved index at {path.parent}: {path.name} is missing")
        table = pa.ipc.open_file(pa.memory_map(str(names))).read_all()
        return cls(Index((Part.open(part),), Closings()), table)

    def check_attributes(self, schema: StructType) -> None:
        """SubscriptionsError when filters name attributes that no event of this schema can have."""
        if all(can_have(schema, path) for path in self.index.paths):
            return
        problems: list[tuple[str, str]] = []
        count = 0
        for row in self.names.to_pylist():
            try:
                check_attributes(compile_filter(row["filter"], row["dialect"]), schema)
            except FilterError as error:
                count += 1
                if len(problems) < SHOWN_PROBLEMS:
                    problems.append((row["id"], str(error)))
        if problems:
            raise SubscriptionsError(problems, count)
