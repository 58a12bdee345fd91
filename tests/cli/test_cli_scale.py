"""`fieldfare scale`: what an elastic service wrote down, as a user reads it; what `serve` is told of it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fieldfare.cli.app import app
from fieldfare.cli.service import elastic_arguments
from fieldfare.elasticity import Configuration, Operators
from fieldfare.elasticity.messages import SliceMove
from fieldfare.runtimes.spark.driver import parse
from fieldfare.storage.elastic import (
    Decision,
    ElasticLoads,
    ElasticRecord,
    HostLoad,
    Move,
    SliceLoadNow,
    take_move_request,
)
from fieldfare.storage.folder import DataFolder

MASTER = "spark://127.0.0.1:7077"


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    """A service with three slices on two hosts, which took in one that had too much."""
    folder = DataFolder(tmp_path / "data")
    folder.make()
    configuration = Configuration(Operators(0, {"M": 3}, 0), {}).begun(2)
    moves = [SliceMove("M:2", 0)]
    record = ElasticRecord(
        configuration,
        [Decision(1_795_000_000_000, "local: host1 has CPU 93%", moves, 1, ["host9"], True)],
        [Move("M:2", "host1", "host2", 1.0, 2.0, 3.0)],
    )
    record.write(folder.elastic)
    assert ElasticRecord.read(folder.elastic) == record
    return folder


def say(folder: DataFolder, *, age_s: float = 0.0, dry_run: bool = False) -> None:
    ElasticLoads(
        int((time.time() - age_s) * 1000),
        dry_run,
        1,
        4,
        [HostLoad("host1", "0", 2, True, 0.425), HostLoad("host2", "", 0, False, 0.0)],
        [SliceLoadNow("M:1", "host1", 0.425, 12_300_000), SliceLoadNow("M:2", "", 0.0, 0)],
        200,
        199,
    ).write(folder.elastic_loads)


def scale(folder: DataFolder, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["scale", "--data", str(folder.root), *arguments])


def test_hosts_slices_loads_and_decisions_are_shown(folder: DataFolder) -> None:
    say(folder)
    said = scale(folder).stdout
    assert "2 hosts, 1 to 4 allowed" in said
    assert "host1  42% CPU  executor 0, 2 cores" in said
    assert "host2  0% CPU  no executor yet" in said
    assert "M:1  42.5%  12.3 MB" in said
    assert "anywhere: M:2" in said
    assert "99.5% of 200 tasks ran on their preferred host" in said
    assert "local: host1 has CPU 93%: M:2 to new host 1, add 1 hosts, release host9" in said


def test_a_dry_run_says_that_nothing_is_done(folder: DataFolder) -> None:
    say(folder, dry_run=True)
    assert "dry run: decisions are not carried out" in scale(folder).stdout


def test_a_stopped_service_shows_the_last_places_of_slices(folder: DataFolder) -> None:
    say(folder, age_s=60)
    said = scale(folder).stdout
    assert "the service is not running" in said
    assert "host1  M:1, M:3" in said
    document = json.loads(scale(folder, "--json").stdout)
    assert document["is_running"] is False
    assert document["moves"][0]["slice"] == "M:2"
    assert document["configuration"]["hosts"] == ["host1", "host2"]


def test_a_move_needs_an_existing_slice_and_host(folder: DataFolder) -> None:
    say(folder)
    assert scale(folder, "--move", "M:2=host1").exit_code == 0
    assert take_move_request(folder) == SliceMove("M:2", "host1")
    assert take_move_request(folder) is None
    for text, said in (
        ("M:9=host1", "no slice 'M:9'"),
        ("M:1=host7", "no host 'host7'"),
        ("M:1", "no host ''"),
    ):
        refused = scale(folder, "--move", text)
        assert refused.exit_code == 1
        assert said in refused.stderr
    assert take_move_request(folder) is None


def test_a_requested_move_replaces_one_that_has_not_begun(
    folder: DataFolder,
) -> None:
    """Two in a row were both said to be asked for, and one was done."""
    say(folder)
    assert "canceled" not in scale(folder, "--move", "M:2=host1").stdout
    assert (
        "canceled the move of M:2 to host1, which had not begun"
        in scale(folder, "--move", "M:1=host2").stdout
    )
    assert take_move_request(folder) == SliceMove("M:1", "host2")
    assert not list(folder.run.glob("*moves*"))


def test_a_move_is_refused_without_a_running_service_and_in_a_dry_run(folder: DataFolder) -> None:
    """It was done at the next start, days later."""
    for fault in ("the service is not running", "the service runs with --elastic-dry-run"):
        refused = scale(folder, "--move", "M:2=host1")
        assert refused.exit_code == 1
        assert fault in refused.stderr
        say(folder, dry_run=True)
    assert take_move_request(folder) is None


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"slice": "M:1", "to": 0}', b'{"slice": 1, "to": "host1"}']
)
def test_an_unreadable_move_request_is_ignored(folder: DataFolder, text: bytes) -> None:
    folder.elastic_wishes.write_bytes(text)
    assert take_move_request(folder) is None
    assert not folder.elastic_wishes.exists()


def test_where_no_elastic_service_ran_it_says_so(tmp_path: Path) -> None:
    refused = scale(DataFolder(tmp_path))
    assert refused.exit_code == 1
    assert "no elastic service has run" in refused.stderr


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('"hosts":["host1","host2"]', '"hosts":["host1"]'),
        ('"hosts":["host1","host2"]', '"hosts":["host1","host2","host2"]'),
        ('"hosts":["host1","host2"]', '"hosts":["host1","host2","host77"]'),
        ('"hosts":["host1","host2"]', '"hosts":[]'),
        ('"started":2', '"started":-1'),
        ('"started":2', '"started":1' + "0" * 40),
        ('"matchers":{"M":3}', '"matchers":{"M":4}'),
        ('"matchers":{"M":3}', '"matchers":{"M":1000000000000}'),
        ('"matchers":{"M":3}', '"matchers":{"N":3}'),
        ('"places":{"M:1"', '"places":{"M:7"'),
        ('"moves":[]', '"moves":[{"slice":"M:1","to":0}]'),
        ('"moves":[]', '"moves":[{"slice":"M:1","to":"host9"}]'),
        ('"moves":[]', '"moves":[{"slice":"M:9","to":"host2"}]'),
        ('"leaving":[]', '"leaving":["host9"]'),
        ('"epoch":1', '"epoch":-1'),
        ('"to":null', '"to":"host9"'),
        ('"to":null', '"to":"host2"'),
    ],
)
def test_an_inconsistent_record_is_refused(folder: DataFolder, was: str, becomes: str) -> None:
    """A slice at a host that there is not was never run anywhere again, nor was anything decided."""
    text = folder.elastic.read_text()
    assert was in text
    # The one slice that moves is not refused, two are.
    folder.elastic.write_text(text.replace(was, becomes))
    refused = scale(folder)
    assert refused.exit_code == 1
    assert "elastic.json is not a valid record of slices" in " ".join(refused.stderr.split())


def test_a_record_that_is_a_folder_is_named(folder: DataFolder) -> None:
    folder.elastic.unlink()
    folder.elastic.mkdir()
    refused = scale(folder)
    assert refused.exit_code == 1
    assert "elastic.json is not a valid record of slices" in " ".join(refused.stderr.split())


def test_a_torn_record_is_named(folder: DataFolder) -> None:
    folder.elastic.write_bytes(folder.elastic.read_bytes()[:99])
    refused = scale(folder)
    assert refused.exit_code == 1
    assert "elastic.json is not a valid record of slices" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--elastic", "1..3", "--matchers", "4"], "add --master spark://"),
        (["--elastic", "1..3", "--master", MASTER], "add --matchers"),
        (["--elastic", "3..1", "--master", MASTER, "--matchers", "4"], "'3..1'"),
        (["--elastic-dry-run"], "need --elastic MIN..MAX"),
        (
            ["--elastic", "1", "--elastic-schedule", "noon=2", "--master", MASTER, "--matchers", "4"],
            "'noon=2'",
        ),
    ],
)
def test_invalid_elastic_options_are_refused_before_anything_starts(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    result = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "data"), *arguments])
    assert result.exit_code == 1
    assert said in " ".join(result.stderr.split())
    assert not (tmp_path / "data").exists()


def test_the_pipeline_is_told_all_of_it() -> None:
    told = elastic_arguments("1..3", ["09:00-17:00=2..3"], True, 60.0, MASTER, has_several=True)
    options = parse(["--data", "d", *told])
    assert (options.elastic, options.elastic_schedule) == ("1..3", ["09:00-17:00=2..3"])
    assert (options.elastic_dry_run, options.elastic_calm) == (True, 60.0)
