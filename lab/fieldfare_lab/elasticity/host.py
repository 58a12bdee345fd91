"""A host: runs slices, makes and receives copies of them, and reports their costs.

    Item ──▶ slice ──▶ KeepSlice ──SliceKept──▶ outputs leave, inputs are acknowledged
    PrepareCopy ──▶ inactive copy          SendCopy ──▶ stops at its vector ──SliceCopy──▶ the other host
    RestoreSlice ──▶ RecallSlice ──SliceRecalled──▶ active

Messages without an answer are repeated with the host's pulse. A host that was considered dead and is alive
learns it from the store of states: it refuses states of an old epoch, and the host drops the slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fieldfare.effects import Ask, Effect, Send, Timer, source
from fieldfare.elasticity.messages import (
    CopyPrepared,
    HostProbes,
    PrepareCopy,
    Probe,
    Pulse,
    RemoveSlice,
    RestoreSlice,
    SendCopy,
    SliceActive,
    Wired,
    Wiring,
)
from fieldfare_lab.elasticity.messages import (
    Acknowledgement,
    Item,
    KeepSlice,
    Measured,
    Offered,
    RecallSlice,
    SliceCopy,
    SliceKept,
    SliceRecalled,
    SliceState,
)
from fieldfare_lab.elasticity.operators import Operator
from fieldfare_lab.elasticity.slices import OperatorSlice, Phase

OUTSIDE = "outside"
"""The origin of `Offered` inputs."""
AGAIN_ITEMS = 100
"""Maximum outputs to one target that are repeated with a pulse."""


@dataclass(slots=True)
class HostedSlice:
    """A slice, and its host's bookkeeping.

    Parameters
    ----------
    kept
        The last stored state: its unacknowledged outputs may be sent.
    is_keeping
        Whether a state is being stored.
    copying
        The move that was requested.
    copy
        The state to send to the other host.
    """

    slice: OperatorSlice
    kept: SliceState | None = None
    is_keeping: bool = False
    copying: SendCopy | None = None
    copy: SliceCopy | None = None


@dataclass(slots=True)
class SliceHost:
    """One host.

    Parameters
    ----------
    name
        The host's name.
    operator
        Makes the empty operator of a slice by its name.
    manager
        The recipient of heartbeats.
    pulse_s
        Interval, in seconds, of heartbeats and of repeated messages.
    """

    name: str
    operator: Callable[[str], Operator]
    manager: str = "manager"
    pulse_s: float = 1.0
    wiring: Wiring = field(default_factory=lambda: Wiring(0, {}))
    hosted: dict[str, HostedSlice] = field(default_factory=dict)
    _probes: Mapping[str, Probe] = field(default_factory=dict)

    def start(self, now: float) -> list[Effect]:
        return self._pulse(self.name, Pulse(), now)

    def handle(self, message: object, now: float) -> list[Effect]:
        """Process a message; see ``messages``."""
        sender, message = source(self.name, message)
        handlers: dict[type, Any] = {
            Pulse: self._pulse,
            Item: self._item,
            Offered: self._offered,
            Acknowledgement: self._acknowledged,
            Measured: self._measured,
            Wiring: self._wire,
            PrepareCopy: self._prepare,
            SendCopy: self._send_copy,
            SliceCopy: self._receive_copy,
            RestoreSlice: self._restore,
            SliceRecalled: self._recalled,
            SliceKept: self._kept,
            RemoveSlice: self._remove,
        }
        effects: list[Effect] = handlers[type(message)](sender, message, now)
        return effects

    def run(self, name: str, epoch: int) -> list[Effect]:
        """Run a slice that is not under a manager, such as a source or a sink, from its beginning."""
        hosted = self.hosted[name] = self._empty(name, epoch)
        hosted.slice.begin_empty()
        return self._keep(hosted)

    def _empty(self, name: str, epoch: int) -> HostedSlice:
        return HostedSlice(OperatorSlice(name, epoch, self.operator(name)))

    # The pulse

    def _pulse(self, sender: str, message: Pulse, now: float) -> list[Effect]:
        epochs = {name: hosted.slice.epoch for name, hosted in self.hosted.items()}
        effects: list[Effect] = [
            Timer(now + self.pulse_s, Pulse()),
            Send(self.manager, HostProbes(epochs, self._active_probes())),
        ]
        for hosted in self.hosted.values():
            effects += self._outputs(hosted)
            if hosted.copy is not None and hosted.copying is not None:
                effects.append(Send(hosted.copying.to, hosted.copy))
        return effects

    def _active_probes(self) -> dict[str, Probe]:
        active = [name for name, each in self.hosted.items() if each.slice.phase is Phase.ACTIVE]
        return {name: self._probes.get(name, Probe(0.0)) for name in active}

    def _measured(self, sender: str, message: Measured, now: float) -> list[Effect]:
        self._probes = message.probes
        return []

    # Items

    def _item(self, sender: str, item: Item, now: float) -> list[Effect]:
        hosted = self.hosted.get(item.target)
        if hosted is None:
            return []
        is_new = hosted.slice.take(item)
        effects = [] if is_new else self._acknowledge(hosted, [item.source])
        return effects + self._moved_on(hosted)

    def _offered(self, sender: str, message: Offered, now: float) -> list[Effect]:
        hosted = self.hosted[message.slice]
        hosted.slice.offer(OUTSIDE, message.content)
        return self._moved_on(hosted)

    def _acknowledged(self, sender: str, message: Acknowledgement, now: float) -> list[Effect]:
        hosted = self.hosted.get(message.source)
        if hosted is None:
            return []
        hosted.slice.acknowledged(message.target, message.number)
        return self._moved_on(hosted)

    def _moved_on(self, hosted: HostedSlice) -> list[Effect]:
        """Return the effects after a slice's progress: it may have a state to store or to copy."""
        return self._copy_if_reached(hosted) or self._keep(hosted)

    def _keep(self, hosted: HostedSlice) -> list[Effect]:
        each = hosted.slice
        if hosted.is_keeping or not each.is_changed or each.phase is not Phase.ACTIVE:
            return []
        hosted.is_keeping, each.is_changed = True, False
        return [Ask(KeepSlice(each.name, each.epoch, each.state()))]

    def _kept(self, sender: str, message: SliceKept, now: float) -> list[Effect]:
        hosted = self._of_epoch(message.slice, message.epoch)
        if hosted is None:
            return []
        if not message.is_accepted:
            del self.hosted[message.slice]
            return []
        is_first, before = hosted.kept is None, hosted.kept.sent if hosted.kept is not None else {}
        hosted.kept, hosted.is_keeping = message.state, False
        effects = self._outputs(hosted, behind=before) + self._acknowledge(hosted, message.state.processed)
        if is_first:
            effects.append(Send(self.manager, SliceActive(message.slice, message.epoch)))
        return effects + self._keep(hosted)

    def _outputs(
        self, hosted: HostedSlice, behind: Mapping[str, int] | None = None, only: str | None = None
    ) -> list[Effect]:
        """Return the stored and unacknowledged outputs, oldest first, as messages to their targets' hosts.

        `behind` are the numbers up to which outputs were sent and need not be repeated; `only` is the one
        target.
        """
        if hosted.kept is None or hosted.slice.phase is not Phase.ACTIVE:
            return []
        effects: list[Effect] = []
        for target, items in hosted.slice.outputs.items():
            if only not in (None, target):
                continue
            first, last = (behind or {}).get(target, 0), hosted.kept.sent.get(target, 0)
            for number in islice((each for each in items if first < each <= last), AGAIN_ITEMS):
                item = Item(hosted.slice.name, target, number, items[number])
                effects += [Send(host, item) for host in self.wiring.places.get(target, ())]
        return effects

    def _acknowledge(self, hosted: HostedSlice, origins: Any) -> list[Effect]:
        kept = hosted.kept.processed if hosted.kept is not None else {}
        return [
            Send(host, Acknowledgement(origin, hosted.slice.name, kept[origin]))
            for origin in origins
            if origin in kept
            for host in self.wiring.places.get(origin, ())
        ]

    # Moving

    def _of_epoch(self, name: str, epoch: int) -> HostedSlice | None:
        hosted = self.hosted.get(name)
        return hosted if hosted is not None and hosted.slice.epoch == epoch else None

    def _wire(self, sender: str, message: Wiring, now: float) -> list[Effect]:
        """Follow a newer wiring.

        A slice's second place also receives the unacknowledged items, so its queues begin no later than the
        items that the first place has not processed yet.
        """
        if message.version < self.wiring.version:
            return []
        self.wiring = message
        sent: dict[str, dict[str, int]] = {}
        effects: list[Effect] = []
        for target in (name for name, hosts in message.places.items() if len(hosts) > 1):
            active = [each for each in self.hosted.values() if each.slice.phase is Phase.ACTIVE]
            sent[target] = {each.slice.name: each.slice.done(target) for each in active}
            for each in active:
                effects += self._outputs(each, only=target)
        return [*effects, Send(sender, Wired(message.version, sent))]

    def _prepare(self, sender: str, message: PrepareCopy, now: float) -> list[Effect]:
        hosted = self.hosted.get(message.slice)
        if hosted is None or hosted.slice.epoch < message.epoch:
            self.hosted[message.slice] = self._empty(message.slice, message.epoch)
        elif hosted.slice.epoch > message.epoch:
            return []
        elif hosted.kept is not None:
            return [Send(sender, SliceActive(message.slice, message.epoch))]
        return [Send(sender, CopyPrepared(message.slice, message.epoch))]

    def _send_copy(self, sender: str, message: SendCopy, now: float) -> list[Effect]:
        hosted = self.hosted.get(message.slice)
        if hosted is None or hosted.slice.epoch >= message.epoch:
            return []
        hosted.copying = message
        return self._copy_if_reached(hosted)

    def _copy_if_reached(self, hosted: HostedSlice) -> list[Effect]:
        """Stop and send the state, if that was requested and the other host's queues reach back to here."""
        asked, each = hosted.copying, hosted.slice
        if asked is None or each.phase is not Phase.ACTIVE or not each.has_reached(dict(asked.reach)):
            return []
        each.phase = Phase.STOPPED
        hosted.copy = SliceCopy(each.name, asked.epoch, each.state())
        return [Send(asked.to, hosted.copy)]

    def _receive_copy(self, sender: str, message: SliceCopy, now: float) -> list[Effect]:
        hosted = self._of_epoch(message.slice, message.epoch)
        if hosted is None:
            return []
        if hosted.kept is not None:
            return [Send(self.manager, SliceActive(message.slice, message.epoch))]
        if hosted.slice.phase is not Phase.INACTIVE:
            return []
        hosted.slice.begin(message.state)
        return self._keep(hosted)

    def _restore(self, sender: str, message: RestoreSlice, now: float) -> list[Effect]:
        hosted = self.hosted.get(message.slice)
        if hosted is not None and hosted.slice.epoch >= message.epoch:
            is_active = hosted.slice.epoch == message.epoch and hosted.kept is not None
            return [Send(sender, SliceActive(message.slice, message.epoch))] if is_active else []
        self.hosted[message.slice] = self._empty(message.slice, message.epoch)
        return [Ask(RecallSlice(message.slice, message.epoch))]

    def _recalled(self, sender: str, message: SliceRecalled, now: float) -> list[Effect]:
        hosted = self._of_epoch(message.slice, message.epoch)
        if hosted is None:
            return []
        if message.state is None:
            del self.hosted[message.slice]
            return []
        if message.state.processed:
            hosted.slice.begin(message.state)
        else:
            hosted.slice.begin_empty()
        return self._keep(hosted)

    def _remove(self, sender: str, message: RemoveSlice, now: float) -> list[Effect]:
        hosted = self.hosted.get(message.slice)
        if hosted is not None and hosted.slice.epoch <= message.epoch:
            del self.hosted[message.slice]
        return []
