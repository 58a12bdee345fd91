"""Attributes that a DataFrame's rows cannot have, or have in another type, are reported without a read."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, DateType, DoubleType, StringType, StructType, TimestampNTZType

from fieldfare.runtimes.spark.compile import compile_rows

ITEM = StructType().add("sku", StringType()).add("price", DoubleType())
SCHEMA = (
    StructType()
    .add("day", DateType())
    .add("local", TimestampNTZType())
    .add("squawk", StringType())
    .add("tags", ArrayType(StringType()))
    .add("items", ArrayType(ITEM))
    .add("best", ITEM)
)


def problem_of(text: str) -> str | None:
    (problem,) = compile_rows([("s", text, "sql")], SCHEMA).column("problem").to_pylist()
    return None if problem is None else str(problem)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "ANY item IN items SATISFIES (item.prce > 5)",
            "no element of items has prce",
            "there is sku, price",
        ),
        ("items[-1].prce > 5", "no element of items has prce", "there is sku, price"),
        (
            "ELEMENT_AT(best, 'prce') > 5",
            "the events have no attribute best.prce",
            "did you mean best.price?",
        ),
        ("ANY t IN tags SATISFIES (t.name = 'x')", "no element of tags has name", ""),
        ("tags[-1] = 5", "ELEMENT_AT(tags, -1) has strings", "write ELEMENT_AT(tags, -1) = '5'"),
        ("COALESCE(squawk, '') = 1000", "COALESCE(squawk, '') has strings", "'1000'"),
        ("local LIKE '2017-07-28 %'", "which LIKE matches as texts such as 2017-07-28T09:00:00", "TIMESTAMP"),
    ],
)
def test_filters_that_can_never_match_are_refused(text: str, message: str, hint: str) -> None:
    problem = problem_of(text)
    assert problem is not None
    assert message in problem
    assert hint in problem
    assert problem.startswith("line 1, column ")


@pytest.mark.parametrize(
    "text",
    [
        "ANY item IN items SATISFIES (item.price > 5 AND item.sku = 'a') AND items[-1].sku = 'x'",
        "ELEMENT_AT(best, 'price') > 5 AND tags[-1] = 'x' AND items[0].price > 5",
        "day >= '2017-07' AND YEAR(day) = 2017 AND HOUR(local) = 3 AND local >= DATE '2017-07-28'",
    ],
)
def test_filters_that_may_match_are_accepted(text: str) -> None:
    assert problem_of(text) is None
