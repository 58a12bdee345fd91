"""Jars that tests need in addition to PySpark's: downloaded by Maven once, into a folder that git ignores."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / ".kafka"

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>fieldfare</groupId><artifactId>{name}</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
)
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def fetched(name: str, artifacts: Sequence[str], *, alone: bool = False) -> tuple[Path, str | None]:
    """Return the folder of these jars, and the reason if they are not there.

    Parameters
    ----------
    name
        Name of the folder.
    artifacts
        ``GROUP:ARTIFACT:VERSION`` each.
    alone
        Leave out their dependencies.
    """
    jars = FOLDER / name
    if jars.is_dir():
        return jars, None
    if shutil.which("mvn") is None:
        return jars, f"there is no Maven to fetch jars to {jars}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        each = (_DEPENDENCY.format(*artifact.split(":"), _ALONE if alone else "") for artifact in artifacts)
        (Path(folder) / "pom.xml").write_text(_POM.format(name=name, dependencies="".join(each)))
        goal = "dependency:copy-dependencies"
        done = subprocess.run(
            ["mvn", "-q", "-B", goal, "-DincludeScope=runtime", "-DoutputDirectory=jars"],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            return jars, f"Maven could not fetch the jars of {name}: {done.stdout.strip()[:300]}"
        try:
            (Path(folder) / "jars").rename(jars)
        except OSError:  # another process was faster
            return jars, None if jars.is_dir() else f"{jars} could not be written"
    return jars, None
