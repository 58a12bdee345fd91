"""What a publisher tells its tuner, and what the tuner asks of it.

                            ┌─────────────────────┐
    Polled ────────────────▶│                     │──▶ Ask(Poll)        how much is there at that moment?
    BatchAssigned ─────────▶│  PublishingMachine  │──▶ Ask(ReadBatch)   read messages, give them to workers
    TransferCompleted ─────▶│                     │
                            └─────────────────────┘

The machine is the main publisher thread (MPT) of Balasubramanian et al., section III, without its hands: a
runtime (a simulation, a client) has the clock, the data store and the workers. One question is open at any
time: `Poll` is answered by `Polled`, and `ReadBatch` by `BatchAssigned`, when the last message of the batch
has a worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fieldfare.effects import Effect

TIME_GRAIN_S = 1e-9
"""Moments closer than this are the same: sums of poll intervals carry rounding errors."""


@dataclass(frozen=True, slots=True)
class Poll:
    """Look how much there is at this moment, in seconds on the machine's clock; it never lies in the past."""

    at_s: float


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Read at most so many messages from the data store and assign each to a worker."""

    most_messages: int


@dataclass(frozen=True, slots=True)
class Polled:
    """What was there at a poll.

    Attributes
    ----------
    pending_messages : int
        Messages in the data store.
    arrived_messages : int
        Messages that reached the publisher since the poll before.
    transferring_messages : int
        Messages that workers hold for the broker now.
    """

    pending_messages: int
    arrived_messages: int = 0
    transferring_messages: int = 0


@dataclass(frozen=True, slots=True)
class BatchAssigned:
    """Every message of the batch that was asked for has a worker."""


@dataclass(frozen=True, slots=True)
class TransferCompleted:
    """The broker acknowledged a message.

    Attributes
    ----------
    took_s : float
        From the start of the transfer to the acknowledgement: the paper's s_i.
    transferring_messages : int
        Messages that were being transferred at that moment, this one included: the paper's n_i.
    """

    took_s: float
    transferring_messages: int


Message = Polled | BatchAssigned | TransferCompleted


@dataclass(frozen=True, slots=True)
class Setting:
    """What a tuner holds to be right now.

    Attributes
    ----------
    batch_messages : int
        N: the most messages read at once.
    poll_interval_s : float
        T_poll.
    most_batch_messages : int or None
        N_max; None while nothing bounds N.
    load_per_s, capacity_per_s : float or None
        Estimates, in messages per second, of what arrives and of what the broker takes; None before the first
        sample.
    """

    batch_messages: int
    poll_interval_s: float
    most_batch_messages: int | None = None
    load_per_s: float | None = None
    capacity_per_s: float | None = None


class PublishingMachine(Protocol):
    """A tuner: a machine without I/O, clock or chance."""

    def start(self, now: float) -> list[Effect]:
        """Begin; called once."""

    def handle(self, message: Message, now: float) -> list[Effect]:
        """Take note of what happened, and say what to do."""

    def setting(self) -> Setting:
        """The values that hold now."""
