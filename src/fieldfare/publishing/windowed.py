"""Our tuner: take what is there, as long as the broker keeps up; when it does not, send what the pipe holds.

Intuition: a data store that takes as long to read one message as ten is a server of bulks. While it serves,
the next bulk gathers by itself, and grows with the load. To wait for a certain N on top of that wins nothing:
in simulations of the four loads a threshold of 2 to 6 was better by 1 % at one of them and worse at the
others. An N below what has gathered leaves messages behind. So a poll reads everything, at once when there is
something. What is left to tune is how much may be under way, and three estimates give it:

* least delay: the quickest transfer of the last minute, what the path takes without queues (Vegas, BBR);
* bandwidth: n transfers under way that take s each leave at n/s (Little's law; the paper's formula 2);
* pipe: bandwidth times least delay, what can be under way without a queue at the broker.

Transfers much slower than the least delay, or none that ends, mean a queue beyond the publisher. Then no more
may be under way than ``window_gain`` times what leaves in a round and a round trip: messages wait in the data
store, which is made for it. With room again the bandwidth shows it, and the window grows by that gain each
round trip. Without congestion only ``most_transfers`` bounds what is under way, so a step of the load is
served by the next poll; it keeps some workers free for requests whatever the broker does.

A user's bound on latency is spent on fewer rounds: polls are as rare as the bound allows after the durations
of a round and of a slow transfer are taken off; and in congestion no more is under way than leaves within it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fieldfare.effects import Ask, Effect
from fieldfare.publishing.estimators import MovingAverage, RecentExtreme
from fieldfare.publishing.machine import (
    BatchAssigned,
    Message,
    Poll,
    Polled,
    ReadBatch,
    Setting,
    TransferCompleted,
)


@dataclass(frozen=True, slots=True)
class WindowedKnobs:
    """What can be set.

    Attributes
    ----------
    latency_bound_s : float or None
        How old a message may become until it is acknowledged, seconds; None: as young as can be. Higher:
        fewer, larger reads. It cannot promise what the path does not give: below the path's own delay it
        means None.
    min_poll_s, max_poll_s : float
        Bounds of the poll interval, seconds. A lower minimum finds a lonely message sooner and polls more
        often; a higher maximum lets a high bound on latency save more reads.
    least_batch_messages, most_batch_messages : int
        Bounds of one read. In between it is what the broker takes in ``window_gain`` rounds.
    least_transfers, most_transfers : int
        Bounds of the transfers under way. A higher minimum finds out sooner that congestion is over. The
        maximum is for who gives the workers: three quarters of them, or requests wait for workers that the
        broker holds up.
    window_gain : float
        Pipes that may be under way in congestion. Higher recovers faster, with a longer queue at the broker.
    slow_transfer : float
        Transfers so many times slower than the least delay mean congestion. Higher tolerates more noise.
    memory_s, least_delay_memory_s : float
        How long a slow transfer is remembered, and a quick one.
    gain : float
        Weight of the past in averages.
    """

    latency_bound_s: float | None = None
    min_poll_s: float = 0.050
    max_poll_s: float = 1.0
    least_batch_messages: int = 16
    most_batch_messages: int = 1000
    least_transfers: int = 16
    most_transfers: int = 30
    window_gain: float = 2.0
    slow_transfer: float = 4.0
    memory_s: float = 5.0
    least_delay_memory_s: float = 60.0
    gain: float = 0.75

    def __post_init__(self) -> None:
        if not 0 < self.min_poll_s <= self.max_poll_s:
            raise ValueError("0 < min_poll_s <= max_poll_s must hold")
        if not 1 <= self.least_batch_messages <= self.most_batch_messages:
            raise ValueError("1 <= least_batch_messages <= most_batch_messages must hold")
        if not 1 <= self.least_transfers <= self.most_transfers:
            raise ValueError("1 <= least_transfers <= most_transfers must hold")
        bound_s = self.latency_bound_s
        if self.window_gain < 1 or self.slow_transfer <= 1 or (bound_s is not None and bound_s <= 0):
            raise ValueError("window_gain >= 1, slow_transfer > 1 and latency_bound_s > 0 must hold")


class WindowedPublisher:
    """Reads all that is pending, within a window of transfers that closes in congestion."""

    def __init__(self, knobs: WindowedKnobs | None = None) -> None:
        self.knobs = knobs if knobs is not None else WindowedKnobs()
        self._load = MovingAverage(self.knobs.gain)
        self._bandwidth = MovingAverage(self.knobs.gain)
        # The last transfers of a batch see few others: the average is low, the peak is what can be.
        self._peak_bandwidth = RecentExtreme(self.knobs.memory_s, most=True)
        self._round = MovingAverage(self.knobs.gain)
        self._least_delay = RecentExtreme(self.knobs.least_delay_memory_s)
        self._slowest = RecentExtreme(self.knobs.memory_s, most=True)
        self._polled_s = 0.0
        self._progressed_s = 0.0
        self._congested = False
        self._is_behind = False

    def start(self, now: float) -> list[Effect]:
        """Begin; called once."""
        self._polled_s = self._progressed_s = now
        return [Ask(Poll(now + self.knobs.min_poll_s))]

    def handle(self, message: Message, now: float) -> list[Effect]:
        """Take note of what happened, and say what to do."""
        match message:
            case Polled():
                return [self._poll(message, now)]
            case BatchAssigned():
                self._round.add(now - self._polled_s)
                return [Ask(Poll(max(now, self._polled_s + self._poll_interval_s())))]
            case TransferCompleted():
                self._learn(message, now)
                return []

    def setting(self) -> Setting:
        """The values that hold now; N_max is the window."""
        return Setting(
            self._batch_messages(),
            self._poll_interval_s(),
            self._window(),
            self._load.value,
            self._bandwidth.value,
        )

    def _poll(self, poll: Polled, now_s: float) -> Effect:
        if now_s > self._polled_s:
            self._load.add(poll.arrived_messages / (now_s - self._polled_s))
        self._polled_s = now_s
        self._judge(poll.transferring_messages, now_s)
        staying = max(0.0, poll.transferring_messages - self._leaving())
        most = min(self._batch_messages(), self._window() - int(staying))
        self._is_behind = poll.pending_messages > most
        if poll.pending_messages and most > 0:
            return Ask(ReadBatch(most))
        return Ask(Poll(now_s + self._poll_interval_s()))

    def _learn(self, transfer: TransferCompleted, now_s: float) -> None:
        self._progressed_s = now_s
        if transfer.took_s > 0:
            self._least_delay.add(transfer.took_s, now_s)
            self._slowest.add(transfer.took_s, now_s)
            bandwidth = transfer.transferring_messages / transfer.took_s
            self._bandwidth.add(bandwidth)
            self._peak_bandwidth.add(bandwidth, now_s)

    def _judge(self, transferring: int, now_s: float) -> None:
        """Is there a queue beyond the publisher? Either transfers are slow, or none of several has ended."""
        least_s, slowest_s = self._least_delay.value, self._slowest.value
        if least_s is None or slowest_s is None:
            return
        if transferring == 0:
            self._progressed_s = now_s
        slow_s = self.knobs.slow_transfer * least_s
        stalled = now_s - self._progressed_s > slow_s
        self._congested = stalled or slowest_s > slow_s

    def _window(self) -> int:
        """Transfers that may be under way."""
        least_s, bandwidth = self._least_delay.value, self._bandwidth.value
        if not self._congested or least_s is None or bandwidth is None:
            return self.knobs.most_transfers
        window = self.knobs.window_gain * bandwidth * (least_s + (self._round.value or 0.0))
        if self.knobs.latency_bound_s is not None:
            window = min(window, bandwidth * max(least_s, self._slack_s()))
        return min(max(int(window), self.knobs.least_transfers), self.knobs.most_transfers)

    def _leaving(self) -> float:
        """Transfers that will have ended when a read that begins now is done; none is counted on in
        congestion.
        """
        if self._congested or self._peak_bandwidth.value is None:
            return 0.0
        return self._peak_bandwidth.value * (self._round.value or 0.0)

    def _batch_messages(self) -> int:
        """N: the most messages of a read, what leaves during ``window_gain`` rounds."""
        knobs = self.knobs
        if self._peak_bandwidth.value is None:
            return knobs.least_batch_messages
        round_s = max(self._round.value or 0.0, self._poll_interval_s())
        leaving = int(knobs.window_gain * self._peak_bandwidth.value * round_s)
        return min(max(leaving, knobs.least_batch_messages), knobs.most_batch_messages)

    def _poll_interval_s(self) -> float:
        if self.knobs.latency_bound_s is None:
            return self.knobs.min_poll_s
        spare_s = self._slack_s() - (self._slowest.value or 0.0)
        if self._load.value:
            # What gathers between two polls must fit into half the window, or a saved read costs a queue.
            spare_s = min(spare_s, self._window() / (2 * self._load.value))
        if self._is_behind:
            spare_s = 0.0
        return min(max(spare_s, self.knobs.min_poll_s), self.knobs.max_poll_s)

    def _slack_s(self) -> float:
        """What a round leaves of the user's bound."""
        return (self.knobs.latency_bound_s or 0.0) - (self._round.value or 0.0)
