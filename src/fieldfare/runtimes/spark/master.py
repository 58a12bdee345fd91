"""The address of the cluster where Spark runs its tasks, as given on a command line; does not load Spark."""

from __future__ import annotations

import re
from pathlib import Path

WORKER_PYTHON = "spark.pyspark.python"
"""The user's property that names the workers' Python; if it is set, that Python must have all packages."""

_SETTING = re.compile(r"(spark\.[^\s=]+)\s*[=\s]\s*(\S.*)")
_MASTER = re.compile(r"spark://[^\s,/:]+:\d+(,[^\s,/:]+:\d+)*|yarn|k8s://\S+")


def is_cluster(master: str | None) -> bool:
    """Return whether tasks run in other processes than the driver's, possibly on other machines."""
    return master is not None and not master.startswith("local")


def check_master(master: str) -> None:
    """Raise ValueError if a text is not a cluster's address."""
    if not _MASTER.fullmatch(master):
        raise ValueError(
            f"the cluster's address is spark://HOST:PORT (several masters with commas between), or yarn, or"
            f" k8s://HOST:PORT, not {master!r}"
        )


def read_properties(path: Path) -> dict[str, str]:
    """Read a file of Spark properties, one name and value per line; lines that start with # are comments.

    Raises
    ------
    ValueError
        The file is not UTF-8, or a line has no value; the message has its number.
    OSError
        There is no such file.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8") from None
    found = {}
    for number, line in enumerate(content.splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        setting = _SETTING.fullmatch(text)
        if setting is None:
            raise ValueError(f"{path}, line {number}: expected a Spark property and its value")
        found[setting[1]] = setting[2]
    return found
