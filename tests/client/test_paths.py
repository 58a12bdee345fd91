"""Names that lead to another path are not sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_gateway import running_gateway

from fieldfare.client import Client, InvalidName, later, protocol
from fieldfare.client.paths import path_segment

CALLS: list[Callable[[str], Any]] = [
    lambda name: protocol.delete_subscription("mine", name),
    lambda name: protocol.get_subscription(name, "s"),
    lambda name: protocol.delete_space(name),
    lambda name: protocol.read_quotas(name),
    lambda name: later.cancel_delayed("mine", name),
]


@pytest.mark.parametrize("name", [".", ".."])
@pytest.mark.parametrize("call", CALLS)
def test_a_name_that_would_be_resolved_is_refused(call: Callable[[str], Any], name: str) -> None:
    with pytest.raises(InvalidName, match="no name or id"):
        call(name)


def test_other_names_are_escaped() -> None:
    assert [path_segment(each) for each in ("a.b", "...", "../x", "é")] == ["a.b", "...", "..%2Fx", "%C3%A9"]


def test_to_delete_a_subscription_deletes_no_space(tmp_path: Path) -> None:
    """DELETE .../spaces/mine/subscriptions/.. was sent as DELETE .../spaces/mine."""
    with running_gateway(tmp_path / "data") as gateway, Client(url=gateway.url, space="mine") as client:
        client.create_space("mine")
        with pytest.raises(InvalidName):
            client.delete_subscription("..")
        with pytest.raises(InvalidName):
            client.cancel_delayed("..")
        assert "mine" in client.spaces()
