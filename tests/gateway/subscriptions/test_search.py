"""The search in the subscriptions of a space, by text in id or filter, a bounded number at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from gateway_support import SUBSCRIPTIONS, Running, run, running

from fieldfare.gateway import subscription_store


async def found(r: Running, text: str, limit: int = 100) -> list[str]:
    ids: list[str] = []
    query: dict[str, str] = {"search": text, "limit": str(limit)}
    while True:
        answer = await r.client.get(SUBSCRIPTIONS, params=query)
        assert answer.status_code == 200, answer.text
        ids += [each["id"] for each in answer.json()["subscriptions"]]
        if answer.json()["next"] is None:
            return ids
        query["after"] = answer.json()["next"]


@pytest.mark.parametrize("searched", [2, 3, 50_000])
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_every_subscription_with_the_text_is_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, searched: int, limit: int
) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            for id, filter in {
                "a1": "data.Price > 1",
                "a2": "data.size = '100%'",
                "b_price": "data.x = 1",
                "c": "data.x LIKE 'a_b'",
                "d": "data.x = 'PRICE'",
                "e": r"data.x = 'c:\dir'",
            }.items():
                await r.subscribe(id, filter)
            monkeypatch.setattr(subscription_store, "SEARCHED_MAX", searched)
            assert await found(r, "price", limit) == ["a1", "b_price", "d"]
            assert await found(r, "0%", limit) == ["a2"], "% is no wildcard"
            assert await found(r, "a_b", limit) == ["c"], "_ is no wildcard"
            assert await found(r, r"c:\d", limit) == ["e"]
            assert await found(r, "nowhere", limit) == []

    run(work)


def test_a_search_for_nothing_or_with_another_order_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            for query in ("search=", f"search={'x' * 201}", "search=a&sort=backlog", "search=a&search=b"):
                answer = await r.client.get(f"{SUBSCRIPTIONS}?{query}")
                assert (answer.status_code, answer.json()["parameter"]) == (400, "search"), query

    run(work)
