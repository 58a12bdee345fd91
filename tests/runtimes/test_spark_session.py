"""The service's Spark session: Java's options, for any data directory and any user."""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path

import pytest
from pyspark import SparkContext

from fieldfare.runtimes.spark import session as module
from fieldfare.runtimes.spark.java import JavaError, check_java
from fieldfare.runtimes.spark.session import SparkSettings, session_config


def test_java_unpacks_libraries_under_the_data_directory_whatever_it_is_called(tmp_path: Path) -> None:
    scratch = tmp_path / 'a "b" \\c' / "run" / "spark"
    options = session_config(SparkSettings(), scratch)["spark.driver.extraJavaOptions"]
    assert f"-Djava.io.tmpdir={scratch / 'tmp'}" in shlex.split(options)


def test_java_unpacks_libraries_where_they_can_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data directories are often on disks that are mounted noexec, and so is /tmp."""
    noexec = {tmp_path / "tmp"}
    monkeypatch.setattr(module, "_is_noexec", lambda folder: folder in noexec)
    assert module._temporary_folder(tmp_path) == Path(tempfile.gettempdir())
    noexec.add(Path(tempfile.gettempdir()))
    with pytest.raises(JavaError, match="are mounted noexec"):
        module._temporary_folder(tmp_path)
    noexec.remove(tmp_path / "tmp")
    assert module._temporary_folder(tmp_path) == tmp_path / "tmp"


def test_a_socket_is_where_its_path_is_short_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a Unix socket has at most 107 bytes. A Java process that runs already keeps its folder."""
    monkeypatch.setattr(SparkContext, "_gateway", None)
    name = "spark.python.unix.domain.socket.dir"
    short, long = Path("/srv/events/run/spark"), Path("/srv") / ("x" * 80)
    assert session_config(SparkSettings(), short)[name] == "/srv/events/run/spark/tmp"
    assert len(session_config(SparkSettings(), long)[name]) < 64
    monkeypatch.setattr(SparkContext, "_gateway", object())
    assert session_config(SparkSettings(), short)[name] == tempfile.gettempdir()


def test_spark_gets_one_folder_for_its_files_though_the_path_has_a_comma(tmp_path: Path) -> None:
    scratch = tmp_path / "a,b"
    scratch.mkdir()
    config = {"spark.local.dir": str(scratch)}
    with module._without_commas(config, scratch):
        assert "," not in config["spark.local.dir"]
        assert os.path.realpath(config["spark.local.dir"]) == str(scratch)
    chosen = {"spark.local.dir": "/fast/1,/fast/2"}
    with module._without_commas(chosen, scratch):
        assert chosen == {"spark.local.dir": "/fast/1,/fast/2"}, "several folders of the user's are kept"


def test_java_does_not_look_for_classes_in_two_halves_of_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory called ``at 12:30``: Java ended before it was ready."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    for name, is_own in (("at 12:30", False), ("at noon", True)):
        scratch = tmp_path / name
        scratch.mkdir()
        with module._home_without_python(scratch):
            assert (os.environ["SPARK_HOME"] == str(scratch / "home")) is is_own
            assert ":" not in os.environ["SPARK_HOME"]


def java_at(home: Path, script: str, release: str = "") -> Path:
    """A stand-in for Java."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
    (home / "bin" / "java").chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\n')
    return home


@pytest.mark.parametrize(
    ("script", "release", "said"),
    [
        ("", "11.0.20", "is Java 11, which is too old"),
        ("", "1.8.0_392", "is Java 8, which is too old"),
        ("""echo 'openjdk version "11.0.2"' >&2""", "", "is Java 11, which is too old"),
        ("echo hello", "", "does not say its version: hello"),
        ("", "17.0.15", ""),
        ("""echo 'openjdk version "25" 2025-09-16' >&2""", "", ""),
    ],
)
def test_a_java_that_spark_cannot_run_on_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, release: str, said: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_at(tmp_path / "java", script, release)))
    if not said:
        check_java()
        return
    with pytest.raises(JavaError) as refused:
        check_java()
    assert said in str(refused.value) and str(tmp_path / "java") in str(refused.value)


def test_a_missing_java_is_reported_with_the_searched_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match=f"in JAVA_HOME={tmp_path} there is no bin/java"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match="there is no java on the PATH"):
        check_java()


def test_without_a_folder_of_a_short_path_workers_meet_java_by_tcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a TMPDIR of more than 60 bytes `fieldfare match` ended with "AF_UNIX path too long"."""
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    config = session_config(SparkSettings(), long)
    assert config["spark.python.unix.domain.socket.enabled"] == "false"
    assert "spark.python.unix.domain.socket.dir" not in config
