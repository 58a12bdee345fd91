"""The messages between a publisher and its tuner.

                            ┌─────────────────────┐
    Polled ────────────────▶│                     │──▶ Ask(Poll)        how many messages are pending then?
    BatchAssigned ─────────▶│  PublishingMachine  │──▶ Ask(ReadBatch)   read messages, assign them to workers
    TransferCompleted ─────▶│                     │
                            └─────────────────────┘

The machine is the main publisher thread (MPT) of Balasubramanian et al., section III, without its I/O: a
runtime (a simulation, a client) has the clock, the data store and the workers. One question is open at any
time: `Poll` is answered by `Polled`, and `ReadBatch` by `BatchAssigned` when the last message of the batch
has a worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fieldfare.effects import Effect

TIME_GRAIN_S = 1e-9
"""Times closer than this, in seconds, count as equal: sums of poll intervals have rounding errors."""


@dataclass(frozen=True, slots=True)
class Poll:
    """Poll the data store at this time, in seconds on the machine's clock; never in the past."""

    at_s: float


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Read at most ``most_messages`` messages from the data store and assign each to a worker."""

    most_messages: int


@dataclass(frozen=True, slots=True)
class Polled:
    """The result of a poll.

    Attributes
    ----------
    pending_messages : int
        Messages in the data store.
    arrived_messages : int
        Messages that have reached the publisher since the previous poll.
    transferring_messages : int
        Messages that workers are transferring to the broker.
    """

    pending_messages: int
    arrived_messages: int = 0
    transferring_messages: int = 0


@dataclass(frozen=True, slots=True)
class BatchAssigned:
    """Every message of the requested batch has a worker."""


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
    """A tuner's current settings and estimates.

    Attributes
    ----------
    batch_messages : int
        N: the maximum messages per read.
    poll_interval_s : float
        T_poll.
    most_batch_messages : int or None
        N_max; None while N has no upper bound.
    load_per_s, capacity_per_s : float or None
        Estimated arrivals and broker capacity, in messages per second; None before the first sample.
    """

    batch_messages: int
    poll_interval_s: float
    most_batch_messages: int | None = None
    load_per_s: float | None = None
    capacity_per_s: float | None = None


class PublishingMachine(Protocol):
    """A tuner: a machine without I/O, clock or randomness."""

    def start(self, now: float) -> list[Effect]:
        """Start the machine; called once."""

    def handle(self, message: Message, now: float) -> list[Effect]:
        """Process a message and return the resulting effects."""

    def setting(self) -> Setting:
        """Return the current settings and estimates."""
