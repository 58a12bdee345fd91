"""`fieldfare match`: errors in words; what it finds is in tests/runtimes and tests/docs."""

from __future__ import annotations

from pathlib import Path

from cli_support import Fieldfare


def test_a_file_that_is_not_there_is_an_error(fieldfare: Fieldfare, tmp_path: Path) -> None:
    result = fieldfare("match", str(tmp_path / "none.jsonl"), "--subscriptions", str(tmp_path))
    assert (result.exit_code, result.stderr) == (1, f"error: {tmp_path / 'none.jsonl'} does not exist\n")
