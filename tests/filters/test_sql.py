"""The ``sql`` dialect by example: each line of the tables in the pages on filters, and edge cases."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from fieldfare.filters import Evaluation, compile_filter, format_expression, parse_path
from fieldfare.filters.values import ABSENT

EVENT: dict[str, Any] = {
    "id": "1",
    "type": "trade",
    "not": 7,
    "data": {
        "symbol": "YHOO",
        "price": 18.4,
        "tenth": 0.1,
        "third": 0.1 + 0.2,
        "big": 2**53 + 1,
        "bigger": 10**23,
        "float23": 1e23,
        "zero": 0,
        "flag": True,
        "off": False,
        "nothing": None,
        "items": [{"price": 5}, 6],
        "odd name": "x",
        'q"q': 1,
        "NaN": float("nan"),
        "infinite": float("inf"),
        "exact": Decimal("0.1"),
        "snow": "Schnee ☃",
        "5": "five",
    },
}

TRUE = [
    "TRUE",
    "data.symbol = 'YHOO' AND data.price < 18.5",
    "data.symbol <> 'yhoo' and data.symbol != 'IBM'",
    "data.flag",
    "NOT data.off",
    "data.flag = TRUE AND data.off <> TRUE AND data.off < data.flag",
    "data.price BETWEEN 18.4 AND 18.40",
    "data.price NOT BETWEEN 18.5 AND 20",
    "data.symbol BETWEEN 'A' AND 'Z'",
    "data.symbol IN ('IBM', 'YHOO')",
    "data.symbol NOT IN ('IBM', 'AA')",
    "data.price IN (1, data.price)",
    "data.symbol LIKE 'Y%' AND data.symbol LIKE '_HO_' AND data.symbol LIKE '%OO' AND data.symbol LIKE '%'",
    "data.symbol NOT LIKE 'y%'",
    "data.snow LIKE 'Schnee _'",
    "'50%' LIKE '50!%' ESCAPE '!' AND '505' NOT LIKE '50!%' ESCAPE '!' AND 'a!b' LIKE 'a!!b' ESCAPE '!'",
    "'it''s' LIKE 'it''_'",
    "EXISTS(data.nothing) AND EXISTS data.price AND NOT EXISTS(data.no.such)",
    "data.nothing IS NULL AND data.missing IS NULL AND data.price IS NOT NULL",
    "(data.missing = 1) IS UNKNOWN AND (data.missing = 1) IS NULL",
    "data.missing = 1 IS UNKNOWN",
    "data.symbol = 5 IS UNKNOWN AND data.symbol <> 5 IS UNKNOWN AND data.items = data.items IS UNKNOWN",
    "data.flag IS TRUE AND data.off IS NOT TRUE AND data.off IS FALSE AND data.symbol IS NOT FALSE",
    "NULL = NULL IS UNKNOWN AND NULL IS NULL AND TRUE IS NOT NULL",
    "data.tenth = 0.1 AND data.tenth = 1e-1 AND data.tenth = data.exact AND data.third <> 0.3",
    "data.tenth + data.exact = 0.2 AND data.tenth * 3 = 0.3",
    "data.big > 9007199254740992 AND data.big = 9007199254740993 AND data.big - 1 = 9007199254740992",
    "data.float23 = 100000000000000000000000 AND data.float23 = data.bigger AND data.bigger = 1E23",
    "1 / 3 * 3 = 1 AND 7 % 3 = 1 AND -7 % 3 = -1 AND 7 % -3 = 1 AND 5.5 % 2 = 1.5",
    "2 + 3 * 4 = 14 AND (2 + 3) * 4 = 20 AND 10 - 2 - 3 = 5 AND -data.zero = 0 AND 2 - -3 = 5",
    "1 / data.zero = 1 IS UNKNOWN AND 1 % 0 = 1 IS UNKNOWN AND data.symbol + 1 = 1 IS UNKNOWN",
    "data.flag + 1 = 2 IS UNKNOWN AND data.nothing + 1 = 1 IS UNKNOWN AND (1 / 0) IS NULL",
    "data.NaN = data.NaN IS UNKNOWN AND data.NaN > 1 IS UNKNOWN AND EXISTS(data.NaN)",
    "data.infinite > 1e1000 AND data.infinite = data.infinite AND data.infinite + 1 > 0 IS UNKNOWN",
    'data."odd name" = \'x\' AND data."q""q" = 1 AND "data".symbol = \'YHOO\' AND data."5" = \'five\'',
    '"not" = 7 AND 7 = ("not")',
    "data.items[0].price = 5 AND data.items[1] = 6 AND data.items[2] IS NULL AND data.symbol[0] IS NULL",
    "NOT NOT TRUE AND NOT FALSE AND (NOT TRUE) = FALSE AND (data.price > 1) = (data.big > 1)",
    "TRUE OR FALSE AND FALSE",
    "NOT data.price = 1 AND NOT data.price IN (1, 2)",
    "  data . price\n>\t.5e1 AND 5. = 5 AND +5 = 5 AND 0.50 = 0.5",
    "NOT (data.missing = 1 AND FALSE) AND (data.missing = 1 OR TRUE)",
    "data.price IN (1, 'a', 18.4, NULL)",
    "CASE WHEN data.price > 18 THEN 'high' ELSE 'low' END = 'high' AND CASE WHEN data.off THEN 1 END IS NULL",
    "CASE data.symbol WHEN 'IBM' THEN 1 WHEN 'YHOO' THEN 2 END = 2"
    " AND CASE data.price * 10 WHEN 184 THEN data.flag END",
    "CASE WHEN data.missing = 1 THEN FALSE WHEN NOT data.off"
    " AND (data.price > 1 OR data.off) THEN data.flag END",
    "CASE WHEN data.off THEN 1"
    " ELSE CASE data.zero WHEN 0 THEN CASE (data.symbol) WHEN 'x' THEN 2 ELSE 3 END END END = 3",
    "CASE WHEN data.flag THEN data.price > 18 ELSE data.price > 20 END IS TRUE",
    "NULLIF(data.zero, 0) IS NULL AND NULLIF(data.zero, 1) = 0 AND NULLIF(data.zero, 'x') = 0",
    "data.price <=> 18.4 AND data.nothing <=> NULL AND data.nothing <=> data.missing"
    " AND NOT data.price <=> '18.4'",
    "data.price IS DISTINCT FROM data.nothing AND data.zero IS NOT DISTINCT FROM 0"
    " AND data.symbol IS DISTINCT FROM 5",
    "data.items IS DISTINCT FROM data.items AND data.NaN IS DISTINCT FROM data.NaN"
    " AND EQUAL_NULL(data.zero, 0)",
    "(data.price > 1) IS NOT DISTINCT FROM TRUE AND (data.missing > 1) <=> (data.nothing = 2)",
    "data.symbol LIKE ANY ('X%', 'Y%') AND data.symbol ILIKE SOME ('y%')"
    " AND data.symbol NOT LIKE ALL ('X%', '%X')",
    "data.symbol NOT LIKE ANY ('Y%', 'X%') AND NOT data.symbol LIKE ALL ('Y%', 'X%')"
    " AND data.symbol LIKE ALL ('Y%', '%O')",
    "data['odd name'] = 'x' AND data['items'][0]['price'] = 5 AND data['q\"q'] = 1"
    " AND EXISTS(data['nothing'])",
    "data.items[-1] = 6 AND data.items[-2].price = 5 AND data.items[-2]['price'] = 5"
    " AND data.items[-3] IS NULL",
    "ELEMENT_AT(data.items, 2) = 6 AND ELEMENT_AT(data.items, -1) = 6"
    " AND ELEMENT_AT(data, 'symbol') = 'YHOO'",
    "ELEMENT_AT(data.items, 0) IS NULL AND ELEMENT_AT(data.items, data.zero + 2) = 6"
    " AND ELEMENT_AT(data.price, 1) IS NULL",
    "6 IN data.items AND 7 NOT IN data.items IS UNKNOWN AND ARRAY_CONTAINS(data.items, 6)"
    " AND 18.4 IN data.price",
    "CARDINALITY(data.items) = 2 AND SIZE(data.items[0]) = 1 AND CARDINALITY(data.symbol) IS NULL",
    "GREATEST(data.price, 5, data.nothing) = 18.4 AND LEAST('b', 'a', data.missing) = 'a'"
    " AND LEAST(1, 'x') IS NULL",
    "data.price > 1 -- to the end of the line\n AND /* 'not' here */ data.symbol = 'YHOO' AND '--' <> '/*'",
    "data.big > 1_000_000 AND 1_0.2_5 = 10.25 AND 1_000e1_0 = 1e13",
    "NVL(data.nothing, 5) = 5 AND IFNULL(data.zero, 5) = 0 AND CASE = 5 IS UNKNOWN AND end IS NULL",
]

FALSE = [
    "FALSE",
    "data.off",
    "data.symbol = 'yhoo'",
    "data.Symbol IS NOT NULL",
    "data.price IN (1, 2)",
    "data.missing = 1 AND FALSE",
    "data.price BETWEEN 20 AND 1",
    "data.price BETWEEN 20 AND 'x'",
    "EXISTS(data.symbol.x)",
]

UNKNOWN = [
    "NULL",
    "data.missing",
    "data.symbol",
    "data.symbol > 5",
    "data.price <> '18.4'",
    "NOT data.missing = 1",
    "data.price = NULL",
    "data.price IN (1, NULL)",
    "data.price NOT IN (1, 'a')",
    "data.price LIKE '1%'",
    "data.items = 5",
    "data.missing = 1 OR FALSE",
    "data.missing = 1 AND TRUE",
    "data.price BETWEEN 1 AND 'x'",
    "data.missing BETWEEN 1 AND 2",
    "TRUE < 2",
]


@pytest.mark.parametrize(
    ("text", "value"),
    [(text, True) for text in TRUE] + [(text, False) for text in FALSE] + [(text, None) for text in UNKNOWN],
)
def test_filters_agree_with_the_documentation(text: str, value: bool | None) -> None:
    compiled = compile_filter(text)
    assert compiled.evaluate(EVENT) == Evaluation(value)
    assert compiled.matches(EVENT) is (value is True)
    assert compiled.decides(lambda path: EVENT["data"].get(path[1], ABSENT) if path[1:] else 7) in (
        True,
        False,
    )


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("a=1 and(b<>2 or not c)", "a = 1 AND (b <> 2 OR NOT c)"),
        ("not (a and b)", "NOT (a AND b)"),
        ("a!=1.50 and b>=1e2", "a <> 1.5 AND b >= 100"),
        ("a not between 1 and 2 and b not like 'x%'", "a NOT BETWEEN 1 AND 2 AND b NOT LIKE 'x%'"),
        ("a like '50!%%' escape '!'", "a LIKE '50\\%%' ESCAPE '\\'"),
        ("exists a and b is not null", "EXISTS(a) AND b IS NOT NULL"),
        ("(a+b)*-c-(1-2) > -(-1)", "(a + b) * -c - (1 - 2) > -(-1)"),
        ('"in" = "a"."b c"[3].d', '"in" = a."b c"[3].d'),
        ('a = ("b c")', 'a = ("b c")'),
        ("(a = 1) is unknown", "a = 1 IS UNKNOWN"),
        ("a in (1,'it''s',null,true)", "a IN (1, 'it''s', NULL, TRUE)"),
        ("case a when 1 then b else null end", "CASE WHEN a = 1 THEN b END"),
        ('case when a then not b else ("c d") end', 'CASE WHEN a THEN NOT b ELSE ("c d") END'),
        ("a <=> b and not a<=>null", "a <=> b AND NOT a <=> NULL"),
        ("a is distinct from ('b' || c)", "NOT a <=> CONCAT('b', c)"),
        ("a like any ('x', 'y%')", "a LIKE 'x' OR a LIKE 'y%'"),
        ("m['a'] = 1 and a[-1].b = 2", "m.a = 1 AND ELEMENT_AT(ELEMENT_AT(a, -1), 'b') = 2"),
        ("element_at(a, 2) = element_at(a, 1 + 1)", "a[1] = ELEMENT_AT(a, 1 + 1)"),
        (
            "5 in a and not array_contains(a, 6)",
            "ANY each IN a SATISFIES (5 = each) AND NOT ANY each IN a SATISFIES (6 = each)",
        ),
        ("cast(a as double) > 1_000 -- x", "NUMBER(a) > 1000"),
        ("try_cast(a as decimal(5, 2)) = 1", "DECIMAL(a, 5, 2) = 1"),
        (
            "date_add(a, 2) > date('2026-01-31')",
            "DATE(TIMESTAMP(a)) + INTERVAL '2' DAY > DATE(TIMESTAMP '2026-01-31')",
        ),
        ("date_sub(a, b) = a", "DATE(TIMESTAMP(a)) - INTERVAL(BIGINT(b) * 86400) = TIMESTAMP(a)"),
    ],
)
def test_the_canonical_text(text: str, canonical: str) -> None:
    assert format_expression(compile_filter(text).expression) == canonical


def test_paths_are_the_attributes_read() -> None:
    compiled = compile_filter("data.a = data.b[0] + 1 OR EXISTS(c) OR d IN (e, 1)")
    assert compiled.paths == frozenset(map(parse_path, ["data.a", "data.b[0]", "c", "d", "e"]))


def test_an_event_may_be_any_mapping_and_hold_any_sequence() -> None:
    from collections import UserDict, UserList

    event = UserDict(data=UserDict(a=UserList([1, UserDict(b=2)])))
    assert compile_filter("data.a[1].b = 2 AND data.a[0] = 1").matches(event)


def test_subclasses_of_the_json_types_count_as_them() -> None:
    class Text(str): ...

    class AssembledRecord(int): ...

    class Real(float): ...

    event = {"a": Text("x"), "b": AssembledRecord(5), "c": Real(0.1)}
    assert compile_filter("a = 'x' AND a IN ('x') AND b = 5 AND b IN (5) AND c = 0.1 AND c IN (0.1)").matches(
        event
    )
    assert compile_filter("b + c = 5.1 AND b < 5.5 AND c > b - 5 AND a LIKE 'x%'").matches(event)
