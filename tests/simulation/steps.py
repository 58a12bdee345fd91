"""Processes with simulated threads, locks, queues, clocks and event loops: a step at a time, as a seed says.

A *fiber* stands for a thread: it runs until it pauses, at a call of storage and where a thread would wait. An
event loop's step is one callback. Between two steps anything may happen: another one's step, or the end
of a process. Time passes when somebody takes a step, and when everybody waits for it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import itertools
import queue
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

from greenlet import getcurrent, greenlet

STEP_S = 0.0003
"""A step takes up to so long."""
HELD_SHARE = 0.004
"""At so many of all steps somebody is stopped for a while, as by SIGSTOP, or by a scheduler that is busy."""
HELD_STEPS = 120
BEGAN_S = 1_700_000_000.0


class Killed(BaseException):
    """The process of who hears this is no more: nothing it does now comes to anything."""


class Process:
    """What is killed at once: fibers and event loops.

    Attributes
    ----------
    failures
        What ended fibers that nobody waits for.
    """

    def __init__(self, steps: Steps, name: str) -> None:
        self.steps = steps
        self.name = name
        self.is_dead = False
        self.fibers: dict[Fiber, None] = {}
        self.loops: list[Loop] = []
        self.failures: list[BaseException] = []

    def spawn(self, work: Callable[[], Any], name: str) -> Fiber:
        """A thread that does some work."""
        return Fiber(self, work, name)

    def kill(self) -> None:
        """End it between two steps."""
        self.is_dead = True
        with self.steps.on_behalf_of(self):
            for fiber in list(self.fibers):
                fiber.throw()
            for loop in self.loops:
                loop.end()
        self.steps.forget(self)


class Fiber:
    """A thread of a process; see `Process.spawn`."""

    def __init__(self, process: Process, work: Callable[[], Any], name: str) -> None:
        self.process = process
        self.name = name
        self.is_alive = True
        self.waits = 0
        self._work = work
        self._greenlet = greenlet(self._run, process.steps.hub)
        process.fibers[self] = None
        process.steps.ready.append(self)

    def _run(self) -> None:
        try:
            self._work()
        except Killed:
            pass
        except BaseException as error:
            self.process.failures.append(error)
        finally:
            self.is_alive = False
            self.process.fibers.pop(self, None)

    def switch(self) -> None:
        self._greenlet.switch()

    def throw(self) -> None:
        if self._greenlet:
            self._greenlet.throw(Killed)
        self.is_alive = False
        self.process.fibers.pop(self, None)


class Steps:
    """Who does the next step: drawn, one after the other."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.hub = getcurrent()
        self.now_s = 1_000.0
        self.set_by_s = 0.0
        """By how much somebody has set the clock that may be set."""
        self.count = 0
        self.ready: list[Fiber] = []
        self.loops: list[Loop] = []
        self.fiber: Fiber | None = None
        self.process: Process | None = None
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._held: tuple[Process | None, int] = (None, 0)
        self._switch = self.hub.switch

    def at(self, when_s: float, act: Callable[[], None]) -> None:
        """Have this called then."""
        heapq.heappush(self._timers, (when_s, next(self._numbers), act))

    def step(self) -> bool:
        """Do one; False when nothing is left to be done ever."""
        timers = self._timers
        while timers and timers[0][0] <= self.now_s:
            heapq.heappop(timers)[2]()
        waiting = len(self.ready)
        loops = [loop for loop in self.loops if loop.ready]
        if not waiting and not loops:
            if not timers:
                return False
            self.now_s = timers[0][0]
            return True
        self.count += 1
        random = self.random
        self.now_s += random.random() * STEP_S
        chosen = int(random.random() * (waiting + len(loops)))
        who = self.ready[chosen].process if chosen < waiting else loops[chosen - waiting].process
        held, until = self._held
        if who is held and self.count < until:
            return True
        if random.random() < HELD_SHARE:
            self._held = who, self.count + int(random.random() * HELD_STEPS)
        self.process = who
        if chosen < waiting:
            fiber = self.ready[chosen]
            self.ready[chosen] = self.ready[-1]
            self.ready.pop()
            self.fiber = fiber
            fiber.switch()
            self.fiber = None
        else:
            loops[chosen - waiting].step()
        self.process = None
        return True

    @contextmanager
    def on_behalf_of(self, process: Process) -> Iterator[None]:
        """What is called meanwhile is called by this process."""
        before, self.process = self.process, process
        try:
            yield
        finally:
            self.process = before

    def forget(self, process: Process) -> None:
        """Nothing of it is done any more."""
        self.ready = [fiber for fiber in self.ready if fiber.process is not process]
        self.loops = [loop for loop in self.loops if loop.process is not process]

    def pause(self) -> None:
        """Let others have steps before the next one of this fiber; on an event loop it goes on at once."""
        fiber = self.fiber
        if fiber is None:
            if self.process is not None and self.process.is_dead:
                raise Killed
            return
        if fiber.process.is_dead:
            raise Killed
        self.ready.append(fiber)
        self._switch()
        if fiber.process.is_dead:
            raise Killed

    def wait(self, until_s: float | None = None) -> Callable[[], None]:
        """What is to be called so that the fiber that then calls `sleep` goes on, if not at that time."""
        fiber = self.fiber
        assert fiber is not None, "the event loop waits"
        fiber.waits += 1
        number = fiber.waits

        def wake() -> None:
            if fiber.waits == number and fiber.is_alive and not fiber.process.is_dead:
                fiber.waits += 1
                self.ready.append(fiber)

        if until_s is not None:
            self.at(until_s, wake)
        return wake

    def sleep(self) -> None:
        """Wait, see `wait`."""
        fiber = self.fiber
        assert fiber is not None
        if fiber.process.is_dead:
            raise Killed
        self._switch()
        if fiber.process.is_dead:
            raise Killed


class Now:
    """The steps that are being done, and the machine on which they are."""

    steps: Steps
    machine: Any


def pause() -> None:
    """See `Steps.pause`."""
    Now.steps.pause()


class Time:
    """What stands in the place of the module ``time``."""

    @staticmethod
    def monotonic() -> float:
        return Now.steps.now_s

    perf_counter = thread_time = monotonic

    @staticmethod
    def time() -> float:
        return BEGAN_S + Now.steps.now_s + Now.steps.set_by_s

    @staticmethod
    def time_ns() -> int:
        return int(Time.time() * 1e9)

    @staticmethod
    def sleep(seconds: float) -> None:
        steps = Now.steps
        steps.wait(steps.now_s + seconds)
        steps.sleep()


class _Condition:
    """Fibers that wait for something."""

    def __init__(self) -> None:
        self._wakes: list[Callable[[], None]] = []

    def wait(self, timeout: float | None = None) -> None:
        steps = Now.steps
        self._wakes.append(steps.wait(None if timeout is None else steps.now_s + timeout))
        steps.sleep()

    def notify(self) -> None:
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()


class Event:
    def __init__(self) -> None:
        self._is_set = False
        self._condition = _Condition()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._condition.notify()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        Now.steps.pause()
        if not self._is_set:
            self._condition.wait(timeout)
        return self._is_set


class Lock:
    def __init__(self) -> None:
        self._is_locked = False
        self._condition = _Condition()

    def __enter__(self) -> None:
        while self._is_locked:
            self._condition.wait()
        self._is_locked = True

    def __exit__(self, *error: object) -> None:
        self._is_locked = False
        self._condition.notify()


class Semaphore:
    def __init__(self, count: int) -> None:
        self._count = count
        self._condition = _Condition()

    def acquire(self) -> None:
        while not self._count:
            self._condition.wait()
        self._count -= 1

    def release(self) -> None:
        self._count += 1
        self._condition.notify()


class Thread:
    def __init__(self, target: Callable[[], Any], name: str = "", daemon: bool = False) -> None:
        self._target = target
        self._name = name
        self._ended = Event()

    def is_alive(self) -> bool:
        return not self._ended.is_set()

    def start(self) -> None:
        process = Now.steps.process
        assert process is not None
        process.spawn(self._run, self._name)

    def _run(self) -> None:
        self._target()
        self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)


class Threading:
    """What stands in the place of the module ``threading``."""

    Event, Lock, Thread = Event, Lock, Thread


class SimpleQueue:
    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._condition = _Condition()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._condition.notify()

    def get(self, block: bool = True) -> Any:
        Now.steps.pause()
        while not self._items:
            if not block:
                raise queue.Empty
            self._condition.wait()
        return self._items.popleft()


class Queue:
    """What stands in the place of the module ``queue``."""

    Empty, SimpleQueue = queue.Empty, SimpleQueue


class Pool:
    """What stands in the place of a ``ThreadPoolExecutor`` whose futures threads wait for."""

    def __init__(self, max_workers: int, thread_name_prefix: str) -> None:
        self._name = thread_name_prefix
        self._slots = Semaphore(max_workers)

    def submit(self, work: Callable[[], Any]) -> PoolFuture:
        """Do something in a simulated thread of the running process."""
        future = PoolFuture(work, self._slots)
        process = Now.steps.process
        assert process is not None
        process.spawn(future.run, self._name)
        return future

    def shutdown(self, wait: bool) -> None:
        """Its threads end with the process."""


class PoolFuture:
    """What a `Pool` does."""

    def __init__(self, work: Callable[[], Any], slots: Semaphore) -> None:
        self.over = Event()
        self._work, self._slots = work, slots
        self._result: Any = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[PoolFuture], object]] = []

    def run(self) -> None:
        self._slots.acquire()
        try:
            self._result = self._work()
        except Exception as error:
            self._error = error
        self._slots.release()
        self.over.set()
        for each in self._callbacks:
            each(self)

    def done(self) -> bool:
        return self.over.is_set()

    def result(self) -> Any:
        self.over.wait()
        if self._error is not None:
            raise self._error
        return self._result

    def add_done_callback(self, call: Callable[[PoolFuture], object]) -> None:
        if self.done():
            call(self)
        else:
            self._callbacks.append(call)


def wait(futures: Iterable[PoolFuture], timeout: float) -> SimpleNamespace:
    """What stands in the place of ``concurrent.futures.wait``."""
    waited = list(futures)
    until_s = Now.steps.now_s + timeout
    for each in waited:
        each.over.wait(max(0.0, until_s - Now.steps.now_s))
    return SimpleNamespace(not_done=[each for each in waited if not each.done()])


class Executor:
    """What stands in the place of a ``ThreadPoolExecutor``; `Loop.run_in_executor` knows it."""

    def __init__(self, max_workers: int = 1 << 30, thread_name_prefix: str = "threads") -> None:
        self.most = max_workers
        self.name = thread_name_prefix
        self.at_work = 0
        self.waiting: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[..., Any], *args: Any) -> concurrent.futures.Future[Any]:
        """Do something in a simulated thread of the running loop's process."""
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        done.set_running_or_notify_cancel()

        def finish(found: asyncio.Future[Any]) -> None:
            if not found.cancelled():
                error = found.exception()
                done.set_result(found.result()) if error is None else done.set_exception(error)

        asyncio.get_running_loop().run_in_executor(self, work, *args).add_done_callback(finish)  # type: ignore[arg-type]
        return done

    def shutdown(self, cancel_futures: bool = False) -> None:
        """The processes that are simulated end by being killed."""


class _Future(asyncio.Future):  # type: ignore[type-arg]
    def __hash__(self) -> int:
        return 1


class _Task(asyncio.Task):  # type: ignore[type-arg]
    def __hash__(self) -> int:
        return 1


class Loop(asyncio.AbstractEventLoop):
    """An event loop of a process: each step is one callback, in the order in which they came."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.steps = process.steps
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.failures: list[str] = []
        self._executor = Executor()
        process.loops.append(self)
        process.steps.loops.append(self)

    def step(self) -> None:
        """Do the next callback."""
        handle = self.ready.popleft()
        if not handle._cancelled:
            events._set_running_loop(self)
            try:
                handle._run()
            finally:
                events._set_running_loop(None)

    def end(self) -> None:
        """The process is dead: what its tasks hold is let go of."""
        self.ready.clear()
        events._set_running_loop(self)
        try:
            for task in list(self.tasks):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                try:
                    task.get_coro().close()  # type: ignore[union-attr]
                except BaseException:
                    pass  # nobody hears what the dead have to say
        finally:
            events._set_running_loop(None)
        self.tasks.clear()
        self.ready.clear()

    def time(self) -> float:
        return self.steps.now_s

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.process.is_dead

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.process.is_dead:
            self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)

        def due() -> None:
            if not self.process.is_dead and not handle._cancelled:
                self.ready.append(handle)

        self.steps.at(when, due)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self.steps.now_s + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = _Task(coro, loop=self, name=name, context=context)
        if self.process.is_dead:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coro.close()
        else:
            self.tasks[task] = None
            task.add_done_callback(lambda task: self.tasks.pop(task, None))
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        pool: Executor = executor or self._executor
        future = self.create_future()

        def work() -> None:
            try:
                result, error = func(*args), None
            except Exception as raised:
                result, error = None, raised
            self.call_soon(_settle, future, result, error)

        pool.waiting.append(work)
        if pool.at_work < pool.most:
            pool.at_work += 1
            self.process.spawn(lambda: self._work_off(pool), pool.name)
        return future

    def _work_off(self, pool: Executor) -> None:
        while pool.waiting:
            pool.waiting.popleft()()
        pool.at_work -= 1

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self.process.is_dead and not isinstance(error, Killed):
            self.failures.append(f"{context.get('message')}: {error!r}")


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
        future.exception()
    else:
        future.set_result(result)
