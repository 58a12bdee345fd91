"""Our tuner: read all pending messages while the broker keeps up; in congestion, bound those in flight.

Intuition: a data store that reads ten messages in the time of one serves batches. During a read the next
batch accumulates, and grows with the load. Waiting for a minimum N in addition gains nothing: in simulations
of the four loads, a threshold of 2 to 6 was better by 1 % for one load and worse for the others. An N below
the number of pending messages leaves messages behind. So a poll reads everything, as soon as there is
something. The number of transfers in flight remains to be tuned, from three estimates:

* least delay: the fastest transfer of the last minute, the delay without queues (Vegas, BBR);
* bandwidth: n transfers in flight that take s each complete at n/s (Little's law; the paper's formula 2);
* pipe: bandwidth times least delay, the transfers that can be in flight without a queue at the broker.

Transfers that are much slower than the least delay, or that do not complete, indicate a queue beyond the
publisher. Then at most ``window_gain`` times the transfers that complete in a round and a round trip may be
in flight; messages wait in the data store, which is made for that. When congestion ends, the bandwidth rises,
and the window grows by that gain each round trip. Without congestion only ``most_transfers`` bounds the
transfers in flight, so the next poll serves a step of the load; it always keeps some workers free for
requests.

A user's bound on latency is used for fewer rounds: polls are as rare as the bound allows, minus the durations
of a round and of a slow transfer; in congestion, only as much is in flight as completes within the bound.
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
    """The settings of `WindowedPublisher`.

    Attributes
    ----------
    latency_bound_s : float or None
        Target for the age of a message when it is acknowledged, in seconds; None: as low as possible. Higher:
        fewer, larger reads. It is no guarantee: a bound below the path's own delay acts like None.
    min_poll_s, max_poll_s : float
        Bounds of the poll interval, in seconds. A lower minimum finds a single message sooner and polls more
        often; a higher maximum lets a high bound on latency save more reads.
    least_batch_messages, most_batch_messages : int
        Bounds of one read. Between them it is the broker's capacity in ``window_gain`` rounds.
    least_transfers, most_transfers : int
        Bounds of the transfers in flight. A higher minimum detects the end of congestion sooner. Set the
        maximum to three quarters of the workers, or requests wait for workers that the broker blocks.
    window_gain : float
        Transfers in flight in congestion, in pipes. Higher recovers faster, with a longer broker queue.
    slow_transfer : float
        Ratio to the least delay from which a transfer means congestion. Higher tolerates more noise.
    memory_s, least_delay_memory_s : float
        Seconds for which a slow transfer, and a fast one, is remembered.
    gain : float
        Weight of earlier samples in averages.
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
    """Reads all pending messages, within a window of transfers in flight that shrinks in congestion."""

    def __init__(self, knobs: WindowedKnobs | None = None) -> None:
        self.knobs = knobs if knobs is not None else WindowedKnobs()
        self._load = MovingAverage(self.knobs.gain)
        self._bandwidth = MovingAverage(self.knobs.gain)
        # The last transfers of a batch run with few others, so the average is low: the peak is the capacity.
        self._peak_bandwidth = RecentExtreme(self.knobs.memory_s, most=True)
        self._round = MovingAverage(self.knobs.gain)
        self._least_delay = RecentExtreme(self.knobs.least_delay_memory_s)
        self._slowest = RecentExtreme(self.knobs.memory_s, most=True)
        self._polled_s = 0.0
        self._progressed_s = 0.0
        self._congested = False
        self._is_behind = False

    def start(self, now: float) -> list[Effect]:
        """Start the machine; called once."""
        self._polled_s = self._progressed_s = now
        return [Ask(Poll(now + self.knobs.min_poll_s))]

    def handle(self, message: Message, now: float) -> list[Effect]:
        """Process a message and return the resulting effects."""
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
        """Return the current settings and estimates; N_max is the window."""
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
        """Detect congestion, a queue beyond the publisher: transfers are slow, or none has completed."""
        least_s, slowest_s = self._least_delay.value, self._slowest.value
        if least_s is None or slowest_s is None:
            return
        if transferring == 0:
            self._progressed_s = now_s
        slow_s = self.knobs.slow_transfer * least_s
        stalled = now_s - self._progressed_s > slow_s
        self._congested = stalled or slowest_s > slow_s

    def _window(self) -> int:
        """Return the maximum transfers in flight."""
        least_s, bandwidth = self._least_delay.value, self._bandwidth.value
        if not self._congested or least_s is None or bandwidth is None:
            return self.knobs.most_transfers
        window = self.knobs.window_gain * bandwidth * (least_s + (self._round.value or 0.0))
        if self.knobs.latency_bound_s is not None:
            window = min(window, bandwidth * max(least_s, self._slack_s()))
        return min(max(int(window), self.knobs.least_transfers), self.knobs.most_transfers)

    def _leaving(self) -> float:
        """Return the transfers expected to complete during a read that starts now; 0 in congestion."""
        if self._congested or self._peak_bandwidth.value is None:
            return 0.0
        return self._peak_bandwidth.value * (self._round.value or 0.0)

    def _batch_messages(self) -> int:
        """Return N, the maximum messages per read: those that leave during ``window_gain`` rounds."""
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
            # Messages that arrive between two polls must fit into half the window, or a queue builds up.
            spare_s = min(spare_s, self._window() / (2 * self._load.value))
        if self._is_behind:
            spare_s = 0.0
        return min(max(spare_s, self.knobs.min_poll_s), self.knobs.max_poll_s)

    def _slack_s(self) -> float:
        """Return the user's bound on latency minus the duration of a round, in seconds."""
        return (self.knobs.latency_bound_s or 0.0) - (self._round.value or 0.0)
