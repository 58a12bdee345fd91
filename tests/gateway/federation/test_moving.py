"""Subscriptions that move between brokers: each event is delivered by exactly one of them."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from federation_support import Site, sites
from gateway_support import until

from fieldfare.client import Client, SubscriptionMoved
from fieldfare.gateway.federation.inbox import greatest_stamps
from fieldfare.gateway.federation.moving import leaving
from fieldfare.gateway.federation.moving.arrival_cursor import is_earlier
from fieldfare.gateway.federation.moving.sessions import Moves
from fieldfare.storage.errors import StorageError
from fieldfare.storage.event_log import Record

OF_ONE = "/v1/spaces/default/subscriptions/mine"


def counted_everywhere(site: Site, others: str) -> None:
    revision = site.gateway.registry.revision()
    until(lambda: site.counts(revision, *others))


def move(site: Site, to: str, id: str = "mine") -> None:
    answer = site.client.post(f"/v1/spaces/default/subscriptions/{id}/move", json={"to": to})
    assert answer.status_code == 202, answer.text


def state(site: Site, id: str = "mine") -> str:
    answer = site.client.get(f"/v1/spaces/default/subscriptions/{id}/move")
    return str(answer.json().get("state"))


def drain(site: Site, id: str = "mine") -> tuple[list[int], httpx.Response]:
    """Take the messages of a subscription until it is not there; return them and the last answer."""
    found: list[int] = []

    def is_over() -> httpx.Response | None:
        answer = site.client.post(f"/v1/spaces/default/subscriptions/{id}/pull", json={"max": 1000})
        if answer.status_code in (410, 404):
            return answer
        if answer.status_code == 200 and (messages := answer.json()["messages"]):
            found.extend(int(each["event"]["id"]) for each in messages)
            positions = [each["position"] for each in messages]
            site.client.post(f"/v1/spaces/default/subscriptions/{id}/ack", json={"positions": positions})
        return None

    last: httpx.Response = until(is_over)
    return found, last


class Flow:
    """Events published at several sites while a test runs; each site has numbers of its own."""

    def __init__(self, *found: Site) -> None:
        self.published: list[int] = []
        self._sites = found
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._publish, args=(at, site)) for at, site in enumerate(found)
        ]

    def _publish(self, at: int, site: Site) -> None:
        number = at * 1_000_000
        while not self._stop.wait(0.04):
            with contextlib.suppress(httpx.HTTPError):
                site.publish(number)
                self.published.append(number)
            number += 1

    def __enter__(self) -> Flow:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_each_event_is_delivered_once_while_a_subscription_moves(tmp_path: Path) -> None:
    """Events of three origins flow meanwhile, and some of them go to both sites in any case."""
    with sites(tmp_path, "abc", "ab bc ac") as (a, b, c):
        a.subscribe("mine", "data.n >= 0")
        a.subscribe("home", "data.n >= 0")
        b.subscribe("other", "data.n % 2 = 0")
        counted_everywhere(a, "bc")
        counted_everywhere(b, "ac")
        with Flow(a, b, c) as flow:
            until(lambda: len(flow.published) > 30)
            move(a, "b")
            found, last = drain(a)
            count = len(flow.published)
            until(lambda: len(flow.published) > count + 30)
        until(lambda: b.client.get(OF_ONE).status_code == 200)
        found += b.take("mine", len(flow.published) - len(found))
        assert b.pull("mine") == []
        counts = Counter(found)
        assert counts == Counter(flow.published), (counts - Counter(flow.published), "lost or doubled")
        assert last.json()["type"] == "urn:fieldfare:problem:moved"
        assert last.json()["broker"] == "b" and last.json()["url"] == b.url
        assert state(a) == "moved" and a.gateway.registry.get("default", "mine") is None
        assert a.brokers()["moves"] == {"moved": 1} and b.brokers()["moves"] == {"here": 1}


def test_a_subscription_goes_there_and_back(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        a.subscribe("mine", "data.n >= 0")
        counted_everywhere(a, "b")
        found: list[int] = []
        with Flow(a, b) as flow:
            for one, to in ((a, "b"), (b, "a"), (a, "b")):
                until(lambda one=one: one.client.get(OF_ONE).status_code == 200)
                move(one, to)
                found += drain(one)[0]
            until(lambda: b.client.get(OF_ONE).status_code == 200)
        found += b.take("mine", len(flow.published) - len(found))
        assert b.pull("mine") == []
        assert Counter(found) == Counter(flow.published)


def test_the_backlog_is_delivered_where_it_is_before_the_rest(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        a.subscribe("mine", "data.n >= 0")
        counted_everywhere(a, "b")
        a.publish(1)
        b.publish(2)
        until(lambda: a.client.get(f"{OF_ONE}/backlog").json()["pending"] == 2)
        move(a, "b")
        until(lambda: state(a) == "ended")
        a.publish(3)
        b.publish(4)
        until(lambda: b.brokers()["moves"].get("ready"))
        answer = b.client.post(f"{OF_ONE}/pull", json={})
        assert answer.status_code == 503 and answer.json()["type"].endswith(":arriving")
        assert a.client.get(OF_ONE).status_code == 200
        for refused in (a.client.put(OF_ONE, json={"filter": "TRUE"}), a.client.delete(OF_ONE)):
            assert refused.status_code == 409 and refused.json()["type"].endswith(":moving")
        messages = a.client.post(f"{OF_ONE}/pull", json={"ack_deadline_s": 600}).json()["messages"]
        assert sorted(each["event"]["id"] for each in messages) == ["1", "2"]
        a.client.post(f"{OF_ONE}/ack", json={"positions": [messages[0]["position"]]}).raise_for_status()
        assert state(a) == "ended", "one message is still out"
        a.client.post(f"{OF_ONE}/ack", json={"positions": [messages[1]["position"]]}).raise_for_status()
        until(lambda: state(a) == "moved")
        until(lambda: b.client.get(OF_ONE).status_code == 200)
        assert sorted(b.take("mine", 2)) == [3, 4]
        late = a.client.post(f"{OF_ONE}/ack", json={"positions": [messages[1]["position"]]})
        assert late.status_code == 410, "it is not passed on: the position is another event's there"


def test_settings_move_and_dead_letters_stay(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        a.subscribe("mine", "data.n >= 0")
        given = {"max_attempts": 3, "order_by": "data.n", "retry_delays_s": [0.5]}
        tags = {"owner": "ann", "labels": {"env": "prod", "team": "payments"}}
        a.client.patch(OF_ONE, json={"delivery": given, **tags}).raise_for_status()
        counted_everywhere(a, "b")
        a.publish(1)
        [message] = until(lambda: a.client.post(f"{OF_ONE}/pull", json={}).json()["messages"])
        body = {"positions": [message["position"]], "reason": "unreadable"}
        a.client.post(f"{OF_ONE}/terminate", json=body).raise_for_status()
        move(a, "b")
        until(lambda: state(a) == "ended" or state(a) == "moved")
        a.client.patch(OF_ONE, json={"delivery": {"max_attempts": 4}})
        until(lambda: b.client.get(OF_ONE).status_code == 200)
        moved_settings = b.client.get(OF_ONE).json()["delivery"]
        assert moved_settings in (given, given | {"max_attempts": 4})
        found = b.client.get("/v1/spaces/default/subscriptions?owner=ann&label=env=prod").json()
        assert [{name: each[name] for name in tags} for each in found["subscriptions"]] == [tags]
        letters = a.client.get(f"{OF_ONE}/dead-letters")
        assert [each["reason"] for each in letters.json()["dead_letters"]] == ["unreadable"]
        retried = a.client.post(f"{OF_ONE}/dead-letters/retry", json={})
        assert retried.status_code == 410
        assert a.client.delete(f"{OF_ONE}/dead-letters").json() == {"removed": 1}
        a.stop()
        a.start()
        assert a.gateway.registry.get("default", "mine") is None, "nothing keeps it any more"
        assert state(a) == "moved"


def test_a_move_that_cannot_be_is_refused_and_the_subscription_stays(tmp_path: Path) -> None:
    with sites(tmp_path, "abc", "ab bc") as (a, b, c):
        a.subscribe("mine", "data.n >= 0")
        counted_everywhere(a, "bc")
        unknown = a.client.post(f"{OF_ONE}/move", json={"to": "nowhere"})
        assert unknown.status_code == 409 and "a, b" not in unknown.text and "b, c" in unknown.text
        b.subscribe("mine", "data.n < 0")
        move(a, "b")
        until(lambda: "a subscription with this id exists" in a.client.get(f"{OF_ONE}/move").text)
        # Not a neighbour, and it has not said at which address its clients find it.
        move(a, "c")
        until(lambda: "public URL" in a.client.get(f"{OF_ONE}/move").text)
        until(lambda: c.gateway.registry.get("default", "mine") is None)
        a.publish(5)
        assert a.take("mine", 1) == [5]


def test_a_broker_that_does_not_answer_keeps_no_subscription_from_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sites(tmp_path, "abc", "ab bc ac") as (a, b, c):
        a.subscribe("mine", "data.n >= 0")
        counted_everywhere(a, "bc")
        c.stop()
        monkeypatch.setattr(leaving, "OFFERED_S", 0.3)
        move(a, "b")
        a.publish(1)
        assert a.take("mine", 1) == [1]
        until(lambda: "has not accepted it" in a.client.get(f"{OF_ONE}/move").text)
        until(lambda: b.gateway.registry.get("default", "mine") is None)
        b.publish(2)
        assert a.take("mine", 1) == [2]
        c.start()
        until(lambda: not a.brokers()["moves"])
        c.publish(3)
        assert a.take("mine", 1) == [3]


def test_no_reader_begins_before_what_is_settled_is_known(tmp_path: Path) -> None:
    """A pull between the creation and its barrier loaded a delivery of what was settled."""
    with sites(tmp_path, "ab", "ab") as (a, b):
        a.subscribe("mine", "data.n >= 0")
        counted_everywhere(a, "b")
        store, seen = b.gateway.federation.moves._parts.store, []  # type: ignore[union-attr]
        step = store.step

        def stepped(*args: Any, **more: Any) -> Any:
            done = step(*args, **more)
            seen.append(httpx.get(f"{b.url}{OF_ONE}").status_code)
            return done

        store.step = stepped  # type: ignore[method-assign]
        move(a, "b")
        until(lambda: b.client.get(OF_ONE).status_code == 200)
        assert seen and set(seen) == {503}


def test_subscribers_follow_a_subscription_with_the_token_that_they_are_given(tmp_path: Path) -> None:
    """Each site has keys of its own: the reader's one is valid at the first only."""
    key = tmp_path / "key"
    key.write_text("k" * 40)
    with sites(tmp_path, "ab", "ab", admin_key_file=key, peer_key_file=key) as (a, b):
        for site in (a, b):
            site.client.headers["authorization"] = f"Bearer {'k' * 40}"
        a.subscribe("mine", "data.n >= 0")
        a.subscribe("other", "data.n >= 0")
        counted_everywhere(a, "b")
        made = a.client.post("/v1/keys", json={"rights": ["subscribe"], "space": "default"}).json()["key"]
        with Client(a.url, key=made) as client:
            subscriber = client.subscribe("mine")
            a.publish(1)
            first = next(subscriber)
            assert first.event["id"] == "1"
            move(a, "b")
            until(lambda: state(a) == "ended")
            b.publish(2)
            first.ack()
            second = next(subscriber)
            assert second.event["id"] == "2"
            first.ack()  # once more, and too late: it must not settle the event at this position of b
            second.ack()
            subscriber.flush()
            b.publish(3)
            assert next(subscriber).event["id"] == "3"
            until(lambda: b.client.get(f"{OF_ONE}/backlog").json()["pending"] == 1)
            with pytest.raises(SubscriptionMoved) as raised:
                client.pull("mine", wait_s=0)
            moved = raised.value
            assert (moved.id, moved.broker, moved.url) == ("mine", "b", b.url)
            subscriber.close()
            # A program that starts later is sent on, too.
            later = client.subscribe("mine", "data.n >= 0", auto_ack=True)
            assert next(later).event["id"] == "3"
            later.close()
        with httpx.Client(base_url=b.url, headers={"authorization": f"Bearer {moved.token}"}) as holder:
            assert holder.get(OF_ONE).status_code == 200
            assert holder.get("/v1/spaces/default/subscriptions/other").status_code == 403
            assert holder.get("/v1/spaces/default/subscriptions").status_code == 403
            assert holder.post("/v1/spaces/default/events", json=[]).status_code == 403
            b.stop()
            b.start()
            assert holder.get(OF_ONE).status_code == 200
            assert holder.delete(OF_ONE).status_code == 204
            assert holder.get(OF_ONE).status_code == 401, "it ends with the subscription"


def test_a_stream_that_settles_what_it_has_sent_as_it_reconnects_lets_its_subscription_go(
    tmp_path: Path,
) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        a.subscribe("mine", "data.n >= 0")
        counted_everywhere(a, "b")
        a.publish(1)
        until(lambda: a.client.get(f"{OF_ONE}/backlog").json()["pending"])
        with a.client.stream("GET", f"{OF_ONE}/stream?ack=auto") as stream:
            lines = stream.iter_lines()
            position = next(line for line in lines if line.startswith("id: ")).removeprefix("id: ")
            move(a, "b")
            assert not any(line.startswith("event: ") for line in lines), "it ends, and says nothing of it"
        headers = {"last-event-id": position}
        with a.client.stream("GET", f"{OF_ONE}/stream?ack=auto", headers=headers) as stream:
            found = [line for line in stream.iter_lines() if line.startswith(("event: ", "data: "))]
        assert found[0] == "event: moved" and b.url in found[1]
        until(lambda: b.client.get(OF_ONE).status_code == 200)
        b.publish(2)
        assert b.take("mine", 1) == [2]


class Kill(StorageError):
    """The process is gone: nothing of it happens any more."""


def kill_at(site: Site, step: int) -> threading.Event:
    """Let the durable steps of a site's moves fail from one on, before it is done, as after a kill."""
    moves: Moves = site.gateway.federation.moves  # type: ignore[union-attr]
    done, is_dead = [0], threading.Event()

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **more: Any) -> Any:
            done[0] += 1
            if done[0] > step:
                is_dead.set()
                raise Kill("killed")
            return work(*args, **more)

        return wrapped

    store = moves._parts.store
    store.step = counted(store.step)  # type: ignore[method-assign]
    moves._book.send = counted(moves._book.send)  # type: ignore[method-assign]
    return is_dead


@contextlib.contextmanager
def reading(found: list[int], *some: Site) -> Iterator[None]:
    """Read the subscription wherever it is, until the end."""
    stop = threading.Event()

    def read(site: Site) -> None:
        while not stop.wait(0.01):
            with contextlib.suppress(httpx.HTTPError, KeyError):
                found.extend(site.pull("mine"))

    threads = [threading.Thread(target=read, args=(site,)) for site in some]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


STEPS_A, STEPS_B = 9, 8
"""Durable steps of a move at the broker that a subscription leaves, and at the other one."""


@pytest.mark.parametrize(
    ("name", "step"),
    [
        pytest.param(name, step, marks=() if (name, step) == ("a", 2) else pytest.mark.slow)
        for name, steps in (("a", STEPS_A), ("b", STEPS_B))
        for step in range(steps)
    ],
)
def test_a_kill_at_any_step_of_a_move_loses_and_doubles_nothing(name: str, step: int, tmp_path: Path) -> None:
    with sites(tmp_path, "abc", "ab bc ac") as found:
        a, b, c = found
        a.subscribe("mine", "data.n >= 0")
        counted_everywhere(a, "bc")
        victim = a if name == "a" else b
        is_dead = kill_at(victim, step)
        read: list[int] = []
        with reading(read, a, b):
            with Flow(c) as flow:
                until(lambda: len(flow.published) > 20)
                with contextlib.suppress(AssertionError):
                    move(a, "b")
                until(lambda: is_dead.is_set() or state(a) == "moved")
                victim.stop()
                victim.start()
                until(lambda: b.client.get(OF_ONE).status_code == 200 or state(a) == "None")
                if state(a) == "None":  # It was cancelled; the link may not be up yet.
                    asked = f"{OF_ONE}/move", {"to": "b"}
                    until(lambda: a.client.post(asked[0], json=asked[1]).status_code == 202)
                until(lambda: b.client.get(OF_ONE).status_code == 200)
                count = len(flow.published)
                until(lambda: len(flow.published) > count + 20)
            until(lambda: len(read) >= len(flow.published))
        counts, expected = Counter(read), Counter(flow.published)
        assert counts == expected, {"doubled": counts - expected, "lost": expected - counts}
        assert a.client.get(OF_ONE).status_code == 410


def test_greatest_stamps_are_kept_apart_by_the_revisions_that_moves_wait_for() -> None:
    stamps: dict[int, int] = {}
    for revision, stamp in ((5, 50), (6, 55), (8, 70), (7, 66), (9, 71)):
        stamps = greatest_stamps(stamps, revision, stamp, (8,) if revision >= 7 else ())
    assert stamps == {0: 66, 8: 71}
    assert greatest_stamps(stamps, 9, 60, ()) == {0: 71}, "once nothing waits, one is enough"


def test_the_switch_place_is_that_of_the_origin() -> None:
    def at(stamp: int, origin: str | None) -> Record:
        return Record(0, "default", 1, b"{}\n", 0, stamp, origin)

    bounds = {"b": 7, "c": 30}
    assert is_earlier(at(7, None), "b", bounds) and not is_earlier(at(8, None), "b", bounds)
    assert is_earlier(at(99, "c/0-5/30"), "b", bounds) and not is_earlier(at(1, "c/0-5/31"), "b", bounds)
    assert not is_earlier(at(0, "d/0-5/0"), "b", bounds), "nothing of it was delivered before"


def test_events_of_a_site_that_is_removed_during_a_move_are_delivered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site left behind named no switch place of a removed one: its events came from both."""
    with sites(tmp_path, "abc", "ab bc ac") as (a, b, c):
        a.subscribe("mine", "data.n >= 0")
        counted_everywhere(a, "bc")
        accepted, is_open = leaving.Leaving.accepted, False

        async def late(self: leaving.Leaving, *given: Any) -> None:
            if not is_open:
                raise StorageError("later")
            await accepted(self, *given)

        monkeypatch.setattr(leaving.Leaving, "accepted", late)
        move(a, "b")
        until(lambda: b.brokers()["moves"].get("accepted"))
        c.publish(1)
        assert a.take("mine", 1) == [1]
        until(lambda: b.of("c")["events_received"] == 1)
        c.stop()
        is_open = True
        until(lambda: state(a) == "ending" and a.of("c")["next_hop"] is None)
        assert a.client.delete("/v1/brokers/c").status_code == 204
        until(lambda: b.client.get(OF_ONE).status_code == 200)
        a.publish(2)
        assert b.take("mine", 1) == [2] and b.pull("mine") == []
