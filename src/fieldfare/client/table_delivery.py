"""The delivery of a table: one request after the other, each retried until acknowledged or finally refused.

Both publishers use this module; nothing here waits.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from fieldfare.client.batching import ManyEvents
from fieldfare.client.dispatch import PublisherQueue, final_error, logger
from fieldfare.client.errors import FieldfareError
from fieldfare.client.protocol import ApiCall, PublishAnswer, publish_stream
from fieldfare.client.retry import Backoff
from fieldfare.client.tables import TablePiece, TablePieces


class TableProducer:
    """The producer id and the sequences of a publisher's tables, which are sent one after the other."""

    def __init__(self) -> None:
        self.producer = uuid.uuid4().hex
        self._sequence = -1

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence


class PieceDelivery:
    """The attempts to send one request of a table. Call `close` with the publisher's lock."""

    def __init__(
        self, dispatch: PublisherQueue, turn: TableProducer, piece: TablePiece, now_s: float
    ) -> None:
        self._dispatch = dispatch
        self._backoff = Backoff(dispatch.retry, now_s, dispatch.chance)
        self._attempts = 0
        self.piece = piece
        self.fate: PublishAnswer | FieldfareError | None = None
        self.call: ApiCall[PublishAnswer] = publish_stream(
            dispatch.space, piece.body, piece.count, turn.producer, turn.next_sequence()
        )

    def succeed(self, answer: PublishAnswer) -> None:
        """Note the service's answer."""
        self._attempts += 1
        self._dispatch.trouble = None
        self.fate = answer

    def fail(self, error: Exception, now_s: float, is_stopping: bool) -> float | None:
        """Note a failed attempt; return the seconds until the next one, or None if there is none."""
        self._attempts += 1
        self._dispatch.trouble = str(error)
        wait_s = self._backoff.next_wait_s(error, now_s)
        if wait_s is None or is_stopping:
            self.fate = final_error(error, self._dispatch.retry, self._attempts)
            return None
        logger.debug("a request of a table failed, retry in %.2f s: %s", wait_s, error)
        return wait_s

    def close(self) -> None:
        """Update the publisher's counters; a request without an outcome was interrupted, so it failed."""
        dispatch, count = self._dispatch, self.piece.count
        dispatch.in_flight_events -= count
        dispatch.requests += self._attempts
        dispatch.repeated_requests += max(0, self._attempts - 1)
        refused = len(self.fate.refused) if isinstance(self.fate, PublishAnswer) else count
        dispatch.acknowledged_events += count - refused
        dispatch.failed_events += refused


class TableDelivery:
    """The requests of a table, and the receiver of their outcomes."""

    def __init__(
        self, dispatch: PublisherQueue, turn: TableProducer, pieces: TablePieces, receiver: ManyEvents
    ) -> None:
        self._dispatch = dispatch
        self._turn = turn
        self._pieces = pieces
        self._receiver = receiver
        self._is_over = False

    def requests(self, now_s: float) -> Iterator[PieceDelivery]:
        """Yield the requests one by one; each counts as in flight from then on."""
        for piece in self._pieces:
            if self._is_over:
                return
            self._dispatch.in_flight_events += piece.count
            yield PieceDelivery(self._dispatch, self._turn, piece, now_s)

    def end(self, delivery: PieceDelivery) -> None:
        """Pass on the outcome of a request; one that was too large is split in two."""
        piece, fate = delivery.piece, delivery.fate
        if isinstance(fate, PublishAnswer):
            self._receiver.receive(piece.start, fate.positions, fate.refused)
        elif fate is not None and not self._pieces.cut_smaller(piece, fate):
            self.give_up(piece.start, fate)

    def give_up(self, start: int, error: FieldfareError) -> None:
        """Fail all rows from ``start`` on; they are not sent."""
        self._is_over = True
        self._receiver.fail(start, self._pieces.size - start, error)
