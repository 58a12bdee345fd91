"""Subscriptions compiled once and saved: a folder with a manifest, index files, and a table of subscriptions.

A folder without a manifest, written by an older version, holds one slice: ``index.part``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StructType

from fieldfare.matching.versions import IndexEntry
from fieldfare.partitioning import ONE_SLICE, Extents, Partitioning
from fieldfare.pipeline.indexer import Indexer
from fieldfare.pipeline.manifest import (
    SliceManifest,
    Snapshot,
    SpaceManifest,
    decode_manifest,
    encode_manifest,
)
from fieldfare.pipeline.placing import SlicesBuilder
from fieldfare.pipeline.slices import Slices
from fieldfare.runtimes.spark.attributes import can_have, odd_comparison
from fieldfare.runtimes.spark.compile import (
    SHOWN_PROBLEMS,
    CompiledSubscriptions,
    SubscriptionsError,
    compile_rows,
)
from fieldfare.runtimes.spark.index_cache import slice_opener

MANIFEST_FILE = "manifest.json"
NAMES_FILE = "subscriptions.arrow"
SPACE = "saved"
_OLDER_PART_FILE = "index.part"


@dataclass(frozen=True, slots=True)
class SavedIndex:
    """An opened saved index: slices, and a table (id, filter, dialect), a row per subscription number."""

    space: SpaceManifest
    slices: Slices
    names: pa.Table

    @property
    def ids(self) -> pa.Array:
        return self.names.column("id").combine_chunks()

    @classmethod
    def write(
        cls,
        folder: Path,
        compiled: CompiledSubscriptions,
        partitioning: Partitioning = ONE_SLICE,
        entries: Sequence[IndexEntry] | None = None,
        extents: Extents | None = None,
    ) -> SavedIndex:
        """Write a folder, which appears complete or not at all; an existing saved index is replaced.

        Parameters
        ----------
        entries, extents
            The subscriptions' entries and extents, if they have been computed already.

        Raises
        ------
        FileExistsError
            The folder exists and is not a saved index.
        """
        if folder.exists() and not any(
            (folder / name).exists() for name in (MANIFEST_FILE, _OLDER_PART_FILE)
        ):
            raise FileExistsError(f"{folder} exists and is not a saved index")
        builder = SlicesBuilder(partitioning)
        builder.add(compiled.entries() if entries is None else entries, extents)
        step = Indexer().rebase({SPACE: builder.finish()}, 0, {SPACE: partitioning})
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            for name, part in step.parts.items():
                part.save(partial / name)
            (partial / MANIFEST_FILE).write_bytes(encode_manifest(step.manifest))
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
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> SavedIndex:
        """Map a folder that `write` made; FileNotFoundError if there is none."""
        if (folder / MANIFEST_FILE).exists():
            space = decode_manifest((folder / MANIFEST_FILE).read_bytes()).spaces[SPACE]
        else:
            space = SpaceManifest((SliceManifest(snapshot=Snapshot(_OLDER_PART_FILE, 0)),))
        return cls.open_files(space, folder.joinpath)

    @classmethod
    def open_files(cls, space: SpaceManifest, path_of: Callable[[str], Path]) -> SavedIndex:
        """Map the files of an index by their paths; each slice when it is first searched."""
        for path in map(path_of, (*space.files(), NAMES_FILE)):
            if not path.exists():
                raise FileNotFoundError(f"there is no saved index at {path.parent}: {path.name} is missing")
        table = pa.ipc.open_file(pa.memory_map(str(path_of(NAMES_FILE)))).read_all()
        return cls(space, Slices(space, slice_opener(path_of)), table)

    def check_attributes(self, schema: StructType) -> None:
        """Raise SubscriptionsError for filters over attributes missing or compared differently."""
        if all(can_have(schema, path) and not odd_comparison(schema, path) for path in self.slices.paths):
            return
        problems: list[tuple[str, str]] = []
        count = 0
        for row in self.names.to_pylist():
            compiled = compile_rows([(row["id"], row["filter"], row["dialect"])], schema)
            problem = compiled.column("problem")[0].as_py()
            if problem is not None:
                count += 1
                if len(problems) < SHOWN_PROBLEMS:
                    problems.append((row["id"], problem))
        if problems:
            raise SubscriptionsError(problems, count)
