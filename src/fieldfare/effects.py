"""What a machine asks of whoever runs it.

A machine is a protocol or a policy without I/O, clock or chance of its own: ``start(now)`` and
``handle(message, now)`` give a list of effects, and a runtime carries them out: the service, Spark's driver,
or a simulation. The same few effects serve all machines; what they say to each other and what they ask for
are their own messages.

    message, now ──▶ machine ──▶ Send    to another machine, there a Received: may be lost, doubled, late
                                 Timer   to itself, later
                                 Ask     for something outside: the answer comes as a message
                                 Tell    what has come to pass: nobody answers
                                 Stop    the machine is done
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a machine by its name; it may be lost, doubled or late."""

    to: str
    message: object


@dataclass(frozen=True, slots=True)
class Received:
    """How another machine's message is handed in; a machine's own come as they are."""

    sender: str
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


def source(me: str, message: object) -> tuple[str, object]:
    """Who sent a message to the machine of this name, and what."""
    return (message.sender, message.message) if isinstance(message, Received) else (me, message)


Effect = Send | Timer | Ask | Tell | Stop


class Machine(Protocol):
    """What a runtime runs. Times are seconds on one clock, which may start anywhere."""

    def start(self, now: float) -> list[Effect]:
        """Begin; called once, before any message."""

    def handle(self, message: Any, now: float) -> list[Effect]:
        """Take in a message: its own, from a `Timer` or an `Ask`, or one that was `Received`."""
