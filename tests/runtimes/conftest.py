"""One local Spark session for all tests of this process: it takes seconds to start."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fieldfare.runtimes.spark.session import SparkSettings, service_session

for folder in ("pipeline", "scenarios", "faults"):
    sys.path.append(str(Path(__file__).parent.parent / folder))


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    scratch = tmp_path_factory.mktemp("spark")
    session = service_session(SparkSettings(cores=2, driver_memory="512m"), scratch)
    yield session
    session.stop()
