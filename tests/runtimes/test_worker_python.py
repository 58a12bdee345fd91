"""Which Python runs the functions of a user's own Spark session."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from fieldfare.runtimes.spark.worker_python import _warn_of_another_python

OWN = os.path.dirname(sys.executable)


def test_another_python_of_a_local_connect_server_is_warned_of(tmp_path: Path) -> None:
    """In an environment that was not activated the workers had "no module named 'fieldfare'"."""
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    environment = {"SPARK_LOCAL_REMOTE": "1", "PATH": f"{tmp_path}:{OWN}"}
    with pytest.warns(RuntimeWarning, match="PYSPARK_PYTHON") as warned:
        _warn_of_another_python(environment)
    assert str(other) in str(warned[0].message) and sys.executable in str(warned[0].message)


@pytest.mark.parametrize(
    "environment",
    [
        {"PATH": "/nowhere"},
        {"PATH": "/nowhere", "SPARK_LOCAL_REMOTE": "1", "PYSPARK_PYTHON": sys.executable},
        {"PATH": OWN, "SPARK_LOCAL_REMOTE": "1"},
    ],
)
def test_a_chosen_python_and_the_programs_own_are_not_warned_of(environment: dict[str, str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _warn_of_another_python(environment)
