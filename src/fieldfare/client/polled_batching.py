"""Policies that poll the publisher's queue: the paper's auto-tuned publisher, and the windowed one.

The machines decide as in the paper (`fieldfare.publishing.autotuned`). Over HTTP the parts of the paper's
publisher are these:

* the data store is the publisher's queue, in memory or in an outbox;
* a worker thread is a request in flight: it transfers all messages of one read, where the paper's worker
  transfers one. So a round (T_mpt) ends when a request may be sent;
* a transfer of s_i seconds is a request, and n_i are the messages in flight at its end: one sample of the
  broker's capacity (formula 2) for each request, not for each message;
* polls are made when the queue changes or a batch may be due; those that were due between are made up for.

A flush, `publish_many` and closing do not wait for polls.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

from fieldfare.client.auto_batching import BATCH_BYTES_MAX, IN_FLIGHT_MAX
from fieldfare.client.batching import BatchReport, BatchSettings
from fieldfare.effects import Ask, Effect
from fieldfare.model import RECORD_EVENTS_MAX
from fieldfare.publishing.autotuned import AutotunedKnobs, AutotunedPublisher
from fieldfare.publishing.machine import (
    TIME_GRAIN_S,
    BatchAssigned,
    Poll,
    Polled,
    PublishingMachine,
    ReadBatch,
    Setting,
    TransferCompleted,
)
from fieldfare.publishing.requests import RequestEstimates
from fieldfare.publishing.windowed import WindowedKnobs, WindowedPublisher

MISSED_POLLS_MAX = 256
"""Maximum missed polls that are made up for at once; in a longer pause the rest is skipped. By then every
average of an idle publisher has reached its end."""

WINDOWED_KNOBS = WindowedKnobs(
    min_poll_s=0.005,
    least_batch_messages=1000,
    most_batch_messages=RECORD_EVENTS_MAX,
    least_transfers=1000,
    most_transfers=IN_FLIGHT_MAX * RECORD_EVENTS_MAX,
)
"""Settings of `WindowedBatching`: its transfers are events in flight, and a request has thousands."""


class PolledBatching:
    """Batches as a `PublishingMachine` decides; each publisher needs its own instance.

    Parameters
    ----------
    machine : PublishingMachine
        Decides at each poll whether to read a batch, and how large it is.
    max_in_flight : int
        Maximum requests in flight, which take the place of the paper's worker threads. More carry more on a
        long path; order is kept (see `BatchSettings.max_in_flight`).
    """

    def __init__(self, machine: PublishingMachine, max_in_flight: int = IN_FLIGHT_MAX) -> None:
        self._machine = machine
        self._in_flight_max = max_in_flight
        self._poll_s: float | None = None  # None until the machine starts.
        self._read_events = 0  # The size of the batch that is due; 0 if none is.
        self._waiting_events = self._arrived_events = self._in_flight_events = 0
        self._limits = self._make_limits()

    def limits(self) -> BatchSettings:
        """Return N (or the size of the batch that is due) and T_poll, as the linger."""
        return self._limits

    def setting(self) -> Setting:
        """Return N, T_poll, N_max, and the estimates of load and capacity (λ_est, η_est)."""
        return self._machine.setting()

    def estimates(self) -> RequestEstimates:
        """Return the estimates of load and capacity; the machines make no others."""
        found = self._machine.setting()
        return RequestEstimates(load_per_s=found.load_per_s, capacity_per_s=found.capacity_per_s)

    def note(self, waiting_events: int, in_flight_events: int, now_s: float) -> None:
        """Note the numbers of events that wait and that are in flight from now on."""
        self._make_polls(now_s)
        self._arrived_events += max(0, waiting_events - self._waiting_events)
        self._waiting_events, self._in_flight_events = waiting_events, in_flight_events

    def due_in_s(self, now_s: float) -> float:
        """Return the seconds until the next poll; 0 if a batch is due."""
        next_s = self._make_polls(now_s)
        return 0.0 if self._read_events else next_s - now_s

    def begin(self, now_s: float) -> None:
        """End the round: a request takes the batch that was due. Another batch, of a flush, ends none."""
        if self._read_events:
            self._read_events = 0
            self._carry_out(self._machine.handle(BatchAssigned(), now_s))

    def observe(self, report: BatchReport) -> None:
        """Learn from a finished request; one that was given up was no transfer."""
        self._make_polls(report.ended_s)
        if report.acknowledged:
            transfer = TransferCompleted(report.took_s, report.in_flight_events)
            self._carry_out(self._machine.handle(transfer, report.ended_s))

    def _make_polls(self, now_s: float) -> float:
        """Make the polls that are due, until one of them reads a batch; return the time of the next."""
        if self._poll_s is None:
            self._poll_s = now_s
            self._carry_out(self._machine.start(now_s))
        made = 0
        while self._poll_s <= now_s + TIME_GRAIN_S and not self._read_events:
            if made == MISSED_POLLS_MAX:
                interval_s = self._machine.setting().poll_interval_s
                self._poll_s += floor((now_s - self._poll_s) / interval_s) * interval_s
            made += 1
            poll = Polled(self._waiting_events, self._arrived_events, self._in_flight_events)
            self._arrived_events = 0
            self._carry_out(self._machine.handle(poll, self._poll_s))
        return self._poll_s

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Ask)
            if isinstance(effect.question, ReadBatch):
                self._read_events = effect.question.most_messages
            else:
                assert isinstance(effect.question, Poll)
                self._poll_s = effect.question.at_s
        self._limits = self._make_limits()

    def _make_limits(self) -> BatchSettings:
        found = self._machine.setting()
        return BatchSettings(
            max_events=min(self._read_events or found.batch_messages, RECORD_EVENTS_MAX),
            max_bytes=BATCH_BYTES_MAX,
            linger_ms=1000 * found.poll_interval_s,
            max_in_flight=self._in_flight_max,
        )


class AutotunedBatching(PolledBatching):
    """The auto-tuned publisher of Balasubramanian et al.: N and T_poll follow load and capacity.

    It is made for loads of some hundred events per second: N grows by one in a poll. ``batch="auto"`` is
    faster everywhere (docs/papers/autotuned-http.md); this one is for comparison, and for few requests.

    Parameters
    ----------
    knobs : AutotunedKnobs, optional
        The paper's constants (table I): T_poll^min, T_poll^max, N_min, the first N, α, β, γ, T.
    max_in_flight : int
        Maximum requests in flight: the paper's worker threads.
    """

    def __init__(self, knobs: AutotunedKnobs | None = None, max_in_flight: int = IN_FLIGHT_MAX) -> None:
        super().__init__(AutotunedPublisher(knobs), max_in_flight)


class WindowedBatching(PolledBatching):
    """The windowed publisher: reads all that waits at each poll, and bounds the events in flight.

    Parameters
    ----------
    knobs : WindowedKnobs, optional
        Its settings; default `WINDOWED_KNOBS`. Its transfers are events in flight.
    max_in_flight : int
        Maximum requests in flight.
    """

    def __init__(self, knobs: WindowedKnobs | None = None, max_in_flight: int = IN_FLIGHT_MAX) -> None:
        super().__init__(WindowedPublisher(knobs if knobs is not None else WINDOWED_KNOBS), max_in_flight)
