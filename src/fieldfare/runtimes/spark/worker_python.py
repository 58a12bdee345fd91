"""The Python with which a user's own Spark session runs functions of this package."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession


def is_remote(session: SparkSession) -> bool:
    """Return whether this is a Spark Connect session: then there is no SparkContext in this process."""
    return not isinstance(session, SparkSession)


@contextmanager
def own_python(session: SparkSession) -> Iterator[None]:
    """Let functions that are created inside run, on this machine, with the Python that runs the program.

    By default Spark takes ``python3`` from the path: in a program started as ``.venv/bin/python`` that is
    another Python, without this package. An explicit choice (``PYSPARK_PYTHON``, ``spark.pyspark.python``) is
    kept. So is a cluster's Python: whether this program's path exists there is unknown here. The user's own
    functions are not affected.
    """
    if is_remote(session):  # its server chooses
        _warn_of_another_python(os.environ)
        yield
        return
    context = session.sparkContext
    chosen = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if chosen or not context.master.startswith("local"):
        yield
        return
    python = context.pythonExec
    context.pythonExec = sys.executable
    try:
        yield
    finally:
        context.pythonExec = python


def _warn_of_another_python(environment: Mapping[str, str]) -> None:
    """Warn if the server of ``remote("local")``, started by this program, will run another Python.

    It took its Python from the environment when the session was created: here it is too late to choose.
    """
    if "SPARK_LOCAL_REMOTE" not in environment or environment.get("PYSPARK_PYTHON"):
        return
    python = shutil.which("python3", path=environment.get("PATH"))
    if python is None or os.path.dirname(os.path.abspath(python)) != os.path.dirname(sys.executable):
        warnings.warn(
            f"this session's workers run {python or 'python3'}, and this program {sys.executable}: if they "
            "report that there is no module named 'fieldfare', set os.environ['PYSPARK_PYTHON'] to "
            "sys.executable before the session is made",
            RuntimeWarning,
            stacklevel=5,
        )
