"""Receivers with hostile or broken answers, written byte by byte without a library."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpcore
import pytest
from gateway_support import SUBSCRIPTIONS, run, running, until_async
from receiver_support import (
    LOOPBACK,
    Answer,
    Got,
    allowing,
    described,
    is_broken,
    pushed,
    receiving,
    settled,
    some,
)

from fieldfare.delivery.breaker import FAILURES_MAX, BreakerState
from fieldfare.gateway.fair_limiter import FairLimiter
from fieldfare.gateway.push.addresses import (
    ASKS_MAX,
    RESOLVERS,
    Asking,
    Asks,
    CallRules,
    CheckedBackend,
    Names,
    NotAllowed,
    Target,
    asking,
    caller,
)
from fieldfare.gateway.push.gate import Server
from fieldfare.gateway.push.sender import Meaning, Outcome, Sender
from fieldfare.gateway.push.streams import READ_BATCH_SIZE, READ_MAX_BYTES, BoundedStream
from fieldfare_lab.ports import find_free_port

OK = b"HTTP/1.1 200 OK\r\n"
JSON = b"content-type: application/json\r\n"


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[Target]:
    """An address that answers its single connection in this way after the head of a request."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(50)
                    connection.recv(1 << 16)
                    answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Target.parse(f"http://127.0.0.1:{server.getsockname()[1]}/")
    thread.join(60)
    assert not thread.is_alive()


async def sent(target: Target, timeout_s: float, batch: set[str] | None = None) -> Outcome:
    """The result of a request to it."""

    async def resolve(host: str, port: int) -> list[str]:
        return [host]

    rules = CallRules((ipaddress.ip_network("127.0.0.1"),))
    tls = ssl.create_default_context()
    sender = Sender(rules, resolve, origin="me", per_minute=0, connections_max=4, tls=tls)
    try:
        return await sender.post(target, [], b"{}", timeout_s, batch)
    finally:
        await sender.close()


class Endless(httpcore.AsyncNetworkStream):
    """A connection that sends data without end."""

    def __init__(self) -> None:
        self.largest = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self.largest = max(self.largest, max_bytes)
        return b"x" * max_bytes

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        pass


def test_an_answer_is_read_bit_by_bit_and_to_a_bound() -> None:
    async def work() -> None:
        inner = Endless()
        stream = BoundedStream(inner)
        for _ in range(2):
            await stream.write(b"a request")
            with pytest.raises(httpcore.ReadError):
                for _ in range(READ_MAX_BYTES // READ_BATCH_SIZE + 1):
                    await stream.read(1 << 16)
        assert inner.largest == READ_BATCH_SIZE

    run(work)


@pytest.mark.parametrize("part", [b"HTTP/1.1 103 \r\n\r\n", OK + b"transfer-encoding: chunked\r\n\r\n"])
def test_an_answer_without_end_is_left_and_holds_nobody_up(part: bytes) -> None:
    """A hundred thousand provisional answers, or chunks of one byte, were parsed while all others waited."""

    def flood(connection: socket.socket) -> None:
        again = part if b" 103 " in part else b"1\r\nx\r\n"
        connection.sendall(part)
        while True:  # until it is closed
            connection.sendall(again * 5_000)

    async def work() -> None:
        with answering(flood) as target:
            outcome = await sent(target, 3600.0)
            assert outcome.meaning is (Meaning.FAILED if b" 103 " in part else Meaning.ACCEPTED)

    run(work)


def test_a_status_counts_though_the_time_is_up_before_the_body_ends() -> None:
    """With a short deadline every message came again and again, each time after it had been accepted."""
    done = threading.Event()

    def hang(connection: socket.socket) -> None:
        connection.sendall(OK + JSON + b"content-length: 100\r\n\r\n{")
        done.wait(50)

    async def work() -> None:
        try:
            with answering(hang) as target:
                assert (await sent(target, 0.3)).meaning is Meaning.ACCEPTED
                done.set()
            done.clear()
            with answering(hang) as target:
                assert (await sent(target, 0.3, {"0-1-2"})).meaning is Meaning.FAILED, (
                    "it may want some again"
                )
                done.set()
        finally:
            done.set()

    run(work)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(JSON + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\n\x1f\x8b\x08", id="packed"),
        pytest.param(
            JSON
            + b'content-length: 70020\r\n\r\n{"a": "'
            + b"x" * 69_980
            + b'", "failed_positions": ["0-1-2"]}',
            id="long",
        ),
        pytest.param(
            JSON + b'content-length: 31\r\n\r\n{"failed_positions": ["my-id"]}', id="by another name"
        ),
    ],
)
def test_what_a_receiver_wants_again_is_not_taken_for_settled_because_one_cannot_read_it(
    answer: bytes,
) -> None:
    async def work() -> None:
        for batch, meaning in (({"0-1-2", "0-1-3"}, Meaning.FAILED), (None, Meaning.ACCEPTED)):
            with answering(lambda connection: connection.sendall(OK + answer)) as target:
                outcome = await sent(target, 50.0, batch)
                assert outcome.meaning is meaning, outcome

    run(work)


def test_a_receiver_that_names_the_ids_of_events_loses_none(tmp_path) -> None:
    """If it names ids instead of positions, all messages of the batch are sent again, one by one."""

    async def work() -> None:
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                await pushed(r, receiver.url, push={"mode": "batch"}, paused=True, retry_delays_s=[0.01])
                await some(r, 3)
                told = json.dumps({"failed_positions": ["1"]}).encode()
                receiver.answer(200, headers={"content-type": "application/json"}, body=told)
                await r.client.patch(
                    "/v1/spaces/default/subscriptions/a", json={"delivery": {"paused": False}}
                )
                await settled(r)
                assert receiver.ids == ["0", "1", "2", "0", "1", "2"]
                assert [len(got.ids) for got in receiver.got] == [3, 1, 1, 1]

    run(work)


class IdleStream(Sender):
    """A stream that sends nothing, and reports after a moment that there was no answer."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask_permission(self, target: Target, timeout_s: float) -> Outcome:
        self.asked += 1
        for _ in range(20):
            await asyncio.sleep(0)
        return Outcome(Meaning.FAILED, "it did not answer")


def test_addresses_that_differ_behind_their_host_are_one_server_to_ask(tmp_path):
    """One event for 1,000 subscriptions asked a server that refused each of them, thousands of times."""

    async def work() -> None:
        with receiving() as receiver:
            receiver.handshake = lambda got: (403, {}, b"")
            async with running(tmp_path, **LOOPBACK) as r:
                for n in range(40):
                    push = {"url": f"{receiver.url}?n={n}"}
                    made = {"filter": "data.x = 1", "delivery": {"push": push}}
                    answer = await r.client.put(f"{SUBSCRIPTIONS}/a{n}", json=made)
                    assert answer.status_code == 201, answer.text
                await some(r, 1)
                (server,) = r.gateway.pushes._servers.values()
                await until_async(lambda: server.breaker.state is BreakerState.OPEN)
                assert server.users == 40 and len(receiver.asked) == FAILURES_MAX
                receiver.handshake = allowing
                await until_async(lambda: len(receiver.got) == 40)
                assert len({each.path for each in receiver.got}) == 40

    run(work)


def test_many_names_of_one_ip_address_that_gives_no_permission_have_one_ceiling() -> None:
    """The owner of a domain can let any number of names resolve to a server that never gave permission."""

    async def work() -> None:
        async def resolve(host: str, port: int) -> Sequence[str]:
            return ["127.0.0.1"]

        port = find_free_port()
        asks, allow = Asks(), (ipaddress.ip_network("127.0.0.0/8"),)
        backend = CheckedBackend(CallRules(allow), resolve, is_tls=True)
        for n in range(ASKS_MAX):
            asking.set(Asking(asks))
            with pytest.raises(httpcore.ConnectError):
                await backend.connect_tcp(f"a{n}.example.com", port, 5.0)
        asking.set(mine := Asking(asks))
        with pytest.raises(NotAllowed):
            await backend.connect_tcp("b.example.com", port, 5.0)
        asking.set(None)
        with pytest.raises(httpcore.ConnectError):
            await backend.connect_tcp("b.example.com", port, 5.0)  # one that has agreed before
        for _ in range(2 * ASKS_MAX):
            mine = Asking(asks)
            mine.check("agrees.example.com")
            mine.agreed()

    run(work)


def test_one_space_does_not_use_up_the_requests_for_permission_of_another() -> None:
    """A space asked a provider's host in vain thirty times a minute, and no other space could use it."""
    asks = Asks()

    def count(space: str) -> int:
        """How many requests the space may make now."""
        before = caller.set(space)
        try:
            for made in range(2 * ASKS_MAX):
                try:
                    Asking(asks).check("hooks.example.com")
                except NotAllowed:
                    return made
            return 2 * ASKS_MAX
        finally:
            caller.reset(before)

    assert [count("greedy"), count("other"), count("third")] == [ASKS_MAX, ASKS_MAX // 2, ASKS_MAX // 3]
    assert [count("greedy"), count("other")] == [0, 0]
    most = sum(count(f"space-{n}") for n in range(2 * ASKS_MAX))
    assert ASKS_MAX + ASKS_MAX // 2 + ASKS_MAX // 3 + most <= 111


def test_a_granted_request_for_permission_is_uncounted_for_its_own_space() -> None:
    asks = Asks()
    for space in ("a", "b"):
        caller.set(space)
        for _ in range(ASKS_MAX // 2):
            (mine := Asking(asks)).check("hooks.example.com")
    caller.set("a")
    with pytest.raises(NotAllowed):
        Asking(asks).check("hooks.example.com")
    mine.agreed()  # of b
    caller.set("b")
    Asking(asks).check("hooks.example.com")
    with pytest.raises(NotAllowed):
        Asking(asks).check("hooks.example.com")


@pytest.mark.parametrize("status", [404, 429, 503])
def test_an_address_that_answers_with_an_error_holds_no_other_address_of_its_server_up(
    tmp_path: Path, status: int
) -> None:
    """One wrong path at a provider stopped a space's other subscriptions there, 300 seconds at a time."""

    async def work() -> None:
        with receiving() as receiver:

            def answer(got: Got) -> Answer:
                return (status, {"Retry-After": "60"}, b"") if got.path == "/wrong" else (204, {}, b"")

            receiver.always = answer
            async with running(tmp_path, **LOOPBACK) as r:
                wrong = receiver.url.replace("/hook", "/wrong")
                await pushed(r, wrong, "wrong", retry_delays_s=[0.01])
                await some(r, FAILURES_MAX)
                await until_async(lambda: is_broken(r, "wrong"))
                assert (await described(r, "wrong"))["push"]["state"] == "broken"
                await pushed(r, receiver.url, "right")
                await some(r, 3, first=10)
                await until_async(lambda: [got.path for got in receiver.got].count("/hook") == 3)
                told = (await described(r, "right"))["push"]
                assert (told["state"], told["failures"], told["last"]) == ("working", 0, "it answered 204")
                assert is_broken(r, "wrong")

    run(work)


def test_an_address_that_refuses_permission_holds_no_other_address_of_its_server_up(tmp_path: Path) -> None:
    async def work() -> None:
        with receiving() as receiver:
            receiver.handshake = lambda got: (404, {}, b"") if got.path == "/wrong" else allowing(got)
            async with running(tmp_path, **LOOPBACK) as r:
                await pushed(r, receiver.url.replace("/hook", "/wrong"), "wrong")
                await some(r, 1)
                await until_async(lambda: is_broken(r, "wrong"))
                await pushed(r, receiver.url, "right")
                (server,) = r.gateway.pushes._servers.values()
                assert server.breaker.state is BreakerState.CLOSED
                await some(r, 1, first=1)
                await until_async(lambda: any(got.path == "/hook" for got in receiver.got))

    run(work)


def test_many_who_want_permission_at_a_time_wait_for_one_answer() -> None:
    """A day after the last permission 64 requests asked a dead address one after the other."""

    async def work() -> None:
        server, sender = Server(random.Random(1)), IdleStream()
        target = Target.parse("https://example.com/")
        told = await asyncio.gather(*(server.permission(sender, target, 30.0) for _ in range(64)))
        assert sender.asked == 1
        assert {each.meaning for each in told if each is not None} == {Meaning.FAILED} and None not in told
        assert await server.permission(sender, target, 30.0) is not None
        assert sender.asked == 2, "who comes later asks again"

    run(work)


def test_a_handshake_that_is_not_answered_is_no_attempt(tmp_path) -> None:
    """After a restart a receiver hung: messages that had never been sent went to the dead letters."""
    done = threading.Event()

    def hang(got: Got) -> Any:
        done.wait(50)
        return allowing(got)

    async def work() -> None:
        with receiving() as receiver:
            receiver.handshake = hang
            try:
                async with running(tmp_path, **LOOPBACK) as r:
                    await pushed(r, receiver.url, max_attempts=1, ack_deadline_s=1.0)
                    await some(r, 1)
                    await until_async(lambda: len(receiver.asked) >= 2)
                    done.set()
                    await settled(r)
                    assert receiver.ids == ["0"] and receiver.got[0].events[0]["fieldfareattempt"] == 1
            finally:
                done.set()

    run(work)


def test_a_space_whose_names_have_dead_servers_leaves_threads_for_the_others(monkeypatch) -> None:
    """Requests wait only some seconds for a name, but its thread waits for the name servers."""
    answered = threading.Event()
    known = socket.getaddrinfo

    def look_up(host: str, *arguments: Any, **options: Any) -> Any:
        if host.endswith(".evil.example"):
            answered.wait(50)
            raise OSError("no answer")
        return known("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    async def look(names: Names, space: str, host: str) -> Sequence[str]:
        caller.set(space)
        async with asyncio.timeout(0.2 if space == "evil" else None):
            return await names.resolve(host, 443)

    async def work() -> None:
        names = Names()
        try:
            lost = [look(names, "evil", f"{i}.evil.example") for i in range(2 * RESOLVERS)]
            assert all(
                isinstance(each, TimeoutError) for each in await asyncio.gather(*lost, return_exceptions=True)
            )
            found = await asyncio.create_task(look(names, "good", "good.example"))
            assert found == ["127.0.0.1"]
            answered.set()
            assert await asyncio.create_task(look(names, "evil", "good.example")) == ["127.0.0.1"]
            await until_async(lambda: names._threads._slots.taken == 0)
        finally:
            answered.set()
            names.close()

    run(work)


def test_a_space_that_has_no_place_any_more_leaves_memory() -> None:
    async def work() -> None:
        slots = FairLimiter(4, 1)
        await slots.acquire("a")
        waiting = asyncio.create_task(slots.acquire("a"))
        await asyncio.sleep(0)
        await slots.acquire("b")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (slots.taken, set(slots._spaces)) == (2, {"a", "b"})
        slots.release("a")
        slots.release("b")
        assert (slots.taken, slots._spaces, +slots._users) == (0, {}, {})

    run(work)


def test_receivers_are_not_asked_for_compressed_answers(tmp_path) -> None:
    async def work() -> None:
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                await pushed(r, receiver.url)
                await some(r, 1)
                await settled(r)
                assert receiver.got[0].headers["accept-encoding"] == "identity"

    run(work)
