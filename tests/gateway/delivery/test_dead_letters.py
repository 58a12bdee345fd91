"""Attempts, acks and the like, and messages that are given up, over HTTP and across crashes."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from gateway_support import SUBSCRIPTIONS, Running, run, running, until_async
from test_delivery_settings import FILTER, A, change, positions, some
from test_overtaken import held_up
from test_publish_http import problem

from fieldfare.delivery import delivery as delivery_module
from fieldfare.gateway.delivery.records import write_sse
from fieldfare.gateway.routes.acks import UNSAVED_MAX
from fieldfare.gateway.routes.positions import SETTLED_BATCH_SIZE


async def post(r: Running, verb: str, *places: str, **more: object) -> dict:
    answer = await r.client.post(f"{A}/{verb}", json={"positions": list(places), **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def letters(r: Running, **query: object) -> list[dict]:
    answer = await r.client.get(f"{A}/dead-letters", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()["dead_letters"]


async def retry(r: Running, *places: str) -> dict:
    body = {"positions": list(places)} if places else {}
    answer = await r.client.post(f"{A}/dead-letters/retry", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def make(r: Running, **delivery: object) -> None:
    assert (await r.client.put(A, json=FILTER | {"delivery": delivery})).status_code == 201


async def attempts(r: Running, **body: object) -> list[tuple[str, int]]:
    return [(each["position"], each["attempt"]) for each in await r.pull("a", **body)]


def crashed(data: Path, to: Path) -> Path:
    """The files as a kill at this moment leaves them."""
    shutil.copytree(data, to)
    return to


def test_a_message_tells_which_attempt_it_is_also_after_a_restart(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            first, second = await some(r, 2)
            assert await attempts(r) == [(first, 1), (second, 1)]
            assert await post(r, "nack", first) == {"returned": 1}
            assert await attempts(r) == [(first, 2)]
        async with running(tmp_path) as r:
            assert await attempts(r) == [(first, 3), (second, 2)]
            await r.ack("a", first, second)
            (third,) = await some(r, 1)
            assert await attempts(r) == [(third, 1)]

    run(work)


def test_a_stream_tells_every_attempt_but_the_first(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            (place,) = await some(r, 1)
            for _ in range(2):
                parts: list[bytes] = []
                delivery = r.gateway.deliveries.loaded.get(1)
                if delivery is None:
                    await r.pull("a", max=1)
                    delivery = r.gateway.deliveries.loaded[1]
                    await post(r, "nack", place)
                session = r.gateway.deliveries.open_stream(delivery, 10)
                keys = delivery.take(session, 10, 0.0, 30.0)
                await r.gateway.deliveries.compose(delivery, keys, write_sse, parts)
                r.gateway.deliveries.close_stream(delivery, session)
            assert parts[0] == b"attempt: 3\nid: " + place.encode() + b"\ndata: "

    run(work)


def test_after_its_last_attempt_a_message_is_given_up_and_the_others_go_on(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r, max_attempts=2)
            first, second = await some(r, 2)
            for _ in range(2):
                assert first in positions(await r.pull("a"))
                await post(r, "nack", first)
            assert await r.pull("a") == []
            assert await r.ack("a", second) == "0-1-0", "it holds up no cursor"
            (letter,) = await letters(r)
            assert (letter["position"], letter["attempts"], letter["reason"]) == (first, 2, "nacked")
            assert letter["event"]["id"] == "0" and letter["dead_ms"] > 0
            assert "fieldfare_given_up_messages_total 1.0" in (await r.client.get("/metrics")).text
        async with running(tmp_path) as r:
            assert await r.pull("a") == []
            assert await letters(r) == [letter]

    run(work)


def test_the_last_missed_deadline_gives_up_without_a_reader(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r, max_attempts=1, ack_deadline_s=0.02)
            (place,) = await some(r, 1)
            assert await attempts(r, max=1) == [(place, 1)]
            while not (found := await letters(r)):
                await asyncio.sleep(0.01)
            assert (found[0]["position"], found[0]["reason"]) == (place, "not acked in time")

    run(work)


def test_an_ack_after_the_last_deadline_takes_the_message_off_the_dead_letters_for_good(tmp_path):
    """The ack was answered with 200, and a retry of the list brought the acknowledged message again."""

    async def work() -> None:
        async with running(tmp_path / "a") as r:
            await make(r, max_attempts=1)
            places = await some(r, 4)
            await r.pull("a", ack_deadline_s=0.01)
            await until_listed(r, 4)
            await r.ack("a", places[0])
            assert positions(await letters(r)) == places[1:]
        data = crashed(tmp_path / "a", tmp_path / "b")
        async with running(data) as r:
            assert positions(await letters(r)) == places[1:], "the answer says that it is durable"
            await r.ack("a", places[2])
            assert positions(await letters(r)) == [places[1], places[3]], (
                "by the reader that got it before the restart"
            )
            assert await retry(r) == {"retried": 2, "gone": 0, "left": 0}
            assert positions(await r.pull("a", ack_deadline_s=0.01)) == [places[1], places[3]]
            await until_listed(r, 2)
            await r.ack("a", *places)
            assert (await retry(r))["retried"] == 0 and await r.pull("a") == []

    run(work)


async def until_listed(r: Running, count: int) -> None:
    for _ in range(1_000):
        if len(await letters(r)) == count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("they were not given up in time")


def test_an_ack_up_to_a_message_takes_off_the_list_what_was_late_and_not_what_was_refused(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r, max_attempts=1)
            places = await some(r, 4)
            await r.pull("a", max=1)
            await post(r, "terminate", places[0])
            await r.pull("a", max=2, ack_deadline_s=0.01)
            await until_listed(r, 3)
        async with running(tmp_path) as r:
            assert positions(await letters(r)) == places[:3]
            for up_to, left in ((places[1], [places[0], places[2]]), (places[3], [places[0]])):
                answer = await r.client.post(f"{A}/ack", json={"up_to": up_to})
                assert answer.status_code == 200, answer.text
                assert positions(await letters(r)) == left, "the first was refused: a person looks at it"

    run(work)


def test_without_a_dead_letter_list_nothing_is_left_of_what_is_given_up(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r, max_attempts=1, dead_letter=False)
            (place,) = await some(r, 1)
            await r.pull("a")
            await post(r, "nack", place)
            assert await letters(r) == [] and await r.pull("a") == []
            assert (await r.client.post(f"{A}/ack", json={"positions": []})).json() == {"cursor": "0-1-0"}

    run(work)


def test_a_nack_with_a_delay_and_delays_of_the_settings(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r, retry_delays_s=[1.0, 600])
            first, second = await some(r, 2)
            await r.pull("a")
            await post(r, "nack", first)
            await post(r, "nack", second, delay_s=600)
            assert await r.pull("a") == []
            assert await attempts(r, wait_s=10) == [(first, 2)]
            await post(r, "nack", first, delay_s=0)
            assert await attempts(r) == [(first, 3)], "an explicit request for it is not delayed"
            await post(r, "nack", first)
            assert await r.pull("a", wait_s=0.1) == []
            for bad in (-1, 86_401, "1"):
                body = {"positions": [first], "delay_s": bad}
                problem(await r.client.post(f"{A}/nack", json=body), 400)

    run(work)


def test_a_lease_can_be_extended(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            first, second = await some(r, 2)
            await r.pull("a", ack_deadline_s=2)
            assert await post(r, "extend", first, ack_deadline_s=600) == {"extended": 1}
            assert await attempts(r, wait_s=10) == [(second, 2)], "the other one was not"
            assert await post(r, "extend", first, first) == {"extended": 1}
            await r.ack("a", first)
            assert await post(r, "extend", first) == {"extended": 0}

    run(work)


def test_a_reader_may_give_a_message_up_and_say_why(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            first, second, third = await some(r, 3)
            assert await post(r, "terminate", first) == {"terminated": 0}, "it was not delivered"
            await r.pull("a", max=2)
            assert await post(r, "terminate", first, third, reason="no such\nplane") == {"terminated": 1}
            (letter,) = await letters(r)
            assert (letter["position"], letter["attempts"]) == (first, 1)
            assert letter["reason"] == "no such plane"
            assert await r.ack("a", second) == third
            assert positions(await r.pull("a")) == [third]

    run(work)


def test_a_cursor_being_saved_does_not_list_a_retried_message_again(tmp_path, monkeypatch):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r, max_attempts=1)
            (place,) = await some(r, 1)
            await r.pull("a")
            submit, submitted = r.gateway.writer.save_cursors, []

            async def noted(cursors):
                submitted.extend(cursors)
                await submit(cursors)

            monkeypatch.setattr(r.gateway.writer, "save_cursors", noted)
            await post(r, "nack", place)
            assert positions(await letters(r)) == [place]
            number, mark = next(each for each in submitted if each[1].letters)
            begun, through = held_up(monkeypatch, r.gateway.registry)
            late = asyncio.ensure_future(r.gateway.writer.save_cursors([(number, mark)]))
            await until_async(lambda: begun.acquire(blocking=False))
            retried = asyncio.ensure_future(retry(r, place))
            saves = r.gateway.writer._saves._queue
            await until_async(lambda: retried.done() or saves.qsize() > 0)
            through.set()
            await late
            assert await retried == {"retried": 1, "gone": 0, "left": 0}
            assert await letters(r) == []

    run(work)


def test_acks_of_thousands_of_old_positions_are_saved_in_slices(tmp_path, monkeypatch):
    """One transaction removed 20,000 dead letters that did not exist; all spaces' cursors waited for it."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r, max_attempts=1)
            (refused,) = await some(r, 1)
            await r.pull("a")
            await post(r, "nack", refused)
            (new,) = await some(r, 1)
            await r.pull("a")
            await r.ack("a", new)
            assert positions(await letters(r)) == [refused]
            submit, saved = r.gateway.writer.save_cursors, []

            async def noted(cursors):
                saved.extend(len(mark.settled) for _, mark in cursors)
                await submit(cursors)

            monkeypatch.setattr(r.gateway.writer, "save_cursors", noted)
            offset, count = refused.split("-")[1], 4 * UNSAVED_MAX
            await r.ack("a", *(f"0-{offset}-{index}" for index in range(1, count)))
            assert positions(await letters(r)) == [refused], "no other letter is removed"
            assert max(saved) <= UNSAVED_MAX + SETTLED_BATCH_SIZE and len(saved) > 3
            await r.ack("a", refused, *(f"0-{offset}-{index}" for index in range(1, 300)))
            assert await letters(r) == []

    run(work)


def test_a_retried_dead_letter_starts_with_its_first_attempt(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r, max_attempts=1)
            places = await some(r, 3)
            await r.pull("a")
            await post(r, "nack", *places)
            assert positions(await letters(r)) == places
            assert await retry(r, places[1]) == {"retried": 1, "gone": 0, "left": 2}
            assert positions(await letters(r)) == [places[0], places[2]]
            assert await attempts(r) == [(places[1], 1)]
            await r.ack("a", places[1])
            assert await retry(r) == {"retried": 2, "gone": 0, "left": 0}
            assert await retry(r) == {"retried": 0, "gone": 0, "left": 0}
        async with running(tmp_path) as r:
            assert await attempts(r) == [(places[0], 1), (places[2], 1)], "it is owed across a restart"
            await post(r, "nack", places[0])
            await r.ack("a", places[2])
            assert positions(await letters(r)) == places[:1]
        async with running(tmp_path) as r:
            assert await r.pull("a") == []
            removed = await r.client.delete(f"{A}/dead-letters")
            assert removed.json() == {"removed": 1} and await letters(r) == []

    run(work)


def test_the_list_is_read_page_by_page(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            places = await some(r, 5)
            await r.pull("a")
            await post(r, "terminate", *places)
            found: list[str] = []
            after: dict[str, object] = {}
            while True:
                page = (await r.client.get(f"{A}/dead-letters", params={"limit": 2, **after})).json()
                found += positions(page["dead_letters"])
                assert page["total"] == 5
                if page["next"] is None:
                    break
                after = {"after": page["next"]}
            assert found == places
            for bad in ({"limit": 0}, {"after": "x"}, {"after": "0-0"}):
                problem(await r.client.get(f"{A}/dead-letters", params=bad), 400)
            problem(await r.client.get(f"{A}x/dead-letters"), 404)

    run(work)


def test_an_event_that_retention_took_is_missing_in_its_entry_and_cannot_be_tried_again(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            (first,) = await some(r, 1)
            (second,) = await some(r, 1)
            await r.pull("a")
            await post(r, "terminate", first, second)
            r.gateway.log.trim(1)
        async with running(tmp_path) as r:
            assert [each["event"] is None for each in await letters(r)] == [True, False]
            assert await retry(r, first) == {"retried": 0, "gone": 1, "left": 2}
            assert await retry(r) == {"retried": 1, "gone": 0, "left": 1}
            assert await attempts(r) == [(second, 1)]

    run(work)


def test_the_list_goes_with_its_subscription(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            places = await some(r, 1)
            await r.pull("a")
            await post(r, "terminate", *places)
            await r.client.delete(A)
            await make(r)
            assert await letters(r) == []
            registry = r.gateway.registry
            assert registry.count_letters([1]) == {1: 1}
            registry.purge(registry.revision())
            assert registry.count_letters([1]) == {}

    run(work)


def test_a_kill_at_any_step_loses_nothing_given_up_and_repeats_nothing_acked(tmp_path):
    """A message fails for the last time; the machine dies before, after, and in between."""

    async def work() -> None:
        data = tmp_path / "data"
        async with running(data) as r:
            await make(r, max_attempts=1)
            acked, failed = await some(r, 2)
            await r.pull("a")
            await r.ack("a", acked)
            before = crashed(data, tmp_path / "before")
            await post(r, "nack", failed)
            after = crashed(data, tmp_path / "after")
            await retry(r)
            retried = crashed(data, tmp_path / "retried")
            assert await attempts(r) == [(failed, 1)]
            await r.ack("a", failed)
            done = crashed(data, tmp_path / "done")
        async with running(before) as r:
            assert await r.pull("a") == [], "it was given as often as it may be"
            assert positions(await letters(r)) == [failed]
        async with running(after) as r:
            assert await r.pull("a") == [] and positions(await letters(r)) == [failed]
        async with running(retried) as r:
            assert await letters(r) == [] and await attempts(r) == [(failed, 1)]
        async with running(done) as r:
            assert await letters(r) == [] and await r.pull("a") == []

    run(work)


def test_attempts_with_max_attempts_are_saved_without_an_ack(tmp_path):
    async def work() -> None:
        data = tmp_path / "data"
        async with running(data, maintenance_s=600) as r:
            await make(r, max_attempts=3)
            (place,) = await some(r, 1)
            for number in (1, 2):
                assert await attempts(r) == [(place, number)]
                await until_async(lambda: r.gateway.deliveries.loaded[1].is_saved)
                async with running(crashed(data, tmp_path / str(number))) as again:
                    assert await attempts(again) == [(place, number + 1)]
                await post(r, "nack", place)

    run(work)


def test_delivery_resumes_when_given_up_messages_have_been_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(delivery_module, "LETTERS_MAX", 1)

    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            first, second = await some(r, 2)
            await r.pull("a", max=1)
            begun, through = held_up(monkeypatch, r.gateway.registry)
            giving_up = asyncio.ensure_future(post(r, "terminate", first))
            await until_async(lambda: begun.acquire(blocking=False))
            waiting = asyncio.ensure_future(r.pull("a", wait_s=10))
            await until_async(lambda: r.gateway.deliveries._waiting)
            through.set()
            assert positions(await waiting) == [second] and await giving_up == {"terminated": 1}

    run(work)


def test_seek_goes_back_and_forth(tmp_path):
    async def seek(r: Running, to: str) -> str:
        answer = await r.client.post(f"{A}/seek", json={"to": to})
        assert answer.status_code == 200, answer.text
        return answer.json()["cursor"]

    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            places = [place for _ in range(3) for place in await some(r, 2)]
            assert await attempts(r) == [(place, 1) for place in places]
            await r.ack("a", *places[:3], places[4])
            assert await seek(r, "earliest") == places[0]
            assert await attempts(r) == [(place, 1) for place in places], "all of it, as for the first time"
            assert await seek(r, places[4]) == places[4]
            assert await attempts(r, max=1) == [(places[4], 1)]
            await r.ack("a", places[5])
            waiting = asyncio.ensure_future(r.pull("a", wait_s=10))
            await until_async(lambda: r.gateway.deliveries._waiting)
            assert await seek(r, "latest") == "0-3-0"
            (last,) = await some(r, 1)
            assert positions(await waiting) == [last]
            assert await seek(r, "0-4-0") == "0-4-0", "a cursor at the end may be put back"
            assert await seek(r, "2026-01-01T00:00:00Z") == "0-0-0"
            assert await seek(r, "2999-01-01T00:00:00+02:00") == "0-4-0"
            assert await seek(r, places[3]) == places[3]
            for bad in ("0-5-0", "1-0-0", "", "soon", "0-1", "2026-01-01", "0-1-0,0-1-0"):
                problem(await r.client.post(f"{A}/seek", json={"to": bad}), 400)
        async with running(tmp_path) as r:
            assert positions(await r.pull("a")) == [*places[3:], last]
            r.gateway.log.trim(2)
            assert await seek(r, "0-0-1") == "0-2-0", "what retention took does not come back"
            assert positions(await r.pull("a")) == [*places[4:], last]

    run(work)


def test_a_stream_without_acks_goes_on_from_where_it_was_set(tmp_path):
    """Messages sent to it before the seek must not settle those that are sent again."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            places = await some(r, 6)
            delivery_of = r.gateway.deliveries.loaded
            await r.client.post(f"{A}/ack", json={"positions": []})
            session = r.gateway.deliveries.open_stream(delivery_of[1], 4, alone=True)
            await r.gateway.deliveries.read_on(delivery_of[1])
            assert len(delivery_of[1].take(session, 10, 0.0, float("inf"))) == 4
            before = delivery_of[1].round
            answer = await r.client.post(f"{A}/seek", json={"to": "earliest"})
            assert answer.json() == {"cursor": places[0]} and delivery_of[1].round == before + 1
            await r.gateway.deliveries.read_on(delivery_of[1])
            assert len(delivery_of[1].take(session, 10, 0.0, float("inf"))) == 4
            r.gateway.deliveries.close_stream(delivery_of[1], session)

    run(work)


def test_what_was_settled_by_a_change_of_settings_is_given_up_when_its_turn_comes(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            (place,) = await some(r, 1)
            for _ in range(3):
                await r.pull("a")
                await post(r, "nack", place)
            await change(r, max_attempts=2)
            assert await r.pull("a") == []
            assert [each["attempts"] for each in await letters(r)] == [3]

    run(work)


def test_deleting_a_subscription_with_unsaved_state_affects_no_other(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r, max_attempts=1)
            (place,) = await some(r, 1)
            await r.pull("a")
            gone = await asyncio.gather(
                r.client.delete(A), r.client.post(f"{A}/nack", json={"positions": [place]})
            )
            assert gone[0].status_code == 204 and gone[1].status_code in (200, 404)
            problem(await r.client.get(f"{SUBSCRIPTIONS}/a/dead-letters"), 404)

    run(work)
