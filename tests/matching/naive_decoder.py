"""Conversion of JSON lines and Arrow batches to columns, event by event: the reference for the fast
decoders."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from fieldfare.filters.values import ABSENT
from fieldfare.matching.events.columns import (
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
from fieldfare.matching.events.event_columns import EventOthers
from fieldfare.matching.events.json_decoder import DecodeError
from fieldfare.model import Path

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_INT_DIGITS_MAX = 4300
"""Maximum digits of an int that Python parses; a longer one becomes a Decimal, equally exact."""


def decode_json_lines_naive(payload: Any, size: int, paths: Sequence[Path]) -> ColumnBatch:
    """The result of ``decode_json_lines``, computed independently; same parameters, same errors.

    It is stricter: the fast decoder does not check everything that it skips.
    """
    return _columns(_read_events(bytes(payload), size), paths)


def columns_from_arrow_naive(batch: pa.RecordBatch, paths: Sequence[Path]) -> ColumnBatch:
    """The result of ``columns_from_arrow``, computed independently.

    Kinds may differ where values do not: decimals are never converted to floats here.
    """
    return _columns(arrow_events(batch), paths)


def arrow_events(batch: pa.RecordBatch) -> list[Any]:
    """The rows of a batch as the JSON objects that filters see."""
    return [_arrow_value(row) for row in batch.to_struct_array()]


def _columns(events: list[Any], paths: Sequence[Path]) -> ColumnBatch:
    text, exact = bytearray(), list[int | Decimal]()
    columns = {}
    for path in dict.fromkeys(paths):
        cells = [_cell(_lookup(event, path), text, exact) for event in events]
        if any(kind != KIND_MISSING for kind, _ in cells):
            kinds = np.array([kind for kind, _ in cells], np.uint8)
            columns[path] = Column(kinds, np.array([word for _, word in cells], np.int64))
    return ColumnBatch(
        len(events),
        columns,
        np.frombuffer(bytes(text), np.uint8),
        tuple(exact),
        EventOthers(events, lambda path: lambda event: _valid(_lookup(event, path))),
        frozenset(paths),
    )


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


def _valid(value: Any) -> Any:
    """Replace characters that UTF-8 cannot encode in the strings of a value."""
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_valid(item) for item in value]
    if isinstance(value, dict):
        return {_valid(key): _valid(item) for key, item in value.items()}
    return value


def _integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) <= _INT_DIGITS_MAX else Decimal(digits)


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
    """Kind and word of a JSON value; strings and exact numbers are appended to the shared ones."""
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
    if isinstance(value, float) and value == value:
        return KIND_FLOAT, struct.unpack("<q", struct.pack("<d", value))[0]
    if isinstance(value, Decimal) and value == int(value):
        value = int(value)
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return KIND_INT, value
    if isinstance(value, int | Decimal):
        exact.append(value)
        return KIND_EXACT, len(exact) - 1
    return KIND_OTHER, 0


_UNITS_PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _arrow_value(scalar: Any) -> Any:
    """The JSON value of an Arrow value; NaN if there is none."""
    kind = scalar.type
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        return _arrow_value(scalar.value)
    if pa.types.is_run_end_encoded(kind):
        return _arrow_value(scalar.value)
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(kind):
        return {kind.field(i).name: _arrow_value(scalar[i]) for i in range(kind.num_fields)}
    if pa.types.is_map(kind):
        return {item[0].as_py(): _arrow_value(item[1]) for item in scalar.values}
    if _is_list(kind):
        return [_arrow_value(item) for item in scalar.values]
    if pa.types.is_float32(kind) or pa.types.is_float16(kind):
        return float(str(kind.to_pandas_dtype()(scalar.as_py())))
    if pa.types.is_timestamp(kind):
        return _iso(scalar.value, kind.unit, "%Y-%m-%dT%H:%M:%S") + ("+00:00" if kind.tz else "")
    if pa.types.is_time(kind):
        return _iso(scalar.value, kind.unit, "%H:%M:%S")
    if pa.types.is_date(kind):
        return scalar.as_py().isoformat()
    value = scalar.as_py()
    return value if isinstance(value, bool | int | float | str | Decimal) else float("nan")


def _is_list(kind: pa.DataType) -> bool:
    tests = "is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view"
    return any(getattr(pa.types, test)(kind) for test in tests)


def _iso(since_epoch: int, unit: str, form: str) -> str:
    seconds, fraction = divmod(since_epoch, _UNITS_PER_S[unit])
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    digits = len(str(_UNITS_PER_S[unit])) - 1
    return moment.strftime(form) + (f".{fraction:0{digits}}".rstrip("0") if fraction else "")
