"""Subscriptions from CSV, JSON lines, Parquet and Arrow files: id, filter, dialect, delivery, owner, labels.

A filter is a string. If it is an object or an array, as in the dialects ``eventbridge`` and
``subscriptions``, its JSON is the string. Numbers in it keep their digits.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fieldfare.runtimes.files.kinds import TABLES, FileError, FileKind, kind_of
from fieldfare.runtimes.files.lines import STANDARD_INPUT, UNPACKING_ERRORS, LineReader, open_stream, unpacked

NAMES = ("id", "filter", "dialect", "delivery", "owner", "labels")
EXAMPLE = '{"id": "cheap", "filter": "data.price < 18.5"}'
CSV_VALUE_MAX = 16 << 20
"""Maximum characters of one value in CSV; a longer value is a FileError."""


@dataclass(frozen=True, slots=True)
class FileSubscription:
    """A subscription in a file, and its place there; values missing from the file are None."""

    place: str
    id: str | None
    filter: str | None
    dialect: str | None
    delivery: dict[str, Any] | None
    owner: str | None = None
    labels: dict[str, Any] | None = None


def read_subscriptions(file: str | Path, *, with_ids: bool) -> Iterator[FileSubscription]:
    """Read the subscriptions of a file, or of standard input for ``-``.

    Parameters
    ----------
    file
        JSON lines, CSV, Parquet or Arrow.
    with_ids
        Whether each needs an id.

    Raises
    ------
    FileError
        The file cannot be read, or a subscription has no filter, no id, or a value of another type.
    """
    path = Path(file)
    is_standard_input = str(file) == STANDARD_INPUT
    if not is_standard_input and path.is_dir():
        raise FileError(f"{file} is a folder: give one file of subscriptions")
    if not is_standard_input and not path.exists():
        raise FileError(f"{file} does not exist")
    kind = FileKind.LINES if is_standard_input else kind_of(path)
    needed = ("id", "filter") if with_ids else ("filter",)
    if kind in TABLES:
        rows = _table_rows(path, kind, needed)
    elif kind is FileKind.CSV:
        rows = _csv_rows(path, needed)
    else:
        rows = _json_rows(file)
    return (_subscription(place, row, needed) for place, row in rows)


def _json_rows(file: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    stream, name = open_stream(file)
    for number, line in LineReader(stream, name):
        place = f"{name}, line {number}"
        try:
            row = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            values = {known: _json_value(row[known]) for known in NAMES if known in row}
        except (ValueError, RecursionError) as error:
            what = "is not a subscription" if isinstance(error, msgspec.ValidationError) else "is not JSON"
            raise FileError(f"{place} {what}: {error}\nhint: one looks like {EXAMPLE}") from None
        yield place, values


def _json_value(raw: msgspec.Raw) -> Any:
    text = bytes(raw).lstrip()
    text.decode()
    return raw if text[:1] in (b"{", b"[") else msgspec.json.decode(text)


def _csv_rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    stream, name = open_stream(path)
    csv.field_size_limit(max(csv.field_size_limit(), CSV_VALUE_MAX))
    text = io.TextIOWrapper(unpacked(stream, name)[0], encoding="utf-8-sig", newline="")
    reader = csv.reader(text, strict=True)
    line = 1
    try:
        header = [column.strip() for column in next(reader, [])]
        _check_columns(header, name, needed)
        line = reader.line_num + 1
        for values in reader:
            place, line = f"{name}, line {line}", reader.line_num + 1
            if not values:
                continue
            if len(values) != len(header):
                raise FileError(
                    f"{place} has {len(values)} values, and there are {len(header)} columns: put a value that"
                    ' has a comma or a line end in quotes, "x IN (1, 2)", and write a quote in it twice'
                )
            yield place, {known: value or None for known, value in zip(header, values, strict=True)}
    except csv.Error as error:
        raise FileError(f"{name}, line {line} is not CSV: {error}") from None
    except UnicodeDecodeError:
        raise FileError(f"{name} is not UTF-8: save it as CSV in UTF-8") from None
    except UNPACKING_ERRORS as error:
        raise FileError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from None


def _table_rows(path: Path, kind: FileKind, needed: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    from fieldfare.runtimes.files.tables import TableFile, projected

    table = TableFile(path, kind)
    _check_columns(table.schema.names, str(path), needed)
    wanted = projected(table.schema, [(known,) for known in NAMES])
    row = 0
    for batch in table.batches(wanted):
        columns = [column.to_pylist(maps_as_pydicts="strict") for column in batch.columns]
        for values in zip(*columns, strict=True):
            row += 1
            yield f"{path}, row {row}", dict(zip(wanted.names, map(_without_nulls, values), strict=True))


def _check_columns(columns: Sequence[str], name: str, needed: Sequence[str]) -> None:
    if not set(needed) <= set(columns):
        what = "the columns id and filter are" if len(needed) > 1 else "the column filter is"
        raise FileError(f"{name}: {what} needed; it has {', '.join(columns) or 'none'}")
    for known in NAMES:
        if columns.count(known) > 1:
            raise FileError(f"{name} has two columns {known}: rename one of them")


def _without_nulls(value: Any) -> Any:
    """Return a table's value without null members of structs: columns have the members of all rows."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


_encoder = msgspec.json.Encoder(decimal_format="number")


def _subscription(place: str, row: dict[str, Any], needed: Sequence[str]) -> FileSubscription:
    filter = row.get("filter")
    if isinstance(filter, msgspec.Raw | dict | list):
        filter = _encoder.encode(filter).decode()
    delivery, labels = (_object(place, name, row.get(name)) for name in ("delivery", "labels"))
    id: Any = row.get("id")
    if isinstance(id, int) and not isinstance(id, bool):
        id = str(id)
    for name, value, kind in (
        ("id", id, str),
        ("filter", filter, str),
        ("dialect", row.get("dialect"), str),
        ("delivery", delivery, dict),
        ("owner", row.get("owner"), str),
        ("labels", labels, dict),
    ):
        if value is not None and not isinstance(value, kind):
            wanted = "an object" if kind is dict else "a string"
            shown = bytes(value).decode() if isinstance(value, msgspec.Raw) else repr(value)
            raise FileError(
                f"{place}: the {name} must be {wanted}, not {shown[:60]}\nhint: one looks like {EXAMPLE}"
            )
    for name, value in ("id", id), ("filter", filter):
        if name in needed and not value:
            raise FileError(f"{place} has no {name}\nhint: one looks like {EXAMPLE}")
    return FileSubscription(place, id, filter, row.get("dialect"), delivery, row.get("owner"), labels)


def _object(place: str, name: str, value: Any) -> Any:
    """Return the value of a member that is an object; in CSV and JSON lines it comes as text."""
    if isinstance(value, str):
        value = msgspec.Raw(value.encode())
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return msgspec.json.decode(value)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{place}: the {name} is not JSON: {error}") from None
