"""The publisher without auto-tuning: N and T_poll are fixed (the paper's section III and figure 8)."""

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
    """Reads N messages when N are pending at a poll, and all pending ones once T has passed (figure 5).

    Parameters
    ----------
    batch_messages : int
        N. Higher serves more messages in a round, and waits longer for them.
    poll_interval_s : float
        T_poll, seconds. Higher polls more rarely.
    max_wait_s : float
        T, seconds: how long an incomplete batch waits; the paper sets it to T_poll^max.
    """

    def __init__(self, batch_messages: int, poll_interval_s: float, max_wait_s: float = 0.200) -> None:
        if batch_messages < 1 or poll_interval_s <= 0 or max_wait_s < 0:
            raise ValueError(
                "batch_messages must be at least 1, poll_interval_s above 0, max_wait_s at least 0"
            )
        self._batch_messages = batch_messages
        self._poll_interval_s = poll_interval_s
        self._max_wait_s = max_wait_s
        self._polled_s = 0.0
        self._waiting_since_s = 0.0

    def start(self, now: float) -> list[Effect]:
        """Start the machine; called once."""
        self._waiting_since_s = now
        return [Ask(Poll(now + self._poll_interval_s))]

    def handle(self, message: Message, now: float) -> list[Effect]:
        """Process a message and return the resulting effects."""
        match message:
            case Polled():
                return [self._poll(message.pending_messages, now)]
            case BatchAssigned():
                self._waiting_since_s = now
                return [Ask(Poll(max(now, self._polled_s + self._poll_interval_s)))]
            case TransferCompleted():
                return []

    def setting(self) -> Setting:
        """Return the fixed settings."""
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
