"""`fieldfare subscriptions`, `subscribe`, `spaces`, `top`, and how every command fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_support import Fieldfare
from faulty_service import FaultyService

from fieldfare import Client
from fieldfare.cli.watch import draw_sparkline

EVENT = {"source": "/quotes", "type": "quote", "id": "1", "time": "2026-01-02T03:04:05Z"}


def publish(service: FaultyService, *data: object) -> None:
    with Client(service.url) as client:
        client.publish_many([{**EVENT, "data": each} for each in data])


def test_a_subscription_is_created_shown_listed_and_deleted(fieldfare: Fieldfare) -> None:
    result = fieldfare("subscriptions", "create", "cheap", "data.price < 18.5")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "created cheap, valid from 0-0-0\n", "")
    shown = fieldfare("subscriptions", "get", "cheap").stdout
    assert "filter      data.price < 18.5\n" in shown and "valid from  0-0-0\n" in shown
    assert json.loads(fieldfare("subscriptions", "get", "cheap", "--json").stdout)["id"] == "cheap"
    table = [line.rstrip() for line in fieldfare("subscriptions", "list").stdout.splitlines()]
    assert table == [
        "id     valid from  dialect  filter",
        "cheap  0-0-0       sql      data.price < 18.5",
    ]
    line = json.loads(fieldfare("subscriptions", "list", "--json").stdout)
    assert line["filter"] == "data.price < 18.5"
    assert fieldfare("subscriptions", "delete", "cheap").stdout == "deleted cheap\n"
    assert fieldfare("subscriptions", "list").stdout == "no subscriptions\n"


def test_an_id_that_exists_is_replaced_only_when_told(fieldfare: Fieldfare) -> None:
    fieldfare("subscriptions", "create", "a", "x = 1")
    again = fieldfare("subscriptions", "create", "a", "x = 2")
    assert (again.exit_code, again.stderr) == (1, "error: It exists: there is a subscription a\n")
    assert fieldfare("subscriptions", "create", "a", "x = 2", "--replace").exit_code == 0
    assert "x = 2" in fieldfare("subscriptions", "get", "a").stdout


def test_a_filter_with_an_error_says_where_and_what_to_do(fieldfare: Fieldfare) -> None:
    result = fieldfare("subscriptions", "create", "a", "price < ???")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: The filter has an error (at line 1, column 9): expected a value, found '???'\n"
        "hint: write a number or a string in single quotes\n"
    )


def test_many_are_created_from_a_file_and_the_bad_ones_named(
    service: FaultyService, fieldfare: Fieldfare, tmp_path: Path
) -> None:
    file = tmp_path / "alerts.jsonl"
    good = '{"id": "a", "filter": "x = 1", "note": "mine"}\n\n'
    file.write_text(good + '{"id": "b", "filter": "???"}\n{"filter": "y"}\n')
    result = fieldfare("subscriptions", "create", "--file", str(file))
    assert (result.exit_code, result.stdout) == (1, "stored 2 subscriptions, 1 refused\n")
    assert result.stderr == (
        "error: item 1 (b) at line 1, column 1: expected a value, found '???' "
        "(hint: write a number or a string in single quotes)\n"
    )
    assert len(service.subscriptions) == 2
    file.write_text('{"id": "d", "filter": "x = 1"}\n')
    assert fieldfare("subscriptions", "create", "--file", str(file)).stdout == "stored 1 subscription\n"
    result = fieldfare("subscriptions", "create", "--file", "-", "--json", input='{"id": "c", "filter": "z"}')
    assert json.loads(result.stdout) == {"stored": 1, "refused": []}


def test_a_broken_file_of_subscriptions_stores_nothing(service: FaultyService, fieldfare: Fieldfare) -> None:
    good = '{"id": "a", "filter": "x = 1"}\n'
    result = fieldfare("subscriptions", "create", "--file", "-", input=good + "{oops")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: standard input, line 2 is not JSON: ")
    result = fieldfare("subscriptions", "create", "--file", "-", input=good + '{"id": "b"}')
    assert result.stderr == (
        "error: standard input, line 2 has no filter\n"
        'hint: one looks like {"id": "cheap", "filter": "data.price < 18.5"}\n'
    )
    assert not service.subscriptions


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["subscriptions", "create"], "give an ID and a FILTER, or --file"),
        (["subscriptions", "create", "a", "b", "--file", "-"], "--file cannot be combined with"),
        (["subscribe", "--replace", "x"], "--replace needs an ID and a --filter"),
        (["subscribe"], "give the ID of a subscription or a --filter"),
        (["subscribe", "x", "--start", "earliest"], "--start needs a --filter"),
        (["subscribe", "x", "--exec", " "], "--exec is empty"),
        (["subscriptions", "create", "a", "b", "--replace", "--start", "earliest"], "--start is for new"),
        (["top", "--json"], "--json needs --once"),
        (["top", "--once", "--url", "nonsense"], "a service's URL looks like"),
        (["subscriptions", "get"], "Missing argument"),
        (["publish", "--batch", "0"], "--batch"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_usage_is_exit_code_2(fieldfare: Fieldfare, arguments: list[str], message: str) -> None:
    result = fieldfare(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_a_service_that_is_not_there_is_an_error_with_a_hint(fieldfare: Fieldfare) -> None:
    for command in ("top --once", "publish", "subscribe x", "subscriptions list", "spaces list"):
        result = fieldfare(*command.split(), "--url", "http://127.0.0.1:9", input="{}")
        assert result.exit_code == 1, command
        assert result.stderr.splitlines()[-2:] == [
            "error: nothing answers at http://127.0.0.1:9 ([Errno 111] Connection refused)",
            "hint: start a service with `fieldfare serve --data DIR`, or set FIELDFARE_URL to where one runs",
        ]


def test_subscribe_prints_a_line_an_event_and_acks_it(service: FaultyService, fieldfare: Fieldfare) -> None:
    fieldfare("subscriptions", "create", "cheap", "data.price < 18.5")
    publish(service, {"price": 17.25}, "two\nlines \x1b[31m", None)
    result = fieldfare("subscribe", "cheap", "--limit", "3")
    assert result.exit_code == 0
    assert result.stderr == "following cheap; Ctrl-C ends\n"
    assert result.stdout.splitlines() == [
        '0-0-0  2026-01-02T03:04:05Z  quote  /quotes  {"price":17.25}',
        r"0-0-1  2026-01-02T03:04:05Z  quote  /quotes  two\nlines \x1b[31m",
        "0-0-2  2026-01-02T03:04:05Z  quote  /quotes",
    ]
    assert len(service.acked["cheap"]) == 3
    assert "cheap" in service.subscriptions


def test_subscribe_can_leave_messages_unacked_and_print_raw_json(
    service: FaultyService, fieldfare: Fieldfare
) -> None:
    publish(service, {"price": 17.25})
    result = fieldfare("subscribe", "cheap", "--filter", "data.price < 18.5", "--json", "-n", "1", "--no-ack")
    assert result.stdout.encode() == service.records[0][0] + b"\n"
    assert not service.acked["cheap"]
    assert "cheap" in service.subscriptions


def test_a_filter_without_id_is_forgotten_at_the_end(service: FaultyService, fieldfare: Fieldfare) -> None:
    publish(service, 1)
    assert fieldfare("subscribe", "--filter", "data = 1", "--limit", "1").exit_code == 0
    assert not service.subscriptions


def test_a_different_filter_is_replaced_only_with_replace(
    service: FaultyService, fieldfare: Fieldfare
) -> None:
    """A typing error in `subscribe ID --filter F` took another team's filter away."""
    fieldfare("subscriptions", "create", "cheap", "data.price < 18.5")
    publish(service, {"price": 17.25})
    result = fieldfare("subscribe", "cheap", "--filter", "data.price < 20", "--limit", "1")
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.splitlines() == [
        "error: the subscription cheap has another filter: data.price < 18.5",
        "hint: use --replace to replace it, or leave out --filter to keep it",
    ]
    assert json.loads(fieldfare("subscriptions", "get", "cheap", "--json").stdout)["filter"] == (
        "data.price < 18.5"
    )
    assert fieldfare("subscribe", "cheap", "-f", "data.price < 18.5", "-n", "1").exit_code == 0
    publish(service, {"price": 17.25})
    result = fieldfare("subscribe", "cheap", "--filter", "data.price < 20", "--replace", "--limit", "1")
    assert result.exit_code == 0
    assert json.loads(fieldfare("subscriptions", "get", "cheap", "--json").stdout)["filter"] == (
        "data.price < 20"
    )


def test_a_bad_filter_leaves_nothing_behind_and_is_told_once(
    service: FaultyService, fieldfare: Fieldfare
) -> None:
    result = fieldfare("subscribe", "--filter", "data = ???")
    assert result.exit_code == 1 and "could not be deleted" not in result.stderr
    assert not service.subscriptions


def test_spaces_are_created_and_listed(fieldfare: Fieldfare) -> None:
    assert fieldfare("spaces", "create", "trading").stdout == "created the space trading\n"
    assert fieldfare("spaces", "list").stdout == "default\n"


def test_quotas_are_shown_and_some_of_them_set(fieldfare: Fieldfare) -> None:
    shown = fieldfare("spaces", "quotas", "default").stdout.splitlines()
    assert [line.split() for line in shown] == [
        ["events_per_s", "no", "bound"],
        ["subscriptions", "10,000,", "set", "for", "this", "space,", "used", "3"],
    ]
    given = ("subscriptions=default", "events_per_s=0.5")
    assert json.loads(fieldfare("spaces", "quotas", "default", *given, "--json").stdout)["set"] == {
        "events_per_s": 0.5,
        "subscriptions": None,
    }
    given = ("stored_event_bytes=10GB", "bytes_per_s=0.5")
    assert json.loads(fieldfare("spaces", "quotas", "default", *given, "--json").stdout)["set"].items() >= {
        ("stored_event_bytes", 10**10),
        ("bytes_per_s", 0.5),
    }
    for wrong in (
        "subscriptions",
        "subscriptions=",
        "subscriptions=many",
        "=",
        "stored_event_bytes=10XB",
        "events_per_s=10MB",
        "events_per_s:5",
        "x=nan",
        "x=-inf",
    ):
        result = fieldfare("spaces", "quotas", "default", wrong)
        assert result.exit_code == 1 and "QUOTA=VALUE" in result.stderr


def test_top_shows_the_figures_once(fieldfare: Fieldfare) -> None:
    result = fieldfare("top", "--once")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "subscriptions" in result.stdout and "lag" in result.stdout
    assert json.loads(fieldfare("top", "--once", "--json").stdout) == {"subscriptions": 0}


def test_a_sparkline_is_as_high_as_its_largest_value() -> None:
    assert draw_sparkline([0, 1, 4, 8]) == "▁▂▅█"
    assert draw_sparkline([0, 0]) == "▁▁"
    assert draw_sparkline([3]) == ""
