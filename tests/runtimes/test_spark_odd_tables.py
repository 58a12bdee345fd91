"""Unusual tables: which of their columns `match` sends to Python, and which it leaves in the JVM."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from fieldfare.spark import Partitioned, SubscriptionsError, match

pytestmark = pytest.mark.spark


def matched(
    session: SparkSession, events: DataFrame, filters: dict[str, str], **options: Any
) -> dict[str, list[tuple[Any, ...]]]:
    """For each filter the rows that it matches, without the subscription's id."""
    subscriptions = session.createDataFrame(list(filters.items()), "id string, filter string")
    found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in filters}
    for row in match(events, subscriptions, **options).collect():
        found[row[0]].append(tuple(row)[1:])
    return {name: sorted(rows) for name, rows in found.items()}


def test_only_the_columns_that_filters_name_go_to_python(session: SparkSession) -> None:
    """A table of two hundred columns was shipped whole for a filter over one, and took most of the time."""
    events = session.range(3).select(
        "id",
        F.struct(F.col("id").alias("price"), F.lit("x" * 1000).alias("unread")).alias("data"),
        *(F.lit(f"text {i}").alias(f"wide_{i}") for i in range(20)),
    )
    filters = {"dear": "data.price >= 2", "second": "id = 1"}
    subscriptions = session.createDataFrame(list(filters.items()), "id string, filter string")
    frame = match(events, subscriptions)
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    calls = re.findall(r"ArrowEvalPython \[run\((.*?)\)#\d+\]", plan)
    assert [re.sub(r"#\d+L?", "", call) for call in calls] == ["id, struct(price, id)"], plan
    assert {(row.subscription, row.id, row.wide_3) for row in frame.collect()} == {
        ("dear", 2, "text 3"),
        ("second", 1, "text 3"),
    }


def test_a_column_of_months_that_no_filter_names_is_kept_as_it_is(session: SparkSession) -> None:
    """A table of contracts with an INTERVAL MONTH could not be matched at all: Arrow has no such type."""
    events = session.sql(
        "SELECT 1 AS id, INTERVAL '3' MONTH AS term, named_struct('term', INTERVAL '2' YEAR, 'n', 5) AS data,"
        " array(INTERVAL '1' MONTH) AS terms, map('a', INTERVAL '1' MONTH) AS named,"
        " parse_json('{\"a\": 1}') AS anything, make_interval(1, 2) AS odd, NULL AS nothing"
    )
    filters = {
        "id": "id = 1",
        "field": "data.n = 5",
        "there": "term IS NOT NULL AND data IS NOT NULL AND terms IS NOT NULL AND named.a IS NOT NULL",
        "incomparable": "odd = 1 OR anything = 1",
        "null": "nothing IS NULL AND terms[0] IS NOT NULL AND odd IS NOT NULL AND anything IS NOT NULL",
    }
    found = matched(session, events, filters, keep=["id"])
    assert {name for name, rows in found.items() if rows == [(1,)]} == {"id", "field", "there", "null"}
    for text in ("term = 3", "data.term = 'x'", "terms[0] = 1"):
        with pytest.raises(SubscriptionsError, match=r"term(s\[0\])? has values that filters do not read"):
            matched(session, events, {"months": text})
    subscriptions = session.createDataFrame([("id", "id = 1")], "id string, filter string")
    kept = match(events, subscriptions, keep=["id", "term", "odd"])
    assert kept.schema["term"].dataType == events.schema["term"].dataType
    assert kept.select(F.col("term").cast("string")).collect() == [("INTERVAL '3' MONTH",)]


@pytest.mark.parametrize("partitioned", [None, Partitioned("hash", matchers=2)], ids=["whole", "partitioned"])
def test_names_with_dots_and_names_that_differ_in_case_are_names_like_others(
    session: SparkSession, partitioned: Partitioned | None
) -> None:
    """Exports of web analytics have columns such as `utm.source`; Spark takes such a name for a path."""
    events = session.createDataFrame([(1, 2, "x", 5), (2, 1, "y", 6)]).toDF(
        "a", "A", "utm.source", "odd `name`"
    )
    filters = {
        "lower": "a = 1",
        "upper": "A = 1",
        "dotted": "\"utm.source\" = 'y'",
        "quotes": '"odd `name`" = 5',
        "all": "TRUE",
    }
    found = matched(session, events, filters, partitioned=partitioned)
    one, two = (1, 2, "x", 5), (2, 1, "y", 6)
    assert found == {"lower": [one], "upper": [two], "dotted": [two], "quotes": [one], "all": [one, two]}
    kept = matched(session, events, filters, keep=["utm.source", "A"], partitioned=partitioned)
    assert kept["all"] == [("x", 2), ("y", 1)]


def test_fields_of_a_struct_that_differ_in_case_are_told_apart(session: SparkSession) -> None:
    """JSON has `id` and `ID` side by side; Spark calls the name of either ambiguous."""
    events = session.createDataFrame(
        [(1, (1, 2)), (2, (2, 1)), (3, None)], "n int, data struct<id: int, ID: int>"
    )
    filters = {"lower": "data.id = 1", "upper": "data.ID = 1", "missing": "NOT EXISTS(data.id)"}
    found = matched(session, events, filters, keep=["n"])
    assert found == {"lower": [(1,)], "upper": [(2,)], "missing": [(3,)]}


def test_two_columns_of_one_name_are_refused_where_one_of_them_is_named(session: SparkSession) -> None:
    """A join gives two columns `id`: a filter that names it is ambiguous, but others still work."""
    events = session.range(2).select("id", F.lit("x").alias("id"), F.col("id").alias("n"))
    assert matched(session, events, {"n": "n = 1"}) == {"n": [(1, "x", 1)]}
    with pytest.raises(ValueError, match="two columns of this name"):
        matched(session, events, {"id": "id = 1"})
    with pytest.raises(ValueError, match="two columns of this name"):
        matched(session, events, {"n": "n = 1"}, keep=["id"])


def test_a_column_called_like_the_result_s_is_refused_whatever_its_case(session: SparkSession) -> None:
    """Spark does not tell `Subscription` from `subscription`: the result could not be queried."""
    events = session.range(1).select("id", F.lit("gold").alias("Subscription"))
    with pytest.raises(ValueError, match="called 'Subscription'"):
        matched(session, events, {"id": "id = 0"})
    found = matched(session, events, {"gold": "Subscription = 'gold'"}, keep=["id"])
    assert found == {"gold": [(0,)]}


def test_a_filter_that_matches_everything_does_not_fill_the_memory(session: SparkSession) -> None:
    """Fifty match-all filters over ten thousand rows come back in pieces, and all of them."""
    events = session.range(0, 10_000, 1, 2)
    filters = [(f"s{i}", "id >= 0") for i in range(50)]
    subscriptions = session.createDataFrame(filters, "id string, filter string")
    assert match(events, subscriptions).count() == 500_000
    counted = match(events, subscriptions).groupBy("subscription").agg(F.sum("id").alias("sum")).collect()
    assert {row.sum for row in counted} == {sum(range(10_000))} and len(counted) == 50


def test_empty_tables_and_tables_without_rows_match_nothing(session: SparkSession) -> None:
    """The first run of a nightly job is over an empty table, and must end with an empty result."""
    empty = session.createDataFrame([], "id int, data struct<x: int>")
    assert matched(session, empty, {"x": "data.x = 1", "all": "TRUE"}) == {"x": [], "all": []}
    rows = session.range(2)
    none = session.createDataFrame([], "id string, filter string")
    assert match(rows, none).collect() == []


def test_values_of_every_type_are_what_the_manual_says(session: SparkSession) -> None:
    """Spark 4.2 has types that no filter can look into; they are there, and compare with nothing."""
    events = session.sql(
        "SELECT CAST('12345678901234567890123456789012345.678' AS DECIMAL(38, 3)) AS exact,"
        " X'00FF' AS raw, TIME'12:30:00.5' AS clock, TIMESTAMP_NTZ'2026-01-02 03:04:05' AS local,"
        " INTERVAL '1' DAY AS wait, "
        " array(named_struct('x', 1), named_struct('x', CAST(NULL AS INT))) AS items,"
        " map(1, 'one') AS by_number, map('k', CAST(NULL AS STRING)) AS by_name,"
        " named_struct('inner', CAST(NULL AS STRUCT<y: INT>)) AS outer"
    )
    true = {
        "exact": "exact = 12345678901234567890123456789012345.678",
        "raw": "raw IS NOT NULL AND NOT IS_SCALAR(raw)",
        "clock": "clock = '12:30:00.5'",
        "local": "local = '2026-01-02T03:04:05'",
        "wait": "wait IS NOT NULL",
        "items": "ANY item IN items SATISFIES (item.x = 1) AND items[1].x IS NULL AND EXISTS(items[1].x)",
        "by_number": "by_number IS NOT NULL",
        "by_name": "EXISTS(by_name.k) AND by_name.k IS NULL AND NOT EXISTS(by_name.other)",
        "outer": "EXISTS(outer.inner) AND outer.inner IS NULL AND NOT EXISTS(outer.inner.y)",
    }
    found = matched(session, events, true, keep=[])
    assert {name: len(rows) for name, rows in found.items()} == dict.fromkeys(true, 1)


def test_a_table_of_subscriptions_may_have_more_columns_of_any_name(session: SparkSession) -> None:
    """The table of alerts has `ID` of another system beside `id`; a stream of alerts cannot be read once."""
    events = session.range(2)
    odd = session.createDataFrame([("s", 7, "id = 1", 3)]).toDF("id", "ID", "filter", "a.b")
    assert [tuple(row) for row in match(events, odd).collect()] == [("s", 1)]
    stream = (
        session.readStream.format("rate").load().select(F.lit("s").alias("id"), F.lit("TRUE").alias("filter"))
    )
    with pytest.raises(ValueError, match="are a stream"):
        match(events, stream)


def test_a_long_name_that_no_column_has_is_shown_in_short(session: SparkSession) -> None:
    """A filter with a name of sixty thousand characters made an error of as many, ten times."""
    with pytest.raises(SubscriptionsError) as raised:
        matched(session, session.range(1), {"s": "x" * 60_000 + " = 1"})
    assert len(str(raised.value)) < 1_000


def test_two_columns_of_timestamps_compare_as_moments(session: SparkSession) -> None:
    """A train that left half a second after it had arrived was not found: 12:00:00.5 was below 12:00:00."""
    events = session.sql(
        "SELECT id, arrived, left, named_struct('at', left) AS data FROM VALUES"
        " (1, TIMESTAMP'2026-03-02 12:00:00Z', TIMESTAMP'2026-03-02 12:00:00.5Z'),"
        " (2, TIMESTAMP'2026-03-02 12:00:00.5Z', TIMESTAMP'2026-03-02 12:00:00Z'),"
        " (3, TIMESTAMP'2026-03-02 12:00:00.50Z', TIMESTAMP'2026-03-02 13:00:00.5+01:00')"
        " AS t(id, arrived, left)"
    )
    filters = {
        "after": "arrived < left",
        "nested": "arrived < data.at",
        "before": "arrived > left",
        "equal": "arrived = left",
        "literal": "left > TIMESTAMP '2026-03-02T12:00:00Z'",
    }
    found = matched(session, events, filters, keep=["id"])
    assert found == {"after": [(1,)], "nested": [(1,)], "before": [(2,)], "equal": [(3,)],
                     "literal": [(1,), (3,)]}  # fmt: skip


def test_dates_and_times_without_a_zone_mean_what_spark_sql_means(session: SparkSession) -> None:
    """`day >= DATE '2017-07-28'` found nothing, and said nothing: a date was no timestamp."""
    rows = " UNION ALL ".join(
        f"SELECT {number} AS id, DATE'{text[:10]}' AS day, TIMESTAMP'{text}Z' AS ts,"
        f" TIMESTAMP_NTZ'{text}' AS local"
        for number, text in enumerate(
            ["2017-07-27 23:59:59.5", "2017-07-28 00:00:00", "2017-07-28 09:00:00", "2018-01-01 12:00:00"]
        )
    )
    zone = session.conf.get("spark.sql.session.timeZone")
    try:
        session.conf.set("spark.sql.session.timeZone", "UTC")
        events = session.sql(rows).localCheckpoint()
        filters = [
            "day >= DATE '2017-07-28'", "day = '2017-07-28'", "YEAR(day) = 2017", "HOUR(local) = 9",
            "local >= TIMESTAMP '2017-07-28T09:00:00Z'", "ts <= TIMESTAMP '2017-07-28 09:00:00'",
            "ts >= '2017-07-28' AND ts < '2017-07-29'", "day < local", "CAST(ts AS DATE) = DATE '2017-07-28'",
            "DATEDIFF(ts, day) = 0 AND DATE_ADD(day, 1) = DATE '2017-07-29'",
            "CASE WHEN YEAR(ts) = 2018 THEN 'new' ELSE 'old' END = 'new'", "NULLIF(id, 2) IS NULL",
            "id IS DISTINCT FROM 1", "GREATEST(id, 2) = 2", "CAST(id AS STRING) LIKE ANY ('1%', '3%')",
        ]  # fmt: skip
        expected = {
            text: [(row.id,) for row in events.where(text).orderBy("id").collect()] for text in filters
        }
        ours = {text.replace("day < local", "TIMESTAMP(day) < TIMESTAMP(local)"): text for text in filters}
        found = matched(session, events, {text: text for text in ours}, keep=["id"])
        assert {ours[text]: ids for text, ids in found.items()} == expected
        assert all(expected.values())
    finally:
        session.conf.set("spark.sql.session.timeZone", zone or "UTC")


def test_comparisons_that_never_fit_a_column_are_refused_with_a_hint(session: SparkSession) -> None:
    """`squawk = 1000` on a column of strings found nothing, for a year."""
    events = session.sql("SELECT '1000' AS squawk, current_timestamp() AS ts, 5 AS price, array('a') AS tags")
    filters = {"squawk": "price = 5 AND squawk = 1000", "text": "ts <= '2017-07-28 09:00:00'"}
    filters |= {"tags": "tags = 'a'", "element": "5 = ANY(tags)", "condition": "price"}
    with pytest.raises(SubscriptionsError) as raised:
        matched(session, events, filters)
    assert "hint: write squawk = '1000', or NUMBER(squawk) = 1000" in str(raised.value)
    assert "line 1, column 15" in str(raised.value)
    assert "hint: write ts <= TIMESTAMP '2017-07-28 09:00:00'" in str(raised.value)
    assert "hint: write 'a' = ANY(tags)" in str(raised.value)
    assert "each element has strings, and cannot be compared with a number" in str(raised.value)
    assert "price has numbers, and is not a condition" in str(raised.value)


def test_strings_that_spark_compares_in_its_own_way_are_refused(session: SparkSession) -> None:
    """`c = 'ab'` on a CHAR(5), and `n = 'AB'` without case, matched in Spark's WHERE and not in a filter."""
    session.sql(
        "CREATE TABLE padded (c CHAR(5), v VARCHAR(5), n STRING COLLATE UTF8_LCASE,"
        " st STRUCT<c: CHAR(3), d: STRING>, tags ARRAY<CHAR(2)>) USING parquet"
    )
    try:
        session.sql(
            "INSERT INTO padded VALUES ('ab', 'ab', 'Ab', named_struct('c', 'x', 'd', 'y'), array('y'))"
        )
        events = session.table("padded")
        refused = {"c = 'ab'": "CHAR(5)", "st.c = 'x'": "CHAR(3)", "'y' = ANY(tags)": "CHAR(2)"}
        refused |= {"tags[0] = 'y'": "CHAR(2)", "n = 'AB'": "collation UTF8_LCASE"}
        for text, what in refused.items():
            with pytest.raises(SubscriptionsError, match=re.escape(what)):
                match(events, [("s", text)])
        with pytest.raises(SubscriptionsError, match="collation UTF8_LCASE"):
            match(
                events,
                [("s", "n = 'AB'", "cesql")],
                StructType([*events.schema, StructField("more", StringType())]),
            )
        found = matched(session, events, {"v": "v = 'ab' AND st.d = 'y' AND st IS NOT NULL"}, keep=["v"])
        assert found == {"v": [("ab",)]}
        plain = events.select(F.rtrim("c").alias("c"), F.collate("n", "UTF8_BINARY").alias("n"))
        assert matched(session, plain, {"both": "c = 'ab' AND n = 'Ab'"})["both"] == [("ab", "Ab")]
    finally:
        session.sql("DROP TABLE padded")


def test_subscriptions_may_be_rows_of_a_program(session: SparkSession) -> None:
    """`match(df, [("a", "id > 1")])` said that it expected a path, as `save_index` took the same list."""
    events = session.range(3)
    rows = [("a", "id > 1"), (7, {"id": [1]}, "eventbridge"), ["b", "id = 0", None]]
    assert {tuple(row) for row in match(events, rows).collect()} == {("a", 2), ("7", 1), ("b", 0)}
    for wrong in (["ab"], [("a",)], [("a", 5)], [{"id": "a", "filter": "b"}], [(["a"], "TRUE")]):
        with pytest.raises(ValueError, match="subscription is"):
            match(events, wrong)


def test_filters_of_a_table_may_be_objects(session: SparkSession) -> None:
    """A column of EventBridge's patterns is a struct, whose other fields are null; it was no JSON."""
    subscriptions = session.sql(
        "SELECT 's' AS id, named_struct('id', array(1), 'name', CAST(NULL AS ARRAY<STRING>)) AS filter,"
        " 'eventbridge' AS dialect"
    )
    assert [tuple(row) for row in match(session.range(3), subscriptions).collect()] == [("s", 1)]
