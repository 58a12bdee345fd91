"""What a machine asks of whoever runs it.

A machine is a protocol or a policy without I/O, clock or chance of its own: ``start(now)`` and
``handle(sender, message, now)`` give a list of effects, and a runtime carries them out: the service,
Spark's driver, or a simulation. The same few effects serve all machines; what they say to each other and
what they ask for are their own messages.

    message, now ──▶ machine ──▶ Send    to another machine: may be lost, doubled, late
                                 Timer   to itself, later
                                 Ask     for something outside: the answer comes as a message
                                 Tell    what has come to pass: nobody answers
                                 Stop    the machine is done
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a machine by its name; it may be lost, doubled or late."""

    to: str
    message: object


@dataclass(frozen=True, slots=True)
class Timer:
    """Hand in this message at this time, as the machine's own. A time that has passed means at once."""

    at_s: float
    message: object


@dataclass(frozen=True, slots=True)
class Ask:
    """Do or read something outside, and hand in what comes of it as the machine's own message."""

    question: object


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell whoever uses the machine that this has come to pass."""

    news: object


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing depends on this machine any more: hand in no more messages."""


Effect = Send | Timer | Ask | Tell | Stop


class Machine(Protocol):
    """What a runtime runs. Times are seconds on one clock, which may start anywhere."""

    def start(self, now: float) -> list[Effect]:
        """Begin; called once, before any message."""

    def handle(self, sender: str, message: object, now: float) -> list[Effect]:
        """Take in a message; one of its own, from a `Timer` or an `Ask`, has its own name as the sender."""
