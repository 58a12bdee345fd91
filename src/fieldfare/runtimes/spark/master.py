"""Where Spark runs its tasks, as it is said on a command line; read without loading Spark."""

from __future__ import annotations

import re
from pathlib import Path

WORKER_PYTHON = "spark.pyspark.python"
"""The property of a user's that names the workers' Python: then they have what they need."""

_SETTING = re.compile(r"(spark\.[^\s=]+)\s*[=\s]\s*(\S.*)")
_MASTER = re.compile(r"spark://[^\s,/:]+:\d+(,[^\s,/:]+:\d+)*|yarn|k8s://\S+")


def is_cluster(master: str | None) -> bool:
    """Whether tasks run in other processes than the driver's, on machines that may be others."""
    return master is not None and not master.startswith("local")


def check_master(master: str) -> None:
    """ValueError for what is no address of a cluster."""
    if not _MASTER.fullmatch(master):
        raise ValueError(
            f"the cluster's address is spark://HOST:PORT (several masters with commas between), or yarn, or"
            f" k8s://HOST:PORT, not {master!r}"
        )


def read_properties(path: Path) -> dict[str, str]:
    """A file of Spark's properties, a name and its value a line; ValueError names the line that is none.

    Raises
    ------
    ValueError
        A line has no value.
    OSError
        There is no such file.
    """
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        setting = _SETTING.fullmatch(text)
        if setting is None:
            raise ValueError(f"{path}, line {number}: expected a property of Spark's and its value")
        found[setting[1]] = setting[2]
    return found
