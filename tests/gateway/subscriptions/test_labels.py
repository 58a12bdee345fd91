"""Owner and labels of subscriptions over HTTP: stored, changed, found; hostile values are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gateway_support import SUBSCRIPTIONS, Running, event, run, running

from fieldfare.gateway import subscription_store
from fieldfare.gateway.delivery import backlogs

ANN = {"owner": "ann", "labels": {"team": "payments", "env": "prod"}}
FILTER = {"filter": "data.x = 1"}


async def put(r: Running, id: str, **body: Any) -> dict[str, Any]:
    answer = await r.client.put(f"{SUBSCRIPTIONS}/{id}", json={**FILTER, **body})
    assert answer.status_code in (200, 201), answer.text
    found: dict[str, Any] = answer.json()
    return found


async def get(r: Running, id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await r.client.get(f"{SUBSCRIPTIONS}/{id}")).json()
    return found


def said(document: dict[str, Any]) -> tuple[Any, Any]:
    return document.get("owner"), document.get("labels")


async def found(r: Running, query: str) -> list[str]:
    """Return the ids of all pages, each of which must be found once."""
    ids: list[str] = []
    after: str | None = None
    for _ in range(100):
        more = "" if after is None else f"&after={after}"
        answer = await r.client.get(f"{SUBSCRIPTIONS}?{query}{more}")
        assert answer.status_code == 200, answer.text
        ids += [each["id"] for each in answer.json()["subscriptions"]]
        after = answer.json()["next"]
        if after is None:
            return ids
    raise AssertionError("the pages do not end")


def test_owner_and_labels_are_stored_changed_and_removed(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            first = await put(r, "a", **ANN)
            assert said(first) == ("ann", {"env": "prod", "team": "payments"})
            assert said(await put(r, "a", filter="data.x = 2")) == said(first), "a new filter leaves them"
            second = await put(r, "a", filter="data.x = 2", labels={"tier": "1"})
            assert said(second) == ("ann", {"tier": "1"}), "a PUT replaces all labels"
            assert said(await put(r, "a", filter="data.x = 2", owner=None, labels=None)) == (None, None)
            path = f"{SUBSCRIPTIONS}/a"
            for change, after in (
                ({"owner": "bob", "labels": {"x": "1", "y": ""}}, ("bob", {"x": "1", "y": ""})),
                ({"labels": {"x": "2", "y": None, "z": None}}, ("bob", {"x": "2"})),
                ({"owner": None}, (None, {"x": "2"})),
                ({"labels": {}}, (None, {"x": "2"})),
                ({"labels": None}, (None, None)),
                ({"delivery": {"max_attempts": 2}, "owner": "eve"}, ("eve", None)),
            ):
                answer = await r.client.patch(path, json=change)
                assert (answer.status_code, said(answer.json())) == (200, after), change
                assert answer.json()["revision"] == second["revision"], "no new version of the filter"
            assert await get(r, "a") == answer.json()
        async with running(tmp_path) as r:
            assert said(await get(r, "a")) == ("eve", None), "after a restart"

    run(work)


def test_a_change_of_labels_starts_nothing_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await put(r, "a", delivery={"max_attempts": 5})
            await r.publish(event(data={"x": 1}))
            r.pipeline.step()
            (message,) = await r.pull("a")
            before = r.gateway.registry.revision()
            await r.client.patch(f"{SUBSCRIPTIONS}/a", json={"labels": {"env": "prod"}, "owner": "ann"})
            assert r.gateway.registry.revision() == before
            await r.ack("a", message["position"])
            backlog = (await r.client.get(f"{SUBSCRIPTIONS}/a/backlog")).json()
            assert (backlog["pending"], backlog["in_flight"]) == (0, 0)

    run(work)


def test_posts_of_one_and_of_many(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            one = {"id": "one", **FILTER, **ANN}
            for status in (201, 200):
                answer = await r.client.post(SUBSCRIPTIONS, json=one)
                assert (answer.status_code, said(answer.json())) == (status, ("ann", ANN["labels"]))
            for other in ({"owner": "bob"}, {"labels": {}}):
                answer = await r.client.post(SUBSCRIPTIONS, json={**one, **other})
                assert answer.status_code == 409
            items = [
                {"id": "a", **FILTER, **ANN},
                {"id": "b", **FILTER, "labels": {"env": 3}},
                {"id": "c", **FILTER, "owner": ["ann"]},
                {"id": "d", **FILTER, "labels": "env=prod"},
                {"id": "one", **FILTER, "labels": {"env": "test"}},
                {"id": "e", **FILTER, "owner": None, "labels": None},
            ]
            answer = (await r.client.post(SUBSCRIPTIONS, json={"subscriptions": items})).json()
            assert (answer["created"], answer["replaced"]) == (2, 1)
            pointers = [(each["id"], each["pointer"]) for each in answer["refused"]]
            assert pointers == [("b", "/labels/env"), ("c", "/owner"), ("d", "/labels")]
            listed = (await r.client.get(SUBSCRIPTIONS)).json()["subscriptions"]
            assert {each["id"]: said(each) for each in listed} == {
                "a": ("ann", ANN["labels"]),
                "e": (None, None),
                "one": ("ann", {"env": "test"}),
            }
            mixed = {"subscriptions": items[:1], "owner": "ann"}
            assert (await r.client.post(SUBSCRIPTIONS, json=mixed)).status_code == 400

    run(work)


HOSTILE: list[tuple[str, str]] = [
    ('{"owner": ""}', "/owner"),
    ('{"owner": " ann"}', "/owner"),
    ('{"owner": 7}', "/owner"),
    ('{"owner": "a\\u0000b"}', "/owner"),
    ('{"owner": "a\\u202eb"}', "/owner"),
    ('{"owner": "%s"}' % ("x" * 256), "/owner"),
    ('{"labels": []}', "/labels"),
    ('{"labels": {"": "x"}}', "/labels/"),
    ('{"labels": {"a=b": "x"}}', "/labels/a=b"),
    ('{"labels": {"a b": "x"}}', "/labels/a b"),
    ('{"labels": {"a\\n": "x"}}', "/labels/a\n"),
    ('{"labels": {"-a/~": "x"}}', "/labels/-a~1~0"),
    ('{"labels": {"\\u00e9": "x"}}', "/labels/\u00e9"),
    ('{"labels": {"%s": "x"}}' % ("k" * 64), "/labels/" + "k" * 64),
    ('{"labels": {"%s": "x"}}' % ("k" * 9_000), "/labels/" + "k" * 80),
    ('{"labels": {"a": 1}}', "/labels/a"),
    ('{"labels": {"a": {"b": "c"}}}', "/labels/a"),
    ('{"labels": {"a": "x\\ny"}}', "/labels/a"),
    ('{"labels": {"a": "x\\u2028y"}}', "/labels/a"),
    ('{"labels": {"a": "%s"}}' % ("v" * 256), "/labels/a"),
    (json.dumps({"labels": {f"k{n}": "" for n in range(33)}}), "/labels"),
]


@pytest.mark.parametrize(("text", "pointer"), HOSTILE)
def test_hostile_owners_and_labels_are_refused_with_their_place(
    tmp_path: Path, text: str, pointer: str
) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await put(r, "a", **ANN)
            headers = {"content-type": "application/json"}
            answer = await r.client.patch(f"{SUBSCRIPTIONS}/a", content=text.encode(), headers=headers)
            assert (answer.status_code, answer.json()["pointer"]) == (400, pointer), answer.text
            assert len(answer.content) < 1_000
            whole = '{"filter": "true", ' + text[1:]
            answer = await r.client.put(f"{SUBSCRIPTIONS}/b", content=whole.encode(), headers=headers)
            assert (answer.status_code, answer.json()["pointer"]) == (400, pointer), answer.text
            assert said(await get(r, "a")) == ("ann", ANN["labels"])

    run(work)


def test_odd_but_harmless_values_are_kept_as_they_are(tmp_path: Path) -> None:
    labels = {
        "__proto__": "constructor",
        "app.kubernetes.io/name": "a=b&c=d",
        "push": '{"url": "https://x"}',
        "k" * 63: "v" * 255,
        "quote": "'; DROP TABLE labels; --",
        "wild": "100%_\\",
        "empty": "",
        "unicode": "Zürich 東京 \U0001f600",
    }

    async def work() -> None:
        async with running(tmp_path) as r:
            await put(r, "a", owner="<b>'\"%_&", labels=labels)
            await put(r, "b", labels={"wild": "100 of them"})
            assert said(await get(r, "a")) == ("<b>'\"%_&", labels)
            for key, value in labels.items():
                answer = await r.client.get(SUBSCRIPTIONS, params={"label": f"{key}={value}"})
                assert [each["id"] for each in answer.json()["subscriptions"]] == ["a"], key
            answer = await r.client.get(SUBSCRIPTIONS, params={"owner": "<b>'\"%_&", "search": "100%_"})
            assert [each["id"] for each in answer.json()["subscriptions"]] == ["a"]
            empty = await r.client.patch(f"{SUBSCRIPTIONS}/a", json={})
            assert empty.status_code == 400 and "delivery, owner or labels" in empty.json()["detail"]
        async with running(tmp_path) as r:
            assert said(await get(r, "a")) == ("<b>'\"%_&", labels), "none of them is a push address"

    run(work)


@pytest.mark.parametrize("few", [True, False])
def test_lists_by_owner_and_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: bool) -> None:
    if few:
        monkeypatch.setattr(subscription_store, "SEARCHED_MAX", 2)
        monkeypatch.setattr(backlogs, "LABELLED_MAX", 0)
        monkeypatch.setattr(backlogs, "WALKED_BATCH_SIZE", 1)
        monkeypatch.setattr(backlogs, "WALKED_MAX", 2)

    async def work() -> None:
        async with running(tmp_path) as r:
            await put(r, "a", **ANN)
            await put(r, "b", owner="bob", labels={"team": "payments", "env": "test"})
            await put(r, "c", owner="ann", labels={"team": "ships", "env": "prod"}, filter="data.y = 2")
            await put(r, "d", owner="ann")
            await put(r, "e", labels={"env": "prod", "team": "payments"}, filter="data.y = 2")
            await put(r, "f", filter="data.y = 2")
            await r.publish(event(1, {"x": 1}), event(2, {"y": 2}), event(3, {"y": 2}))
            r.pipeline.step()
            for query, ids in {
                "owner=ann": "acd",
                "label=team%3Dpayments": "abe",
                "label=team": "abce",
                "label=team=payments&label=env=prod": "ae",
                "owner=ann&label=env=prod&label=env=prod": "ac",
                "owner=ann&search=data.y": "c",
                "search=ANN": "acd",
                "search=env%3Dtest": "b",
                "owner=nobody": "",
                "label=env=": "",
            }.items():
                for limit in (1, 2, 100):
                    assert "".join(await found(r, f"{query}&limit={limit}")) == ids, query
            for query, ids in {
                "owner=ann": "cad",
                "label=team": "ceab",
                "owner=ann&label=env=prod": "ca",
                "owner=nobody": "",
            }.items():
                for limit in (1, 2, 100):
                    listed = await found(r, f"{query}&limit={limit}&sort=backlog")
                    assert "".join(listed) == ids, query

    run(work)


def test_wrong_parameters_are_refused_by_name(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            for query, name in {
                "owner=": "owner",
                "owner=a&owner=b": "owner",
                f"owner={'x' * 256}": "owner",
                "label=": "label",
                "label==x": "label",
                "label=a%20b": "label",
                "label=a=%00": "label",
                f"label=a={'x' * 256}": "label",
                "&".join(f"label=k{n}" for n in range(9)): "label",
                "label=a&search=": "search",
                "label=a&search=x&sort=backlog": "search",
                "label=a&sort=owner": "sort",
            }.items():
                answer = await r.client.get(f"{SUBSCRIPTIONS}?{query}")
                assert (answer.status_code, answer.json()["parameter"]) == (400, name), query

    run(work)


def test_long_labels_make_pages_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_store, "PAGE_BYTES", 1_000)
    monkeypatch.setattr(subscription_store, "PAGE_STEP", 1)

    async def work() -> None:
        async with running(tmp_path) as r:
            for id in "abcdef":
                await put(r, id, labels={f"k{n}": "v" * 100 for n in range(5)})
            page = (await r.client.get(SUBSCRIPTIONS)).json()
            assert (len(page["subscriptions"]), page["next"]) == (2, "b")
            assert "".join(await found(r, "limit=100")) == "abcdef"

    run(work)
