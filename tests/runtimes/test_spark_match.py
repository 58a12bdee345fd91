"""The DataFrame API: one row for each match, in a batch or a stream, on any Spark."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fieldfare.filters import compile_filter
from fieldfare.spark import SubscriptionsError, match, save_index

pytestmark = pytest.mark.spark

SCHEMA = (
    "id int, price double, symbol string, day date, exact decimal(20,3), "
    "data struct<kind: string, sizes: array<int>>, labels map<string, string>"
)
ROWS: list[tuple[Any, ...]] = [
    (1, 18.25, "YHOO", datetime.date(2013, 1, 1), Decimal("1.125"), ("a", [1, 2]), {"team": "red"}),
    (2, 18.5, "IBM", None, Decimal("99999999999999999.125"), ("b", []), None),
    (3, None, "YHOO", datetime.date(2013, 1, 2), None, None, {"team": "blue"}),
]
FILTERS = {
    "cheap": "price < 18.5",
    "yahoo": "symbol = 'YHOO'",
    "unknown price": "price IS NULL",
    "computed": "price * 2 > id + 35",
    "nested": "data.kind = 'b' OR data.sizes[1] = 2",
    "exact": "exact = 99999999999999999.125",
    "day": "day >= '2013-01-02'",
    "label": "labels.team LIKE 'r%'",
    "never": "id > 3",
}


@pytest.fixture(scope="module")
def events(session: SparkSession) -> DataFrame:
    return session.createDataFrame(ROWS, SCHEMA)


@pytest.fixture(scope="module")
def subscriptions(session: SparkSession) -> DataFrame:
    return session.createDataFrame(list(FILTERS.items()), "id string, filter string")


def found(matches: DataFrame) -> dict[str, list[int]]:
    result: dict[str, list[int]] = {name: [] for name in FILTERS}
    for row in matches.collect():
        result[row.subscription].append(row.id)
    return {name: sorted(ids) for name, ids in result.items()}


def expected() -> dict[str, list[int]]:
    """Return the rows' matches according to the filters' own evaluators."""
    names = ["id", "price", "symbol", "day", "exact", "data", "labels"]
    result = {}
    for name, text in FILTERS.items():
        condition = compile_filter(text)
        result[name] = [
            row[0] for row in ROWS if condition.matches(_event(dict(zip(names, row, strict=True))))
        ]
    return result


def _event(row: dict[str, Any]) -> dict[str, Any]:
    if row["data"] is not None:
        row["data"] = dict(zip(("kind", "sizes"), row["data"], strict=True))
    if row["day"] is not None:
        row["day"] = row["day"].isoformat()
    return row


def test_each_match_is_a_row_with_the_event_and_the_subscription(
    events: DataFrame, subscriptions: DataFrame
) -> None:
    matches = match(events, subscriptions)
    assert matches.columns == ["subscription", *events.columns]
    assert found(matches) == expected()
    (row,) = matches.where("subscription = 'label'").collect()
    assert row.asDict(recursive=True) | {"subscription": ""} == {
        "subscription": "", **events.where("id = 1").first().asDict(recursive=True)
    }  # fmt: skip


def test_a_saved_index_gives_the_same_and_keep_limits_the_columns(
    events: DataFrame, subscriptions: DataFrame, tmp_path: Path
) -> None:
    assert save_index(subscriptions, tmp_path / "index") == len(FILTERS)
    matches = match(events, tmp_path / "index", keep=["id"])
    assert matches.columns == ["subscription", "id"]
    assert found(matches) == expected()
    # Written again from other subscriptions, it is another index, also for this session.
    save_index([("yahoo", FILTERS["yahoo"])], tmp_path / "index")
    assert match(events, str(tmp_path / "index"), keep=[]).collect() == [("yahoo",), ("yahoo",)]


def test_a_saved_index_without_a_manifest_is_read_as_it_is(
    events: DataFrame, subscriptions: DataFrame, tmp_path: Path
) -> None:
    """Until there were slices, a folder had one part, and nothing that named it."""
    save_index(subscriptions, tmp_path / "index")
    (tmp_path / "index" / "manifest.json").unlink()
    (part,) = (tmp_path / "index").glob("*.part")
    part.rename(tmp_path / "index" / "index.part")
    assert found(match(events, tmp_path / "index", keep=["id"])) == expected()
    assert save_index(subscriptions, tmp_path / "index") == len(FILTERS)
    assert found(match(events, tmp_path / "index", keep=["id"])) == expected()


def test_a_stream_of_events_is_matched_too(
    session: SparkSession, events: DataFrame, subscriptions: DataFrame, tmp_path: Path
) -> None:
    events.write.parquet(str(tmp_path / "events"))
    stream = session.readStream.schema(events.schema).parquet(str(tmp_path / "events"))
    query = (
        match(stream, subscriptions, keep=["id"])
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "matches"))
    )
    assert query.awaitTermination(120)
    assert found(session.read.parquet(str(tmp_path / "matches"))) == expected()


def test_filters_that_cannot_work_are_refused_with_their_place_and_a_hint(
    session: SparkSession, events: DataFrame, tmp_path: Path
) -> None:
    bad = {"typo": "id = 1 AND prise < 3", "syntax": "price <", "short": "kind = 'a'"}
    with pytest.raises(SubscriptionsError) as raised:
        match(events, session.createDataFrame(list(bad.items()), "id string, filter string"))
    text = str(raised.value)
    assert raised.value.count == 3
    assert "'typo': line 1, column 12: the events have no attribute prise" in text
    assert "did you mean price?" in text
    assert "'syntax': line 1" in text
    assert "did you mean data.kind?" in text
    save_index([("typo", bad["typo"]), ("fine", "id = 1")], tmp_path / "index")
    with pytest.raises(SubscriptionsError, match="column 12: the events have no attribute prise"):
        match(events, tmp_path / "index")
    # A schema of one's own says what events of other days may have.
    wider = StructType.fromDDL(SCHEMA + ", prise double")
    assert match(events, tmp_path / "index", wider).count() == 1


def test_only_the_first_ten_bad_subscriptions_are_listed(tmp_path: Path) -> None:
    with pytest.raises(SubscriptionsError) as raised:
        save_index([(f"s{i}", "x >") for i in range(25)], tmp_path / "index")
    assert raised.value.count == 25
    assert len(raised.value.problems) == 10
    assert str(raised.value).endswith("... and 15 more")
    with pytest.raises(SubscriptionsError, match="more than one"):
        save_index([("a", "x > 1"), ("a", "x > 2")], tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_columns_that_are_not_there_or_in_the_way_are_named(
    events: DataFrame, subscriptions: DataFrame
) -> None:
    with pytest.raises(ValueError, match="'nothing'"):
        match(events, subscriptions, keep=["nothing"])
    with pytest.raises(ValueError, match="called 'subscription'"):
        match(events.withColumnRenamed("id", "subscription"), subscriptions)
    with pytest.raises(ValueError, match="id and filter"):
        match(events, subscriptions.drop("filter"))
