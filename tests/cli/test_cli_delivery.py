"""`fieldfare dead-letters`, `seek`, `pause`, `resume` and `subscriptions set` on a real gateway."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from cli_support import Fieldfare
from real_gateway import running_gateway

from fieldfare import Client, DeliverySettings, PushSettings
from fieldfare.client import NewSubscription

pytestmark = pytest.mark.long


def test_the_greatest_backlogs_are_listed_and_shown(fieldfare: Fieldfare, tmp_path: Path) -> None:
    with running_gateway(tmp_path / "data") as gateway, Client(gateway.url) as client:

        def said(*words: str) -> str:
            result = fieldfare(*words, "--url", gateway.url)
            assert (result.exit_code, result.stderr) == (0, ""), result.stderr
            return result.stdout

        client.create_subscription("data.x >= 1", "some")
        client.create_subscription("data.x >= 0", "all")
        client.publish_many([{"source": "/s", "type": "t", "id": str(x), "data": {"x": x}} for x in range(3)])
        assert len(client.pull("all", max_messages=1, wait_s=20)) == 1
        deadline_s = time.monotonic() + 180
        while client.space_backlog().pending < 5:
            assert time.monotonic() < deadline_s, "the matches were not counted in time"
            time.sleep(0.02)
        found = list(client.subscriptions(page_size=1, sort="backlog"))
        assert [(each.id, each.backlog and each.backlog.pending) for each in found] == [
            ("all", 3),
            ("some", 2),
        ]
        assert next(client.subscriptions()).backlog is None
        lines = said("subscriptions", "list", "--sort", "backlog").splitlines()
        assert lines[0].split() == ["id", "pending", "in", "flight", "oldest", "dead", "readers", "filter"]
        assert lines[1].split()[:3] == ["all", "3", "1"] and lines[2].split()[:3] == ["some", "2", "0"]
        sums = client.space_backlog()
        assert (sums.pending, sums.behind, sums.in_flight, sums.is_exact) == (5, 2, 1, True)
        shown = json.loads(said("top", "--once", "--json"))["backlogs"]
        assert shown["total"]["pending"] == 5 and shown["subscriptions"][0]["id"] == "all"
        table = said("top", "--once")
        assert re.search(r"default +5 +1 ", table) and re.search(r"default/all +3 +1 ", table)


def test_dead_letters_seek_pause_and_resume(fieldfare: Fieldfare, tmp_path: Path) -> None:
    with running_gateway(tmp_path / "data") as gateway, Client(gateway.url) as client:

        def said(*words: str) -> str:
            result = fieldfare(*words, "--url", gateway.url)
            assert (result.exit_code, result.stderr) == (0, ""), result.stderr
            return result.stdout

        client.create_subscription("data.x = 1", "a")
        shown = said("subscriptions", "set", "a", "--max-attempts", "1", "--retry-delays", "1,2.5")
        assert "max attempts    1\n" in shown and "retry delays s  1.0, 2.5\n" in shown
        assert "max attempts    1\n" in said("subscriptions", "get", "a")
        assert said("pause", "a") == "a is paused\n"
        (place,) = client.publish_many([{"source": "/s", "type": "t", "id": "7", "data": {"x": 1}}])
        assert client.pull("a", wait_s=0.1) == []
        assert said("resume", "a") == "a is resumed\n"
        assert said("dead-letters", "list", "a") == "no dead letters\n"
        assert [each.position for each in client.pull("a", wait_s=20)] == [place]
        assert "backlog         1 pending, 1 in flight, 0 to redeliver, " in said("subscriptions", "get", "a")
        shown = json.loads(said("subscriptions", "get", "a", "--json"))["backlog"]
        assert (shown["pending"], shown["is_exact"], shown["cursor"]) == (1, True, "0-0-0")
        client.nack("a", [place])
        assert (client.backlog("a").pending, client.backlog("a").dead_letters) == (0, 1)
        head, event = said("dead-letters", "list", "a").splitlines()
        assert re.fullmatch(r"0-0-0  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d  1 attempt  nacked", head)
        assert json.loads(event)["id"] == "7"
        listed = json.loads(said("dead-letters", "list", "a", "--json"))
        assert (listed["position"], listed["event"]["data"]) == ("0-0-0", {"x": 1})
        assert said("dead-letters", "retry", "a", "0-0-0") == "1 to be redelivered\n"
        assert said("dead-letters", "retry", "a") == "0 to be redelivered\n"
        client.terminate("a", [each.position for each in client.pull("a", wait_s=20)])
        assert said("dead-letters", "clear", "a") == "1 removed\n"
        assert said("seek", "a", "earliest") == "a resumes at 0-0-0\n"
        assert json.loads(said("seek", "a", "latest", "--json")) == {"cursor": "0-1-0"}
        reset = said(
            "subscriptions", "set", "a", "--max-attempts", "none", "--retry-delays", "none", "--json"
        )
        assert "delivery" not in json.loads(reset)
        where = ("--max-in-flight-bytes", "10MB", "--retry-delays", "0,5")
        shown = said("subscriptions", "set", "a", *where).splitlines()
        assert "retry delays s       0.0, 5.0" in shown and "max in flight bytes  10000000" in shown
        assert "id                   a" in shown, "all values begin in one column"
        said("subscriptions", "set", "a", "--max-in-flight-bytes", "none", "--retry-delays", "none")
        for words, code in (
            (("seek", "a", "soon"), 1),
            (("dead-letters", "retry", "a", "x"), 2),
            (("subscriptions", "set", "a"), 2),
            (("subscriptions", "set", "a", "--max-attempts", "many"), 2),
            (("subscriptions", "set", "a", "--max-attempts", "0"), 1),
            (("pause", "nothing"), 1),
        ):
            result = fieldfare(*words, "--url", gateway.url)
            assert result.exit_code == code and result.stderr.startswith("error: "), words


def test_an_address_is_set_and_shown_and_secrets_are_read_from_a_file(
    fieldfare: Fieldfare, tmp_path: Path
) -> None:
    """Readers of a subscription see its push address; its signing secrets are never shown."""
    secret = "whsec_" + "QUJD" * 8
    (tmp_path / "secrets").write_text(f"{secret}\n")
    with running_gateway(tmp_path / "data", webhook_allow="127.0.0.0/8") as gateway:

        def said(*words: str, code: int = 0) -> str:
            result = fieldfare(*words, "--url", gateway.url)
            assert result.exit_code == code, result.stderr
            return result.stdout + result.stderr

        said("subscriptions", "create", "a", "data.x = 1")
        said("pause", "a")
        where = ("--push", "http://127.0.0.1:9/hook", "--push-mode", "batch", "--push-requests", "2")
        secrets = ("--push-secrets", str(tmp_path / "secrets"), "--push-batch", "50")
        shown = said("subscriptions", "set", "a", *where, *secrets)
        assert "push url           http://127.0.0.1:9/hook\n" in shown
        assert "push signed        1\n" in shown and secret not in shown
        told = json.loads(said("subscriptions", "get", "a", "--json"))
        assert told["push"] == {"state": "paused"} and told["delivery"]["push"]["batch_max"] == 50
        assert "push state         paused\n" in said("subscriptions", "get", "a")
        told = json.loads(said("subscriptions", "set", "a", "--push-secrets", "none", "--json"))
        assert told["delivery"]["push"]["signed"] == 0
        assert "whsec_" in said("subscriptions", "set", "a", "--push-secrets", str(Path(__file__)), code=1)
        assert "cannot read" in said("subscriptions", "set", "a", "--push-secrets", "/nowhere", code=1)
        assert "not public" in said("subscriptions", "set", "a", "--push", "https://10.0.0.1/", code=1)
        told = json.loads(said("subscriptions", "set", "a", "--push", "none", "--json"))
        assert "push" not in told and "push" not in told["delivery"]
        with Client(gateway.url) as client:
            push = PushSettings("http://127.0.0.1:9/", secrets=(secret,))
            given = DeliverySettings(push=push, paused=True)
            client.create_subscriptions([NewSubscription("data.x = 2", "b", delivery=given)])
            info = client.get_subscription("b")
            assert info.delivery.push == PushSettings("http://127.0.0.1:9/")
            assert info.document["delivery"]["push"]["signed"] == 1
            client.create_subscriptions([NewSubscription("data.x = 2", "b", delivery=info.delivery)])
            assert client.get_subscription("b").document["delivery"]["push"]["signed"] == 1
            info = client.configure_subscription("b", push=PushSettings("http://127.0.0.1:9/", "binary"))
            assert info.document["delivery"]["push"]["mode"] == "binary"


def test_times_and_sizes_of_a_delivery_may_have_units(fieldfare: Fieldfare, tmp_path: Path) -> None:
    """Settings of the service took units, those of a subscription none."""
    given = {
        "--ack-deadline": ("2min", "ack_deadline_s", 120),
        "--retry-delays": ("500ms,1,1 min", "retry_delays_s", [0.5, 1, 60]),
        "--max-age": ("7d", "max_age_s", 7 * 86_400),
        "--max-in-flight-bytes": ("2MiB", "max_in_flight_bytes", 2 << 20),
    }
    options = [part for option, (text, _, _) in given.items() for part in (option, text)]
    with running_gateway(tmp_path / "data") as gateway:
        url = ("--url", gateway.url)
        assert fieldfare("subscriptions", "create", "a", "TRUE", *url).exit_code == 0
        shown = json.loads(fieldfare("subscriptions", "set", "a", *options, "--json", *url).stdout)
        for _, name, value in given.values():
            assert shown["delivery"][name] == value
        wrong = fieldfare("subscriptions", "set", "a", "--max-age", "7 weeks", *url)
    assert wrong.exit_code == 2 and "'7 weeks' is not a time; a time is a number of seconds" in wrong.stderr
