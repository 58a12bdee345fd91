"""`fieldfare match`: files in, matches out, errors in words."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import Fieldfare

COMMAND = [sys.executable, "-c", "from fieldfare.cli import main; main()", "match"]


def test_a_file_that_is_not_there_is_an_error(fieldfare: Fieldfare, tmp_path: Path) -> None:
    result = fieldfare("match", str(tmp_path / "none.jsonl"), "--subscriptions", str(tmp_path))
    assert (result.exit_code, result.stderr) == (1, f"error: {tmp_path / 'none.jsonl'} does not exist\n")


@pytest.mark.spark
def test_events_of_a_file_are_matched_and_written(tmp_path: Path) -> None:
    events, subscriptions, matches = (tmp_path / name for name in ("e.jsonl", "s.jsonl", "m.csv"))
    events.write_text('{"symbol":"YHOO","price":17}\n{"symbol":"IBM","price":30}\n')
    subscriptions.write_text('{"id":"cheap","filter":"price < 18.5"}\n{"id":"all","filter":"price > 0"}\n')
    arguments = [events, "--subscriptions", subscriptions, "--output", matches, "--json"]
    result = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert (summary["events"], summary["subscriptions"], summary["matches"]) == (2, 2, 3)
    with matches.open() as file:
        found = sorted((row["subscription"], row["line"]) for row in csv.DictReader(file))
    assert found == [("all", "1"), ("all", "2"), ("cheap", "1")]
