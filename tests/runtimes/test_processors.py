"""How much of a machine's processors a task's process may use: what its control groups say."""

from __future__ import annotations

import subprocess
import sys
from math import inf
from pathlib import Path

import pytest

from fieldfare.runtimes.spark.processors import processors_here
from fieldfare_lab.cpu_group import CpuGroup, why_no_groups


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def here(tmp_path: Path, membership: str) -> float:
    (tmp_path / "membership").write_text(membership)
    return processors_here(tmp_path / "groups", tmp_path / "membership")


def test_the_limit_of_a_version_2_group_is_its_quota_per_period(tmp_path: Path) -> None:
    write(tmp_path / "groups" / "workers" / "first", cpu__max="50000 100000")
    assert here(tmp_path, "0::/workers/first\n") == 0.5
    write(tmp_path / "groups" / "workers" / "first", cpu__max="max 100000")
    assert here(tmp_path, "0::/workers/first\n") == inf


def test_a_group_of_version_1_has_two_files_and_less_than_none_is_no_limit(tmp_path: Path) -> None:
    group = tmp_path / "groups" / "cpu" / "worker"
    write(group, cpu__cfs_quota_us="150000", cpu__cfs_period_us="100000")
    lines = "8:pids:/\n2:cpuacct:/elsewhere\n1:cpu:/worker\n0::/\n"
    assert here(tmp_path, lines) == 1.5
    assert here(tmp_path, lines.replace("1:cpu:", "1:cpu,cpuacct:")) == 1.5
    write(group, cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert here(tmp_path, lines) == inf


def test_the_limit_of_a_containing_group_applies(tmp_path: Path) -> None:
    write(tmp_path / "groups" / "workers", cpu__max="30000 100000")
    write(tmp_path / "groups" / "workers" / "first", cpu__max="50000 100000")
    assert here(tmp_path, "0::/workers/first\n") == 0.3


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    """The membership file contains a path of the host's."""
    write(tmp_path / "groups", cpu__max="200000 100000")
    assert here(tmp_path, "0::/docker/0123456789ab\n") == 2.0


def test_where_there_are_no_groups_nothing_limits(tmp_path: Path) -> None:
    assert processors_here(tmp_path, tmp_path / "none") == inf
    assert here(tmp_path, "0::/somewhere\n") == inf
    write(tmp_path / "groups", cpu__max="nonsense")
    assert here(tmp_path, "0::/\n") == inf


def test_a_process_in_a_real_group_sees_its_limit() -> None:
    if (reason := why_no_groups()) is not None:
        pytest.skip(reason)
    group = CpuGroup(0.25)
    try:
        ask = "from fieldfare.runtimes.spark.processors import processors_here as p; print(p())"
        said = subprocess.run(
            [sys.executable, "-c", ask], preexec_fn=group.join, check=True, capture_output=True, text=True
        )
        assert float(said.stdout) == 0.25
    finally:
        group.close()
