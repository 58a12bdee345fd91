"""Which subscriptions have a push address, for every implementation of a registry."""

from __future__ import annotations

from dataclasses import replace

from test_registry import put

from fieldfare.model import DeliverySettings, PushSettings
from fieldfare.storage import Registry


def test_those_with_a_push_address_are_found_in_pages(registry: Registry) -> None:
    """A gateway that starts has to know them; a filter or an address that speaks of one makes none."""
    registry.create_space("ants")
    pushed = DeliverySettings(push=PushSettings("https://example.com/", secrets=("whsec_x",)), paused=True)
    other = DeliverySettings(paused_because='"push":')
    changes = [
        replace(put(f"{space} {i}", f"a = '\"push\":' AND b = {i}"), space=space, delivery=delivery)
        for space in ("birds", "ants")
        for i, delivery in enumerate((pushed, None, other, pushed, DeliverySettings(paused=True)))
    ]
    registry.apply(changes, (1,), 0)
    found = list(registry.pushed())
    assert [each.id for each in found] == ["ants 0", "ants 3", "birds 0", "birds 3"]
    assert found[0].delivery == pushed and found == list(registry.pushed(("ant", "")))
    assert [each.id for each in registry.pushed(("ants", "ants 0"), 2)] == ["ants 3", "birds 0"]
    assert list(registry.pushed(("birds", "birds 3"))) == []
