"""What a subscriber remembers between the wire and the program: acks to send, and what it has seen.

Both are machines without I/O or clock, used by the sync and the async subscriber alike.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from fieldfare.client.protocol import ApiCall, acknowledge, cut_positions, tell
from fieldfare.client.verdict import Verdict
from fieldfare.model import Position

ACK_EVERY_S = 0.05
"""How long an ack may wait for others."""

ACK_MAX = 500
"""How many acks do not wait any longer."""


@dataclass(frozen=True, slots=True)
class AckBatch:
    """Positions to tell the service about in one go; ``said`` is of those that are not acked."""

    acks: list[Position] = field(default_factory=list)
    said: dict[Position, Verdict] = field(default_factory=dict)

    @property
    def nacks(self) -> list[Position]:
        """Those to be given again."""
        return [position for position, verdict in self.said.items() if verdict.verb == "nack"]

    def __bool__(self) -> bool:
        return bool(self.acks or self.said)


class AckBuffer:
    """Gathers acks, and what else is said of messages.

    The last word on one counts, but an ack counts most, and that it is to be kept for longer least.
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
        # Who keeps messages while they are handled may not have heard yet what became of this one.
        is_late = verdict.verb == "extend" and said is not None and said.verb != "extend"
        if position not in self._acks and not is_late:
            self._said[position] = verdict

    def due_in_s(self, now_s: float) -> float | None:
        """How long until they should be sent: 0 is now, None is never (there are none)."""
        if not len(self):
            return None
        if len(self) >= ACK_MAX:
            return 0.0
        return max(0.0, self._oldest_s + ACK_EVERY_S - now_s)

    def take(self) -> AckBatch:
        """All that are there."""
        batch = AckBatch(list(self._acks), dict(self._said))
        self._acks.clear()
        self._said.clear()
        return batch

    def put_back(self, batch: AckBatch, now_s: float) -> None:
        """Sending failed: they are to be sent with the next ones, but where something newer is said."""
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

    After a reconnect the service sends again what it has no ack of, which is what the program still holds
    or has acked a moment ago: such a message is dropped. On one and the same connection the service repeats
    a message only on purpose, because it was nacked or its ack deadline passed: such a message is shown
    again, unless the program has not even seen it the first time.

    Memory is bounded by the stream's window plus ``remember_acked`` positions.
    """

    def __init__(self, remember_acked: int = 10_000) -> None:
        self._queued: set[Position] = set()
        self._shown: dict[Position, int] = {}
        self._acked: OrderedDict[Position, None] = OrderedDict()
        self._remember_acked = remember_acked
        self._connection = 0

    def reconnected(self) -> None:
        """A new connection starts."""
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
        """Whether the program has acked this message: the service has not heard, or had given it up."""
        return position in self._acked

    def show(self, position: Position) -> None:
        """The program gets this message now."""
        self._queued.discard(position)
        self._shown[position] = self._connection

    def sought(self) -> None:
        """The subscription was set to another place: whatever comes now is new."""
        self._shown.clear()
        self._acked.clear()

    def acked(self, position: Position) -> None:
        """The program is done with it."""
        self._shown.pop(position, None)
        self._acked[position] = None
        while len(self._acked) > self._remember_acked:
            self._acked.popitem(last=False)

    def nacked(self, position: Position) -> None:
        """The program wants it again."""
        self._shown.pop(position, None)


def describe_acks(space: str, id: str, batch: AckBatch) -> list[ApiCall[None]]:
    """The requests that a batch of acks needs."""
    calls: list[ApiCall[None]] = []
    if batch.acks:
        calls += [acknowledge(space, id, some) for some in cut_positions(batch.acks)]
    same: dict[Verdict, list[Position]] = {}
    for position, verdict in batch.said.items():
        same.setdefault(verdict, []).append(position)
    for verdict, positions in same.items():
        calls += [tell(space, id, some, verdict) for some in cut_positions(positions)]
    return calls
