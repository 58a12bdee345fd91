"""Mismatches with the types of a table's columns are reported with the column and a correction."""

from __future__ import annotations

import pytest

from fieldfare.filters import compile_filter
from fieldfare.filters.help import explain
from fieldfare.filters.help.column_types import ColumnType, misfits
from fieldfare.model import Path

TYPES: dict[Path, ColumnType] = {
    ("squawk",): ColumnType.STRING,
    ("price",): ColumnType.NUMBER,
    ("late",): ColumnType.BOOLEAN,
    ("day",): ColumnType.DATE,
    ("ts",): ColumnType.TIMESTAMP,
    ("local",): ColumnType.TIMESTAMP_NTZ,
    ("tags",): ColumnType.ARRAY,
    ("tags", 0): ColumnType.STRING,
    ("legs",): ColumnType.ARRAY,
    ("legs", 0): ColumnType.OBJECT,
    ("legs", 0, "km"): ColumnType.NUMBER,
    ("legs", 0, "stops"): ColumnType.ARRAY,
    ("legs", 0, "stops", 0): ColumnType.STRING,
    ("wind",): ColumnType.OBJECT,
    ("raw",): ColumnType.OTHER,
}


def misfits_of(text: str) -> list[tuple[str, str]]:
    return [(found.message, found.hint) for found in misfits(compile_filter(text).expression, TYPES.get)]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "squawk = 1000",
            "squawk has strings, and cannot be compared with a number",
            "write squawk = '1000', or NUMBER(squawk) = 1000",
        ),
        ("1000 < squawk", "squawk has strings", "write squawk > '1000', or NUMBER(squawk) > 1000"),
        ("squawk IN ('a', 5)", "squawk has strings", "squawk = '5'"),
        ("price > '5'", "price has numbers, and cannot be compared with a string", "write price > 5"),
        ("price BETWEEN 1 AND 'x'", "price has numbers", ""),
        ("late = 'true'", "late has booleans", "write late or NOT late"),
        ("price <=> 'x'", "price has numbers", ""),
        ("price = squawk", "price has numbers and squawk has strings", "write NUMBER(squawk) if"),
        ("ts <= '2017-07-28 09:00:00'", "has another format", "write ts <= TIMESTAMP '2017-07-28 09:00:00'"),
        ("ts <= '2017-07-28'", "has another format", "write ts <= TIMESTAMP '2017-07-28'"),
        ("ts >= '2017-07-28T09:00:00Z'", "has another format", "ts >= TIMESTAMP '2017-07-28T09:00:00Z'"),
        ("local = '2017-07-28T09:00:00+00:00'", "has another format", "local = TIMESTAMP"),
        ("day > '2017-07-28 09:00:00'", "has another format", "day > TIMESTAMP"),
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
        ("ts < price", "ts has timestamps and price has numbers", "TIMESTAMP(ts) < TIMESTAMP '1970-01-01T"),
        ("price", "price has numbers, and is not a condition", "compare it, or write price IS NOT NULL"),
        ("late AND NOT squawk", "squawk has strings, and is not a condition", "squawk IS NOT NULL"),
        ("CASE WHEN price THEN late END", "price has numbers, and is not a condition", "price IS NOT NULL"),
        ("tags = 'red'", "tags has arrays, and cannot be compared with a string", "write 'red' = ANY(tags)"),
        ("tags = legs", "tags has arrays, which are never equal to anything", ""),
        ("wind > 5", "wind has objects, and cannot be compared with a number", "as in wind.field"),
        ("raw = 'x'", "raw has values that filters do not read", ""),
        ("CONTAINS(tags, 'red')", "CONTAINS needs strings, and tags has arrays", "write 'x' = ANY(...)"),
        ("5 = ANY(tags)", "each element has strings", "write '5' in place of 5"),
        ("5 IN tags", "each element has strings", "write '5' in place of 5"),
        ("ARRAY_CONTAINS(tags, 5)", "each element has strings", "write '5' in place of 5"),
        ("ANY t IN tags SATISFIES (t = 5)", "t has strings", "write t = '5', or NUMBER(t) = 5"),
        ("ALL leg IN legs SATISFIES (leg.km > '9')", "leg.km has numbers", "write leg.km > 9"),
        ("ANY leg IN legs SATISFIES (7 = ANY(leg.stops))", "each element has strings", "'7' in place"),
        ("ANY leg IN legs SATISFIES (leg)", "leg has objects, and is not a condition", ""),
        ("ANY p IN price SATISFIES (p = 'x')", "p has numbers", ""),
        ("NULLIF(squawk, 1000) = 'x'", "squawk has strings, and cannot be compared with a number", "'1000'"),
        ("CAST(ts AS BIGINT) > 5", "BIGINT never has a value here: ts has timestamps", "INTERVAL '1' SECOND"),
        ("CAST(late AS INT) = 1", "INT never has a value here: late has booleans", "CASE WHEN late THEN 1"),
        ("tags[-1] = 5", "ELEMENT_AT(tags, -1) has strings, and cannot be compared with a number", "= '5'"),
        ("legs[-1].km = 'x'", "ELEMENT_AT(ELEMENT_AT(legs, -1), 'km') has numbers", ""),
        ("ANY leg IN legs SATISFIES (leg.stops[-1] = 5)", "ELEMENT_AT(leg.stops, -1) has strings", "= '5'"),
        ("COALESCE(price, 0) = 'x'", "COALESCE(price, 0) has numbers, and cannot be compared", ""),
        ("CASE WHEN late THEN squawk END > 5", "END has strings, and cannot be compared", "NUMBER(CASE"),
        ("NULLIF(squawk, '') + 1 > 5", "arithmetic needs numbers, and NULLIF(squawk, '') has strings", ""),
        ("CAST(price AS STRING) = 5", "STRING(price) has strings, and cannot be compared", "= '5'"),
        ("price + 1 = squawk", "price + 1 has numbers and squawk has strings", "write NUMBER(squawk)"),
        ("GREATEST(price, squawk) > 5", "price has numbers and squawk has strings", "NUMBER(squawk)"),
        (
            "LEAST(day, ts) > '2017'",
            "day has dates and ts has timestamps",
            "TIMESTAMP(day) and TIMESTAMP(ts)",
        ),
        ("CARDINALITY(squawk) = 4", "CARDINALITY needs an array, and squawk has strings", "LENGTH(squawk)"),
        ("price[-1] = 4", "ELEMENT_AT needs an array, and price has numbers", ""),
        (
            "ts LIKE '2017-07-28 09%'",
            "has timestamps, which LIKE matches as texts such as 2017-07-28T09",
            "DATE",
        ),
        ("day NOT LIKE '%T%'", "day has dates, which LIKE matches as texts such as 2017-07-28", "DATE '...'"),
        ("CAST(ts AS STRING) LIKE '% 09:%'", "STRING(ts) has timestamps, which LIKE", "TIMESTAMP '...'"),
        (
            "CAST(ts AS STRING) = '2017-07-28 09:00:00'",
            "has another format",
            "write ts = TIMESTAMP '2017-07-2",
        ),
        ("day > '2017-07'", "day has dates, which '2017-07' is not", ""),
        ("CAST(tags AS STRING) = 'x'", "STRING never has a value here: tags has arrays", "ELEMENT_AT"),
    ],
)
def test_mismatches_are_reported(text: str, message: str, hint: str) -> None:
    found = misfits_of(text)
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
        "'5' = ANY(tags) AND CARDINALITY(tags) = 2 AND tags[0] = 'x' AND ELEMENT_AT(tags, 1) = 'x'",
        "ANY leg IN legs SATISFIES (leg.km > 5 AND '7' = ANY(leg.stops)) AND EXISTS(wind) AND raw IS NULL",
        "late AND (NOT late OR late IS TRUE) AND CASE WHEN late THEN price ELSE 5 END > 3 AND other",
        "day >= '2017-07' AND day < '2018' AND ts >= '2017-07' AND ts LIKE '%T09:%+00:00'",
        "tags[-1] = 'x' AND legs[-1].km > 5 AND CARDINALITY(wind) > 1 AND COALESCE(squawk, '0') = '1000'",
        "CASE WHEN late THEN price END > 5 AND COALESCE(price, squawk) = 5 AND GREATEST(price, 3, other) > 4",
        "CASE WHEN late THEN NULL ELSE price END > 5 AND CAST(day AS STRING) = '2017-07-28' AND 5 = 5",
        "CAST(late AS STRING) = 'true' AND CAST(price AS BOOLEAN) AND CAST(squawk AS INT) = 5",
    ],
)
def test_matching_types_are_not_reported(text: str) -> None:
    assert misfits_of(text) == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("tags[0] = 5", ("tags", 0)),
        ("5 = ANY(tags)", ("tags",)),
        ("ANY leg IN legs SATISFIES (7 = ANY(leg.stops))", ("legs",)),
        ("legs[0].km = 'x'", ("legs", 0, "km")),
    ],
)
def test_mismatches_use_the_names_in_the_text(text: str, path: Path) -> None:
    assert [found.path for found in misfits(compile_filter(text).expression, TYPES.get)] == [path]


SAMPLE = [
    {
        "data": {
            "squawk": "1000",
            "ts": "2017-07-28T09:00:00+00:00",
            "day": "2017-07-28",
            "n": 5,
            "tags": ["a"],
        }
    },
    {"data": {"squawk": None, "ts": "2017-07-28T09:00:00.5+00:00", "n": 7.5, "tags": [], "mixed": 1}},
    {
        "data": {
            "squawk": "77A0",
            "legs": [{"km": 5}, {"km": 9}],
            "local": "2017-07-28T09:00:00",
            "mixed": "x",
        }
    },
]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data.squawk + 1 > 5", "in the sample arithmetic needs numbers, and data.squawk has strings"),
        (
            "5 = ANY(data.tags)",
            "in the sample each element has strings, and cannot be compared with a number",
        ),
        ("ANY leg IN data.legs SATISFIES (leg.km > 'x')", "in the sample leg.km has numbers"),
        (
            "data.ts > '2017-07-28'",
            "in the sample data.ts has timestamps, and this text has another format",
        ),
        ("data.ts < data.local", "has timestamps and data.local has timestamps without a time zone"),
        ("data.day LIKE '%:%'", "in the sample data.day has dates, which LIKE matches as texts such as"),
        ("LENGTH(data.n) = 1", "in the sample LENGTH needs strings, and data.n has numbers"),
    ],
)
def test_types_are_taken_from_a_sample_too(text: str, message: str) -> None:
    cautions = explain(compile_filter(text), SAMPLE).cautions
    assert [caution for caution in cautions if message in caution.message]


@pytest.mark.parametrize(
    "text",
    [
        "data.squawk > 'x' AND data.n > 5 AND data.mixed = 5 AND data.ts >= '2017-07' AND data.day < '2018'",
        "data.ts > TIMESTAMP '2017-07-28T00:00:00Z' AND data.mixed + 1 > 5 AND 'a' = ANY(data.tags)",
        "ANY leg IN data.legs SATISFIES (leg.km > 5)",
    ],
)
def test_types_that_fit_a_sample_are_not_reported(text: str) -> None:
    assert not [
        caution
        for caution in explain(compile_filter(text), SAMPLE).cautions
        if caution.message.startswith("in the sample")
    ]


def test_a_mismatch_is_reported_once() -> None:
    for text in ("data.squawk = 1000", "data.ts <= '2017-07-28 09:00:00'"):
        assert len(explain(compile_filter(text), SAMPLE).cautions) == 1
    cesql = compile_filter("LENGTH(n) = 1", "cesql")
    assert not explain(cesql, [{"n": 5}]).cautions
