"""JSON lines to columns by ``json.loads``, event by event: what the fast decoder must agree with."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from fieldfare.filters.values import ABSENT
from fieldfare.matching.columns import (
    KIND_EXACT,
    KIND_FALSE,
    KIND_FLOAT,
    KIND_INT,
    KIND_MISSING,
    KIND_NULL,
    KIND_OTHER,
    KIND_STRING,
    KIND_TRUE,
    Column,
    ColumnBatch,
)
from fieldfare.matching.json_decoder import DecodeError
from fieldfare.model import Path

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_INT_DIGITS = 4300
"""Python refuses to read a longer int (it takes quadratic time); as a Decimal it is as exact."""


def decode_json_lines_naive(payload: Any, size: int, paths: Sequence[Path]) -> ColumnBatch:
    """What ``decode_json_lines`` gives, by other means; same parameters, same errors.

    It is stricter where it can be: the fast decoder does not look at everything it skips.
    """
    events = _read_events(bytes(payload), size)
    text, exact = bytearray(), list[int | Decimal]()
    columns = {}
    for path in dict.fromkeys(paths):
        cells = [_cell(_lookup(event, path), text, exact) for event in events]
        if any(kind != KIND_MISSING for kind, _ in cells):
            kinds = np.array([kind for kind, _ in cells], np.uint8)
            columns[path] = Column(kinds, np.array([word for _, word in cells], np.int64))
    return ColumnBatch(size, columns, np.frombuffer(bytes(text), np.uint8), tuple(exact))


def _read_events(payload: bytes, size: int) -> list[dict[str, Any]]:
    *lines, rest = payload.split(b"\n")
    events = []
    for number, line in enumerate(lines[:size]):
        try:
            event = json.loads(
                line.decode(),
                object_pairs_hook=_object,
                parse_int=_integer,
                parse_constant=_refuse_constant,
            )
        except ValueError as error:
            raise DecodeError(number) from error
        if not isinstance(event, dict):
            raise DecodeError(number)
        events.append(event)
    if rest or len(lines) != size:
        raise DecodeError(min(size, len(lines)))
    return events


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {_valid(key): value for key, value in pairs}


def _valid(text: str) -> str:
    return _LONE_SURROGATE.sub("\ufffd", text)


def _integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) <= _MOST_INT_DIGITS else Decimal(digits)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _lookup(event: Any, path: Path) -> Any:
    value = event
    for step in path:
        if isinstance(step, str):
            value = value.get(step, ABSENT) if isinstance(value, dict) else ABSENT
        else:
            value = value[step] if isinstance(value, list) and 0 <= step < len(value) else ABSENT
    return value


def _cell(value: Any, text: bytearray, exact: list[int | Decimal]) -> tuple[int, int]:
    """Kind and word of a JSON value; strings and exact numbers are appended to theirs."""
    if value is ABSENT:
        return KIND_MISSING, 0
    if value is None:
        return KIND_NULL, 0
    if isinstance(value, bool):
        return (KIND_TRUE if value else KIND_FALSE), 0
    if isinstance(value, str):
        characters = _valid(value).encode()
        text.extend(characters)
        return KIND_STRING, len(text) - len(characters) << 32 | len(characters)
    if isinstance(value, float):
        return KIND_FLOAT, struct.unpack("<q", struct.pack("<d", value))[0]
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return KIND_INT, value
    if isinstance(value, int | Decimal):
        exact.append(value)
        return KIND_EXACT, len(exact) - 1
    return KIND_OTHER, 0
