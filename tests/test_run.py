"""`./run`: which of the distribution's packages it installs, with stand-ins for apt."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("sh", "dirname", "id", "sed", "head", "grep", "env", "cat")

APT_CACHE = """#!/bin/sh
# As Debian's: `show` also knows a package that others only refer to, `policy` prints no candidate for it.
[ "$1" = policy ] || exit 0
case " $AVAILABLE " in *" $2 "*) candidate=1.0 ;; *) candidate='(none)' ;; esac
echo "$2:"; echo "  Installed: (none)"; echo "  Candidate: $candidate"; echo "  Version table:"
"""
APT_GET = """#!/bin/sh
echo "$@" >>"$CALLS"
for package in "$@"; do :; done
[ "$1" = update ] || case " $AVAILABLE " in *" $package "*) printf '#!/bin/sh
echo "openjdk version \\\\"21.0.1\\\\"" >&2' >"$BIN/java" && chmod +x "$BIN/java" ;; *) exit 100 ;; esac
"""


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A machine that has all that is needed but Java, and `make` that prints what it is given."""
    tools = tmp_path / "bin"
    tools.mkdir()
    shutil.copy(ROOT / "run", tmp_path)
    for name in TOOLS:
        (tools / name).symlink_to(str(shutil.which(name)))
    for name, text in {
        "apt-cache": APT_CACHE,
        "apt-get": APT_GET,
        "id": "#!/bin/sh\necho 0\n",
        "make": '#!/bin/sh\necho "make $*"\n',
        "chmod": f'#!/bin/sh\nexec {shutil.which("chmod")} "$@"\n',
        "python3": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    }.items():
        (tools / name).unlink(missing_ok=True)
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return tmp_path


def run_bare(folder: Path, available: str) -> tuple[int, str, list[str]]:
    """Exit status and output of `./run demo`, and the packages that apt was asked for."""
    calls = folder / "calls"
    environment = {"PATH": str(folder / "bin"), "BIN": str(folder / "bin"), "CALLS": str(calls)}
    done = subprocess.run(
        [folder / "run", "demo"],
        env={**environment, "AVAILABLE": available},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
    )
    asked = [line.split()[-1] for line in calls.read_text().splitlines() if line.startswith("install")]
    return done.returncode, done.stdout, asked


@pytest.mark.long
@pytest.mark.parametrize(
    ("available", "installed"),
    [
        ("openjdk-21-jre-headless openjdk-25-jre-headless", "openjdk-21-jre-headless"),  # Debian 13
        ("openjdk-17-jre-headless", "openjdk-17-jre-headless"),  # Debian 12
        ("openjdk-17-jre-headless openjdk-21-jre-headless", "openjdk-21-jre-headless"),  # Ubuntu
        ("default-jre-headless openjdk-25-jre-headless", "default-jre-headless"),
    ],
)
def test_the_java_that_has_a_candidate_is_installed(bare: Path, available: str, installed: str) -> None:
    """Debian 13 mentions openjdk-17-jre-headless and does not have it: the demo ended there."""
    status, output, asked = run_bare(bare, available)
    assert (status, asked) == (0, [installed]), output
    assert "make --no-print-directory" in output


@pytest.mark.long
def test_without_any_java_package_the_message_says_what_to_install(bare: Path) -> None:
    status, output, asked = run_bare(bare, "")
    assert (status, asked) == (1, [])
    assert "fieldfare needs Java 17 or newer: install it" in output
    assert "openjdk-21-jre-headless" in output
