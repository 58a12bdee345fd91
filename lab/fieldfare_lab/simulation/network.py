"""A network of machines in simulated time: it delays, loses and doubles, is cut, and machines on it crash.

    machine ──effects──▶ Network ──▶ Send: after a delay, unless it is lost, cut off, or nobody is there
                            │        Timer: at its time, unless the machine is down then
                            └──────▶ Ask, Tell, Stop: to the world outside

Everything random comes from one generator, in the order of the simulation: a seed gives the same story again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Protocol

import simpy

from fieldfare.effects import Ask, Effect, Machine, Received, Send, Stop, Tell, Timer


class Outside(Protocol):
    """What is not on the network: stores to ask, people to tell."""

    def answer(self, name: str, question: object) -> tuple[float, object]:
        """What comes of a machine's `Ask`, and after how many seconds."""

    def told(self, name: str, news: object) -> None:
        """A machine tells that something has come to pass."""

    def stopped(self, name: str) -> None:
        """A machine is done."""


class Network:
    """Runs machines by their names.

    Parameters
    ----------
    environment
        Whose clock it is.
    outside
        Answers and hears what is not for another machine.
    delay_s
        Draws the delay of one message.
    rng
        Decides what is lost and doubled.

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
        """Let a machine begin."""
        self.machines[name] = machine
        self.carry_out(name, machine.start(self._environment.now))

    def hand_in(self, name: str, message: object) -> None:
        """Give a machine a message of its own, or one that it `Received`, now; nobody hears what is for one
        that was never added."""
        if name in self.machines and name not in self._down:
            self.carry_out(name, self.machines[name].handle(message, self._environment.now))

    def crash(self, name: str) -> None:
        """A machine hears nothing any more, nor do its timers ring."""
        self._down.add(name)

    def revive(self, name: str, message: object) -> None:
        """A machine that was only paused goes on as it was, beginning with this message."""
        self._down.discard(name)
        self.hand_in(name, message)

    def restart(self, name: str, machine: Machine) -> None:
        """A machine that died, or dies now, begins anew as another, without what the old one waited for."""
        self._down.discard(name)
        self._lives[name] = self._lives.get(name, 0) + 1
        self.add(name, machine)

    def is_down(self, name: str) -> bool:
        """Whether a machine has crashed or stopped."""
        return name in self._down

    def cut(self, names: Collection[str]) -> None:
        """From now on these reach each other and no other; nobody: all is whole again."""
        self._cut_off = frozenset(names)

    def carry_out(self, name: str, effects: Sequence[Effect]) -> None:
        """Do what a machine asks for."""
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
        """What is for a machine in its present life only."""
        life = self._lives.get(name, 0)
        timer = self._environment.timeout(delay_s)
        timer.callbacks.append(
            lambda _: self.hand_in(name, message) if self._lives.get(name, 0) == life else None
        )
