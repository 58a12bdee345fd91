"""The auto-tuned publisher of Balasubramanian et al., "Auto-tuned Publisher in a Pub/Sub System".

Intuition: with a low load, a message should be sent almost as it arrives (N = 1, short polls); with a higher
load, one read of the data store and one round of assignments should serve many messages. N increases by one
while rounds end within the poll interval, decreases by one when they do not, and halves when too few messages
have arrived. T_poll follows the duration of a round. The broker's capacity within a second bounds N.

Our choices where the paper is open:

* In the paper, the estimated load (formula 1) enters no decision; it acts through the number of pending
  messages. The estimate is kept and shown in `Setting.load_per_s`.
* The first sample of each average becomes its value; the paper names no start. Until the first transfer has
  ended, N has no upper bound.
* N_max is set to η_est, messages per *second*: so N_max is the broker's capacity in ``capacity_window_s`` = 1
  s, rounded down, at least N_min. When N_max falls below N, N falls with it.
* Half of N is rounded down. A round that ends exactly with the poll interval leaves N unchanged: the paper
  says "before" for one case and "longer" for the other.
* T, the longest wait, runs from the end of the last round (or from its own last expiry), and is checked when
  polls expire. A batch that is read because T expired is smaller than N, so its round adjusts T_poll but not
  N.
* When a round has taken longer than the poll interval, the next poll is at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from fieldfare.effects import Ask, Effect
from fieldfare.publishing.estimators import MovingAverage
from fieldfare.publishing.machine import (
    TIME_GRAIN_S,
    BatchAssigned,
    Message,
    Poll,
    Polled,
    ReadBatch,
    Setting,
    TransferCompleted,
)


@dataclass(frozen=True, slots=True)
class AutotunedKnobs:
    """The paper's constants, with its values (Table I).

    Attributes
    ----------
    min_poll_s : float
        T_poll^min, seconds. Lower: shorter waits at low load, more polls.
    max_poll_s : float
        T_poll^max, seconds. Higher: larger batches at high load, later messages.
    min_batch_messages, first_batch_messages : int
        N_min, and the initial N (which the paper's figures 9, 12 and 13 vary).
    load_gain : float
        α of formula 1. Higher: the estimate of the load is smoother and slower.
    poll_headroom : float
        β > 1: the ratio of T_poll to the duration of a round. Higher: rounds end in time more often, and
        polls are rarer.
    capacity_gain : float
        γ of formula 2. Higher: N_max is smoother and slower.
    max_wait_s : float or None
        T, the longest wait for N messages, seconds; None is T_poll^max, as in the paper.
    capacity_window_s : float
        N_max is the broker's capacity in this time, in seconds. The paper equates a number of messages with
        a rate: 1 s.
    """

    min_poll_s: float = 0.050
    max_poll_s: float = 0.200
    min_batch_messages: int = 1
    first_batch_messages: int = 1
    load_gain: float = 0.5
    poll_headroom: float = 1.2
    capacity_gain: float = 0.75
    max_wait_s: float | None = None
    capacity_window_s: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.min_poll_s <= self.max_poll_s:
            raise ValueError("0 < min_poll_s <= max_poll_s must hold")
        if not 1 <= self.min_batch_messages <= self.first_batch_messages:
            raise ValueError("1 <= min_batch_messages <= first_batch_messages must hold")
        if self.poll_headroom <= 1 or self.capacity_window_s <= 0:
            raise ValueError("poll_headroom must be over 1 and capacity_window_s over 0")


class AutotunedPublisher:
    """The main publisher thread with auto-tuning (section IV, figures 5 and 7)."""

    def __init__(self, knobs: AutotunedKnobs | None = None) -> None:
        self.knobs = knobs if knobs is not None else AutotunedKnobs()
        self._batch_messages = self.knobs.first_batch_messages
        self._poll_interval_s = self.knobs.min_poll_s
        self._load = MovingAverage(self.knobs.load_gain)
        self._capacity = MovingAverage(self.knobs.capacity_gain)
        self._polled_s = 0.0
        self._waiting_since_s = 0.0
        self._probing = False

    def start(self, now: float) -> list[Effect]:
        """Start the machine; called once."""
        self._polled_s = self._waiting_since_s = now
        return [Ask(Poll(now + self._poll_interval_s))]

    def handle(self, message: Message, now: float) -> list[Effect]:
        """Process a message and return the resulting effects."""
        match message:
            case Polled():
                return [self._poll(message, now)]
            case BatchAssigned():
                return [self._end_round(now)]
            case TransferCompleted():
                self._learn_capacity(message)
                return []

    def setting(self) -> Setting:
        """Return the current settings and estimates."""
        return Setting(
            self._batch_messages,
            self._poll_interval_s,
            self._max_batch_messages(),
            self._load.value,
            self._capacity.value,
        )

    def _poll(self, poll: Polled, now_s: float) -> Effect:
        """Figure 7's first question: have N messages accumulated?"""
        if now_s > self._polled_s:
            self._load.add(poll.arrived_messages / (now_s - self._polled_s))
        self._polled_s = now_s
        if poll.pending_messages >= self._batch_messages:
            self._probing = True
            return Ask(ReadBatch(self._batch_messages))
        self._batch_messages = max(self._batch_messages // 2, self.knobs.min_batch_messages)
        if now_s - self._waiting_since_s >= self._max_wait_s() - TIME_GRAIN_S:
            self._waiting_since_s = now_s
            if poll.pending_messages:
                self._probing = False
                return Ask(ReadBatch(poll.pending_messages))
        return Ask(Poll(now_s + self._poll_interval_s))

    def _end_round(self, now_s: float) -> Effect:
        """Figure 7's second question: did the round (T_mpt) end before the next poll was due?"""
        round_s = now_s - self._polled_s
        if self._probing:
            if round_s < self._poll_interval_s:
                self._batch_messages = self._bound(self._batch_messages + 1)
            elif round_s > self._poll_interval_s:
                self._batch_messages = self._bound(self._batch_messages - 1)
        knobs = self.knobs
        self._poll_interval_s = max(min(knobs.poll_headroom * round_s, knobs.max_poll_s), knobs.min_poll_s)
        self._waiting_since_s = now_s
        return Ask(Poll(max(now_s, self._polled_s + self._poll_interval_s)))

    def _learn_capacity(self, transfer: TransferCompleted) -> None:
        """Apply formula 2 and N_max; a transfer that took no time is ignored."""
        if transfer.took_s > 0:
            self._capacity.add(transfer.transferring_messages / transfer.took_s)
            self._batch_messages = self._bound(self._batch_messages)

    def _max_batch_messages(self) -> int | None:
        if self._capacity.value is None:
            return None
        within_window = int(self._capacity.value * self.knobs.capacity_window_s)
        return max(within_window, self.knobs.min_batch_messages)

    def _bound(self, batch_messages: int) -> int:
        most = self._max_batch_messages()
        bounded = batch_messages if most is None else min(batch_messages, most)
        return max(bounded, self.knobs.min_batch_messages)

    def _max_wait_s(self) -> float:
        return self.knobs.max_poll_s if self.knobs.max_wait_s is None else self.knobs.max_wait_s
