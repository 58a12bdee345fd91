"""Hostile filters in every dialect are rejected by a limit, or handled in linear time."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from tests.filters.test_limits import COMPILE_S, quickly
from tests.yardstick import slowness

from fieldfare.filters import (
    Filter,
    FilterError,
    compile_filter,
    decode_normal_form,
    encode_normal_form,
    format_expression,
)
from fieldfare.filters.drafts import CONJUNCTIONS_MAX
from fieldfare.filters.filter import DIALECTS
from fieldfare.filters.text import PROBLEMS_MAX

LINEAR_S = 0.25
"""Maximum seconds for 64 KiB of the dialects that do not limit parts, on an idle machine."""

EVENTS: list[dict[str, Any]] = [
    {},
    {"a": 1, "type": "x", "source": "y"},
    {"a": [1, "b", {"x": 1}, [2, 3], None, 5], "data": {"a": "Aaaa" * 10}},
]


def exactly(name: str) -> dict[str, Any]:
    return {"exact": {name: "x"}}


def nested(count: int, before: str, inside: str, after: str) -> str:
    return before * count + inside + after * count


ANY = [{"any": [exactly(f"a{i}"), exactly(f"b{i}")]} for i in range(1_000)]

REFUSED = {
    "sql": [
        ("[" * 1_000_000, "too long"),
        ("[" * 60_000, "too large"),
        ("{" * 65_000, "unexpected character"),
        ("a = 'x\ud800'", "half of a character"),
        ("a \0 b", "unexpected character"),
        ("CONCAT(" + "a, " * 4_000 + "a) = 'x'", "CONCAT takes 2 to 100"),
    ],
    "cesql": [
        ("(" * 1_000_000, "too long"),
        ("{" * 1_000_000, "too long"),
        ("(" * 4_000, "nested too deeply"),
        ("a IN (" + ",".join(map(str, range(100_000))) + ")", "too long"),
        ("a = " + "9" * 10_000, "an integer of CESQL lies between"),
        ("a = 'x\ud800'", "half of a character"),
        ("a \0 b", "unexpected character"),
    ],
    "subscriptions": [
        ("[" * 1_000_000, "too long"),
        ('{"not":' * 140_000, "too long"),
        ("[" * 65_000, "nested too deeply"),
        (nested(5_000, '{"not":', "{}", "}"), "nested too deeply"),
        (nested(5_000, '{"any":[', "{}", "]}"), "nested too deeply"),
        (json.dumps([exactly("a")] * 100_000), "too long"),
        ('{"exact": {"a": ' + "9" * 10_000 + "}}", "at most 1,000 digits"),
        ('{"exact": {"a": "\ud800"}}', "half of a character"),
        (r'{"exact": {"a": "\ud800"}}', "half of a character"),
        (json.dumps({"cesql": " AND ".join(["a"] * 4_000)}), "too large"),
        ("{" + '"": [], ' * 5_000 + '"": []}', "twice"),
    ],
    "eventbridge": [
        ("[" * 1_000_000, "too long"),
        ('{"a":' * 200_000, "too long"),
        (nested(5_000, '{"a":', "[1]", "}"), "nested too deeply"),
        (json.dumps({"a": list(range(100_000))}), "too long"),
        (nested(40, '{"a": ["x"], "$or": [{"b": ["1"]}, {"c": ', '{"a": ["x"]}', "}]}"), "nested too deeply"),
        ('{"a": [{"wildcard": "' + "*a" * 30_000 + '"}]}', "at most 4,096 characters"),
        ('{"a": [' + "9" * 10_000 + "]}", "at most 1,000 digits"),
        ('{"a": [1e999999999]}', "between 1e-1000 and 1e1000"),
        (r'{"a": ["\ud800"]}', "half of a character"),
        (
            nested(40, '{"a":', json.dumps({f"a{i}": ["x", {"exists": False}] for i in range(200)}), "}"),
            "6,000",
        ),
        ("{" + '"": [true], ' * 4_000 + '"": []}', "twice"),
    ],
}

TAKEN = {
    "sql": [
        "a = 'x\0y'",
        " AND ".join(f"(a{i} = 1 OR b{i} = 1)" for i in range(30)),
        "NOT (" + " OR ".join(f"(a{i} = 1 AND b{i} = 1)" for i in range(30)) + ")",
        " AND ".join(f"(a{i} > {i} OR NOT b{i} = 'x' OR c{i} LIKE '%y{i}%')" for i in range(230)),
        "a IN (" + "1,b," * 2_000 + "2)",
        nested(20, "ANY i IN i SATISFIES (", " OR ".join(f"i LIKE '{k}%'" for k in range(150)), ")"),
        nested(45, "NOT ANY i IN i.a SATISFIES (", " OR ".join(f"i.b = {k}" for k in range(90)), ")"),
    ],
    "cesql": [
        "a = 'x\0y'",
        "a IN (" + ",".join(["1"] * 30_000) + ")",
        "a IN (" + ",".join(map(str, range(10_000))) + ")",
        " AND ".join(f"(a{i} = 1 OR b{i} = 1)" for i in range(30)),
        " AND ".join(f"(a{i} = 1 OR b{i} = 1)" for i in range(400)),
        "NOT (" + " OR ".join(f"(a{i} = 1 AND b{i} = 1)" for i in range(30)) + ")",
        "a = 1" + "".join(f" OR b{i} = 2 AND c{i} = 3" for i in range(30)),
        "EXISTS subject AND NOT (" + " OR ".join(["s > 10"] * 206) + ")",
        "a = 'x'" + " AND b" * 2_000,
        "a LIKE '" + "%a" * 2_000 + "'",
    ],
    "subscriptions": [
        r'{"exact": {"a": "\u0000"}}',
        json.dumps(ANY[:30]),
        json.dumps(ANY),
        json.dumps({"not": {"any": [{"all": [each, {"not": exactly("c")}]} for each in ANY[:500]]}}),
        json.dumps({"all": [exactly("a")] * 2_000}),
        nested(90, '{"not":', json.dumps(exactly("a")), "}"),
        nested(45, '{"all":[', json.dumps(exactly("a")), "]}"),
        json.dumps({"exact": {f"a{i}": "x" for i in range(4_000)}}),
        json.dumps([{"cesql": f"a{i} = 1 OR b{i} > 2"} for i in range(1_300)]),
    ],
    "eventbridge": [
        r'{"a": ["\u0000"]}',
        nested(95, '{"a":', "[1]", "}"),
        '{"a": [' + ",".join(map(str, range(11_000))) + "]}",
        '{"a": [{"wildcard": "' + "*a" * 2_000 + '"}]}',
        '{"a": [' + ",".join(f'{{"wildcard":"{"*ab" * 20}{i}"}}' for i in range(700)) + "]}",
        json.dumps({f"a{i}": ["x", {"prefix": "y"}] for i in range(1_800)}),
        json.dumps({f"a{i}": [{"anything-but": ["x"]}, {"exists": False}] for i in range(1_000)}),
        '{"a": [' + ",".join(f'{{"equals-ignore-case":"abcdefgh{i}"}}' for i in range(1_500)) + "]}",
        '{"a": [' + ",".join(f'{{"cidr":"10.{i // 250}.{i % 250}.0/24"}}' for i in range(2_500)) + "]}",
        nested(20, '{"a": ["x"], "$or": [{"b": ["1"]}, {"c": ["2"], "d": ', '{"a": ["x"]}', "}]}"),
        nested(30, '{"$or": [{"a": ["x"]}, {"c": ', '{"z": ["1"]}', "}]}"),
        nested(20, '{"a":', json.dumps({f"a{i}": ["x", {"anything-but": "y"}] for i in range(400)}), "}"),
    ],
}


@pytest.mark.parametrize(
    ("dialect", "text", "message"),
    [(dialect, *case) for dialect, cases in REFUSED.items() for case in cases],
    ids=lambda text: text[:20],
)
def test_filters_beyond_a_limit_are_rejected_quickly(dialect: str, text: str, message: str) -> None:
    def refused() -> FilterError:
        with pytest.raises(FilterError) as caught:
            compile_filter(text, dialect)
        return caught.value

    error = quickly(refused, LINEAR_S)
    assert 1 <= len(error.problems) <= PROBLEMS_MAX
    assert len(str(error)) < 5_000
    assert message in error.problems[0].message


@pytest.mark.long
@pytest.mark.parametrize(
    ("dialect", "text"),
    [(dialect, text) for dialect, texts in TAKEN.items() for text in texts],
    ids=lambda text: text[:20],
)
def test_valid_filters_are_compiled_and_evaluated_quickly(dialect: str, text: str) -> None:
    limit_s = COMPILE_S if dialect == "sql" else LINEAR_S

    def compiled_with_normal_form() -> Filter:
        compiled = compile_filter(text, dialect)
        assert len(compiled.normal_form.conjunctions) <= CONJUNCTIONS_MAX
        return compiled

    compiled = quickly(compiled_with_normal_form, limit_s)
    for event in EVENTS:
        matches = quickly(lambda event=event: compiled.matches(event), limit_s)
        assert matches is (quickly(lambda event=event: compiled.evaluate(event), limit_s).value is True)
    assert decode_normal_form(encode_normal_form(compiled.normal_form)) == compiled.normal_form


def test_deeply_nested_and_and_or_have_no_text() -> None:
    text = "a = 1" + "".join(f" OR b{i} = 2 AND c{i} = 3" for i in range(30))
    compiled = compile_filter(text, "cesql")
    with pytest.raises(FilterError, match="exceed the maximum size of a filter"):
        quickly(lambda: format_expression(compiled.expression), COMPILE_S)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("repeated", ["9", "9.", "a", " ", "\\", "*", "%", "1e", "0"])
def test_long_repetitions_are_parsed_in_linear_time(repeated: str, dialect: str) -> None:
    run = repeated * (60_000 // len(repeated))
    for start, end in [("", "LL = a"), ("a = INTERVAL '5", "!'"), ('{"a": ["', '"]}'), ('{"a": [', "x]}")]:
        started = time.process_time()
        with suppress(FilterError):
            compile_filter(start + run + end, dialect)
        taken_s = time.process_time() - started
        assert taken_s < 1 or taken_s < slowness()
