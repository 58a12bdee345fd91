"""A table on its way: request after request, each until the service has taken it or refuses it for good.

What both publishers share; nothing here waits.
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


class TableTurn:
    """Tables are sent one after the other, under a producer id of their own."""

    def __init__(self) -> None:
        self.producer = uuid.uuid4().hex
        self._sequence = -1

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence


class PieceDelivery:
    """One request of a table on its way through its attempts; to be closed under the publisher's lock."""

    def __init__(self, dispatch: PublisherQueue, turn: TableTurn, piece: TablePiece, now_s: float) -> None:
        self._dispatch = dispatch
        self._backoff = Backoff(dispatch.retry, now_s, dispatch.chance)
        self._attempts = 0
        self.piece = piece
        self.fate: PublishAnswer | FieldfareError | None = None
        self.call: ApiCall[PublishAnswer] = publish_stream(
            dispatch.space, piece.body, piece.count, turn.producer, turn.next_sequence()
        )

    def succeed(self, answer: PublishAnswer) -> None:
        """The service has answered."""
        self._attempts += 1
        self.fate = answer

    def fail(self, error: Exception, now_s: float, is_stopping: bool) -> float | None:
        """An attempt failed; how long to wait before the next one, or None when there is none."""
        self._attempts += 1
        wait_s = self._backoff.next_wait_s(error, now_s)
        if wait_s is None or is_stopping:
            self.fate = final_error(error, self._dispatch.retry, self._attempts)
            return None
        logger.debug("a table's request failed, again in %.2f s: %s", wait_s, error)
        return wait_s

    def close(self) -> None:
        """Write down how it ended; without a fate it was broken off."""
        dispatch, count = self._dispatch, self.piece.count
        dispatch.in_flight_events -= count
        dispatch.requests += self._attempts
        dispatch.repeated_requests += max(0, self._attempts - 1)
        refused = len(self.fate.refused) if isinstance(self.fate, PublishAnswer) else count
        dispatch.acknowledged_events += count - refused
        dispatch.failed_events += refused


class TableDelivery:
    """A table's requests, and who hears of their fates."""

    def __init__(
        self, dispatch: PublisherQueue, turn: TableTurn, pieces: TablePieces, receiver: ManyEvents
    ) -> None:
        self._dispatch = dispatch
        self._turn = turn
        self._pieces = pieces
        self._receiver = receiver
        self._is_over = False

    def requests(self, now_s: float) -> Iterator[PieceDelivery]:
        """The requests one by one, each under way from when it is given."""
        for piece in self._pieces:
            if self._is_over:
                return
            self._dispatch.in_flight_events += piece.count
            yield PieceDelivery(self._dispatch, self._turn, piece, now_s)

    def end(self, delivery: PieceDelivery) -> None:
        """Tell the fate of a request; one that was too large comes again in two."""
        piece, fate = delivery.piece, delivery.fate
        if isinstance(fate, PublishAnswer):
            self._receiver.receive(piece.start, fate.positions, fate.refused)
        elif fate is not None and not self._pieces.cut_smaller(piece, fate):
            self.give_up(piece.start, fate)

    def give_up(self, start: int, error: FieldfareError) -> None:
        """Nothing from this row on is sent."""
        self._is_over = True
        self._receiver.fail(start, self._pieces.size - start, error)
