"""`fieldfare brokers` on a real gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_support import Fieldfare
from real_gateway import running_gateway

pytestmark = pytest.mark.long


def test_links_and_brokers_are_shown(fieldfare: Fieldfare, tmp_path: Path) -> None:
    with running_gateway(tmp_path / "data") as gateway:
        none = fieldfare("brokers", "--url", gateway.url)
        assert none.exit_code == 1 and "has no links to other brokers" in none.stderr
    peer = "berlin=http://127.0.0.1:9"
    with running_gateway(tmp_path / "oslo", broker="oslo", peers=peer) as gateway:
        shown = fieldfare("brokers", "--url", gateway.url).stdout.splitlines()
        assert shown[0] == "broker oslo, routing ddbr"
        assert shown[1].startswith("link to berlin: down, 0 entries (0 bytes) in the outbox, 0 of them sent")
        state = json.loads(fieldfare("brokers", "--json", "--url", gateway.url).stdout)
        assert state["links"][0]["peer"] == "berlin" and state["brokers"][0]["name"] == "oslo"


def test_advertisements_that_are_left_out_are_counted(fieldfare: Fieldfare, tmp_path: Path) -> None:
    with running_gateway(tmp_path / "oslo", broker="oslo", peers="berlin=http://127.0.0.1:9") as gateway:
        for n in range(6):
            fieldfare("spaces", "create", f"s{n}", "--url", gateway.url)
            fieldfare("spaces", "advertise", f"s{n}", f"data.x <> '{'x' * 15_000}'", "--url", gateway.url)
        shown = fieldfare("brokers", "--url", gateway.url).stdout.splitlines()
        assert "oslo: the filters of 2 more spaces are not shown" in shown


def test_a_site_states_what_it_publishes(fieldfare: Fieldfare, tmp_path: Path) -> None:
    with running_gateway(tmp_path / "oslo", broker="oslo", peers="berlin=http://127.0.0.1:9") as gateway:
        command = ("spaces", "advertise", "default", "--url", gateway.url)
        assert fieldfare(*command).stdout == "default publishes everything\n"
        assert fieldfare(*command, "data.x = 1\nAND data.y = 2").stdout == (
            "default publishes data.x = 1\\nAND data.y = 2\n"
        )
        assert json.loads(fieldfare(*command, "--json").stdout)["filter"] == "data.x = 1\nAND data.y = 2"
        shown = fieldfare("brokers", "--url", gateway.url).stdout.splitlines()
        assert r"oslo publishes in default: data.x = 1\nAND data.y = 2" in shown
        wrong = fieldfare(*command, "data.x =")
        assert wrong.exit_code == 1 and "Traceback" not in wrong.stderr, wrong.stderr
        assert fieldfare(*command, "data.x = 1", "--everything").exit_code == 2
        assert fieldfare(*command, "--everything").stdout == "default publishes everything\n"
