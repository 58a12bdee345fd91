"""The archive of Spark's Java classes: begun with when it is whole."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from fieldfare.runtimes.spark import session
from fieldfare.runtimes.spark.session import PLAIN, QUERIES, archive_name, link_home, with_class_archive


def test_an_archive_that_was_cut_short_is_not_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full when the environment was copied: Java would crash on it at every start."""
    monkeypatch.setattr(session, "CLASS_ARCHIVES", tmp_path)
    assert with_class_archive(PLAIN) == ()
    archive = tmp_path / archive_name(PLAIN, 1000)
    archive.write_bytes(bytes(1000))
    assert with_class_archive(PLAIN)[0] == f"-XX:SharedArchiveFile={archive}"
    assert with_class_archive(QUERIES) == ()
    archive.write_bytes(bytes(999))
    assert with_class_archive(PLAIN) == ()


def test_the_class_path_names_each_jar_once(tmp_path: Path) -> None:
    """Java 21 used no archive where one was named twice, and every start took twice as long."""
    for _ in range(2):
        link_home(tmp_path / "home")
        jars = tmp_path / "home" / "jars"
        first = [path for path in jars.iterdir() if path.name.startswith("slf4j-api-")]
        by_wildcard = list(jars.glob("*.jar"))
        named = [path.resolve() for path in (*first, *by_wildcard)]
        assert len(first) == 1 and len(set(named)) == len(named)
        assert set(named) == {
            path.resolve() for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")
        }
        (jars / "left-by-an-older-version.jar").symlink_to(tmp_path / "nowhere")


def test_a_home_of_an_earlier_version_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "jars").symlink_to(Path(pyspark.__file__).parent / "jars", target_is_directory=True)
    link_home(tmp_path)
    assert not (tmp_path / "jars").is_symlink() and (tmp_path / "bin" / "spark-submit").exists()
