"""The connected subscribers, in a separate process, so that receiving does not disturb publishing.

Each reads one subscription over server-sent events with the regular client. Arrivals are recorded with their
times and reported to the demo's process ten times a second.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from fieldfare.cli.demo.check import Positions, as_positions
from fieldfare.cli.demo.encrypted import SpaceAccess
from fieldfare.client import AsyncClient, Message

REPORT_EVERY_S = 0.1
ACK_EVERY_S = 0.5
"""Interval between acks, in seconds: acks are durable, so each request for them costs a disk sync."""

WINDOW = 10_000
STOP_WAIT_S = 10.0
STOP = "stop"


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Arrived messages: for each its follower, its position, and the time (monotonic clock)."""

    followers: NDArray[np.uint16]
    positions: Positions
    received_s: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.positions)


def join_deliveries(parts: Iterable[Deliveries]) -> Deliveries:
    """Concatenate reports in order."""
    every = [_NOTHING, *parts]
    return Deliveries(
        np.concatenate([part.followers for part in every]),
        np.concatenate([part.positions for part in every]),
        np.concatenate([part.received_s for part in every]),
    )


_NOTHING = Deliveries(np.empty(0, np.uint16), np.empty(0, np.int64), np.empty(0, np.float64))


class Followers:
    """A context manager that reads subscriptions in another process."""

    def __init__(
        self,
        url: str,
        ids: Sequence[str],
        access: SpaceAccess = SpaceAccess(),  # noqa: B008
    ) -> None:
        # A fresh interpreter: forking a process with threads is not safe.
        spawn = multiprocessing.get_context("spawn")
        self._here, there = spawn.Pipe()
        self._process = spawn.Process(
            target=_run, args=(url, list(ids), access, there), name="followers", daemon=True
        )
        self._there = there
        self._reports: deque[Deliveries] = deque()
        self._problem = ""
        self._reader = threading.Thread(target=self._read_reports, name="followers-reader", daemon=True)

    def __enter__(self) -> Followers:
        self._process.start()
        self._there.close()
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # It may have ended already.
            self._here.send(STOP)
        self._process.join(STOP_WAIT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._reader.join()
        self._here.close()

    def receive(self) -> Deliveries:
        """Return the deliveries reported since the last call.

        Raises
        ------
        RuntimeError
            If the process has ended or one of its subscribers has failed.
        """
        if self._problem:
            raise RuntimeError(self._problem)
        parts = []
        while self._reports:
            parts.append(self._reports.popleft())
        return join_deliveries(parts)

    def _read_reports(self) -> None:
        """Read reports as they arrive: a full pipe would block the subscribers and distort their times."""
        try:
            while True:
                report = self._here.recv()
                if isinstance(report, str):
                    self._problem = f"a connected subscriber failed: {report}"
                else:
                    self._reports.append(_unpack(*report))
        except (EOFError, OSError):
            self._problem = self._problem or "the process with the connected subscribers has ended"


def _unpack(followers: bytes, offsets: bytes, indexes: bytes, received_s: bytes) -> Deliveries:
    return Deliveries(
        np.frombuffer(followers, np.uint16),
        as_positions(np.frombuffer(offsets, np.int64), np.frombuffer(indexes, np.int32)),
        np.frombuffer(received_s, np.float64),
    )


class _Report:
    """Arrivals since the last report, as columns."""

    def __init__(self) -> None:
        self.followers, self.offsets = array("H"), array("q")
        self.indexes, self.received_s = array("i"), array("d")

    def __len__(self) -> int:
        return len(self.followers)

    def note(self, follower: int, message: Message) -> None:
        self.followers.append(follower)
        self.offsets.append(message.position.offset)
        self.indexes.append(message.position.index)
        self.received_s.append(time.monotonic())

    def take(self) -> tuple[bytes, ...]:
        """Return the columns as bytes, and begin the next report."""
        columns = (self.followers, self.offsets, self.indexes, self.received_s)
        taken = tuple(column.tobytes() for column in columns)
        for column in columns:
            del column[:]
        return taken


def _run(url: str, ids: Sequence[str], access: SpaceAccess, pipe: Connection) -> None:
    # Ctrl-C reaches all processes of the terminal; the demo's main process ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        asyncio.run(_follow_all(url, ids, access, pipe))
    except Exception as error:  # Any error must reach the demo's main process.
        try:
            pipe.send(f"{type(error).__name__}: {error}")
        except OSError:
            pass


async def _follow_all(url: str, ids: Sequence[str], access: SpaceAccess, pipe: Connection) -> None:
    report = _Report()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), ended.set)
    async with AsyncClient(url, access.space, encryption=access.encryption()) as client:
        tasks = [asyncio.create_task(_follow(client, id, i, report)) for i, id in enumerate(ids)]
        tasks.append(asyncio.create_task(_send_reports(report, pipe)))
        waiter = asyncio.create_task(ended.wait())
        done, _ = await asyncio.wait([*tasks, waiter], return_when=asyncio.FIRST_COMPLETED)
        for task in [*tasks, waiter]:
            task.cancel()
        await asyncio.gather(*tasks, waiter, return_exceptions=True)
        for task in done - {waiter}:
            task.result()


async def _send_reports(report: _Report, pipe: Connection) -> None:
    while True:
        await asyncio.sleep(REPORT_EVERY_S)
        if len(report):
            pipe.send(report.take())


async def _follow(client: AsyncClient, id: str, follower: int, report: _Report) -> None:
    received: list[Message] = []
    async with client.subscribe(id, window=WINDOW) as messages:
        acker = asyncio.create_task(_ack_now_and_then(received))
        try:
            async for message in messages:
                report.note(follower, message)
                _ = message.raw  # Decrypts it in an encrypted space.
                received.append(message)
        finally:
            acker.cancel()
            _ack(received)


async def _ack_now_and_then(received: list[Message]) -> None:
    while True:
        await asyncio.sleep(ACK_EVERY_S)
        _ack(received)


def _ack(received: list[Message]) -> None:
    for message in received:
        message.ack()
    received.clear()
