"""What a library is: how one kind of filter is compiled, indexed and searched.

    text ─▶ Library.compile ─▶ bytes, in the registry
    bytes ─▶ Builder ─▶ FilterIndex ─┬▶ find ─▶ candidates ─▶ (validity, limits) ─▶ confirm ─▶ matches
                                     └▶ arrays and meta, in a file ─▶ Library.open

A library knows filters by their *place*, 0 to n - 1, and events by columns. It does not know what stands at a
place: which version of which subscription, for which records that counts, and what has ended it since; nor
how many parts there are, when they are built anew, or how their files are written. All that is the same for
every library: ``versions``, ``part``, ``index``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.work import Work
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.grouping import IN_NO_TILES
from fieldfare.model import Path

if TYPE_CHECKING:
    from fieldfare.filters import NormalForm


class TooManyPairs(Exception):
    """A window of events has more pairs than there may be; fewer events will have fewer."""


class Candidates(NamedTuple):
    """Pairs of an event and a filter, in any order; a pair may come more than once."""

    pairs: NDArray[np.int32]
    """[k, 2]: an event, counted from the first that was asked for, and the place of a filter that matches it;
    or ~place, if the filter must still `confirm` that; or a run of events that match one (``grouping``). It
    may be written to."""
    tile_ends: NDArray[np.int64] = IN_NO_TILES
    """Slots may lie in tiles, the same filters' for every batch of events: where each of them ends, those of
    no tile being before the first. Empty: there are none."""


class Indexed(Protocol):
    """A filter as it comes to be indexed."""

    @property
    def compiled(self) -> NormalForm | bytes:
        """What `Library.compile` made of it."""

    @property
    def text(self) -> str: ...

    @property
    def dialect(self) -> str: ...


class Chosen(Protocol):
    """What a library chose for a filter, or for one piece of it; ``str()`` of it is text for people."""

    def document(self) -> dict[str, Any]:
        """The same as JSON."""


class SearchExplanation(Protocol):
    """What a library chose for the filters of an index."""

    @property
    def size_bytes(self) -> Mapping[str, int]:
        """Of all arrays, by what they are for."""

    def lines(self) -> list[str]:
        """As text for people: the first line a summary, the others what is worth saying."""

    def document(self) -> dict[str, Any]:
        """The same as JSON, but for the sizes."""


class FilterIndex(Protocol):
    """n filters, indexed; immutable. What is asked of it may be asked in several threads."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The attributes that a batch of events must have as columns, as far as the events have them."""

    @property
    def width(self) -> int:
        """How many attributes `find` looks at for every event; bounds how many events it is asked for."""

    @property
    def confirms(self) -> bool:
        """Whether some filters must be asked after `find`."""

    def find(self, columns: ColumnBatch, start: int, end: int, most: int) -> Candidates:
        """The events from `start` up to `end`, and what they match or may match.

        A filter that `works` counts is to be confirmed exactly where its normal form may hold: which of them
        are given up (``giving_up``) must not depend on the library. TooManyPairs if there are more pairs than
        `most`.
        """

    def works(self, places: NDArray[np.int32]) -> NDArray[np.int32]:
        """The number of what it takes to confirm each of k filters, see `work`; 0 if that is never much."""

    def work(self, number: int) -> Work:
        """What a number of `works` stands for."""

    def confirm(
        self, columns: ColumnBatch, events: NDArray[np.int64], places: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """Whether each of some events (their places in the batch) matches the filter beside it: bool[k]."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that `Library.open` needs, by name: ``group.field``."""

    def meta(self) -> dict[str, Any]:
        """The same for what is no array, as JSON."""

    def explain(self) -> SearchExplanation:
        """What was chosen for the filters."""

    def explain_filter(self, place: int) -> tuple[Chosen, ...]:
        """What was chosen for each piece of a filter; none if no event can match it."""


class Builder(Protocol):
    """Takes in filters, some at a time."""

    def add(self, filters: Sequence[Indexed]) -> None:
        """Take in filters; ValueError if one is not compiled as it should be."""

    def finish(self, order: NDArray[np.int64]) -> FilterIndex:
        """All that was taken in; to be called once. At place i is what came as number ``order[i]``."""


class Library(Protocol):
    """How a kind of filter is compiled, indexed and searched."""

    @property
    def name(self) -> str:
        """What files and manifests call it."""

    def compile(self, text: str, dialect: str) -> bytes:
        """What the registry keeps of a filter beside its text; FilterError if it cannot be used."""

    def builder(self) -> Builder:
        """A builder that has nothing yet."""

    def open(self, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> FilterIndex:
        """The index that gave these; there may be other arrays among them."""
