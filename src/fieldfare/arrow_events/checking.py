"""Validation of CloudEvents in columns: whole columns at a time, with an error for each invalid row.

An invalid column name or type applies to every event, so the complete table is rejected (`TableRefused`).
Invalid values reject single rows, for the same reasons and with equal messages as for JSON.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fieldfare.arrow_events.canonical import (
    SizeBudget,
    below_encodings,
    canonical,
    is_binary,
    refuse_duplicates,
)
from fieldfare.arrow_events.errors import TableRefused, TableTooLarge
from fieldfare.arrow_events.json_text import json_lines
from fieldfare.arrow_events.sizes import json_sizes

REQUIRED = ("specversion", "id", "source", "type")
OPTIONAL_TEXTS = ("subject", "datacontenttype", "dataschema")
TIMES = ("time", "expirytime")
_NAME = re.compile(r"[a-z0-9]+")
_TIME = (
    r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt ]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?"
    r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)$"
)
_LEAST_INT32, _INT32_MAX = -(1 << 31), (1 << 31) - 1

JSON_MAX_BYTES = 64 << 20
"""Maximum JSON size of the events of one table, for subscribers that receive JSON; larger tables are
rejected."""
LONGEST_TO_SHORTEST = 50
"""Upper bound of the factor by which a value's JSON is shorter than ``json_sizes`` estimates."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A rejected event: its row, the invalid column, and the reason."""

    row: int
    column: str | None
    detail: str
    too_large: bool = False


@dataclass(frozen=True, slots=True)
class CheckedEvents:
    """The valid rows in the log's types, their row numbers, and the invalid rows."""

    events: pa.RecordBatch
    accepted: Sequence[int]
    refused: tuple[BadRow, ...]


def check_events(
    batches: Sequence[pa.RecordBatch], event_max_bytes: int, budget: SizeBudget
) -> CheckedEvents:
    """Validate tables of events against CloudEvents 1.0, and merge their valid rows.

    Parameters
    ----------
    batches : sequence of pa.RecordBatch
        At least one; of one schema, and fully validated.
    event_max_bytes : int
        Maximum size of an event as JSON.
    budget : SizeBudget
        The budget for the result.

    Raises
    ------
    TableRefused
        A column is missing or duplicate, or has an invalid name or type.
    TableTooLarge
        The budget is exceeded, or the events exceed JSON_MAX_BYTES as JSON.
    """
    kept = [pa.RecordBatch.from_pydict(_columns(batch, budget)) for batch in batches]
    table = kept[0] if len(kept) == 1 else pa.concat_batches(kept)
    found: dict[int, BadRow] = {}
    columns = dict(zip(table.schema.names, table.columns, strict=True))
    for bad in (*_bad_rows(columns), *_large_rows(table, event_max_bytes)):
        found.setdefault(bad.row, bad)
    if not found:
        return CheckedEvents(table, range(table.num_rows), ())
    good = np.setdiff1d(np.arange(table.num_rows), np.fromiter(found, np.int64))
    refused = tuple(found[row] for row in sorted(found))
    return CheckedEvents(table.take(pa.array(good)), good.tolist(), refused)


def _columns(events: pa.RecordBatch, budget: SizeBudget) -> dict[str, pa.Array]:
    """Convert the columns to the log's types, by name, without empty ones."""
    names = events.schema.names
    refuse_duplicates(names, "")
    for name in REQUIRED:
        if name not in names:
            raise TableRefused(f"the required column {name} is missing", name)
    columns = {}
    for name, values in zip(names, events.columns, strict=True):
        if name != "data_base64" and not _NAME.fullmatch(name):
            raise TableRefused(
                detail=f"the column name {name[:60]!r} has characters other than a-z and 0-9",
                column=name,
                hint="Columns are attributes of events; put the payload into a struct column named data.",
            )
        kept = canonical(values, name, budget)
        _check_type(name, below_encodings(values.type), kept.type)
        if pa.types.is_null(kept.type) and name != "data":
            continue
        key = "data_base64" if name == "data" and is_binary(below_encodings(values.type)) else name
        if key in columns:
            raise TableRefused("the table has both a binary column data and a column data_base64", key)
        columns[key] = kept
    return columns


def _check_type(name: str, came: pa.DataType, kept: pa.DataType) -> None:
    if name == "data" or (pa.types.is_null(kept) and name not in REQUIRED):
        return
    if name in TIMES:
        if pa.types.is_timestamp(kept) and kept.tz is None:
            raise TableRefused(
                f"the column {name} has timestamps without a time zone",
                name,
                hint='A type such as timestamp("us", tz="UTC") has one.',
            )
        allowed = kept == pa.string() or pa.types.is_timestamp(kept)
        wanted = "timestamps with a time zone, or strings"
    elif name in REQUIRED or name in OPTIONAL_TEXTS:
        allowed, wanted = kept == pa.string(), "strings"
    elif name == "data_base64":
        allowed, wanted = kept == pa.string(), "bytes, or strings of base64"
    else:
        allowed = kept == pa.string() or pa.types.is_boolean(kept) or pa.types.is_integer(kept)
        wanted = "strings, whole numbers or booleans"
    if not allowed or (is_binary(came) and name != "data_base64"):
        raise TableRefused(f"the column {name} must be one of {wanted}, not of type {came}", name)


def _bad_rows(columns: dict[str, pa.Array]) -> Iterator[BadRow]:
    """Yield the invalid values, in the order in which an event's attributes are checked."""
    for name in REQUIRED:
        values = columns[name]
        if values.null_count:
            yield from _refuse(values.is_null(), name, f"the required attribute {name} is missing")
        yield from _refuse(
            pc.equal(values, ""), name, f"{name} must be a non-empty string, not an empty string"
        )
    versions = columns["specversion"]
    wrong = pc.and_(pc.not_equal(versions, "1.0"), pc.not_equal(versions, ""))
    for row in _rows(wrong):
        detail = f'specversion must be "1.0", not {versions[row].as_py()[:60]!r}'
        yield BadRow(row, "specversion", detail)
    for name in OPTIONAL_TEXTS:
        if name in columns:
            detail = f"{name} must be a non-empty string, not an empty string"
            yield from _refuse(pc.equal(columns[name], ""), name, detail)
    for name in TIMES:
        if name in columns:
            yield from _bad_times(name, columns[name])
    if "data_base64" in columns:
        yield from _bad_base64(columns["data_base64"], columns.get("data"))
    for name, values in columns.items():
        if name not in _KNOWN and pa.types.is_integer(values.type):
            beyond = pc.or_(pc.less(values, _LEAST_INT32), pc.greater(values, _INT32_MAX))
            detail = f"the extension {name} is beyond 32 bits; send it as a string"
            yield from _refuse(beyond, name, detail)


_KNOWN = frozenset((*REQUIRED, *OPTIONAL_TEXTS, *TIMES, "data", "data_base64"))


def _rows(wrong: pa.BooleanArray) -> list[int]:
    if not wrong.true_count:
        return []
    mask: Mask = pc.fill_null(wrong, False).to_numpy(zero_copy_only=False)
    rows: list[int] = np.flatnonzero(mask).tolist()
    return rows


def _refuse(wrong: pa.BooleanArray, column: str, detail: str) -> Iterator[BadRow]:
    return (BadRow(row, column, detail) for row in _rows(wrong))


def _bad_times(name: str, values: pa.Array) -> Iterator[BadRow]:
    if values.type != pa.string():
        return
    wrong = pc.invert(pc.match_substring_regex(values, _TIME))
    rows = set(_rows(wrong))
    days = pc.utf8_slice_codeunits(values, 0, 10)
    unknown = [day for day in pc.unique(days.drop_null()).to_pylist() if not _is_day(day)]
    if unknown:
        rows |= set(_rows(pc.is_in(days, pa.array(unknown, pa.string()))))
    for row in sorted(rows):
        shown = repr(values[row].as_py())[:60]
        detail = f"{name} must be an RFC 3339 timestamp such as 2013-01-01T05:00:00Z, not {shown}"
        yield BadRow(row, name, detail)


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _bad_base64(values: pa.Array, data: pa.Array | None) -> Iterator[BadRow]:
    if data is not None:
        both = pc.and_(values.is_valid(), data.is_valid())
        yield from _refuse(both, "data_base64", "an event has data or data_base64, not both")
    for row, text in enumerate(values.to_pylist()):
        if text is not None:
            try:
                binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
            except ValueError:  # binascii.Error and UnicodeEncodeError are ValueErrors
                yield BadRow(row, "data_base64", "data_base64 must be a string of base64")


def _large_rows(table: pa.RecordBatch, event_max_bytes: int) -> Iterator[BadRow]:
    """Yield the rows that are too long as JSON; the JSON of uncertain ones is written for an exact size."""
    sizes = json_sizes(table)
    # Far above the limit, the estimate suffices.
    sure = sizes > event_max_bytes * LONGEST_TO_SHORTEST
    total = int(sizes[~sure].sum())
    if total > JSON_MAX_BYTES:
        raise TableTooLarge(f"the events take about {total} bytes as JSON", max_json_bytes=JSON_MAX_BYTES)
    suspects = np.flatnonzero((sizes > event_max_bytes) & ~sure)
    exact = dict.fromkeys(np.flatnonzero(sure).tolist(), "far more")
    if len(suspects):
        lines = json_lines(table.take(pa.array(suspects)))
        exact |= {
            row: str(len(line))
            for row, line in zip(suspects.tolist(), lines, strict=True)
            if len(line) > event_max_bytes
        }
    for row, size in exact.items():
        detail = f"the event has {size} bytes as JSON; one event may have {event_max_bytes}"
        yield BadRow(row, None, detail, True)
