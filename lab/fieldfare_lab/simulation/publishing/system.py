"""The publisher of section III in simulated time; its threads are processes, driven by a `PublishingMachine`.

request ─▶ main receive thread ─▶ worker ─▶ data store
           (finite buffer)        (write)       │
subscriber ◀─ broker ◀─ worker ◀─ main publisher thread
                       (transfer)  (polls; reads batches)
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import simpy

from fieldfare.effects import Ask
from fieldfare.publishing.machine import (
    BatchAssigned,
    Poll,
    Polled,
    PublishingMachine,
    ReadBatch,
    Setting,
    TransferCompleted,
)
from fieldfare_lab.publishing.workers import Task, WorkerPool
from fieldfare_lab.simulation.publishing.broker import Broker, Process
from fieldfare_lab.simulation.publishing.model import Message, SystemModel

WRITE_FIRST, READ_AFTER = 0, 1


@dataclass(frozen=True, slots=True)
class PollRecord:
    """The state that a poll found, and the setting after it."""

    now_s: float
    pending_messages: int
    setting: Setting


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a simulation.

    Attributes
    ----------
    messages : list of Message
        Every request, in the order of arrival.
    polls : list of PollRecord
        Every poll of the main publisher thread.
    left_messages : int
        Messages in the data store at the end.
    """

    messages: list[Message]
    polls: list[PollRecord]
    left_messages: int

    def latencies_s(self, start_s: float = 0.0, end_s: float = float("inf")) -> list[float]:
        """End-to-end latencies of the delivered messages that arrived in this span, in order of arrival."""
        return [
            message.delivered_s - message.arrived_s
            for message in self.messages
            if message.delivered_s is not None and start_s <= message.arrived_s < end_s
        ]

    def delivered(self, start_s: float, end_s: float) -> int:
        """Messages that the subscriber got in this span."""
        return sum(m.delivered_s is not None and start_s <= m.delivered_s < end_s for m in self.messages)

    @property
    def dropped(self) -> int:
        """Requests that found the buffer full."""
        return sum(message.dropped for message in self.messages)


class PublisherSystem:
    """A publisher with its broker and subscriber, driven by one machine."""

    def __init__(
        self, environment: simpy.Environment, machine: PublishingMachine, model: SystemModel, seed: int
    ) -> None:
        self._environment = environment
        self._machine = machine
        self._model = model.publisher
        self._chance = random.Random(f"publisher {seed}")
        self._broker = Broker(environment, model, seed)
        self._data_store = simpy.PriorityResource(environment, 1)
        self._workers: WorkerPool[Callable[[], None]] = WorkerPool(
            model.publisher.workers, model.publisher.receive_buffer, receive_first=model.receive_first
        )
        self._stored: deque[Message] = deque()
        self._arrived = 0
        self._assigned = 0
        self._transferring = 0
        self.messages: list[Message] = []
        self.polls: list[PollRecord] = []
        environment.process(self._publish())

    @property
    def stored_messages(self) -> int:
        """Messages in the data store."""
        return len(self._stored)

    def receive(self, times_s: Iterable[float]) -> Process:
        """The main receive thread: requests arrive at these times, in order."""
        environment = self._environment
        for moment_s in times_s:
            yield environment.timeout(max(0.0, moment_s - environment.now))
            message = Message(environment.now)
            self.messages.append(message)
            self._arrived += 1
            self._employ(Task.RECEIVE, message, self._write(message))

    def _publish(self) -> Process:
        """The main publisher thread: executes the machine's decisions."""
        environment, machine = self._environment, self._machine
        effects = machine.start(environment.now)
        while True:
            (effect,) = effects
            assert isinstance(effect, Ask)
            if isinstance(effect.question, ReadBatch):
                yield from self._assign(effect.question.most_messages)
                effects = machine.handle(BatchAssigned(), environment.now)
                continue
            assert isinstance(effect.question, Poll)
            yield environment.timeout(max(0.0, effect.question.at_s - environment.now))
            poll = Polled(len(self._stored), self._arrived, self._assigned)
            self._arrived = 0
            effects = machine.handle(poll, environment.now)
            self.polls.append(PollRecord(environment.now, poll.pending_messages, machine.setting()))

    def _assign(self, most_messages: int) -> Process:
        """Read a batch, and wait until each of its messages has a worker."""
        with self._data_store.request(priority=READ_AFTER) as turn:
            yield turn
            count = min(most_messages, len(self._stored))
            batch = [self._stored.popleft() for _ in range(count)]
            yield self._environment.timeout(self._model.read_s + count * self._model.read_each_s)
        for message in batch:
            assigned = self._environment.event()
            self._employ(Task.PUBLISH, message, self._transfer(message), assigned)
            if not assigned.triggered:
                yield assigned

    def _employ(
        self, task: Task, message: Message, work: Process, assigned: simpy.Event | None = None
    ) -> None:
        """Give the work to a worker as soon as the pool grants one."""

        def begin() -> None:
            if assigned is not None:
                self._assigned += 1
                assigned.succeed()
            self._environment.process(self._work(work))

        granted = self._workers.ask(task, begin)
        if granted:
            begin()
        elif granted is None:
            message.dropped = True

    def _work(self, work: Process) -> Process:
        yield from work
        freed = self._workers.release()
        if freed is not None:
            _task, begin = freed
            begin()

    def _write(self, message: Message) -> Process:
        """A worker on behalf of the main receive thread."""
        yield self._environment.timeout(self._chance.expovariate(1 / self._model.receive_work_s))
        with self._data_store.request(priority=WRITE_FIRST) as turn:
            yield turn
            yield self._environment.timeout(self._model.write_s)
        message.stored_s = self._environment.now
        self._stored.append(message)

    def _transfer(self, message: Message) -> Process:
        """A worker on behalf of the main publisher thread."""
        environment = self._environment
        yield environment.timeout(self._chance.expovariate(1 / self._model.publish_work_s))
        self._transferring += 1
        started_s = environment.now
        yield from self._broker.transfer(message)
        message.acknowledged_s = environment.now
        completed = TransferCompleted(environment.now - started_s, self._transferring)
        self._transferring -= 1
        self._assigned -= 1
        self._machine.handle(completed, environment.now)


def simulate(
    machine: PublishingMachine,
    times_s: Iterable[float],
    duration_s: float,
    *,
    model: SystemModel | None = None,
    seed: int = 1,
) -> Run:
    """Run a publisher for `duration_s` seconds of simulated time.

    Parameters
    ----------
    machine : PublishingMachine
        The tuner. It learns, so each run needs a new one.
    times_s : iterable of float
        When requests arrive, ascending, in seconds.
    duration_s : float
        When the simulation ends.
    model : SystemModel, optional
        The system's times and sizes.
    seed : int
        Seed of the work and round-trip times; the same seed gives the same run.
    """
    environment = simpy.Environment()
    system = PublisherSystem(environment, machine, model if model is not None else SystemModel(), seed)
    environment.process(system.receive(times_s))
    environment.run(until=duration_s)
    return Run(system.messages, system.polls, system.stored_messages)
