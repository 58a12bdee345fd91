"""Conversion of a table's rows to the JSON that their events would have been published as, column by column.

Every column becomes a column of JSON texts, structs and lists from those of their parts; a row is the
concatenation of its columns' texts. A null is ``null``, except for a top-level attribute, which `json_lines`
omits. A number's text is the shortest that reads back as the number, a decimal has all its digits, moments
and durations are their ISO 8601 texts, bytes are base64; NaN and infinities, which JSON lacks, are ``null``.
Keys of maps are strings. The encoding or layout of a type makes no difference.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fieldfare.arrow_events.canonical import is_binary, is_list, widened
from fieldfare.arrow_events.errors import TableRefused
from fieldfare.matching.events.arrow_paths import is_time, plain

_ODD = r'["\\\x00-\x1f]'
_QUOTE, _BACKSLASH, _SPACE = 0x22, 0x5C, 0x20


def json_lines(events: pa.RecordBatch) -> list[bytes]:
    """Return each row as a JSON object, without a line feed."""
    if not events.num_rows:
        return []
    columns = dict(zip(events.schema.names, events.columns, strict=True))
    # An attribute that all events have comes first, so that every other can be omitted together with its
    # comma.
    names = sorted(columns, key=lambda name: columns[name].null_count)
    if not names or columns[names[0]].null_count:
        return [_without_first_comma(line) for line in _members(columns, names, "{,").to_pylist()]
    first = names[0]
    start = "{" + _quoted_text(first) + ":"
    lines: list[bytes] = _members(columns, names[1:], start, json_texts(columns[first])).to_pylist()
    return lines


def row_texts(rows: pa.RecordBatch) -> pa.Array:
    """Return each row as a JSON object with every column, in order: a string array."""
    if not rows.num_columns:
        return pa.array(["{}"] * rows.num_rows, pa.string())
    return object_texts(rows.schema.names, [json_texts(values) for values in rows.columns])


def object_texts(names: Sequence[str], texts: Sequence[pa.Array]) -> pa.Array:
    """Return objects whose members are given as JSON: for each name a string array."""
    parts: list[str | pa.Array] = []
    for place, (name, values) in enumerate(zip(names, texts, strict=True)):
        parts += [("," if place else "{") + _quoted_text(name) + ":", values]
    return pc.binary_join_element_wise(*parts, "}", "")


def _members(columns: dict[str, pa.Array], names: list[str], *pieces: str | pa.Array) -> pa.Array:
    """Return rows of text: the given pieces, then each attribute that is present, and the closing brace."""
    parts: list[str | pa.Array] = list(pieces)
    for name in names:
        start = "," + _quoted_text(name) + ":"
        values = columns[name]
        if values.null_count:
            member = pc.binary_join_element_wise(start, json_texts(values), "")
            parts.append(pc.if_else(values.is_null(), "", member))
        else:
            parts += [start, json_texts(values)]
    size = len(next(iter(columns.values()))) if columns else 0
    if all(isinstance(part, str) for part in parts):
        parts.append(pa.array([""] * size, pa.string()))
    return pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary())


def _without_first_comma(line: bytes) -> bytes:
    return b"{" + line[2:].lstrip(b",")


def json_texts(values: pa.Array) -> pa.Array:
    """Return the JSON text of every value, without nulls. Raise TableRefused for intervals and unions."""
    values = plain(values)
    kind = values.type
    if pa.types.is_null(kind):
        return pa.array(["null"] * len(values), pa.string())
    if pa.types.is_struct(kind):
        texts = _struct_texts(values)
    elif pa.types.is_map(kind):
        texts = _map_texts(values)
    elif is_list(kind):
        texts = _joined_items(json_texts(values.flatten()), values, "[", "]")
    elif (strings := scalar_texts(values)) is not None:
        texts = _quoted(strings)
    else:
        if pa.types.is_float16(kind):
            values = widened(values)
        if pa.types.is_floating(kind):
            values = pc.if_else(pc.is_finite(values), values, None)
        return pc.fill_null(pc.cast(values, pa.string()), "null")
    return pc.if_else(values.is_null(), "null", texts) if values.null_count else texts


def scalar_texts(values: pa.Array) -> pa.Array | None:
    """Return values that are strings in JSON (texts, moments, durations, bytes); None for other types."""
    kind = values.type
    if kind == pa.string():
        return values
    if kind in (pa.large_string(), pa.string_view()):
        return pc.cast(values, pa.string())
    if is_time(kind):
        from fieldfare.matching.events.arrow_times import time_texts  # Only if needed: it loads numba.

        return time_texts(values)
    if is_binary(kind):
        encoded = [None if v is None else binascii.b2a_base64(v, newline=False) for v in values.to_pylist()]
        return pa.array(encoded, pa.binary()).cast(pa.string())
    if pa.types.is_duration(kind):
        parts = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        numbers = pc.cast(values, pa.int64()).to_pylist()
        return pa.array([None if n is None else _duration_text(n, parts) for n in numbers], pa.string())
    if pa.types.is_interval(kind) or pa.types.is_union(kind):
        raise TableRefused(f"a value has type {kind}, which JSON cannot represent")
    return None


def _duration_text(number: int, parts: int) -> str:
    """Return an ISO 8601 duration in days and seconds, from a count of fractions of a second."""
    days, rest = divmod(abs(number), 86_400 * parts)
    seconds, fraction = divmod(rest, parts)
    digits = f".{fraction + parts}".replace(".1", ".", 1).rstrip("0") if fraction else ""
    return ("-" if number < 0 else "") + f"P{days}D" + (f"T{seconds}{digits}S" if rest else "")


def _struct_texts(values: pa.StructArray) -> pa.Array:
    fields = [values.field(number) for number in range(values.type.num_fields)]
    if not fields:
        return pa.array(["{}"] * len(values), pa.string())
    return object_texts([field.name for field in values.type], [json_texts(field) for field in fields])


def _map_texts(values: pa.MapArray) -> pa.Array:
    offsets = values.offsets.to_numpy()
    first, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys, items = values.keys.slice(first, size), values.items.slice(first, size)
    members = pc.binary_join_element_wise(_key_texts(keys), json_texts(items), ":")
    text = pa.ListArray.from_arrays(pa.array(offsets - first, pa.int32()), members)
    return pc.binary_join_element_wise("{", pc.binary_join(text, ","), "}", "")


def _key_texts(keys: pa.Array) -> pa.Array:
    strings = scalar_texts(plain(keys))
    return _quoted(json_texts(keys) if strings is None else strings)


def _joined_items(items: pa.Array, values: pa.ListArray, start: str, end: str) -> pa.Array:
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False), out=offsets[1:])
    text = pa.ListArray.from_arrays(pa.array(offsets), items)
    return pc.binary_join_element_wise(start, pc.binary_join(text, ","), end, "")


def _quoted(values: pa.StringArray) -> pa.Array:
    """Convert strings to JSON strings; nulls stay null."""
    texts = pc.binary_join_element_wise('"', values, '"', "")
    if not _has_odd_bytes(values):
        return texts
    odd = pc.fill_null(pc.match_substring_regex(values, _ODD), False)
    escaped = [_quoted_text(text) for text in values.filter(odd).to_pylist()]
    return pc.replace_with_mask(texts, odd, pa.array(escaped, pa.string()))


def _has_odd_bytes(values: pa.StringArray) -> bool:
    """Whether a byte must be escaped: checking the bytes is far cheaper than checking the strings."""
    _, offsets, text = values.buffers()
    if text is None or not len(values):
        return False
    bounds = np.frombuffer(offsets, np.int32, values.offset + len(values) + 1)[values.offset :]
    found = np.frombuffer(text, np.uint8)[bounds[0] : bounds[-1]]
    return bool(((found < _SPACE) | (found == _QUOTE) | (found == _BACKSLASH)).any())


def _quoted_text(text: str) -> str:
    return msgspec.json.encode(text).decode()
