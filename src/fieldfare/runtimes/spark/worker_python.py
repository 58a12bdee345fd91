"""Which Python a user's own Spark session runs our functions with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession


def is_remote(session: SparkSession) -> bool:
    """Whether it is a session of Spark Connect: then there is no SparkContext in this process."""
    return not isinstance(session, SparkSession)


@contextmanager
def own_python(session: SparkSession) -> Iterator[None]:
    """Functions made inside run, on this machine, with the Python that runs the program.

    Spark takes ``python3`` from the path where nobody says otherwise: in a program started as
    ``.venv/bin/python`` that is another Python, without this package. Who has said otherwise
    (``PYSPARK_PYTHON``, ``spark.pyspark.python``) is obeyed. So is a cluster: whether this program's path is
    a Python there, nobody here knows. The user's own functions are left as they are.
    """
    if is_remote(session):  # its server chooses
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
