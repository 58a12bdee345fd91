"""What does not fit the types of a table's columns is said with the column and what to write instead."""

from __future__ import annotations

import pytest

from fieldfare.filters import compile_filter
from fieldfare.filters.help.column_types import ColumnType, misfits
from fieldfare.model import Path

TYPES: dict[Path, ColumnType] = {
    ("squawk",): ColumnType.STRING,
    ("price",): ColumnType.NUMBER,
    ("late",): ColumnType.BOOLEAN,
    ("day",): ColumnType.DATE,
    ("ts",): ColumnType.TIMESTAMP,
    ("local",): ColumnType.TIMESTAMP_NTZ,
}


def said_of(text: str) -> list[tuple[str, str]]:
    return [(found.message, found.hint) for found in misfits(compile_filter(text).expression, TYPES.get)]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "squawk = 1000",
            "squawk has strings, and is never compared with a number",
            "write squawk = '1000', or NUMBER(squawk) = 1000",
        ),
        ("1000 < squawk", "squawk has strings", "write squawk > '1000', or NUMBER(squawk) > 1000"),
        ("squawk IN ('a', 5)", "squawk has strings", "squawk = '5'"),
        ("price > '5'", "price has numbers, and is never compared with a string", "write price > 5"),
        ("price BETWEEN 1 AND 'x'", "price has numbers", ""),
        ("late = 'true'", "late has booleans", "write late or NOT late"),
        ("price <=> 'x'", "price has numbers", ""),
        ("price = squawk", "price has numbers and squawk has strings", "write NUMBER(squawk) if"),
        ("ts <= '2017-07-28 09:00:00'", "written otherwise", "write ts <= TIMESTAMP '2017-07-28 09:00:00'"),
        ("ts <= '2017-07-28'", "written otherwise", "write ts <= TIMESTAMP '2017-07-28'"),
        ("ts >= '2017-07-28T09:00:00Z'", "written otherwise", "ts >= TIMESTAMP '2017-07-28T09:00:00Z'"),
        ("local = '2017-07-28T09:00:00+00:00'", "written otherwise", "local = TIMESTAMP"),
        ("day > '2017-07-28 09:00:00'", "written otherwise", "day > TIMESTAMP"),
        ("day = 20170728", "day has dates, which 20170728 is not", "write day = DATE '2026-01-31'"),
        (
            "ts > 'yesterday'",
            "ts has timestamps, which 'yesterday' is not",
            "ts > TIMESTAMP '2026-01-31T12:00:00Z'",
        ),
        ("day < ts", "day has dates and ts has timestamps", "write TIMESTAMP(day) < TIMESTAMP(ts)"),
        ("price LIKE '1%'", "LIKE needs strings, and price has numbers", "write STRING(price)"),
        ("LENGTH(late) = 4", "LENGTH needs strings, and late has booleans", "write STRING(late)"),
        ("squawk + 1 > 5", "arithmetic needs numbers, and squawk has strings", "write NUMBER(squawk)"),
        ("ABS(ts - local) > 5", "arithmetic needs numbers, and ts has timestamps", "write TIMESTAMP(ts)"),
        ("HOUR(price) = 5", "TIMESTAMP needs strings, and price has numbers", "+ INTERVAL(price)"),
    ],
)
def test_what_does_not_fit_is_said(text: str, message: str, hint: str) -> None:
    found = said_of(text)
    assert found
    assert message in found[0][0]
    assert hint in found[0][1]


@pytest.mark.parametrize(
    "text",
    [
        "squawk = '1000' AND price > 5 AND late AND late = TRUE AND other = 5",
        "day >= DATE '2017-07-28' AND YEAR(day) = 2017 AND day BETWEEN '2017-01-01' AND '2017-12-31'",
        "local >= TIMESTAMP '2017-07-28T09:00:00Z' AND HOUR(local) = 9 AND local = '2017-07-28T09:00:00.5'",
        "ts < '2017-07-28' AND ts >= '2017-07-27' AND ts = '2017-07-28T09:00:00+00:00' AND ts LIKE '2017-%'",
        "ts - local > INTERVAL '5' MINUTE AND DATEDIFF(ts, day) = 3 AND squawk IS NULL AND price = NULL",
        "NUMBER(squawk) + 1 > 5 AND STRING(price) LIKE '1%' AND COALESCE(squawk, 5) = 5",
    ],
)
def test_what_fits_is_not(text: str) -> None:
    assert said_of(text) == []
