"""``fieldfare.spark.match`` over encrypted columns: a job that never sees what it matches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from fieldfare.client.encryption import SpaceKey
from fieldfare.client.records import NewSubscription
from fieldfare.filters import compile_filter
from fieldfare.spark import SubscriptionsError, match, save_index

pytestmark = pytest.mark.spark

FILTERS = {
    "cheap": "data.price < 18.5",
    "exact": "data.price = 18.5 AND data.symbol = 'YHOO'",
    "others": "data.symbol <> 'YHOO'",
    "never": "data.price > 499.99 AND data.price < 500",
}
EVENTS = [
    {"price": 18.49, "symbol": "YHOO"},
    {"price": 18.5, "symbol": "YHOO"},
    {"price": 18.5},
    {"symbol": "A"},
]


@pytest.fixture(scope="module")
def key() -> SpaceKey:
    return SpaceKey.generate({"data.price": (0, 500, "0.01")}, ["data.symbol"])


@pytest.fixture(scope="module")
def subscriptions(session: SparkSession, key: SpaceKey) -> DataFrame:
    rows = [(id, key.seal_filter(NewSubscription(text)).filter, "aspe") for id, text in FILTERS.items()]
    return session.createDataFrame(rows, "id string, filter string, dialect string")


def encrypted_events(session: SparkSession, key: SpaceKey) -> DataFrame:
    lines = key.seal_lines([json.dumps({"data": each}).encode() for each in EVENTS])
    rows = [(n, json.loads(line)["data"]) for n, line in enumerate(lines)]
    tokens = ", ".join(f"`{key.epoch.name_of(name)}`: string" for name in key.texts)
    schema = f"place int, data struct<e: int, v: string, t: struct<{tokens}>, c: string>"
    return session.createDataFrame(rows, schema)


def expected() -> set[tuple[str, int]]:
    return {
        (id, n)
        for id, text in FILTERS.items()
        for n, each in enumerate(EVENTS)
        if compile_filter(text).matches({"data": each})
    }


def test_encrypted_columns_are_matched_by_encrypted_filters(
    session: SparkSession, key: SpaceKey, subscriptions: DataFrame, tmp_path: Path
) -> None:
    events = encrypted_events(session, key)
    found = match(events, subscriptions, keep=["place"]).collect()
    assert {(row.subscription, row.place) for row in found} == expected()
    save_index(subscriptions, tmp_path / "index")
    found = match(events, str(tmp_path / "index"), keep=["place"]).collect()
    assert {(row.subscription, row.place) for row in found} == expected()


def test_encrypted_and_plain_subscriptions_are_not_mixed(
    session: SparkSession, key: SpaceKey, subscriptions: DataFrame
) -> None:
    events = encrypted_events(session, key)
    plain = session.createDataFrame([("p", "place > 1", "sql")], subscriptions.schema)
    with pytest.raises(SubscriptionsError, match="match them in separate calls"):
        match(events, subscriptions.unionByName(plain))
    with pytest.raises(SubscriptionsError, match=r"no data\.v"):
        match(events.select("place"), subscriptions)
