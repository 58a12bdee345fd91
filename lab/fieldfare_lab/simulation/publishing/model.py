"""Parameters of the simulated system: times, sizes, and a message's steps through it.

The paper names three of these figures: the round trip (140 ms on average), the slow subscriber's 25 messages
a second, and that times are drawn from exponential distributions. The others are ours. The data store's cost
of a read matters most, because batching amortises it; it was chosen so that, as in the paper,
the best fixed N at 35 messages per second is about 10.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PublisherModel:
    """The publisher's workers and data store.

    Attributes
    ----------
    workers : int
        Worker threads, shared by receiving and publishing.
    receive_buffer : int
        Requests that may wait for a worker before one is dropped.
    receive_work_s, publish_work_s : float
        Mean time (exponential) of a worker's computation for a request, and for a message before its
        transfer.
    write_s : float
        Time of the data store for one write. Writes go before reads, but interrupt none (section III.d).
    read_s, read_each_s : float
        Fixed time of the data store for one read, and the time for each message in it.
    """

    workers: int = 40
    receive_buffer: int = 100
    receive_work_s: float = 0.005
    publish_work_s: float = 0.005
    write_s: float = 0.001
    read_s: float = 0.150
    read_each_s: float = 0.002


@dataclass(frozen=True, slots=True)
class SubscriberModel:
    """A gated vacationing server (section V.A): it sleeps, then reads what the broker held when it woke.

    Attributes
    ----------
    read_s : float
        Mean time (exponential) to read one message.
    vacation_s : float
        Mean time (exponential) between two pulls.
    """

    read_s: float
    vacation_s: float


FAST_SUBSCRIBER = SubscriberModel(read_s=0.0005, vacation_s=0.005)
"""A server without vacations, and without delay."""


@dataclass(frozen=True, slots=True)
class SystemModel:
    """Publisher, network, broker and subscriber.

    Attributes
    ----------
    round_trip_s, least_round_trip_s : float
        Mean and minimum round-trip time between publisher and broker; the time above the minimum is
        exponential.
    broker_s : float
        Mean time (exponential) that the broker takes for a message.
    broker_buffer : int
        Messages that the broker holds for the subscriber. It grants the publisher only free
        places, so a full buffer delays transfers: flow control at the level of messages, as in the paper.
    receive_first : bool
        Whether requests have priority for workers: True with auto-tuning, False without (section V.B.3).
    """

    publisher: PublisherModel = field(default_factory=PublisherModel)
    subscriber: SubscriberModel = FAST_SUBSCRIBER
    round_trip_s: float = 0.140
    least_round_trip_s: float = 0.112
    broker_s: float = 0.001
    broker_buffer: int = 1000
    receive_first: bool = True


@dataclass(slots=True)
class Message:
    """One message's times, in seconds since the start; None for steps not reached.

    Attributes
    ----------
    arrived_s : float
        The request reached the publisher.
    stored_s : float or None
        It was written to the data store.
    acknowledged_s : float or None
        The broker's acknowledgement was back.
    delivered_s : float or None
        The subscriber had read it.
    dropped : bool
        It found the receive buffer full.
    """

    arrived_s: float
    stored_s: float | None = None
    acknowledged_s: float | None = None
    delivered_s: float | None = None
    dropped: bool = False

    @property
    def latency_s(self) -> float | None:
        """End to end: from the request to the subscriber."""
        return None if self.delivered_s is None else self.delivered_s - self.arrived_s
