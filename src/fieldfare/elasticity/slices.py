"""A slice of an operator at one host (Barazzutti et al. 2014, sections III and IV.A).

    from AP:1 ──▶ queue ┐                                  ┌─▶ outputs to EP:1, until acknowledged
    from AP:2 ──▶ queue ┴▶ processed {AP:1: 7, AP:2: 5} ──▶┴─▶ outputs to EP:2

    INACTIVE ──copy of the state, or what was kept──▶ ACTIVE ──everything to `reach` processed──▶ STOPPED

Items of one origin are processed in the order of their numbers, each once: what comes again is obsolete,
what comes early waits in its origin's queue. An inactive copy only queues. So a state with its vector goes on
anywhere.

Deviation: the paper leaves out what happens when a host dies (its engine has passive replication, not
evaluated there). Here a slice is kept before anybody sees what came of it: outputs leave, and inputs are
acknowledged, once a state that has them is kept. Whoever restores it goes on from there, and nothing is
lost or doubled.
"""

from __future__ import annotations

from enum import Enum

from fieldfare.elasticity.messages import Item, SliceState
from fieldfare.elasticity.operators import Operator

QUEUE_ITEMS = 10_000
"""What an origin's queue holds, and how many outputs to one target may wait for their acknowledgement.

More: longer moves without a pause before the slice; less: memory. What does not fit is not lost: its origin
repeats it.
"""


class Phase(Enum):
    """What a slice does with what it gets."""

    INACTIVE = "queues"
    ACTIVE = "processes"
    STOPPED = "only waits to be removed"


class OperatorSlice:
    """One slice.

    Parameters
    ----------
    epoch
        Which of its places this is: each move and each restoration has the next number.
    """

    def __init__(self, name: str, epoch: int, operator: Operator) -> None:
        self.name, self.epoch, self.phase = name, epoch, Phase.INACTIVE
        self.processed: dict[str, int] = {}
        self.outputs: dict[str, dict[int, object]] = {}
        self.sent: dict[str, int] = {}
        self.is_changed = False
        self._operator = operator
        self._queues: dict[str, dict[int, object]] = {}

    def begin(self, state: SliceState) -> None:
        """Go on from a state: what the queues have of before is obsolete."""
        self._operator.restore(state.content)
        self._go_on(state)

    def begin_empty(self) -> None:
        """Begin for the first time."""
        self._go_on(SliceState())

    def _go_on(self, state: SliceState) -> None:
        self.processed, self.sent = dict(state.processed), dict(state.sent)
        self.outputs = {target: dict(items) for target, items in state.outputs.items()}
        for source, queue in self._queues.items():
            done = self.processed.get(source, 0)
            self._queues[source] = {number: each for number, each in queue.items() if number > done}
        self.phase, self.is_changed = Phase.ACTIVE, True
        self.advance()

    def take(self, item: Item) -> bool:
        """Queue an item, and process what is next. False: it is obsolete, or there is no room."""
        queue = self._queues.setdefault(item.source, {})
        if item.number <= self.processed.get(item.source, 0) or len(queue) >= QUEUE_ITEMS:
            return False
        queue[item.number] = item.content
        self.advance()
        return True

    def offer(self, source: str, content: object) -> bool:
        """Take in something from outside, which has no numbers. False: there is no room now."""
        waiting = self._queues.get(source, {})
        number = self.processed.get(source, 0) + len(waiting) + 1
        return self.take(Item(source, self.name, number, content))

    def advance(self) -> None:
        """Process what can be: each origin's next item, while there is room for outputs."""
        if self.phase is not Phase.ACTIVE:
            return
        for source, queue in self._queues.items():
            while self._has_room and (number := self.processed.get(source, 0) + 1) in queue:
                for target, content in self._operator.process(queue.pop(number)):
                    self.sent[target] = self.sent.get(target, 0) + 1
                    self.outputs.setdefault(target, {})[self.sent[target]] = content
                self.processed[source] = number
                self.is_changed = True

    @property
    def _has_room(self) -> bool:
        return all(len(items) < QUEUE_ITEMS for items in self.outputs.values())

    def acknowledged(self, target: str, number: int) -> None:
        """A target needs outputs up to this number no more."""
        outputs = self.outputs.get(target, {})
        for done in [each for each in outputs if each <= number]:
            del outputs[done]
        self.advance()

    def done(self, target: str) -> int:
        """The number up to which a target needs outputs no more."""
        return min(self.outputs.get(target, ()), default=self.sent.get(target, 0) + 1) - 1

    def has_reached(self, reach: dict[str, int]) -> bool:
        """Whether everything up to these numbers is processed."""
        return all(self.processed.get(source, 0) >= number for source, number in reach.items())

    def state(self) -> SliceState:
        """All of it, as it is now."""
        outputs = {target: dict(items) for target, items in self.outputs.items()}
        return SliceState(self._operator.state(), dict(self.processed), dict(self.sent), outputs)
