"""`fieldfare subscriptions import`, and `fieldfare filter convert --from`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_support import Fieldfare
from faulty_service import FaultyService

from fieldfare.cli import foreign, importing
from fieldfare.filters.foreign.systems import SYSTEMS

PATTERNS = "boilers = plant/+/boiler\nbroken = a/#/b\nall = #\n"


@pytest.fixture
def patterns(tmp_path: Path) -> str:
    file = tmp_path / "patterns.properties"
    file.write_text(PATTERNS)
    return str(file)


def filters(service: FaultyService) -> dict[str, str]:
    return {id: found["filter"] for id, found in service.subscriptions.items()}


BOTH = {
    "boilers": "subject LIKE 'plant/%/boiler' AND subject NOT LIKE '%/%/%/%'",
    "all": "subject LIKE '%' AND subject NOT LIKE '$%'",
}


def test_an_import_creates_what_can_be_converted_and_reports_the_rest(
    service: FaultyService, fieldfare: Fieldfare, patterns: str
) -> None:
    result = fieldfare("subscriptions", "import", patterns, "--from", "mqtt")
    assert (result.exit_code, result.stdout) == (1, "2 created, 0 replaced, 0 unchanged, 1 refused\n")
    assert result.stderr == (
        f"error: broken ({patterns}, line 2): line 1, column 3: # must be the last level\n  a/#/b\n    ^\n"
    )
    assert filters(service) == BOTH


def test_a_second_import_changes_nothing(service: FaultyService, fieldfare: Fieldfare, patterns: str) -> None:
    for expected in ("2 created, 0 replaced, 0 unchanged", "0 created, 0 replaced, 2 unchanged"):
        result = fieldfare("subscriptions", "import", patterns, "--from", "mqtt")
        assert result.stdout == f"{expected}, 1 refused\n"
    assert filters(service) == BOTH


@pytest.mark.parametrize("looked_up", [0, 200])
def test_another_filter_of_the_id_is_replaced_only_when_told(
    service: FaultyService,
    fieldfare: Fieldfare,
    patterns: str,
    monkeypatch: pytest.MonkeyPatch,
    looked_up: int,
) -> None:
    monkeypatch.setattr(importing, "LOOKED_UP_MAX", looked_up)
    fieldfare("subscriptions", "create", "all", "mine = 5")
    result = fieldfare("subscriptions", "import", patterns, "--from", "mqtt")
    assert (result.exit_code, result.stdout) == (1, "1 created, 0 replaced, 0 unchanged, 2 refused\n")
    assert "there is a subscription all with another filter: pass --replace" in result.stderr
    assert filters(service)["all"] == "mine = 5"
    result = fieldfare("subscriptions", "import", patterns, "--from", "mqtt", "--replace")
    assert result.stdout == "0 created, 1 replaced, 1 unchanged, 1 refused\n"
    assert filters(service) == BOTH


def test_a_subscription_that_appears_meanwhile_stays(
    service: FaultyService, fieldfare: Fieldfare, patterns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_up_before(*_: object) -> dict[str, tuple[str, str]]:
        fieldfare("subscriptions", "create", "all", "mine = 5")
        return {}

    monkeypatch.setattr(importing, "_stored", looked_up_before)
    result = fieldfare("subscriptions", "import", patterns, "--from", "mqtt")
    assert (result.exit_code, result.stdout) == (1, "1 created, 0 replaced, 0 unchanged, 2 refused\n")
    assert "'all' with another filter" in result.stderr
    assert filters(service)["all"] == "mine = 5"


def test_a_dry_run_changes_nothing(service: FaultyService, fieldfare: Fieldfare, patterns: str) -> None:
    result = fieldfare("subscriptions", "import", patterns, "--from", "mqtt", "--dry-run")
    assert result.stdout == "a dry run: 2 created, 0 replaced, 0 unchanged, 1 refused\n"
    assert result.exit_code == 1 and not service.subscriptions


def test_an_import_with_a_prefix_from_standard_input_as_json(
    service: FaultyService, fieldfare: Fieldfare
) -> None:
    arguments = ("subscriptions", "import", "-", "--from", "mqtt", "--prefix", "m-", "--json")
    result = fieldfare(*arguments, input=PATTERNS)
    found = json.loads(result.stdout)
    (refused,) = found.pop("refused")
    assert found == {"created": ["m-boilers", "m-all"], "replaced": [], "unchanged": [], "skipped": []}
    assert (refused["name"], refused["place"]) == ("broken", "standard input, line 2")
    assert "# must be the last level" in refused["reason"]
    assert sorted(service.subscriptions) == ["m-all", "m-boilers"]
    good = fieldfare(*arguments, input="a = b")
    assert (good.exit_code, good.stderr) == (0, "")


def test_what_the_service_refuses_is_reported_too(service: FaultyService, fieldfare: Fieldfare) -> None:
    result = fieldfare("subscriptions", "import", "-", "--from", "nats", input="a = x\nb = ???\n")
    assert (result.exit_code, result.stdout) == (1, "1 created, 0 replaced, 0 unchanged, 1 refused\n")
    assert result.stderr.startswith("error: b (standard input, line 2): ")
    assert list(service.subscriptions) == ["a"]


def test_files_that_cannot_be_read_create_nothing(
    service: FaultyService,
    fieldfare: Fieldfare,
    patterns: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{oops")
    for content, message in ((b"{oops", "this is not JSON"), (b"a = \xff", "is not UTF-8")):
        bad.write_bytes(content)
        result = fieldfare("subscriptions", "import", patterns, str(bad), "--from", "mqtt")
        assert result.exit_code == 1 and message in result.stderr and str(bad) in result.stderr
    monkeypatch.setattr(foreign, "DOCUMENT_BYTES_MAX", 5)
    result = fieldfare("subscriptions", "import", patterns, "--from", "mqtt")
    assert result.exit_code == 1 and "is larger than" in result.stderr
    missing = fieldfare("subscriptions", "import", str(tmp_path / "none"), "--from", "mqtt")
    assert missing.exit_code == 1 and "cannot read" in missing.stderr
    assert not service.subscriptions


EMPTY = {
    **dict.fromkeys(("eventbridge", "sns", "rabbitmq"), "[]"),
    **dict.fromkeys(("jms", "mqtt", "nats", "amqp"), "# no filter\n"),
    "knative": "kind: Broker\n",
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_files_without_filters_are_an_error(
    service: FaultyService, fieldfare: Fieldfare, system: str, tmp_path: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text(EMPTY[system])
    other.write_text(EMPTY[system])
    found = fieldfare("subscriptions", "import", str(one), "--from", system)
    said = f"error: {one}: there are no filters in this file\n"
    assert (found.exit_code, found.stdout, found.stderr) == (1, "", said)
    found = fieldfare("subscriptions", "import", str(one), str(other), "--from", system, "--dry-run")
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr == f"error: {one}, {other}: there are no filters in these files\n"
    assert not service.requests
    found = fieldfare("filter", "convert", "--file", str(one), "--from", system)
    assert (found.exit_code, found.stderr) == (1, said)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --from SYSTEM"),
        (("--from", "kafka"), "there is no system 'kafka'"),
        (("--from", "mqtt", "--at", "data"), "--at is not an option for filters from mqtt"),
        (("--from", "knative", "--map", "a=b"), "--map is not an option for filters from knative"),
        (("--from", "jms", "--map", "a"), "--map takes NAME=PATH"),
        (("--from", "jms", "--at", "data..x"), "data..x is not the name of an attribute"),
    ],
)
def test_usage_errors(
    service: FaultyService, fieldfare: Fieldfare, patterns: str, arguments: tuple[str, ...], message: str
) -> None:
    result = fieldfare("subscriptions", "import", patterns, *arguments)
    assert result.exit_code == 2 and message in result.stderr
    assert not service.requests


def test_one_filter_is_converted_to_sql(fieldfare: Fieldfare) -> None:
    def convert(*arguments: str, **more: str) -> tuple[int, str]:
        result = fieldfare("filter", "convert", *arguments, **more)
        return result.exit_code, result.stdout or result.stderr

    assert convert("--from", "jms", "a = 'x'") == (0, "a = 'x'\n")
    assert convert("--from", "jms", input="a = 'x'\n") == (0, "a = 'x'\n")
    code, text = convert("--from", "nats", "a.b", "--attribute", "data.t", "--json")
    assert (code, json.loads(text)) == (0, {"filter": "data.t = 'a.b'", "dialect": "sql"})
    policy = '{"tier": ["gold"]}'
    body = convert("--from", "sns", policy, "--scope", "MessageBody", "--body", "data.message")
    assert body == (0, "ANY tier IN data.message.tier SATISFIES (tier = 'gold')\n")
    code, text = convert("--from", "jms", "a + 1 = 2")
    assert code == 1 and text.startswith(
        "error: the filter cannot be converted\nline 1, column 3: + of a prop"
    )
    assert convert("--from", "jms", "a = 1", "--file", "x")[0] == 2
    assert convert("--from", "jms", "a = 1", "--to", "cesql")[0] == 2
    assert convert("a = 1", "--at", "data") == (2, "error: this option needs --from SYSTEM\n")


def test_the_filters_of_a_file_are_converted_to_lines_for_create(
    service: FaultyService, fieldfare: Fieldfare, patterns: str
) -> None:
    result = fieldfare("filter", "convert", "--from", "mqtt", "--file", patterns)
    assert result.exit_code == 1 and "broken" in result.stderr
    fieldfare("subscriptions", "create", "--file", "-", input=result.stdout)
    assert filters(service) == BOTH
    document = json.loads(fieldfare("filter", "convert", "--from", "mqtt", "-f", patterns, "--json").stdout)
    assert [each["id"] for each in document["converted"]] == ["boilers", "all"]
    assert [each["name"] for each in document["refused"]] == ["broken"]
    assert document["skipped"] == []


def test_names_of_a_file_cannot_write_on_the_terminal(
    service: FaultyService, fieldfare: Fieldfare, tmp_path: Path
) -> None:
    file = tmp_path / "rules.json"
    name = "a\x1b[2J\nhint: b"
    rules = [{"Name": name, "EventPattern": "{"}, {"Name": name, "State": "DISABLED"}]
    file.write_text(json.dumps({"Rules": rules}))
    result = fieldfare("subscriptions", "import", str(file), "--from", "eventbridge")
    assert f"left out a\\x1b[2J\\nhint: b ({file}, Rules[1]): " in result.stderr
    assert f"error: a\\x1b[2J\\nhint: b ({file}, Rules[0]): " in result.stderr
    headers = json.dumps({"\x1b[2J": "x"})
    result = fieldfare("filter", "convert", "--from", "rabbitmq", headers)
    assert "header \\x1b[2J: " in result.stderr
