"""Runs machines (``fieldfare.effects``) in an event loop, addressed by their names.

    dispatch ──▶ machine ──▶ Timer   the message is passed to the machine at its time
                    ▲        Ask     a task calls the handler of the question's type; its answer, or
                    │                `AskFailed`, is passed to the machine
                    └──────  Send    queued for a machine of this runner, else given to the transport
                             Tell    the listener of its type is called
                             Stop    nothing more is passed to the machine

A machine handles one message at a time, to its end: a message that its effects cause waits in a queue. The
queue is bounded; a `Send` that finds it full is lost. Effects are carried out in their order, and one that
fails is logged and holds up none of the others. A message of the machine's own (of a timer, or an answer) at
which it fails is passed to it again later, because the machine may never set another timer without it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Any

from fieldfare.effects import Ask, AskFailed, Effect, Machine, Received, Send, Stop, Tell, Timer, source

QUEUE_MAX = 10_000
"""Maximum messages in the queue; a `Send` beyond it is lost."""

BATCH_SIZE = 100
"""Maximum messages passed to machines before the event loop runs other callbacks."""

RETRY_S = 1.0
"""Seconds after which a machine gets a message of its own again, if it failed at it."""

_log = logging.getLogger("fieldfare.machines")

Answer = Callable[[str, Any], Awaitable[object]]
"""Answers a question of the machine with this name; None: the machine gets no answer."""

Listener = Callable[[str, Any], None]
"""Called with the name of a machine, and its news."""

Transport = Callable[[str, Send], None]
"""Sends a message of the machine with this name to one that this runner does not have."""


class _Running:
    """A machine from its start to its end, so that another one of its name gets none of its timers."""

    __slots__ = ("is_over", "machine", "name")

    def __init__(self, name: str, machine: Machine) -> None:
        self.name, self.machine, self.is_over = name, machine, False


class MachineRunner:
    """Runs machines until `close`.

    Parameters
    ----------
    answers
        Handlers of questions (`Ask`), by the question's type.
    listeners
        Listeners for news (`Tell`), by type; news of other types have none. That for `Stop` hears of a
        machine's end.
    transport
        Sends messages to machines that are not here; without one they are lost.
    clock
        The seconds that machines and timers go by; by default the monotonic clock.
    logger
        Gets a line for each handler, listener and machine that fails.
    """

    def __init__(
        self,
        answers: Mapping[type, Answer],
        listeners: Mapping[type, Listener],
        transport: Transport | None = None,
        *,
        clock: Callable[[], float] | None = None,
        logger: logging.Logger = _log,
    ) -> None:
        self._answers, self._listeners, self._transport = answers, listeners, transport
        self._clock = clock or time.monotonic
        self._logger = logger
        self._running: dict[str, _Running] = {}
        self._timers: list[tuple[float, int, _Running, object]] = []
        self._ticks = count()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_s = 0.0
        self._queue: deque[tuple[_Running, object]] = deque()
        self._is_draining = self._is_handling = False
        self._asks: set[asyncio.Task[None]] = set()
        self.lost = 0
        """Number of messages that were lost because the queue was full."""

    @property
    def is_idle(self) -> bool:
        """Whether the queue is empty."""
        return not self._queue

    def add(self, name: str, machine: Machine) -> None:
        """Start a machine on the running event loop; it replaces an earlier one of this name."""
        self._loop = asyncio.get_running_loop()
        self._end(name)
        running = self._running[name] = _Running(name, machine)
        was_handling, self._is_handling = self._is_handling, True
        try:
            self._carry_out(running, machine.start(self._clock()))
        finally:
            self._is_handling = was_handling

    def dispatch(self, name: str, message: object) -> None:
        """Pass a message to a machine: at once, or after the one that is handled. Ignore unknown names.

        Called in the event loop's thread. An exception of the machine is raised if the message is passed at
        once.
        """
        running = self._running.get(name)
        if running is None:
            return
        if self._is_handling:
            self._enqueue(running, message)
        else:
            self._handle(running, message)

    async def close(self) -> None:
        """End all machines without a message; cancel the handlers of questions, and wait for their end."""
        for name in list(self._running):
            self._end(name)
        self._queue.clear()
        self._timers.clear()
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._asks:
            task.cancel()
        await asyncio.gather(*self._asks, return_exceptions=True)

    def _end(self, name: str) -> None:
        running = self._running.pop(name, None)
        if running is not None:
            running.is_over = True

    # Messages

    def _handle(self, running: _Running, message: object) -> None:
        self._is_handling = True
        try:
            effects = running.machine.handle(message, self._clock())
            if effects:
                self._carry_out(running, effects)
        finally:
            self._is_handling = False

    def _pass(self, running: _Running, message: object) -> None:
        """Pass a message that waited, unless the machine has ended meanwhile."""
        if running.is_over:
            return
        try:
            self._handle(running, message)
        except Exception as error:
            _, content = source(running.name, message)
            self._failed(f"{running.name} at {type(content).__name__}", error)
            if not isinstance(message, Received):
                self._set_timer(running, self._clock() + RETRY_S, message)

    def _enqueue(self, running: _Running, message: object) -> None:
        self._queue.append((running, message))
        if not self._is_draining:
            self._is_draining = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        for _ in range(min(len(self._queue), BATCH_SIZE)):
            self._pass(*self._queue.popleft())
        self._is_draining = bool(self._queue)
        if self._is_draining:
            self._loop.call_soon(self._drain)

    # Effects

    def _carry_out(self, running: _Running, effects: list[Effect]) -> None:
        for effect in effects:
            try:
                match effect:
                    case Tell(news):
                        self._hear(running, news)
                    case Timer(at_s, message):
                        self._set_timer(running, at_s, message)
                    case Ask(question):
                        task = self._loop.create_task(self._ask(running, question))
                        self._asks.add(task)
                        task.add_done_callback(self._asks.discard)
                    case Send():
                        self._send(running, effect)
                    case Stop():
                        self._end(running.name)
                        self._hear(running, effect)
            except Exception as error:
                self._failed(f"{type(effect).__name__} of {running.name}", error)

    def _hear(self, running: _Running, news: object) -> None:
        listener = self._listeners.get(type(news))
        if listener is not None:
            listener(running.name, news)

    async def _ask(self, running: _Running, question: object) -> None:
        try:
            answer = await self._answers[type(question)](running.name, question)
        except Exception as error:
            self._failed(f"{type(question).__name__} of {running.name}", error)
            answer = AskFailed(question, error)
        if answer is not None:
            self._pass(running, answer)

    def _send(self, running: _Running, effect: Send) -> None:
        to, message = self._running.get(effect.to), effect.message
        if to is None:
            if self._transport is not None:
                self._transport(running.name, effect)
        elif len(self._queue) >= QUEUE_MAX:
            self.lost += 1
            if self.lost % QUEUE_MAX == 1:
                self._logger.error(
                    "the queue is full (%d messages): messages of %s are lost", QUEUE_MAX, running.name
                )
        else:
            # A machine that stands for several sends in the name of one of them.
            is_named = isinstance(message, Received)
            self._enqueue(to, message if is_named else Received(running.name, message))

    def _failed(self, what: str, error: Exception) -> None:
        is_unexpected = not isinstance(error, OSError)
        self._logger.error("%s failed: %s", what, error, exc_info=error if is_unexpected else None)

    # Timers

    def _set_timer(self, running: _Running, at_s: float, message: object) -> None:
        heappush(self._timers, (at_s, next(self._ticks), running, message))
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Have the event loop call for the earliest timer."""
        if not self._timers:
            return
        at_s = self._timers[0][0]
        if self._alarm is not None:
            if at_s >= self._alarm_s:
                return
            self._alarm.cancel()
        wait_s = max(0.0, at_s - self._clock())
        self._alarm, self._alarm_s = self._loop.call_later(wait_s, self._ring), at_s

    def _ring(self) -> None:
        """Pass the messages of due timers, by time, and by the order in which they were set."""
        self._alarm = None
        for _ in range(BATCH_SIZE):
            if not self._timers or self._timers[0][0] > self._clock():
                break
            _, _, running, message = heappop(self._timers)
            self._pass(running, message)
        self._set_alarm()
