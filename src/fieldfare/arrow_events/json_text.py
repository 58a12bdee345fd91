"""Rows of a table as the JSON that their events would have been published as, column by column.

Every column becomes a column of JSON texts, structs and lists from those of their parts; the rows are then
their columns' texts put together. A null is ``null``, but for an attribute at the top, which is left out.
A number's text is the shortest that reads back as it, a decimal has all its digits, a moment is its ISO
8601 text; NaN and the infinities, which JSON lacks, are ``null``. The columns are of types that ``canonical``
keeps.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fieldfare.matching.events.arrow_times import is_time, time_texts

_ODD = r'["\\\x00-\x1f]'
_QUOTE, _BACKSLASH, _SPACE = 0x22, 0x5C, 0x20


def json_lines(events: pa.RecordBatch) -> list[bytes]:
    """Each row as a JSON object, without a line feed."""
    if not events.num_rows:
        return []
    columns = dict(zip(events.schema.names, events.columns, strict=True))
    # An attribute that all events have goes first, so that every other may be left out with its comma.
    names = sorted(columns, key=lambda name: columns[name].null_count)
    if not names or columns[names[0]].null_count:
        return [_without_first_comma(line) for line in _members(columns, names, "{,").to_pylist()]
    first = names[0]
    start = "{" + _quoted_text(first) + ":"
    lines: list[bytes] = _members(columns, names[1:], start, _texts(columns[first])).to_pylist()
    return lines


def _members(columns: dict[str, pa.Array], names: list[str], *pieces: str | pa.Array) -> pa.Array:
    """Rows of text: the pieces given, then each attribute that is there, and the closing brace."""
    parts: list[str | pa.Array] = list(pieces)
    for name in names:
        start = "," + _quoted_text(name) + ":"
        values = columns[name]
        if values.null_count:
            member = pc.binary_join_element_wise(start, _texts(values), "")
            parts.append(pc.if_else(values.is_null(), "", member))
        else:
            parts += [start, _texts(values)]
    size = len(next(iter(columns.values()))) if columns else 0
    if all(isinstance(part, str) for part in parts):
        parts.append(pa.array([""] * size, pa.string()))
    return pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary())


def _without_first_comma(line: bytes) -> bytes:
    return b"{" + line[2:].lstrip(b",")


def _texts(values: pa.Array) -> pa.Array:
    """The JSON text of every value: a string array without nulls."""
    kind = values.type
    if pa.types.is_null(kind):
        return pa.array(["null"] * len(values), pa.string())
    if pa.types.is_struct(kind):
        texts = _struct_texts(values)
    elif pa.types.is_map(kind):
        texts = _map_texts(values)
    elif pa.types.is_list(kind):
        texts = _joined_items(_texts(values.flatten()), values, "[", "]")
    elif kind == pa.string():
        texts = _quoted(values)
    elif is_time(kind):
        texts = pc.binary_join_element_wise('"', time_texts(values), '"', "")
    else:
        if pa.types.is_floating(kind):
            values = pc.if_else(pc.is_finite(values), values, None)
        return pc.fill_null(pc.cast(values, pa.string()), "null")
    return pc.if_else(values.is_null(), "null", texts) if values.null_count else texts


def _struct_texts(values: pa.StructArray) -> pa.Array:
    parts: list[str | pa.Array] = []
    comma = "{"
    for number in range(values.type.num_fields):
        parts += [comma + _quoted_text(values.type.field(number).name) + ":", _texts(values.field(number))]
        comma = ","
    if not parts:
        return pa.array(["{}"] * len(values), pa.string())
    return pc.binary_join_element_wise(*parts, "}", "")


def _map_texts(values: pa.MapArray) -> pa.Array:
    offsets = values.offsets.to_numpy()
    first, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys, items = values.keys.slice(first, size), values.items.slice(first, size)
    members = pc.binary_join_element_wise(_quoted(keys), _texts(items), ":")
    text = pa.ListArray.from_arrays(pa.array(offsets - first, pa.int32()), members)
    return pc.binary_join_element_wise("{", pc.binary_join(text, ","), "}", "")


def _joined_items(items: pa.Array, values: pa.ListArray, start: str, end: str) -> pa.Array:
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False), out=offsets[1:])
    text = pa.ListArray.from_arrays(pa.array(offsets), items)
    return pc.binary_join_element_wise(start, pc.binary_join(text, ","), end, "")


def _quoted(values: pa.StringArray) -> pa.Array:
    """Strings as JSON strings; nulls stay null."""
    texts = pc.binary_join_element_wise('"', values, '"', "")
    if not _has_odd_bytes(values):
        return texts
    odd = pc.fill_null(pc.match_substring_regex(values, _ODD), False)
    escaped = [_quoted_text(text) for text in values.filter(odd).to_pylist()]
    return pc.replace_with_mask(texts, odd, pa.array(escaped, pa.string()))


def _has_odd_bytes(values: pa.StringArray) -> bool:
    """Whether some byte has to be escaped: a look at the bytes is far cheaper than one at the strings."""
    _, offsets, text = values.buffers()
    if text is None or not len(values):
        return False
    bounds = np.frombuffer(offsets, np.int32, values.offset + len(values) + 1)[values.offset :]
    found = np.frombuffer(text, np.uint8)[bounds[0] : bounds[-1]]
    return bool(((found < _SPACE) | (found == _QUOTE) | (found == _BACKSLASH)).any())


def _quoted_text(text: str) -> str:
    return msgspec.json.encode(text).decode()
