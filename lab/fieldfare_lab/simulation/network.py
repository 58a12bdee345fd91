"""A network of machines in simulated time, with delays, losses, duplicates, partitions and crashes.

    machine ──effects──▶ Network ──▶ Send: after a delay, unless lost, partitioned, or the receiver is down
                            │        Timer: at its time, unless the machine is down then
                            └──────▶ Ask, Tell, Stop: to the outside

All randomness comes from one generator, in the order of the simulation: a run with the same seed is
identical.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Protocol

import simpy

from fieldfare.effects import Ask, Effect, Machine, Received, Send, Stop, Tell, Timer


class Outside(Protocol):
    """The environment of a simulated network: answers machines' requests and receives their reports."""

    def answer(self, name: str, question: object) -> tuple[float, object]:
        """Return the answer to a machine's `Ask`, and the delay in seconds."""

    def told(self, name: str, news: object) -> None:
        """Receive a machine's report (`Tell`)."""

    def stopped(self, name: str) -> None:
        """Handle a machine's end."""


class Network:
    """Runs machines, addressed by their names.

    Parameters
    ----------
    environment
        The simulation's clock.
    outside
        Answers requests and receives reports.
    delay_s
        Draws the delay of one message.
    rng
        Selects lost and duplicated messages.

    Attributes
    ----------
    loss, doubled : float
        The shares of messages that never arrive, and that arrive twice. More: protocols repeat more; from 0
        (the default) nothing is drawn.
    """

    def __init__(
        self, environment: simpy.Environment, outside: Outside, delay_s: Callable[[], float], rng: Random
    ) -> None:
        self.machines: dict[str, Machine] = {}
        self.loss = self.doubled = 0.0
        self._environment = environment
        self._outside = outside
        self._delay_s = delay_s
        self._rng = rng
        self._down: set[str] = set()
        self._lives: dict[str, int] = {}
        self._cut_off: frozenset[str] = frozenset()

    def add(self, name: str, machine: Machine) -> None:
        """Start a machine."""
        self.machines[name] = machine
        self.carry_out(name, machine.start(self._environment.now))

    def hand_in(self, name: str, message: object) -> None:
        """Deliver a message to a machine now, as its own or as `Received`; ignore unknown machines."""
        if name in self.machines and name not in self._down:
            self.carry_out(name, self.machines[name].handle(message, self._environment.now))

    def crash(self, name: str) -> None:
        """Crash a machine: it receives no more messages or timers."""
        self._down.add(name)

    def revive(self, name: str, message: object) -> None:
        """Resume a paused machine in its old state, beginning with this message."""
        self._down.discard(name)
        self.hand_in(name, message)

    def restart(self, name: str, machine: Machine) -> None:
        """Replace a machine that died, or dies now, by a new one without the old one's timers and answers."""
        self._down.discard(name)
        self._lives[name] = self._lives.get(name, 0) + 1
        self.add(name, machine)

    def is_down(self, name: str) -> bool:
        """Return whether a machine has crashed or stopped."""
        return name in self._down

    def cut(self, names: Collection[str]) -> None:
        """Partition the network: these machines reach only each other. An empty set ends the partition."""
        self._cut_off = frozenset(names)

    def carry_out(self, name: str, effects: Sequence[Effect]) -> None:
        """Carry out a machine's effects."""
        for effect in effects:
            if isinstance(effect, Send):
                if (name in self._cut_off) == (effect.to in self._cut_off):
                    for _ in range(self._copies()):
                        self._later(self._delay_s(), effect.to, Received(name, effect.message))
            elif isinstance(effect, Timer):
                self._later_itself(max(0.0, effect.at_s - self._environment.now), name, effect.message)
            elif isinstance(effect, Ask):
                delay_s, answer = self._outside.answer(name, effect.question)
                self._later_itself(delay_s, name, answer)
            elif isinstance(effect, Tell):
                self._outside.told(name, effect.news)
            elif isinstance(effect, Stop):
                self._down.add(name)
                self._outside.stopped(name)

    def _copies(self) -> int:
        if not self.loss and not self.doubled:
            return 1
        chance = self._rng.random()
        return 0 if chance < self.loss else 2 if chance > 1 - self.doubled else 1

    def _later(self, delay_s: float, to: str, message: object) -> None:
        timer = self._environment.timeout(delay_s)
        timer.callbacks.append(lambda _: self.hand_in(to, message))

    def _later_itself(self, delay_s: float, name: str, message: object) -> None:
        """A delivery that is valid only for a machine's present life."""
        life = self._lives.get(name, 0)
        timer = self._environment.timeout(delay_s)
        timer.callbacks.append(
            lambda _: self.hand_in(name, message) if self._lives.get(name, 0) == life else None
        )
