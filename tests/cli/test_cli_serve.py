"""`fieldfare serve`: what it is told of slices."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fieldfare.cli.app import app
from fieldfare.cli.service import slice_arguments
from fieldfare.planning.cuts import CutSettings, Wish
from fieldfare.runtimes.indexer.__main__ import parse as parse_indexer
from fieldfare.runtimes.spark.driver import parse as parse_driver


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--partitioning", "mash"], "no partitioning is called 'mash': there are auto, attribute_space"),
        (["--slices", "market"], "'market' says of no space how it is cut"),
        (["--slices", "market=hash:many"], "'market=hash:many': 'many' is no number of matchers"),
        (["--forwarding", "rnd"], "no forwarding policy is called 'rnd': there are adaptive"),
        (["--matchers", "0"], "--matchers"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_starts(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    result = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "data"), *arguments])
    assert result.exit_code in (1, 2)
    assert said in " ".join(result.stderr.split())
    assert not (tmp_path / "data").exists()


def test_indexer_and_pipeline_are_told_how_spaces_are_held() -> None:
    told = slice_arguments("attribute_space", 4, ["market=hash:2", "audit=replicated"], 1 << 30, "balanced")
    options = parse_indexer(["--data", "d", *told["indexer"]])
    cuts = CutSettings.parsed(options.partitioning, options.matchers, options.slices, options.matcher_memory)
    spaces = {"market": Wish("hash", 2), "audit": Wish("replicated", 4)}
    assert cuts == CutSettings(Wish("attribute_space", 4), spaces, 1 << 30)
    assert parse_driver(["--data", "d", *told["pipeline"]]).forwarding == "balanced"
