"""Decoding of filters to columns: the normal forms of many subscriptions at a time.

A filter is given as its encoded normal form (``filters.encoding``), as stored in the registry. Kernels read
many of them at once into `Gathered`, columns without Python objects except for the few numbers that no
float64 represents.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.plain.building.gathering_kernels import (
    DERIVED_FORMAT,
    NEEDLES_FORMAT,
    NUMBER,
    ODD,
    Interned,
    OutputBuffers,
    decode_forms,
)
from fieldfare.model import Path

CHUNK_BYTES = 1 << 20
"""Bytes of normal forms decoded at a time; the buffers for the result are proportional."""

_WITH_NEEDLES = (bytes([NEEDLES_FORMAT]), bytes([DERIVED_FORMAT]))
PLAIN_MAX = 2.0**53
"""Up to this magnitude a float64 represents every integer."""


class Constants(NamedTuple):
    """The constants that predicates refer to by number, distinct per attribute.

    `odd` are the numbers that no float64 up to 2^53 represents. String i is
    ``text[offset[i]:offset[i + 1]]``, in UTF-8, of the attribute ``string_attribute[i]``. Needles are
    distinct per attribute and kind.
    """

    odd: tuple[tuple[int, Decimal], ...]
    string_attribute: NDArray[np.int32]
    offset: NDArray[np.int64]
    text: NDArray[np.uint8]
    needles: NeedleTexts


class NeedleTexts(NamedTuple):
    """Needles (see ``filters.needles``): needle i is the text ``text[offset[i]:offset[i + 1]]``, in UTF-8.

    `code` is its attribute times ``gathering_kernels.NEEDLE_KINDS``, plus its kind.
    """

    code: NDArray[np.int32]
    offset: NDArray[np.int64]
    text: NDArray[np.uint8]


NO_NEEDLES = NeedleTexts(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.uint8))


class Gathered(NamedTuple):
    """Rows, their predicates, and the predicates' pieces, as columns.

    Row r has the predicates from ``predicate_start[r]`` to ``predicate_start[r + 1]``, predicate p has the
    pieces from ``piece_start[p]`` on, and piece i begins at end 2 i and stops before end 2 i + 1. An end is a
    place between the values of an attribute: `kind` tells how to interpret ``value`` (see
    ``gathering_kernels``). `subscription` is a row's subscription s, or ~s if its filter must confirm. Row r
    also requires the needles from ``needle_start[r]`` to ``needle_start[r + 1]``. Initially some attributes
    have ``gathering_kernels.IMPLIED`` added; `derived` resolves these.
    """

    subscription: NDArray[np.int32]
    predicate_start: NDArray[np.int64]
    attribute: NDArray[np.int32]
    piece_start: NDArray[np.int64]
    kind: NDArray[np.uint8]
    value: NDArray[np.float64]
    needle_start: NDArray[np.int64]
    needle: NDArray[np.int32]

    def in_order(self, subscriptions: NDArray[np.int64]) -> Gathered:
        """Reorder the rows' subscriptions: the i-th was number ``subscriptions[i]``."""
        place = np.empty(len(subscriptions), np.int32)
        place[subscriptions] = np.arange(len(subscriptions), dtype=np.int32)
        confirmed = self.subscription < 0
        subscription = place[np.where(confirmed, ~self.subscription, self.subscription)]
        signed = np.where(confirmed, ~subscription, subscription)
        return self._replace(subscription=signed).take(np.argsort(subscription, kind="stable"))

    def take(self, rows: NDArray[np.int64]) -> Gathered:
        """Select rows, in the given order."""
        predicates, predicate_start = _runs(self.predicate_start, rows)
        pieces, piece_start = _runs(self.piece_start, predicates)
        ends = (2 * pieces[:, None] + np.arange(2)).ravel()
        needles, needle_start = _runs(self.needle_start, rows)
        return Gathered(
            self.subscription[rows],
            predicate_start,
            self.attribute[predicates],
            piece_start,
            self.kind[ends],
            self.value[ends],
            needle_start,
            self.needle[needles],
        )


def _runs(
    starts: NDArray[np.int64], chosen: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the members of the chosen runs, and the start of each run among them."""
    counts = np.diff(starts)[chosen]
    new = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(counts, out=new[1:])
    return np.arange(new[-1]) + np.repeat(starts[chosen] - new[:-1], counts), new


class Gatherer:
    """A builder of `Gathered` from encoded normal forms: `add` them in batches, then `finish`."""

    def __init__(self) -> None:
        self._blocks: list[Gathered] = []
        self._paths = Interned.empty()
        self._strings = Interned.empty()
        self._needles = Interned.empty()
        self._odd: dict[tuple[int, Decimal], int] = {}
        self.size = 0
        """The number of subscriptions added."""

    def add(self, compiled: Sequence[bytes]) -> NDArray[np.int64]:
        """Add subscriptions; return the indices of those that may have to be confirmed by their filter.

        Raises ValueError if a normal form is not validly encoded, or has another format.
        """
        starts = np.zeros(len(compiled) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, compiled), np.int64, len(compiled)), out=starts[1:])
        payload = b"".join(compiled)
        confirmed = []
        first = 0
        while first < len(compiled):
            last = int(np.searchsorted(starts, starts[first] + CHUNK_BYTES, side="right")) - 1
            last = max(first + 1, min(last, len(compiled)))
            confirmed.append(self._decode(payload, starts[first : last + 1], compiled[first:last]) + first)
            first = last
        return np.concatenate([*confirmed, np.zeros(0, np.int64)])

    def _decode(
        self, payload: bytes, starts: NDArray[np.int64], compiled: Sequence[bytes]
    ) -> NDArray[np.int64]:
        size = int(starts[-1] - starts[0])
        data = np.zeros(size + 16, np.uint8)  # padding: a kernel reads numbers without checking for the end
        data[:size] = np.frombuffer(payload, np.uint8, size, int(starts[0]))
        self._paths = self._paths.with_room(size // 2, size)  # a text is preceded by at least one byte
        self._strings = self._strings.with_room(size // 2, size)
        if any(form[1:2] in _WITH_NEEDLES for form in compiled):
            self._needles = self._needles.with_room(size // 6, size)
        room = OutputBuffers.of(size, len(compiled))
        known = self._paths, self._strings, self._needles
        counts, invalid = decode_forms(data, starts - starts[0], self.size, known, room)
        if invalid >= 0:
            from fieldfare.filters.encoding import decode_normal_form

            decode_normal_form(compiled[invalid])  # raises an error with the details
            raise ValueError(f"not an encoded normal form: {compiled[invalid]!r}")
        rows, predicates, ends, odd, needles = counts.tolist()
        block = Gathered(
            room.subscription[:rows].copy(),
            room.predicate_start[: rows + 1].copy(),
            room.attribute[:predicates].copy(),
            room.piece_start[: predicates + 1].copy(),
            room.kind[:ends].copy(),
            room.value[:ends].copy(),
            room.needle_start[: rows + 1].copy(),
            room.needle[:needles].copy(),
        )
        if odd:
            self._name_odd(data, room, odd, block)
        self._blocks.append(block)
        self.size += len(compiled)
        return np.flatnonzero(room.confirmed[: len(compiled)])

    def _name_odd(self, data: NDArray[np.uint8], room: OutputBuffers, count: int, block: Gathered) -> None:
        """Read the numbers that the kernel left to Python: equal numbers of an attribute become one
        constant."""
        for attribute, start, end, place in room.odd[:count].tolist():
            number = Decimal(msgspec.msgpack.decode(data[start:end].tobytes()))
            near = float(number)
            if abs(near) <= PLAIN_MAX and Decimal(repr(near)) == number:  # a float64 represents it after all
                block.kind[place] = block.kind[place] - ODD + NUMBER
                block.value[place] = near
                continue
            block.value[place] = self._odd.setdefault((attribute, number), len(self._odd))

    def finish(self) -> tuple[tuple[Path, ...], Gathered, Constants]:
        """Return the attributes' paths, in order of first occurrence, and all gathered data."""
        paths = tuple(tuple(msgspec.msgpack.decode(raw)) for raw in self._paths.texts())
        strings, needles = self._strings.trimmed(), self._needles.trimmed()
        needle_texts = NeedleTexts(needles.attribute, needles.offset, needles.text)
        constants = Constants(tuple(self._odd), strings.attribute, strings.offset, strings.text, needle_texts)
        return paths, _joined(self._blocks), constants


def _joined(blocks: list[Gathered]) -> Gathered:
    """Concatenate blocks, consuming them to save memory."""
    if len(blocks) == 1:
        return blocks.pop()
    unjoined = [list(parts) for parts in zip(*blocks, strict=True)] or [[] for _ in _EMPTY]
    blocks.clear()
    columns: list[Any] = []
    for name, empty in zip(Gathered._fields, _EMPTY, strict=True):
        parts = unjoined.pop(0)
        if name in ("predicate_start", "piece_start", "needle_start"):
            sizes = np.cumsum([0, *(part[-1] for part in parts)])
            parts = [part[1:] + base for part, base in zip(parts, sizes[:-1].tolist(), strict=True)]
            parts.insert(0, np.zeros(1, np.int64))
        columns.append(np.concatenate([*parts, empty]))
    return Gathered(*columns)


_EMPTY = Gathered(
    np.zeros(0, np.int32),
    np.zeros(0, np.int64),
    np.zeros(0, np.int32),
    np.zeros(0, np.int64),
    np.zeros(0, np.uint8),
    np.zeros(0, np.float64),
    np.zeros(0, np.int64),
    np.zeros(0, np.int32),
)
