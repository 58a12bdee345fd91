"""The archive of Spark's Java classes: begun with when it is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldfare.runtimes.spark import session
from fieldfare.runtimes.spark.session import archive_name, with_class_archive


def test_an_archive_that_was_cut_short_is_not_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full when the environment was copied: Java would crash on it at every start."""
    monkeypatch.setattr(session, "CLASS_ARCHIVES", tmp_path)
    assert with_class_archive() == ()
    archive = tmp_path / archive_name(1000)
    archive.write_bytes(bytes(1000))
    assert with_class_archive()[0] == f"-XX:SharedArchiveFile={archive}"
    archive.write_bytes(bytes(999))
    assert with_class_archive() == ()
