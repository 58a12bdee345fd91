"""A slice of an operator at one host (Barazzutti et al. 2014, sections III and IV.A).

    from AP:1 ──▶ queue ┐                                  ┌─▶ outputs to EP:1, until acknowledged
    from AP:2 ──▶ queue ┴▶ processed {AP:1: 7, AP:2: 5} ──▶┴─▶ outputs to EP:2

    INACTIVE ──copy of the state, or stored state──▶ ACTIVE ──everything to `reach` processed──▶ STOPPED

Items of one origin are processed in the order of their numbers, each once: repeated items are obsolete, early
ones wait in their origin's queue. An inactive copy only queues. So a state with its vector can resume
anywhere.

Deviation: the paper omits a host's death (its engine has passive replication, not evaluated there). Here a
slice's state is stored before its results are visible: outputs leave, and inputs are acknowledged, once a
state that includes them is stored. A host that restores it resumes from there, and nothing is lost or
duplicated.
"""

from __future__ import annotations

from enum import Enum

from fieldfare_lab.elasticity.messages import Item, SliceState
from fieldfare_lab.elasticity.operators import Operator

QUEUE_ITEMS = 10_000
"""Maximum items in an origin's queue, and maximum unacknowledged outputs to one target.

More: longer moves without a pause before the slice; fewer: less memory. Items that do not fit are not lost:
their origin repeats them.
"""


class Phase(Enum):
    """How a slice treats its inputs."""

    INACTIVE = "queues"
    ACTIVE = "processes"
    STOPPED = "only waits to be removed"


class OperatorSlice:
    """The state machine of one slice at one host.

    Parameters
    ----------
    epoch
        Number of this place of the slice: each move and each restoration has the next one.
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
        """Resume from a state; queued items that it includes are dropped."""
        self._operator.restore(state.content)
        self._go_on(state)

    def begin_empty(self) -> None:
        """Begin for the first time, with an empty state."""
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
        """Queue an item, and process the next ones. Return False if it is obsolete, or there is no room."""
        queue = self._queues.setdefault(item.source, {})
        if item.number <= self.processed.get(item.source, 0) or len(queue) >= QUEUE_ITEMS:
            return False
        queue[item.number] = item.content
        self.advance()
        return True

    def offer(self, source: str, content: object) -> bool:
        """Process an input from outside, which has no number. Return False if there is no room now."""
        waiting = self._queues.get(source, {})
        number = self.processed.get(source, 0) + len(waiting) + 1
        return self.take(Item(source, self.name, number, content))

    def advance(self) -> None:
        """Process each origin's next items, while there is room for outputs."""
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
        """Drop the outputs to a target up to this number, which it has processed."""
        outputs = self.outputs.get(target, {})
        for done in [each for each in outputs if each <= number]:
            del outputs[done]
        self.advance()

    def done(self, target: str) -> int:
        """Return the number up to which a target has acknowledged outputs."""
        return min(self.outputs.get(target, ()), default=self.sent.get(target, 0) + 1) - 1

    def has_reached(self, reach: dict[str, int]) -> bool:
        """Return whether everything up to these numbers is processed."""
        return all(self.processed.get(source, 0) >= number for source, number in reach.items())

    def state(self) -> SliceState:
        """Return a copy of the complete state."""
        outputs = {target: dict(items) for target, items in self.outputs.items()}
        return SliceState(self._operator.state(), dict(self.processed), dict(self.sent), outputs)
