"""A client after a fork and in a second event loop: it works there, or says at once that it does not."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from client_support import SOON
from faulty_service import FaultyService, wait_until

from fieldfare import AsyncClient, Client
from fieldfare.client import WrongContext
from fieldfare.client.outbox import Outbox

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

DEADLINE_S = 90


def event(number: int) -> dict[str, Any]:
    return {"source": "/s", "type": "t", "id": str(number), "data": {"number": number}}


def in_child(work: Callable[[], Any]) -> Any:
    """Run work in a forked process; return its result, or the exception that it raises."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(DEADLINE_S)  # a child that hangs ends by this signal, and the pipe is empty
            os.close(read_end)
            try:
                found = work()
            except BaseException as error:
                traceback.print_exc(file=sys.stderr)
                found = error
            os.write(write_end, pickle.dumps(found))
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        content = pipe.read()
    os.waitpid(pid, 0)
    assert content, "the child did not end in time"
    return pickle.loads(content)


@forks
def test_a_client_used_before_a_fork_publishes_in_the_child(client: Client, service: FaultyService) -> None:
    """The child had no thread that sends: nothing was sent, and waiting did not end."""
    first = client.publish(event(0)).result(DEADLINE_S)

    def publish() -> str:
        return str(client.publish(event(1)).result(DEADLINE_S))

    second = in_child(publish)
    third = client.publish(event(2)).result(DEADLINE_S)
    assert len({str(first), second, str(third)}) == 3
    assert len({producer for producer, _ in service.appended}) == 2, "the child is a producer of its own"
    assert service.duplicates == 0


@forks
def test_parent_and_child_get_their_own_answers(client: Client) -> None:
    """They shared a connection: each read what the other had asked for."""
    client.spaces()
    ready, go = os.pipe(), os.pipe()

    def ask() -> list[Any]:
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        return [client.spaces() for _ in range(200)]

    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(in_child(ask)))
    waiting.start()
    os.read(ready[0], 1)
    os.write(go[1], b"x")
    mine = [client.stats() for _ in range(200)]
    waiting.join(DEADLINE_S)
    assert found == [[["default"]] * 200]
    assert mine == [{"subscriptions": 0}] * 200
    for end in (*ready, *go):
        os.close(end)


@forks
def test_the_child_works_though_a_thread_of_the_parent_held_the_clients_lock(client: Client) -> None:
    client.publish(event(0)).result(DEADLINE_S)
    with client._guard:
        holder = threading.Thread(target=lambda: found.append(in_child(work)))
        found: list[Any] = []

        def work() -> str:
            return str(client.publish(event(1)).result(DEADLINE_S))

        holder.start()
        wait_until(lambda: bool(found) or not holder.is_alive(), DEADLINE_S)
    holder.join(DEADLINE_S)
    assert isinstance(found[0], str), found


@forks
def test_publishers_subscribers_and_futures_of_the_parent_say_so_in_the_child(
    service: FaultyService, client: Client, tmp_path: Path
) -> None:
    service.answers_events.clear()
    publisher = client.publisher()
    stored = client.publisher(outbox=tmp_path / "outbox")
    subscriber = client.subscribe("a", "TRUE")
    future = publisher.publish(event(0))
    uses: list[Callable[[], Any]] = [
        lambda: publisher.publish(event(1)),
        lambda: publisher.publish_many([event(1)]),
        lambda: stored.store([event(1)]),
        lambda: publisher.flush(1),
        lambda: publisher.stats(),
        lambda: next(subscriber),
        lambda: subscriber.flush(1),
        lambda: future.result(DEADLINE_S),
        lambda: future.exception(DEADLINE_S),
    ]
    for use in uses:
        error = in_child(use)
        assert isinstance(error, WrongContext) and "before a fork" in str(error), error

    def close_all() -> str:
        publisher.close()
        stored.close()
        subscriber.close()
        client.close()
        return "closed"

    assert in_child(close_all) == "closed"
    service.answers_events.set()
    assert future.result(DEADLINE_S)
    assert stored.store([event(2)]) == 1
    stored.flush(DEADLINE_S)
    message = next(subscriber)
    message.ack()
    subscriber.flush(DEADLINE_S)


@forks
@pytest.mark.parametrize("how", ["closes", "ends"])
def test_a_child_that_closes_an_outbox_or_ends_does_not_remove_the_parents_write_ahead_log(
    tmp_path: Path, how: str
) -> None:
    """The parent went on writing a file that had no name any more: a kill lost what it had stored."""
    program = """if True:
        import os, sys
        from fieldfare.client.outbox import Outbox
        outbox = Outbox(sys.argv[1], "http://127.0.0.1:1", "default")
        outbox.add([b"1"], 1)
        if (pid := os.fork()) == 0:
            if sys.argv[2] == "closes":
                with outbox._lock, outbox._sync_lock:  # as a thread of the parent might hold them
                    outbox.close()
                os._exit(0)
            sys.exit()
        assert os.waitpid(pid, 0)[1] == 0
        outbox.add([b"2"], 1)
        outbox.sync()
        os.kill(os.getpid(), 9)
    """
    path = tmp_path / "outbox"
    done = subprocess.run([sys.executable, "-c", program, path, how], timeout=DEADLINE_S, check=False)
    assert done.returncode == -signal.SIGKILL
    with Outbox(path) as outbox:
        assert outbox.waiting_events == 2


@forks
def test_a_child_that_ends_does_not_send_what_its_parent_has_queued(service: FaultyService) -> None:
    """At its end the child waited ten seconds for a thread that it does not have.

    In a program of its own: a child that ends also removes the temporary folders of its parent.
    """
    program = """if True:
        import os, signal, sys
        from fieldfare import Client
        with Client(sys.argv[1]) as client:
            future = client.publish({"source": "/s", "type": "t", "id": "0", "data": {}})
            pid = os.fork()
            if pid == 0:
                signal.alarm(5)
                sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            future.result(60)
    """
    service.events_delay_s = 0.2
    done = subprocess.run([sys.executable, "-c", program, service.url], timeout=2 * DEADLINE_S, check=False)
    assert done.returncode == 0
    assert len(service.records) == 1 and service.duplicates == 0


@forks
def test_an_async_client_of_the_parent_works_in_the_childs_event_loop(service: FaultyService) -> None:
    client = AsyncClient(service.url, retry=SOON)

    async def use() -> str:
        assert await client.spaces() == ["default"]
        return str(await client.publish(event(0)))

    def in_own_loop() -> str:
        return asyncio.run(asyncio.wait_for(use(), DEADLINE_S))

    assert len({in_own_loop(), in_child(in_own_loop), in_own_loop()}) == 3


def test_an_async_client_works_in_a_second_event_loop(service: FaultyService) -> None:
    """It said "this client is closed"."""
    client = AsyncClient(service.url, retry=SOON)

    async def use() -> str:
        assert await client.spaces() == ["default"]
        async with client.subscribe("a", "TRUE") as messages:
            position = str(await client.publish(event(0)))
            message = await anext(messages)
            message.ack()
        return position

    assert len({asyncio.run(asyncio.wait_for(use(), DEADLINE_S)) for _ in range(3)}) == 3
    asyncio.run(client.close())


def test_an_async_client_of_a_running_loop_says_so_in_another_one(service: FaultyService) -> None:
    async def main() -> None:
        client = AsyncClient(service.url, retry=SOON)
        await client.spaces()

        def elsewhere() -> None:
            for use in (client.spaces, lambda: client.publish_many([event(0)])):
                with pytest.raises(WrongContext, match="another event loop"):
                    asyncio.run(use())

        await asyncio.to_thread(elsewhere)
        assert await client.spaces() == ["default"]
        await client.close()

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


def test_an_async_publisher_of_another_loop_says_so(service: FaultyService, tmp_path: Path) -> None:
    client = AsyncClient(service.url, retry=SOON)

    async def make() -> list[Any]:
        await client.spaces()
        return [client.publisher(), client.subscribe("a", "TRUE")]

    async def use(publisher: Any, subscriber: Any) -> None:
        with pytest.raises(WrongContext, match="publisher belongs to another event loop"):
            await publisher.publish_many([event(0)])
        with pytest.raises(WrongContext, match="subscriber belongs to another event loop"):
            await anext(subscriber)
        await client.close()

    asyncio.run(use(*asyncio.run(make())))
    assert not service.records
