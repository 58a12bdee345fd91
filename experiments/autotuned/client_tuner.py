"""The client's own tuner in the paper's publisher, so that it can be compared with the paper's tuner.

It works like `client.publisher()`, with the paper's threads: one request is in flight at a time, and contains
all messages that have arrived since the previous one, at most as many as `RequestTuner` allows. A request
here is a batch that is read from the data store and passed to the broker message by message; it ends when its
last message is acknowledged. The only difference is that this end is noticed later: the client is woken,
while this thread polls.
"""

from __future__ import annotations

from fieldfare.effects import Ask, Effect
from fieldfare.publishing.machine import (
    BatchAssigned,
    Message,
    Poll,
    Polled,
    ReadBatch,
    Setting,
    TransferCompleted,
)
from fieldfare.publishing.requests import RequestOutcome, RequestTuner


class ClientPublisher:
    """`RequestTuner` as a publishing machine: one request after another."""

    def __init__(self, poll_s: float = 0.050) -> None:
        self._poll_s = poll_s
        self._tuner = RequestTuner()
        self._started_s = self._ended_s = 0.0
        self._size = self._under_way = self._pending = 0

    def start(self, now: float) -> list[Effect]:
        """Start the machine; called once."""
        return [Ask(Poll(now + self._poll_s))]

    def handle(self, message: Message, now: float) -> list[Effect]:
        """Process a message and return the resulting effects."""
        match message:
            case BatchAssigned():
                return [Ask(Poll(now + self._poll_s))]
            case Polled():
                return [self._poll(message, now)]
            case TransferCompleted():
                self._under_way -= 1
                if self._under_way == 0:
                    self._ended_s = now
                    took_s = now - self._started_s
                    self._tuner.observe(RequestOutcome(self._size, took_s, backlog_events=self._pending), now)
                return []

    def setting(self) -> Setting:
        """Return the current values."""
        found = self._tuner.estimates()
        return Setting(
            self._tuner.setting.most_events, self._poll_s, None, found.load_per_s, found.capacity_per_s
        )

    def _poll(self, poll: Polled, now_s: float) -> Effect:
        self._pending = poll.pending_messages
        lingers = now_s < self._ended_s + self._tuner.setting.linger_s
        if self._under_way or lingers or not poll.pending_messages:
            return Ask(Poll(now_s + self._poll_s))
        self._started_s = now_s
        self._size = self._under_way = min(poll.pending_messages, self._tuner.setting.most_events)
        self._pending -= self._size
        return Ask(ReadBatch(self._size))
