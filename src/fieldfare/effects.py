"""Effects: what a machine asks its runtime to do.

A machine is a protocol or a policy without I/O, clock or randomness: ``start(now)`` and
``handle(message, now)`` return a list of effects, which a runtime (the service, Spark's driver or a
simulation) carries out. All machines use these effects; each has its own types of messages and questions.

    message, now ──▶ machine ──▶ Send    a message to another machine (Received): may be lost, repeated, late
                                 Timer   a message to itself, later
                                 Ask     for something outside; the answer (or `AskFailed`) is a message
                                 Tell    the user of the machine about an event; without an answer
                                 Stop    the machine is done
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to the machine with this name; it may be lost, repeated or late."""

    to: str
    message: object


@dataclass(frozen=True, slots=True)
class Received:
    """A message from another machine; a machine's own messages are passed without this wrapper."""

    sender: str
    message: object


@dataclass(frozen=True, slots=True)
class Timer:
    """Pass this message to the machine at this time, as its own; at once if the time has passed."""

    at_s: float
    message: object


@dataclass(frozen=True, slots=True)
class Ask:
    """Do or read something outside, and pass the result (or `AskFailed`) to the machine as its own."""

    question: object


@dataclass(frozen=True, slots=True)
class AskFailed:
    """The answer to a question that could not be answered: its handler raised this error."""

    question: object
    error: Exception


@dataclass(frozen=True, slots=True)
class Tell:
    """Notify the user of the machine of something that has happened."""

    news: object


@dataclass(frozen=True, slots=True)
class Stop:
    """End the machine: pass it no more messages."""


def source(me: str, message: object) -> tuple[str, object]:
    """Return the sender of a message to the machine named ``me``, and the message without its wrapper."""
    return (message.sender, message.message) if isinstance(message, Received) else (me, message)


Effect = Send | Timer | Ask | Tell | Stop


class Machine(Protocol):
    """A machine that a runtime can run. Times are in seconds on one clock with any starting point."""

    def start(self, now: float) -> list[Effect]:
        """Start the machine; called once, before any message."""

    def handle(self, message: Any, now: float) -> list[Effect]:
        """Process a message: its own (from a `Timer` or an `Ask`), or a `Received` one."""
