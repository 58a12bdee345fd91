"""The publisher without auto-tuning: N and T_poll as somebody guessed them (the paper's section III and
figure 8).
"""

from __future__ import annotations

from fieldfare.effects import Ask, Effect
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


class FixedPublisher:
    """Reads N messages when N have accumulated at a poll, and what there is once T has passed (figure 5).

    Parameters
    ----------
    batch_messages : int
        N. Higher serves more messages in a round, and waits longer for them.
    poll_interval_s : float
        T_poll, seconds. Higher looks more rarely.
    max_wait_s : float
        T, seconds; the paper sets it to T_poll^max. A lower bound on how seldom an incomplete batch goes out.
    """

    def __init__(self, batch_messages: int, poll_interval_s: float, max_wait_s: float = 0.200) -> None:
        if batch_messages < 1 or poll_interval_s <= 0 or max_wait_s < 0:
            raise ValueError("batch_messages is at least 1, poll_interval_s over 0, max_wait_s not negative")
        self._batch_messages = batch_messages
        self._poll_interval_s = poll_interval_s
        self._max_wait_s = max_wait_s
        self._polled_s = 0.0
        self._waiting_since_s = 0.0

    def start(self, now: float) -> list[Effect]:
        """Begin; called once."""
        self._waiting_since_s = now
        return [Ask(Poll(now + self._poll_interval_s))]

    def handle(self, message: Message, now: float) -> list[Effect]:
        """Take note of what happened, and say what to do."""
        match message:
            case Polled():
                return [self._poll(message.pending_messages, now)]
            case BatchAssigned():
                self._waiting_since_s = now
                return [Ask(Poll(max(now, self._polled_s + self._poll_interval_s)))]
            case TransferCompleted():
                return []

    def setting(self) -> Setting:
        """The values that hold always."""
        return Setting(self._batch_messages, self._poll_interval_s)

    def _poll(self, pending_messages: int, now_s: float) -> Effect:
        self._polled_s = now_s
        if pending_messages >= self._batch_messages:
            return Ask(ReadBatch(self._batch_messages))
        if now_s - self._waiting_since_s >= self._max_wait_s - TIME_GRAIN_S:
            self._waiting_since_s = now_s
            if pending_messages:
                return Ask(ReadBatch(pending_messages))
        return Ask(Poll(now_s + self._poll_interval_s))
