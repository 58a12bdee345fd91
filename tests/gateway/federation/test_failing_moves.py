"""A move that fails is tried again, and holds up neither other moves nor the links."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from federation_support import Site, sites
from gateway_support import until

from fieldfare.gateway.federation.moving.book import Move
from fieldfare.gateway.federation.moving.sessions import Moves
from fieldfare.gateway.federation.retries import RETRY_MAX_S, RETRY_S, Retries
from fieldfare.gateway.federation.wire import Ended, HandOver
from fieldfare.gateway.federation.wire import Move as Message
from fieldfare.storage import open_moves

LONG = "data.n >= 0 AND data.text NOT IN ('a word', 'another word', 'and a third one')"


def of(id: str) -> str:
    return f"/v1/spaces/default/subscriptions/{id}"


def subscribe(site: Site, others: str, *ids: str, filter: str = "data.n >= 0") -> None:
    for id in ids:
        site.subscribe(id, filter)
    revision = site.gateway.registry.revision()
    until(lambda: site.counts(revision, *others))


def begin(site: Site, to: Site, id: str) -> None:
    site.client.post(f"{of(id)}/move", json={"to": to.name}).raise_for_status()


def is_at(site: Site, id: str) -> bool:
    return site.client.get(of(id)).status_code == 200


def moves_of(site: Site) -> Moves:
    assert site.gateway.federation is not None
    return site.gateway.federation.moves


def test_a_subscription_arrives_where_the_limit_of_filters_was_lowered_meanwhile(tmp_path: Path) -> None:
    """Its broker processed nothing of others any more: an assertion failed in its inbox for ever."""
    with sites(tmp_path, "abc", "ab bc ac") as (a, b, c):
        subscribe(a, "bc", "mine", filter=LONG)
        c.stop()
        begin(a, b, "mine")
        until(lambda: b.brokers()["moves"].get("arriving"))
        b.stop()
        b.settings["filter_max_bytes"] = 64
        b.start()
        c.start()
        until(lambda: is_at(b, "mine"))
        c.client.post("/v1/spaces/default/events", json=[{"specversion": "1.0", "id": "1", "source": "/s",
            "type": "t", "data": {"n": 1, "text": "x"}}],
            headers={"content-type": "application/cloudevents-batch+json"}).raise_for_status()  # fmt: skip
        assert b.take("mine", 1) == [1]


def test_a_message_that_cannot_be_processed_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        subscribe(a, "b", "bad", "good")
        subscribe(b, "a", "other")
        arriving = moves_of(b)._arriving
        ended, failed = arriving.ended, list[str]()

        async def failing(move: Move | None, answer: Ended) -> None:
            if move is not None and move.id == "bad" and len(failed) < 2:
                failed.append(move.id)
                raise RuntimeError("this message is odd")
            await ended(move, answer)

        arriving.ended = failing  # type: ignore[method-assign]
        begin(a, b, "bad")
        until(lambda: b.brokers()["failed_moves"])
        begin(a, b, "good")
        until(lambda: is_at(b, "good"))
        a.publish(1)
        assert b.take("other", 1) == [1], "events cross the link"
        until(lambda: is_at(b, "bad"))
        assert len(failed) == 2 and "this message is odd" in caplog.text
        assert b.brokers()["failed_moves"] == 0
        a.publish(2)
        assert (b.take("bad", 2), b.take("good", 2)) == ([1, 2], [1, 2])


def test_a_step_that_fails_holds_up_no_other_move(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        subscribe(a, "b", "bad", "good")
        arriving = moves_of(b)._arriving
        settle, is_broken = arriving._settle_earlier, [True]

        async def failing(move: Move) -> bool:
            if move.id == "bad" and is_broken[0]:
                raise RuntimeError("its block is odd")
            return await settle(move)

        arriving._settle_earlier = failing  # type: ignore[method-assign]
        begin(a, b, "bad")
        until(lambda: "its block is odd" in b.client.get(f"{of('bad')}/move").text)
        begin(a, b, "good")
        until(lambda: is_at(b, "good"))
        is_broken[0] = False
        until(lambda: is_at(b, "bad"))
        for site in (a, b):
            book = moves_of(site)._book
            until(lambda book=book: not book._progress)
            assert not len(book.retries), "nothing is kept of sessions that are over"


def test_a_message_that_the_disk_does_not_take_is_sent_later(tmp_path: Path) -> None:
    """It was sent after the next start only: the subscription could be read at neither site until then."""
    with sites(tmp_path, "ab", "ab") as (a, b):
        subscribe(a, "b", "mine")
        book, failures = moves_of(a)._book, [0]
        add = book._add

        def full(message: Message) -> None:
            if isinstance(message.step, Ended | HandOver) and failures[0] < 3:
                failures[0] += 1
                raise OSError("no space left on the device")
            add(message)

        book._add = full  # type: ignore[method-assign]
        begin(a, b, "mine")
        until(lambda: is_at(b, "mine"))
        assert failures == [3]


def test_moves_of_a_deleted_space_leave_the_registry(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        for site in (a, b):
            site.client.post("/v1/spaces", json={"name": "s"}).raise_for_status()
        path = "/v1/spaces/s/subscriptions/mine"
        a.client.put(path, json={"filter": "data.n >= 0"}).raise_for_status()
        subscribe(a, "b", "stays")
        a.client.post(f"{path}/move", json={"to": "b"}).raise_for_status()
        begin(a, b, "stays")
        for id in (path, of("stays")):
            until(lambda id=id: b.client.get(id).status_code == 200)
        until(lambda: all(each.is_told for each in moves_of(a)._book.moves.values()))
        for site in (a, b):
            site.client.delete("/v1/spaces/s").raise_for_status()
            store = open_moves(site.gateway.settings.folder.registry_url)
            until(lambda store=store: [each.id for each in store.moves()] == ["stays"])
            store.close()
            assert [each.id for each in moves_of(site)._book.moves.values()] == ["stays"]


def test_a_pause_grows_with_each_failure_and_ends_with_success() -> None:
    now_s = [0.0]
    retries, tried = Retries(lambda: now_s[0]), list[float]()

    async def work() -> bool:
        tried.append(now_s[0])
        if now_s[0] < 100:
            raise OSError("no")
        return True

    def attempt() -> bool:
        return asyncio.run(retries.attempt("x", "it", work))

    while not attempt():
        assert retries.reason("x") == "no"
        now_s[0] += RETRY_S / 2
    assert tried == [0, 1, 3, 7, 15, 31, 63, 63 + RETRY_MAX_S]
    assert not len(retries) and not retries.is_due and attempt()


def test_a_success_that_did_nothing_is_no_failure() -> None:
    retries = Retries()

    async def nothing(*_: Any) -> bool:
        return False

    assert not asyncio.run(retries.attempt("x", "it", nothing))
    assert not len(retries)
