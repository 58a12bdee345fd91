"""The command line where little is given: an ASCII locale, no standard input, a /tmp without programs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from faulty_service import FaultyService

from fieldfare_lab.ports import find_free_port

pytestmark = pytest.mark.long

COMMAND = [sys.executable, "-c", "from fieldfare.cli import main; main()"]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NAME = "Zoë ☃"
FILTER = f"data.name = '{NAME}'"
DEADLINE_S = 300.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name is not ASCII, with files like it, and a folder for temporary files."""
    found = tmp_path / "é ☃"
    (found / "tmp").mkdir(parents=True)
    events = [{"specversion": "1.0", "id": str(i), "source": "/s", "type": "t"} for i in range(2)]
    events[0]["data"] = {"name": NAME}  # type: ignore[assignment]
    (found / "events é.jsonl").write_text(
        "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in events), encoding="utf-8"
    )
    (found / "alerts é.csv").write_text(f"id,filter\nzoë,{FILTER}\n", encoding="utf-8")
    (found / "filter é.sql").write_text(FILTER, encoding="utf-8")
    return found


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    return {**kept, **ASCII, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder / "tmp"), **more}


def run(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    found = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        timeout=DEADLINE_S,
        cwd=folder,
        env=environment(folder, **more),
    )
    assert found.returncode == 0 and b"Traceback" not in found.stderr, found.stderr.decode()
    return found


def test_files_with_any_name_are_read_in_an_ascii_locale(service: FaultyService, folder: Path) -> None:
    """`open` raised UnicodeEncodeError, with a traceback: Python's file names were ASCII."""
    url = {"FIELDFARE_URL": service.url}
    tested = run(folder, "filter", "test", FILTER, "--events", "events é.jsonl")
    assert b"1 of 2 events match" in tested.stdout
    run(folder, "filter", "check", "--file", "filter é.sql")
    assert b"published 2 events" in run(folder, "publish", "events é.jsonl", **url).stdout
    assert json.loads(service.records[0][0])["data"]["name"] == NAME
    run(folder, "subscriptions", "create", "zo", FILTER, **url)
    assert service.subscriptions["zo"]["filter"] == FILTER


@pytest.mark.spark
def test_files_are_matched_in_an_ascii_locale(folder: Path) -> None:
    run(folder, "match", "events é.jsonl", "--subscriptions", "alerts é.csv", "--output", "out é.jsonl")
    (line,) = (folder / "out é.jsonl").read_text(encoding="utf-8").splitlines()
    found = json.loads(line)
    assert found["subscription"] == "zoë" and found["event"]["data"]["name"] == NAME


@pytest.mark.service
@pytest.mark.slow
def test_the_service_runs_in_an_ascii_locale(folder: Path) -> None:
    """The data directory, TMPDIR, filters and events are not ASCII."""
    port = find_free_port()
    serving = subprocess.Popen(
        [*COMMAND, "serve", "--data", "dätä ☃", "--port", str(port)], cwd=folder, env=environment(folder)
    )
    url = f"http://127.0.0.1:{port}"
    try:
        until_s = time.monotonic() + DEADLINE_S
        while not _is_ready(url):
            assert serving.poll() is None and time.monotonic() < until_s
        run(folder, "subscriptions", "create", "zo", FILTER, FIELDFARE_URL=url)
        run(folder, "publish", "events é.jsonl", FIELDFARE_URL=url)
        got = run(folder, "subscribe", "zo", "--limit", "1", "--json", FIELDFARE_URL=url)
        assert json.loads(got.stdout)["data"]["name"] == NAME
    finally:
        serving.terminate()
        assert serving.wait(DEADLINE_S) == 0


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", "-"],
        ["publish"],
        ["publish", "-", "--deliver-after", "5"],
        ["subscriptions", "create", "--file", "-"],
        ["subscriptions", "set", "a", "--push-authorization", "-"],
        ["subscriptions", "set", "a", "--push-secrets", "-"],
        ["filter", "check"],
        ["filter", "check", "-"],
        ["filter", "check", "--file", "-"],
        ["filter", "test", "TRUE", "--events", "-"],
        ["filter", "explain", "TRUE", "--events", "-"],
        ["filter", "convert", "-"],
    ],
    ids=" ".join,
)
def test_a_closed_standard_input_is_an_error_in_words(service: FaultyService, arguments: list[str]) -> None:
    """Started by a daemon that closes it (`<&-`): the next file that is opened gets its number."""
    found = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, *arguments],
        capture_output=True,
        timeout=180,
        env={**os.environ, "FIELDFARE_URL": service.url},
    )
    assert found.returncode in (1, 2) and found.stdout == b""
    assert found.stderr.startswith(b"error: ") and b"standard input" in found.stderr, found.stderr
    assert found.stderr.count(b"\n") <= 2


def _in_noexec_tmp(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run a command where no file in /tmp is a program."""
    options = "remount,bind,noexec,nosuid,nodev"
    mounts = f'mount --make-rprivate / && mount --bind /tmp /tmp && mount -o {options} /tmp && exec "$@"'
    return subprocess.run(
        ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", mounts, "sh", *command],
        capture_output=True,
        timeout=DEADLINE_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


NOEXEC = """
import json, subprocess, sys, tempfile
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from fieldfare.runtimes.spark.warmup import run_independent_kernels_once

def match(packing):
    program = [sys.executable, "-c", "from fieldfare.cli import main; main()", "match"]
    files = [f"{packing}.parquet", "-s", "alerts.csv", "-o", f"{packing}.jsonl"]
    assert subprocess.run([*program, *files]).returncode == 0
    (line,) = Path(f"{packing}.jsonl").read_text().splitlines()
    assert json.loads(line)["subscription"] == "cheap"

with tempfile.TemporaryDirectory(dir="/tmp") as folder:
    import os
    os.chdir(folder)
    assert subprocess.run(["cp", "/bin/true", "program"]).returncode == 0
    try:
        subprocess.run([f"{folder}/program"])
        raise AssertionError("/tmp has programs")
    except PermissionError:
        pass
    columns = {"id": ["1", "2"], "source": ["/s"] * 2, "type": ["t"] * 2, "price": [1.0, 9.0]}
    Path("alerts.csv").write_text("id,filter\\ncheap,price < 5\\n")
    pq.write_table(pa.table(columns), "zstd.parquet", compression="zstd")
    match("zstd")
    run_independent_kernels_once()
    print("all is well")
"""


@pytest.mark.spark
def test_packed_files_are_read_and_kernels_run_where_tmp_is_noexec() -> None:
    """`fieldfare match` refused to start: Java can load no library from there."""
    if sys.prefix.startswith("/tmp") or not shutil.which("unshare") or _in_noexec_tmp(["true"]).returncode:
        pytest.skip("needs mount namespaces, and a Python outside of /tmp")
    found = _in_noexec_tmp([sys.executable, "-c", NOEXEC])
    assert found.returncode == 0 and b"all is well" in found.stdout, found.stderr.decode()
