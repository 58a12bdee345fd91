"""Handlers of messages: what they return from is acked, what they hold stays theirs, they end in peace."""

from __future__ import annotations

import asyncio
import importlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from client_support import SOON
from faulty_service import wait_until
from real_gateway import RealGateway

from fieldfare import AsyncClient, Client, DeliverySettings, Message
from fieldfare.client import ClientClosed, SubscriptionDeleted
from fieldfare.client.synchronous import processing
from fieldfare.client.synchronous.concurrency import on_signals
from fieldfare.client.synchronous.subscriber import Subscriber

pytestmark = pytest.mark.long

COUNT = 12


@pytest.fixture
def client(gateway: RealGateway) -> Iterator[Client]:
    with Client(gateway.url, retry=SOON) as connected:
        yield connected


@pytest.fixture
def id(request: pytest.FixtureRequest, client: Client) -> str:
    """A subscription of the test's own, with some messages."""
    name = request.node.name.replace("[", "-").replace("]", "")
    client.create_subscription(f"type = '{name}'", name)
    publish(client, name, COUNT)
    return name


def publish(client: Client, type: str, count: int) -> None:
    client.publish_many({"source": "/test", "type": type, "data": {"n": n}} for n in range(count))


def number(message: Message) -> int:
    found: int = message.event["data"]["n"]
    return found


def left(client: Client, id: str) -> list[tuple[int, int]]:
    """Return the numbers and attempts of a subscription's undelivered messages."""
    return [
        (each.event["data"]["n"], each.attempt) for each in client.pull(id, 100, wait_s=0, ack_deadline_s=60)
    ]


def end_when_settled(message: Message, messages: Subscriber) -> None:
    threading.Thread(target=lambda: wait_until(lambda: message.settled) or messages.close()).start()


def ended_after(count: int, messages: Subscriber, seen: list[int]) -> Callable[[Message], None]:
    """Return a handler that ends the processing after ``count`` messages, without blocking."""

    def handle(message: Message) -> None:
        seen.append(number(message))
        if len(seen) == count:
            end_when_settled(message, messages)

    return handle


def test_handled_messages_are_acked_in_order(client: Client, id: str) -> None:
    seen: list[int] = []
    with client.subscribe(id) as messages:
        messages.process(ended_after(COUNT, messages, seen))
    assert seen == list(range(COUNT))
    assert left(client, id) == []


def test_asyncio_gives_the_same_results(gateway: RealGateway, client: Client, id: str) -> None:
    async def main() -> list[int]:
        seen: list[int] = []
        at_once = most = 0
        handler = signal.signal(signal.SIGTERM, lambda number, frame: None)
        mine = signal.getsignal(signal.SIGTERM)
        async with AsyncClient(gateway.url, retry=SOON) as found:
            messages = found.subscribe(id)

            async def handle(message: Message) -> None:
                nonlocal at_once, most
                at_once += 1
                most = max(most, at_once)
                await asyncio.sleep(0.01)
                at_once -= 1
                seen.append(number(message))

            async def end() -> None:
                while len(seen) < COUNT or at_once:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0)
                await messages.close()

            await asyncio.gather(messages.process(handle, concurrency=4), end())
        assert most == 4
        assert signal.getsignal(signal.SIGTERM) is mine, "the program's own handler is back"
        signal.signal(signal.SIGTERM, handler)
        return seen

    assert sorted(asyncio.run(main())) == list(range(COUNT))
    assert left(client, id) == []


def test_concurrency_bounds_the_messages_handled_at_a_time(client: Client, id: str) -> None:
    meeting = threading.Barrier(3, timeout=180)
    inside: list[int] = []
    most = 0
    seen: list[int] = []

    with client.subscribe(id) as messages:
        finish = ended_after(COUNT, messages, seen)

        def handle(message: Message) -> None:
            nonlocal most
            inside.append(number(message))
            most = max(most, len(inside))
            meeting.wait()  # A barrier for three handlers.
            inside.remove(number(message))
            finish(message)

        messages.process(handle, concurrency=3)
    assert most == 3 and sorted(seen) == list(range(COUNT))


def test_a_failed_message_is_redelivered_and_a_settled_one_is_not(client: Client, id: str) -> None:
    client.configure_subscription(id, max_attempts=2)
    attempts: list[tuple[int, int]] = []

    with client.subscribe(id) as messages:

        def handle(message: Message) -> None:
            attempts.append((number(message), message.attempt))
            if len(attempts) == COUNT + 1:
                end_when_settled(message, messages)
            if number(message) == 3:
                raise ValueError("not three")
            if number(message) == 5:
                message.terminate("never five")

        messages.process(handle)
    assert sorted(attempts) == sorted([(n, 1) for n in range(COUNT)] + [(3, 2)])
    dead = {letter.event["data"]["n"]: letter.reason for letter in client.dead_letters(id) if letter.event}
    assert dead == {3: "nacked", 5: "never five"}


@pytest.mark.slow
def test_a_message_stays_with_a_handler_that_takes_longer_than_the_deadline(client: Client, id: str) -> None:
    """Also those that wait to be handled: no other reader gets them meanwhile, and each is handled once."""
    seen: list[int] = []
    with client.subscribe(id, ack_deadline_s=5.0) as messages:
        finish = ended_after(COUNT, messages, seen)
        other = threading.Event()

        def handle(message: Message) -> None:
            if number(message) == 0:
                robber.start()
                other.wait(60)
            attempts.append(message.attempt)
            finish(message)

        taken: list[object] = []
        attempts: list[int] = []

        def rob() -> None:
            for _ in range(6):  # longer than two deadlines
                taken.extend(client.pull(id, 100, wait_s=2, ack_deadline_s=60))
            other.set()

        robber = threading.Thread(target=rob)
        messages.process(handle)
        robber.join(60)
    assert not taken
    assert seen == list(range(COUNT)) and set(attempts) == {1}


def test_a_deleted_subscription_ends_it_with_an_error(client: Client, id: str) -> None:
    with client.subscribe(id) as messages:
        deleted = threading.Event()

        def handle(message: Message) -> None:
            if not deleted.is_set():
                deleted.set()
                client.delete_subscription(id)

        with pytest.raises(SubscriptionDeleted):
            messages.process(handle)


def test_invalid_settings_are_refused(client: Client, id: str) -> None:
    with client.subscribe(id, auto_ack=True) as messages, pytest.raises(ValueError, match="auto_ack"):
        messages.process(print)
    with client.subscribe(id) as messages, pytest.raises(ValueError, match="at least 1, not 0"):
        messages.process(print, concurrency=0)
    assert len(client.pull(id, 100, wait_s=30)) == COUNT


def test_a_late_ack_removes_the_dead_letter(client: Client, id: str) -> None:
    """The ack was answered, the message stayed a dead letter, and a retry delivered it again."""
    client.configure_subscription(id, max_attempts=1, ack_deadline_s=0.2)
    with client.subscribe(id) as messages:
        taken = [next(messages)]
        wait_until(lambda: len(list(client.dead_letters(id))) == COUNT)
        taken += [next(messages) for _ in range(COUNT - 1)]
        for message in taken:
            message.ack()
        messages.flush()
        assert list(client.dead_letters(id)) == []
    client.configure_subscription(id, max_attempts=None, ack_deadline_s=60)
    client.retry_dead_letters(id)
    assert left(client, id) == []


def test_a_handler_that_ends_the_program_ends_it(gateway: RealGateway, client: Client, id: str) -> None:
    """Its thread ended without a word, and with the last of them `process`, as if all were well."""

    def handle(message: Message) -> None:
        sys.exit(3)

    with client.subscribe(id) as messages, pytest.raises(SystemExit) as ended:
        messages.process(handle, concurrency=2)
    assert ended.value.code == 3

    async def main() -> None:
        async def handle(message: Message) -> None:
            sys.exit(4)

        async with AsyncClient(gateway.url, retry=SOON) as found:
            await found.subscribe(id).process(handle)

    with pytest.raises(SystemExit) as ended:
        asyncio.run(main())
    assert ended.value.code == 4
    assert len(left(client, id)) == COUNT


def test_a_handler_that_waited_for_something_cancelled_has_failed(
    gateway: RealGateway, client: Client, id: str
) -> None:
    """Nothing was handled any more, and `process` came back as if it had been asked to."""

    async def main() -> list[int]:
        seen: list[int] = []
        async with AsyncClient(gateway.url, retry=SOON) as found:
            messages = found.subscribe(id)

            async def handle(message: Message) -> None:
                seen.append(number(message))
                if len(seen) == 2:
                    other = asyncio.create_task(asyncio.sleep(60))
                    other.cancel()
                    await other
                if len(seen) == COUNT + 1:
                    message.ack()
                    await messages.flush()
                    await messages.close()

            await messages.process(handle)
        return seen

    assert sorted(asyncio.run(main())) == sorted([*range(COUNT), 1])
    assert left(client, id) == []


def test_process_can_be_cancelled(gateway: RealGateway, client: Client, id: str) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def handle(message: Message) -> None:
            begun.set()
            await asyncio.sleep(600)

        async with AsyncClient(gateway.url, retry=SOON) as found:
            task = asyncio.create_task(found.subscribe(id).process(handle, concurrency=3))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert len(left(client, id)) == COUNT


@pytest.mark.parametrize("flavour", ["synchronous", "asynchronous"])
def test_a_final_stream_error_is_raised(
    gateway: RealGateway, client: Client, id: str, flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours, or a proxy's: `process` came back as if the subscriber had been closed."""
    module = importlib.import_module(f"fieldfare.client.{flavour}.subscriber")

    def broken(parser: object, data: bytes) -> list[object]:
        raise ValueError("it cannot be read")

    monkeypatch.setattr(module.EventStreamParser, "feed", broken)

    async def main() -> None:
        async def handle(message: Message) -> None: ...

        async with AsyncClient(gateway.url, retry=SOON) as found:
            await found.subscribe(id).process(handle)

    with pytest.raises(ValueError, match="it cannot be read"):
        if flavour == "synchronous":
            with client.subscribe(id) as messages:
                messages.process(print)
        else:
            asyncio.run(main())


def test_a_subscriber_that_is_closed_extends_nothing_more(
    client: Client, id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler goes on for a while: its thread's helper ended in a traceback."""
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    with client.subscribe(id, ack_deadline_s=0.03) as messages:
        tried = threading.Event()
        extend = Message.extend

        def seen(message: Message, ack_deadline_s: float | None = None) -> None:
            try:
                extend(message, ack_deadline_s)
            except ClientClosed:
                tried.set()
                raise

        monkeypatch.setattr(Message, "extend", seen)

        def handle(message: Message) -> None:
            messages.close()
            assert tried.wait(30)

        messages.process(handle)
    assert not failed


PROGRAM = """
import asyncio, sys, time
from fieldfare import AsyncClient, Client

def handle(message):
    print("begun", flush=True)
    sys.stdin.readline()
    print("done", message.event["data"]["n"], flush=True)

async def handle_async(message):
    await asyncio.to_thread(handle, message)

async def main():
    async with AsyncClient(sys.argv[1]) as client:
        await client.subscribe(sys.argv[2]).process(handle_async)

if sys.argv[3] == "async":
    asyncio.run(main())
else:
    with Client(sys.argv[1]) as client:
        client.subscribe(sys.argv[2]).process(handle)
print("ended", flush=True)
"""


@pytest.mark.parametrize("flavour", ["threads", "async"])
def test_sigterm_lets_what_is_being_handled_come_to_its_end(
    gateway: RealGateway, client: Client, id: str, flavour: str, tmp_path: Path
) -> None:
    """The first message is acked, nothing more is begun, and the others are there for the next reader."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(program), gateway.url, id, flavour],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    out, _ = process.communicate("go on\n", timeout=180)
    assert out.splitlines() == ["done 0", "ended"]
    assert process.returncode == 0
    assert left(client, id) == [(n, 2) for n in range(1, COUNT)]


def test_a_signal_that_the_system_gives_to_another_thread_is_heard(client: Client, id: str) -> None:
    handled: list[int] = []

    def handle(message: Message) -> None:
        if not handled:
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        handled.append(number(message))

    with client.subscribe(id) as messages:
        rescue = threading.Timer(60, messages.close)  # otherwise a failure would wait for ever
        rescue.start()
        messages.process(handle)
        assert rescue.is_alive(), "the signal was not heard"
        rescue.cancel()


def test_signals_are_heard_before_the_first_message_is_begun(
    client: Client, id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that came in between would end the program in the middle of a message."""
    working: list[str] = []

    def heard(signals: Iterable[signal.Signals], call: Callable[[], None]) -> Callable[[], None]:
        names = (thread.name for thread in threading.enumerate())
        working.extend(
            name for name in names if name.startswith(("fieldfare-handlers", "fieldfare-processing"))
        )
        return on_signals(signals, call)

    monkeypatch.setattr(processing, "on_signals", heard)
    with client.subscribe(id) as messages:
        messages.process(lambda message: messages.close())
    assert working == []


def test_failed_messages_are_redelivered_after_the_settings_delay(client: Client, id: str) -> None:
    client.configure_subscription(id, retry_delays_s=(3600,))
    with client.subscribe(id) as messages:
        seen: list[int] = []
        finish = ended_after(COUNT - 1, messages, seen)

        def handle(message: Message) -> None:
            if number(message) == 0:
                raise RuntimeError("later")
            finish(message)

        messages.process(handle)
    assert seen == list(range(1, COUNT))
    assert client.get_subscription(id).delivery == DeliverySettings(retry_delays_s=(3600,))
    assert left(client, id) == []
