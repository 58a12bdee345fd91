"""Partition columns in folder names: ``day=2013-01-01/carrier=UA/part-0.parquet``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

_NULL = "__HIVE_DEFAULT_PARTITION__"


def _whole(text: str) -> int:
    number = int(text)
    if not re.fullmatch(r"-?[0-9]+", text) or not -(1 << 63) <= number < 1 << 63:
        raise ValueError(text)
    return number


def _floating(text: str) -> float:
    if not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text):
        raise ValueError(text)
    return float(text)


def _day(text: str) -> date:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        raise ValueError(text)
    return date.fromisoformat(text)


_TYPES: tuple[tuple[pa.DataType, Callable[[str], Any]], ...] = (
    (pa.int64(), _whole),
    (pa.float64(), _floating),
    (pa.date32(), _day),
    (pa.string(), str),
)
"""Candidate types of a column; the first one that holds all its values is chosen."""


def partition_columns(root: Path, files: Sequence[Path]) -> tuple[pa.Schema, list[Mapping[str, Any]]]:
    """Return the columns named by the folders between a root and its files, and each file's values."""
    texts = [_texts_of(file.relative_to(root)) for file in files]
    names = list(dict.fromkeys(name for found in texts for name in found))
    fields = []
    values: list[dict[str, Any]] = [{} for _ in files]
    for name in names:
        column = [found.get(name) for found in texts]
        kind, read = _type_of([text for text in column if text is not None])
        fields.append(pa.field(name, kind))
        for text, found in zip(column, values, strict=True):
            found[name] = None if text is None else read(text)
    return pa.schema(fields), list(values)


def _texts_of(file: Path) -> dict[str, str | None]:
    pairs = [part.split("=", 1) for part in file.parts[:-1] if "=" in part]
    return {unquote(name): None if text == _NULL else unquote(text) for name, text in pairs}


def _type_of(texts: Sequence[str]) -> tuple[pa.DataType, Callable[[str], Any]]:
    for kind, read in _TYPES[:-1]:
        try:
            for text in texts:
                read(text)
        except ValueError:
            continue
        return kind, read
    return _TYPES[-1]
