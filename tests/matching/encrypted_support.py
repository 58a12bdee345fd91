"""Encrypted filters and events for tests, and their expected matches, computed from the plaintexts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.client.encryption import SpaceKey
from fieldfare.client.records import NewSubscription
from fieldfare.filters import compile_filter
from fieldfare.filters.encrypted import compile_encrypted
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.index import Index
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END


def event(**data: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": data}


def encrypt_filter(key: SpaceKey, text: str) -> str:
    """A filter as the client sends it."""
    return key.seal_filter(NewSubscription(text)).filter


def entry(number: int, encrypted: str, version: int | None = None, until: int = OPEN_END) -> IndexEntry:
    compiled = compile_encrypted(encrypted).compiled
    version = number if version is None else version
    return IndexEntry(version, number, version, until, compiled, encrypted, "aspe")


def columns_of(key: SpaceKey, events: Sequence[dict[str, Any]], index: Index) -> ColumnBatch:
    """Events as the client sends them and the data path decodes them."""
    lines = key.seal_lines([json.dumps(each).encode() for each in events])
    return decode_json_lines(memoryview(b"\n".join(lines) + b"\n"), len(lines), list(index.paths))


def found_by(key: SpaceKey, events: Sequence[dict[str, Any]], index: Index) -> list[list[int]]:
    return index.match(columns_of(key, events, index), np.full(len(events), 1 << 40, np.int64)).lists()


def match_naive(texts: Sequence[str], events: Sequence[dict[str, Any]]) -> list[list[int]]:
    """The matches of the equal filters that are not encrypted."""
    filters = [compile_filter(text) for text in texts]
    return [[n for n, each in enumerate(filters) if each.matches(one)] for one in events]


def places_inside(places: NDArray[np.int64], ranges: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which events (int64[n, d], -1 for missing) lie in which boxes (int64[m, d, 2]): bool[n, m]."""
    inside = np.ones((len(places), len(ranges)), bool)
    for number in range(places.shape[1]):
        at = places[:, number, None]
        inside &= (ranges[None, :, number, 0] <= at) & (at <= ranges[None, :, number, 1])
    return inside
