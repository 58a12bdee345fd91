"""A subscriber's state: acks to send, and positions of messages that the program has seen.

Both classes have no I/O and no clock; the synchronous and the asyncio subscriber use them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from fieldfare.client.protocol import ApiCall, acknowledge, cut_positions, tell
from fieldfare.client.verdict import Verdict
from fieldfare.model import Position

ACK_EVERY_S = 0.05
"""Maximum time that an ack waits for others, in seconds."""

ACK_MAX = 500
"""Number of waiting acks at which they are sent at once."""


@dataclass(frozen=True, slots=True)
class AckBatch:
    """Acks and other verdicts to send together; ``said`` has the verdicts (nack, extend, terminate)."""

    acks: list[Position] = field(default_factory=list)
    said: dict[Position, Verdict] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.acks or self.said)


class AckBuffer:
    """Collects acks and other verdicts until they are sent.

    The last verdict on a message counts, except that an ack overrides all others, and an extend none.
    """

    def __init__(self) -> None:
        self._acks: dict[Position, None] = {}
        self._said: dict[Position, Verdict] = {}
        self._oldest_s = 0.0

    def __len__(self) -> int:
        return len(self._acks) + len(self._said)

    def ack(self, position: Position, now_s: float) -> None:
        self._note_time(now_s)
        self._said.pop(position, None)
        self._acks[position] = None

    def nack(self, position: Position, now_s: float) -> None:
        self.say(position, Verdict("nack"), now_s)

    def say(self, position: Position, verdict: Verdict, now_s: float) -> None:
        self._note_time(now_s)
        said = self._said.get(position)
        # The worker that extends deadlines may not know yet that this message is settled.
        is_late = verdict.verb == "extend" and said is not None and said.verb != "extend"
        if position not in self._acks and not is_late:
            self._said[position] = verdict

    def due_in_s(self, now_s: float) -> float | None:
        """Return the seconds until the acks are due: 0 for now, None if there are none."""
        if not len(self):
            return None
        if len(self) >= ACK_MAX:
            return 0.0
        return max(0.0, self._oldest_s + ACK_EVERY_S - now_s)

    def take(self) -> AckBatch:
        """Remove and return all acks and verdicts."""
        batch = AckBatch(list(self._acks), dict(self._said))
        self._acks.clear()
        self._said.clear()
        return batch

    def put_back(self, batch: AckBatch, now_s: float) -> None:
        """Add a batch again whose sending failed; newer verdicts take precedence."""
        for position in batch.acks:
            self.ack(position, now_s)
        for position, verdict in batch.said.items():
            newer = self._said.get(position)
            if newer is None or (newer.verb == "extend" and verdict.verb != "extend"):
                self.say(position, verdict, now_s)

    def _note_time(self, now_s: float) -> None:
        if not len(self):
            self._oldest_s = now_s


class SeenPositions:
    """Decides which messages of a stream are new to the program.

    After a reconnect the service redelivers all messages without an ack, including those that the program
    still holds or has just acked: these are dropped. On the same connection the service redelivers a message
    only because it was nacked or its ack deadline passed: such a message is passed to the program again,
    unless it is still queued from the first delivery.

    Memory is bounded by the stream's window plus ``remember_acked`` positions.
    """

    def __init__(self, remember_acked: int = 10_000) -> None:
        self._queued: set[Position] = set()
        self._shown: dict[Position, int] = {}
        self._acked: OrderedDict[Position, None] = OrderedDict()
        self._remember_acked = remember_acked
        self._connection = 0

    def reconnected(self) -> None:
        """Note that a new connection starts."""
        self._connection += 1

    def is_new(self, position: Position) -> bool:
        """Whether to queue this message for the program."""
        if position in self._queued or position in self._acked:
            return False
        shown_on = self._shown.get(position)
        if shown_on is not None and shown_on != self._connection:
            self._shown[position] = self._connection
            return False
        self._queued.add(position)
        return True

    def is_done(self, position: Position) -> bool:
        """Whether the program has acked this message, although the service delivers it again."""
        return position in self._acked

    def show(self, position: Position) -> None:
        """Note that the program gets this message now."""
        self._queued.discard(position)
        self._shown[position] = self._connection

    def sought(self) -> None:
        """Forget all positions after a seek: every message that arrives now is new."""
        self._shown.clear()
        self._acked.clear()

    def acked(self, position: Position) -> None:
        """Note that the program has acked the message."""
        self._shown.pop(position, None)
        self._acked[position] = None
        while len(self._acked) > self._remember_acked:
            self._acked.popitem(last=False)

    def nacked(self, position: Position) -> None:
        """Note that the program wants the message redelivered (or has terminated it)."""
        self._shown.pop(position, None)


def describe_acks(space: str, id: str, batch: AckBatch) -> list[ApiCall[None]]:
    """Return the requests for a batch of acks and verdicts."""
    calls: list[ApiCall[None]] = []
    if batch.acks:
        calls += [acknowledge(space, id, some) for some in cut_positions(batch.acks)]
    same: dict[Verdict, list[Position]] = {}
    for position, verdict in batch.said.items():
        same.setdefault(verdict, []).append(position)
    for verdict, positions in same.items():
        calls += [tell(space, id, some, verdict) for some in cut_positions(positions)]
    return calls
