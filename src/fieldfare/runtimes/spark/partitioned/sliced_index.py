"""An index cut into slices: a folder with a part for each; a worker maps those that it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyspark import SparkFiles

from fieldfare.filters import decode_normal_form
from fieldfare.filters.normal_form import path_order
from fieldfare.forwarding import LoadReport, LoadTable
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import Path as AttributePath
from fieldfare.partitioning import (
    Extents,
    HashPartitioning,
    Partitioning,
    Replicated,
    constrained_paths,
    extents_of,
)
from fieldfare.partitioning.planning import PlanSettings, plan

PARTITIONINGS = ("attribute_space", "single_attribute", "hash", "replicated")
LOOKED_AT = 8
"""Of the attributes that most filters constrain, so many come into question for searching."""


@dataclass(frozen=True, slots=True)
class SlicedIndex:
    """Subscriptions in slices, written to a folder that every matcher can read.

    Attributes
    ----------
    partitioning : Partitioning
        Says who holds each slice, and which slices an event visits.
    files : sequence of str
        The file of each slice: a whole path, or the name under which it was shipped to the executors.
    sizes : sequence of int
        How many subscriptions each slice holds.
    """

    partitioning: Partitioning
    files: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def matcher_count(self) -> int:
        """Matchers are numbered from 0 to below this."""
        return 1 + max(part.matcher for part in self.partitioning.slices)

    @classmethod
    def write(
        cls, folder: Path, entries: Sequence[IndexEntry], extents: Extents, partitioning: Partitioning
    ) -> SlicedIndex:
        """Build and write the slices.

        Parameters
        ----------
        folder : Path
            Made if it is not there; files of the same names are replaced.
        entries : sequence of IndexEntry
            All subscriptions.
        extents : Extents
            Of the same, in the same order, on the partitioning's attributes.
        """
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        placement = partitioning.place(extents)
        written: dict[bytes, str] = {}
        files = []
        for number in range(len(partitioning.slices)):
            stored = placement.of(number)
            content = stored.tobytes()
            if content not in written:  # Replicas are one file.
                path = folder / f"slice-{number:05d}.part"
                build_part([entries[place] for place in stored.tolist()]).save(path)
                written[content] = str(path)
            files.append(written[content])
        return cls(partitioning, tuple(files), tuple(placement.sizes.tolist()))

    def index_of(self, number: int) -> Index:
        """The index of a slice; a process maps each file once."""
        return _open(self.files[number])

    def paths_of(self, numbers: Iterable[int]) -> list[AttributePath]:
        """The attributes that events must have to be routed, and to be matched in these slices."""
        searched = (path for number in numbers for path in self.index_of(number).paths)
        return list(dict.fromkeys((*self.partitioning.paths, *searched)))

    def loads(self) -> LoadTable:
        """What is known before anything was measured: how many subscriptions each slice holds."""
        table = LoadTable(len(self.sizes))
        table.take(LoadReport(number, 0.0, 0.0, 0.0, 0.0, size) for number, size in enumerate(self.sizes))
        return table


@lru_cache(maxsize=4096)
def _open(file: str) -> Index:
    path = Path(file)
    return Index((Part.open(path if path.is_absolute() else SparkFiles.get(file)),))


def read_extents(entries: Sequence[IndexEntry]) -> Extents:
    """Where subscriptions lie on the attributes that most of them constrain."""
    forms = [
        decode_normal_form(entry.compiled) if isinstance(entry.compiled, bytes) else entry.compiled
        for entry in entries
    ]
    counts = constrained_paths(forms)
    paths = sorted(counts, key=lambda path: (-counts[path], path_order(path)))[:LOOKED_AT]
    return extents_of(((entry.number, form) for entry, form in zip(entries, forms, strict=True)), paths)


def choose_partitioning(
    name: str, matchers: int, extents: Extents, sample: ColumnBatch, segments_per_matcher: int = 1
) -> Partitioning:
    """A partitioning by its name.

    Parameters
    ----------
    name : str
        One of ``PARTITIONINGS``. The first two look at subscriptions and events to choose attributes and
        where to cut; where no attribute narrows the search, it is ``hash`` that is chosen.
    matchers : int
    extents : Extents
        Of the subscriptions, on the attributes that come into question.
    sample : ColumnBatch
        Some thousand recent events with these attributes.
    segments_per_matcher : int
        On each attribute. More: an event searches fewer subscriptions; fewer: fewer copies of each.

    Raises
    ------
    ValueError
        There is no such partitioning, or no matcher.
    """
    if matchers < 1:
        raise ValueError(f"{matchers} matchers: at least one is needed")
    if name == "hash":
        return HashPartitioning(matchers)
    if name == "replicated":
        return Replicated(matchers)
    if name not in PARTITIONINGS:
        raise ValueError(f"no partitioning is called {name!r}: there are {', '.join(PARTITIONINGS)}")
    # A slice is a file that any worker can read, so nothing need be stored twice in case a matcher dies.
    settings = PlanSettings(segments_per_matcher=segments_per_matcher, replicated=False)
    if name == "single_attribute":
        settings = PlanSettings(
            attributes_max=1, segments_per_matcher=segments_per_matcher, replicated=False, least_saving=1.0
        )
    found = plan(extents, sample, matchers, settings)
    return found.partitioning if found is not None else HashPartitioning(matchers)


def holders_of(partitioning: Partitioning) -> NDArray[np.int32]:
    """The matcher of each slice: int32[slices]."""
    return np.array([part.matcher for part in partitioning.slices], np.int32)
