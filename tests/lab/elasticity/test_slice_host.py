"""One host, message by message: what it may say before a state is kept, and what it must not."""

from __future__ import annotations

from fieldfare.effects import Ask, Effect, Received, Send
from fieldfare.elasticity.messages import RestoreSlice, Wiring
from fieldfare_lab.elasticity.host import SliceHost
from fieldfare_lab.elasticity.messages import (
    Acknowledgement,
    Item,
    KeepSlice,
    SliceKept,
    SliceRecalled,
    SliceState,
)


class Passing:
    """An operator that passes on what it gets."""

    def process(self, content: object) -> list[tuple[str, object]]:
        return [("EP:1", content)]

    def state(self) -> None:
        return None

    def restore(self, state: object) -> None:
        pass


def sent(effects: list[Effect], kind: type) -> list[int]:
    """The numbers of the items, or of the acknowledgements, among what a host asks for."""
    messages = [effect.message for effect in effects if isinstance(effect, Send)]
    return [message.number for message in messages if isinstance(message, kind)]


def kept(effects: list[Effect], *, is_accepted: bool = True) -> Received | SliceKept:
    """The answer to what is to be kept."""
    (question,) = [effect.question for effect in effects if isinstance(effect, Ask)]
    assert isinstance(question, KeepSlice)
    return SliceKept(question.slice, question.epoch, question.state, is_accepted)


def running() -> SliceHost:
    """A host on which M:1 runs, between AP:1 and EP:1."""
    host = SliceHost("host1", lambda name: Passing())
    host.handle(Received("manager", Wiring(1, {"AP:1": ("a",), "M:1": ("host1",), "EP:1": ("e",)})), 0.0)
    host.handle(Received("manager", RestoreSlice("M:1", 1)), 0.0)
    host.handle(kept(host.handle(SliceRecalled("M:1", 1, SliceState()), 0.0)), 0.0)
    return host


def item(number: int) -> Received:
    return Received("a", Item("AP:1", "M:1", number, f"event {number}"))


def test_outputs_leave_and_inputs_are_acknowledged_once_they_are_kept() -> None:
    host = running()
    asked = host.handle(item(1), 1.0)
    assert sent(asked, Item) == sent(asked, Acknowledgement) == []
    while_it_is_kept = host.handle(item(2), 1.1)
    assert while_it_is_kept == []  # what comes meanwhile is kept together, next
    first = host.handle(kept(asked), 1.2)
    assert (sent(first, Item), sent(first, Acknowledgement)) == ([1], [1])
    second = host.handle(kept(first), 1.3)
    assert (sent(second, Item), sent(second, Acknowledgement)) == ([2], [2])


def test_a_repeated_item_is_acknowledged_without_a_second_output() -> None:
    host = running()
    host.handle(kept(host.handle(item(1), 1.0)), 1.1)
    again = host.handle(item(1), 1.2)
    assert (sent(again, Item), sent(again, Acknowledgement)) == ([], [1])


def test_an_early_item_waits_for_those_before_it() -> None:
    host = running()
    assert host.handle(item(2), 1.0) == []
    done = host.handle(kept(host.handle(item(1), 1.1)), 1.2)
    assert sent(done, Item) == [1, 2]


def test_a_host_whose_slice_is_elsewhere_drops_it_silently() -> None:
    """It was taken for dead; what it keeps is refused."""
    host = running()
    asked = host.handle(item(1), 1.0)
    refused = host.handle(kept(asked, is_accepted=False), 1.1)
    assert refused == [] and host.hosted == {}


def test_a_late_order_of_a_place_that_is_over_restores_nothing() -> None:
    host = SliceHost("host1", lambda name: Passing())
    host.handle(Received("manager", RestoreSlice("M:1", 1)), 0.0)
    assert host.handle(SliceRecalled("M:1", 1, None), 0.1) == []
    assert host.hosted == {}
