"""The broker, a single server with a finite buffer, and the subscriber that empties it (section V.A)."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator
from typing import Any

import simpy

from fieldfare_lab.simulation.publishing.model import Message, SystemModel

Process = Generator[simpy.Event, Any, None]


class Broker:
    """Takes messages from the publisher's workers and holds them until the subscriber reads them.

    A worker needs a place in the broker's buffer before it may send. A place is taken when a transfer begins,
    and freed half a round trip after the subscriber has read the message, because the publisher is informed
    with this delay.
    """

    def __init__(self, environment: simpy.Environment, model: SystemModel, seed: int) -> None:
        self._environment = environment
        self._model = model
        self._seed = seed
        self._chance = random.Random(f"broker {seed}")
        self._server = simpy.Resource(environment, 1)
        self._places = simpy.Container(environment, model.broker_buffer, model.broker_buffer)
        self._held: deque[Message] = deque()
        environment.process(self._subscribe())

    def transfer(self, message: Message) -> Process:
        """One worker's transfer, until the acknowledgement is back."""
        environment, model = self._environment, self._model
        yield self._places.get(1)
        spread_s = model.round_trip_s - model.least_round_trip_s
        round_trip_s = model.least_round_trip_s
        if spread_s > 0:
            round_trip_s += self._chance.expovariate(1 / spread_s)
        yield environment.timeout(round_trip_s / 2)
        with self._server.request() as turn:
            yield turn
            yield environment.timeout(self._chance.expovariate(1 / model.broker_s))
        self._held.append(message)
        yield environment.timeout(round_trip_s / 2)

    def _subscribe(self) -> Process:
        """The subscriber: a vacation, then all messages that are before the gate."""
        environment, subscriber = self._environment, self._model.subscriber
        # Two generators, so that a seed gives the same vacations for any number of messages read.
        vacations, reads = random.Random(f"vacations {self._seed}"), random.Random(f"reads {self._seed}")
        while True:
            yield environment.timeout(vacations.expovariate(1 / subscriber.vacation_s))
            for _ in range(len(self._held)):
                yield environment.timeout(reads.expovariate(1 / subscriber.read_s))
                self._held.popleft().delivered_s = environment.now
                environment.process(self._give_place_back())

    def _give_place_back(self) -> Process:
        yield self._environment.timeout(self._model.round_trip_s / 2)
        yield self._places.put(1)
