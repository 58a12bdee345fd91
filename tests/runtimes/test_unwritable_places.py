"""A user without a name or home, with write access only to the data directory, and a restricted /tmp."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from numba.core.caching import UserProvidedCacheLocator

from fieldfare.runtimes.process import kernels
from fieldfare.runtimes.service.preparation import Preparation

DEADLINE_S = 180.0


def _can_mount() -> bool:
    """Whether this process may have mounts of its own: not in a chroot, nor in most containers."""
    if os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("unshare"):
        return False
    tried = ["unshare", "--mount", "sh", "-c", "mount --make-rprivate /"]
    return subprocess.run(tried, capture_output=True).returncode == 0


needs_root = pytest.mark.skipif(
    not _can_mount(), reason="needs root, setpriv, unshare, and mounts of its own"
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with compiled kernels that cannot be written, of a user without a home."""
    found = tmp_path / "fieldfare"
    cache = found / "matching" / "__pycache__"
    cache.mkdir(parents=True)
    (cache / "kernels.search-1.py311.nbi").write_text("index")
    (cache / "kernels.search-1.py311.1.nbc").write_text("code")
    (found / "matching" / "kernels.py").write_text("from fieldfare.matching.compiled import compiled\n")
    monkeypatch.setattr(kernels, "PACKAGE", found)
    monkeypatch.setattr(kernels, "_is_writable", lambda folder: False)
    # Set first, so that it is undone in the end: services of later tests would compile all kernels again.
    monkeypatch.setenv(kernels.CACHE_VARIABLE, "")
    monkeypatch.delenv(kernels.CACHE_VARIABLE)
    return found


def test_kernels_that_were_compiled_at_installation_are_copied_to_where_numba_looks(
    package: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "run" / "kernels"
    kernels.choose_kernel_cache(folder)
    assert os.environ[kernels.CACHE_VARIABLE] == str(folder)
    source = str(package / "matching" / "kernels.py")
    place = folder / UserProvidedCacheLocator.get_suitable_cache_subpath(source)
    assert (place / "kernels.search-1.py311.nbi").read_text() == "index"
    # Files that numba has added since are kept.
    (place / "kernels.search-1.py311.nbi").write_text("a longer index")
    del os.environ[kernels.CACHE_VARIABLE]
    kernels.choose_kernel_cache(folder)
    assert (place / "kernels.search-1.py311.nbi").read_text() == "a longer index"


def test_kernels_are_cached_in_the_users_or_numbas_folder(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kernels.CACHE_VARIABLE, "/chosen")
    kernels.choose_kernel_cache(tmp_path / "kernels")
    assert os.environ[kernels.CACHE_VARIABLE] == "/chosen"
    monkeypatch.delenv(kernels.CACHE_VARIABLE)
    monkeypatch.setattr(kernels, "_is_writable", lambda folder: True)
    kernels.choose_kernel_cache(tmp_path / "kernels")
    assert kernels.CACHE_VARIABLE not in os.environ and not (tmp_path / "kernels").exists()


@needs_root
def test_a_home_that_the_user_may_not_enter_ends_no_start(tmp_path: Path) -> None:
    """``sudo -u`` keeps the home of the user who calls it."""
    closed = tmp_path / "home"
    (closed / ".cache").mkdir(parents=True)
    closed.chmod(0o700)
    tmp_path.chmod(0o755)
    program = (
        "import os; from pathlib import Path; from fieldfare.runtimes.process import kernels\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"assert not kernels._is_writable(Path({str(closed)!r}, '.cache', 'numba'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_kernels_of_other_sources_are_compiled_again(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kernels.CACHE_VARIABLE, str(tmp_path))
    assert not kernels.are_kernels_compiled()
    kernels.note_kernels_compiled()
    assert kernels.are_kernels_compiled()
    (package / "other.py").write_text("no kernels")
    assert kernels.are_kernels_compiled()
    with (package / "matching" / "kernels.py").open("a") as source:
        source.write("# changed\n")
    assert not kernels.are_kernels_compiled()


def wait_done(preparation: Preparation) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not preparation.is_done():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_preparation_reports_progress_and_runs_once() -> None:
    said: list[str] = []
    program = "print('so far: 3', flush=True)\nprint('done: 5', flush=True)\nraise SystemExit(1)"
    preparation = Preparation([sys.executable, "-c", program], lambda: False, said.append)
    assert not preparation.is_done()
    wait_done(preparation)
    assert said == ["so far: 3", "done: 5"]
    assert preparation.is_done() and len(said) == 2


def test_a_preparation_that_is_not_needed_is_not_run() -> None:
    said: list[str] = []
    assert Preparation([sys.executable, "-c", "print(1)"], lambda: True, said.append).is_done()
    assert Preparation(None, lambda: False, said.append).is_done()
    cannot = Preparation(["/nowhere/python"], lambda: False, said.append)
    cannot.is_done()
    assert cannot.is_done(), "what cannot be run keeps nothing from its start"
    assert said == []


def test_a_preparation_ends_with_the_service() -> None:
    preparation = Preparation([sys.executable, "-c", "import time; time.sleep(60)"], lambda: False, print)
    assert not preparation.is_done()
    preparation.stop()
    assert preparation.is_done()


NUMBA = """
import sys
from pathlib import Path
from fieldfare.runtimes.process.kernels import choose_kernel_cache
choose_kernel_cache(Path(sys.argv[1]) / "run" / "kernels")
from numba.core.event import install_recorder
from fieldfare.runtimes.spark.warmup import run_independent_kernels_once
with install_recorder("numba:compile") as compiled:
    run_independent_kernels_once()
print("compiled", len(compiled.buffer))
"""

SPARK = """
import sys
from pathlib import Path
from fieldfare.runtimes.process.kernels import choose_kernel_cache
choose_kernel_cache(Path(sys.argv[1]) / "run" / "kernels")
from fieldfare.runtimes.spark.session import SparkSettings, service_session
from fieldfare.runtimes.spark.warmup import warm_workers
session = service_session(SparkSettings(cores=1, driver_memory="512m"), Path(sys.argv[1]) / "run" / "spark")
warm_workers(session.sparkContext, 1)
print("user", session.sparkContext.sparkUser(), "rows", session.range(3).count())
session.stop()
"""


def run_as_nobody(program: str, data: Path) -> str:
    """Return a program's output for a user without name or home, with the locale C and a noexec /tmp."""
    data.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "LC_ALL": "C",
        "HOME": "/nonexistent",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if not path.startswith(sys.base_prefix)),
        **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
    }
    mounts = (
        "mount --make-rprivate / && mount --bind /tmp /tmp && mount -o remount,bind,noexec /tmp && "
        'mount -t tmpfs -o uid=54321,mode=700 tmpfs "$0" && exec "$@"'
    )
    # It may read what root may: the environment of these tests is perhaps in root's home.
    user = ("setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups")
    reads = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounts, data, *user, *reads, sys.executable, "-c", program, data],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@needs_root
@pytest.mark.long
def test_kernels_load_for_a_user_who_can_write_to_the_data_directory_only(tmp_path: Path) -> None:
    """numba ended every process with its own words, and what was compiled at installation was not used."""
    assert run_as_nobody(NUMBA, tmp_path / "data") == "compiled 0\n"


@needs_root
@pytest.mark.spark
def test_spark_starts_for_a_user_without_name_home_and_programs_in_tmp(tmp_path: Path) -> None:
    """Hadoop ended for the name, Ivy for the home, and Java could name no file with an accent."""
    assert run_as_nobody(SPARK, tmp_path / "at 12:30, à %41?b") == "user fieldfare rows 3\n"
