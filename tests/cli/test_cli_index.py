"""`fieldfare subscriptions explain`: what the index of a data directory chose."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fieldfare.cli.app import app
from fieldfare.filters import compile_filter
from fieldfare.partitioning import HashPartitioning
from fieldfare.pipeline.indexer import Indexer
from fieldfare.runtimes.indexer.index_writer import write_step
from fieldfare.runtimes.spark.distributed.loads import MeasuredLoads
from fieldfare.storage import open_registry
from fieldfare.storage.files.index_store import FileIndexStore
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.registry import Put, Registry, Remove

FILTERS = {f"city{i}": f"data.city = 'c{i}' AND data.price < {i}" for i in range(200)} | {
    "late": "data.delay > 30",
    "odd": "data.name LIKE '%x' AND data.size BETWEEN 1 AND 5",
    "never": "1 = 2",
    "either": "data.city = 'c3' OR data.delay > 60",
    "gone": "data.delay > 90",
}


def _put(registry: Registry, filters: dict[str, str]) -> None:
    puts = [Put("default", id, text, "sql", compile_filter(text).compiled) for id, text in filters.items()]
    registry.apply(puts, (0,), 0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose index has FILTERS, and not yet the subscription "new"."""
    return make_data(tmp_path_factory.mktemp("data"), FILTERS)


def make_data(root: Path, filters: dict[str, str], matchers: int = 1) -> Path:
    folder = DataFolder(root)
    folder.make()
    registry, store = open_registry(folder.registry_url), FileIndexStore(folder.index)
    indexer = Indexer(new_cut=lambda space: HashPartitioning(matchers))
    registry.create_space("default")
    registry.create_space("empty")
    _put(registry, filters)
    if "gone" in filters:
        registry.apply([Remove("default", "gone")], (0,), 0)
    revision = registry.revision()
    step = indexer.apply(registry.changes(0, revision), revision)
    write_step(store, step)
    _put(registry, {"new": "data.delay > 120"})
    registry.close()  # Closed later, by the garbage collection, it would delete a WAL that a test puts there.
    return folder.root


@pytest.fixture
def explain(data: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("FIELDFARE_DATA", str(data))
    monkeypatch.delenv("FIELDFARE_SPACE", raising=False)
    return lambda *arguments: CliRunner().invoke(app, ["subscriptions", "explain", *arguments])


def test_the_index_says_what_it_chose(explain: Callable[..., Result]) -> None:
    result = explain()
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("1 part, 205 subscription versions of which 0 ended, ")
    assert "    data.city: 201 entries" in lines
    assert "  4 rows in 1 tile" in lines
    found = json.loads(explain("--json").stdout)
    assert found["space"] == "default"
    (part,) = found["parts"]
    assert part["keys"] == [{"attributes": ["data.city"], "entries": 201}]
    assert (part["rows"], part["rows_in_keys"], part["rows_in_tiles"], part["undecided_rows"]) == (
        205,
        201,
        4,
        1,
    )


def test_a_subscription_is_where_the_index_put_it(explain: Callable[..., Result]) -> None:
    assert explain("city7").stdout == (
        "city7: data.city = 'c7' AND data.price < 7\n  part 0: found by the key data.city\n"
    )
    first, keyed, tiled = explain("either").stdout.splitlines()
    assert first == "either: data.city = 'c3' OR data.delay > 60"
    assert {keyed.split(":")[1].split()[0], tiled.split(":")[1].split()[0]} == {"found", "in"}
    assert explain("odd").stdout.endswith("the filter is evaluated for its candidates\n")
    (row,) = json.loads(explain("late", "--json").stdout)["rows"]
    assert row["tile"] == 0 and row["tile_rows"] == 4 and row["exact"]


def test_a_subscription_found_by_a_text_says_so_in_json_too(
    tmp_path: Path, explain: Callable[..., Result]
) -> None:
    """A script that looked for badly indexed filters took these for rows of tile -1."""
    root = make_data(tmp_path, {f"s{i}": f"data.title LIKE '%storm{i}%'" for i in range(300)})
    (part,) = json.loads(explain("--data", str(root), "--json").stdout)["parts"]
    needles = [{"attribute": "data.title", "ignores_case": False, "texts": 300, "rows": 300}]
    assert (part["needles"], part["rows_in_needles"]) == (needles, 300)
    assert part["rows"] == part["rows_in_keys"] + part["rows_in_needles"] + part["rows_in_tiles"]
    (row,) = json.loads(explain("s7", "--data", str(root), "--json").stdout)["rows"]
    assert row == {"part": 0, "exact": True, "needle": {"attribute": "data.title", "text": "storm7"}}


def test_a_subscription_that_is_in_no_part_says_why(explain: Callable[..., Result]) -> None:
    assert "no event can match this filter" in explain("never").stdout
    assert "not in the index yet" in explain("new").stdout
    assert json.loads(explain("new", "--json").stdout)["rows"] is None
    for id in ("gone", "unheard"):
        result = explain(id)
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"there is no subscription '{id}' in the space 'default'" in result.stderr


def test_a_space_without_subscriptions_has_an_empty_index(explain: Callable[..., Result]) -> None:
    assert explain("--space", "empty").stdout.startswith("0 parts, 0 subscription versions")
    assert "there is no space 'other'" in explain("--space", "other").stderr


def test_the_slices_of_a_space_are_told_with_what_was_measured_of_them(
    tmp_path: Path, explain: Callable[..., Result]
) -> None:
    root = make_data(tmp_path, FILTERS, matchers=3)
    folder = DataFolder(root)
    manifest = FileIndexStore(folder.index).newest()
    assert manifest is not None
    sizes = [part.size for part in manifest.spaces["default"].slices]
    lines = explain("--data", str(root)).stdout.splitlines()
    assert lines[0] == "3 slices at 3 matchers, by hash"
    assert lines[1:4] == [f"  slice {n} at {n}: {size} subscriptions" for n, size in enumerate(sizes)]
    measured = MeasuredLoads()
    measured.learn(manifest, [(1, "default", 1, 500, 0.25, 0)], 1.0, 2.0)
    measured.save(folder.slices, manifest.number)
    lines = explain("--data", str(root)).stdout.splitlines()
    assert lines[2] == f"  slice 1 at 1: {sizes[1]} subscriptions, 2,000 events/s when searched"
    found = json.loads(explain("--data", str(root), "--json").stdout)
    assert (found["partitioning"], found["matchers"]) == ("hash", 3)
    assert found["slices"][1] == {"matcher": 1, "subscriptions": sizes[1], "events_per_s": 2000.0}
    assert sum(part["subscriptions"] for part in found["parts"]) == sum(sizes)


def test_a_folder_without_an_index_is_an_error_with_a_hint(tmp_path: Path) -> None:
    for arguments in ([], ["late"]):
        command = ["subscriptions", "explain", *arguments, "--data", str(tmp_path / "nothing")]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 1
        assert "has no index yet" in result.stderr and "hint: --data is the data directory" in result.stderr
    assert not (tmp_path / "nothing").exists()
