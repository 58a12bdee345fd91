"""Find the Java that Spark will run on, without starting it or loading Spark."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from pathlib import Path

JAVA_MIN = 17
"""Oldest major version of Java that Spark runs on; older ones raise JavaError."""
OPEN_FILES_MIN = 512
"""Minimum limit of open files for Spark's Java process, which opens about 360; fewer raise JavaError."""
_ANSWER_WAIT_S = 30.0
_VERSION = re.compile(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)')


class JavaError(OSError):
    """There is no Java that Spark can run on; the message says what was found and what to do."""


def check_java() -> None:
    """Raise JavaError unless Spark can run on its Java, and that may open enough files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # Java raises its own limit as far as allowed.
    if most != resource.RLIM_INFINITY and most < OPEN_FILES_MIN:
        raise JavaError(
            f"A process may open at most {most} files here, and Spark needs {OPEN_FILES_MIN}: raise the hard"
            " limit (ulimit -n, or LimitNOFILE= of systemd)."
        )
    what_to_do = f"Install Java {JAVA_MIN} or newer, or set JAVA_HOME to the folder that it is in."
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java" if not home else os.path.join(home, "bin", "java"))
    if found is None:
        where = f"in JAVA_HOME={home} there is no bin/java" if home else "there is no java on the PATH"
        raise JavaError(f"Spark needs Java, and {where}. {what_to_do}")
    version = _version_of(Path(found))
    if version < JAVA_MIN:
        raise JavaError(f"{found} is Java {version}, which is too old for Spark. {what_to_do}")


def _version_of(java: Path) -> int:
    """Return the major version: from the `release` file, or else from `java -version`."""
    try:
        said = (java.resolve().parents[1] / "release").read_text(errors="replace")
    except (OSError, IndexError):
        said = ""
    if _VERSION.search(said) is None:
        try:
            asked = subprocess.run([java, "-version"], capture_output=True, timeout=_ANSWER_WAIT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise JavaError(f"{java} cannot be started: {error}") from None
        said = (asked.stderr + asked.stdout).decode(errors="replace")
    version = _VERSION.search(said)
    if version is None:
        raise JavaError(f"{java} does not say its version: {' '.join(said.split())[:200]}")
    return int(version[1])
