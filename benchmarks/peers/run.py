"""fieldfare compared with other engines: ``python benchmarks/peers/run.py``.

Fetches and builds the engines for which this machine has tools (Maven and Java for event-ruler and Lucene's
monitor, Cargo for a-tree), runs each with the same subscriptions and events, one process at a time, checks
that they find the same number of subscriptions for each event, and prints a table. An engine is not run with
a larger number of subscriptions once it has taken more than five minutes.

Every engine is a program ``PEER WORKLOAD SUBSCRIPTIONS EVENTS SECONDS``. A line of SUBSCRIPTIONS is
``attribute low high attribute low high ...`` (range) or ``attribute value ...`` (eq), a line of EVENTS the
values of the attributes a00 to a19, separated by tabs. It prints one JSON object: build_s, elapsed_s (of
matching), events (as many as it could match in SECONDS), matches, and counts (for the first 1,000 events).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ATTRIBUTES = 20
BUILD_LIMIT_S = 300
TOOLS_LIMIT_S = 900


@dataclass(frozen=True)
class Peer:
    """An engine: a function that builds it (and returns why not, or ""), and its command."""

    name: str
    build: Callable[[], str]
    command: Callable[[], list[str]]


@dataclass(frozen=True)
class Outcome:
    """The output of a run and its peak memory, or the reason why there is none."""

    figures: dict[str, Any] | None
    peak_rss_bytes: int = 0
    reason: str = ""


def java_home(least: int) -> str | None:
    """The home of a sufficiently new Java."""
    on_path = shutil.which("javac")
    candidates = [os.environ.get("JAVA_HOME"), on_path and Path(on_path).resolve().parents[1]]
    for home in [*candidates, *sorted(Path("/usr/lib/jvm").glob("*"))]:
        program = Path(home or "") / "bin" / "javac"
        if home and program.exists():
            said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stdout
            found = re.search(r"javac (\d+)", said)
            if found and int(found[1]) >= least:
                return str(home)
    return None


def build_java(folder: Path, least: int) -> str:
    home = java_home(least)
    if home is None or not shutil.which("mvn"):
        return f"needs Maven and a Java {least} or newer"
    return _tool(["mvn", "-q", "-B", "package"], folder, {"JAVA_HOME": home})


def build_rust(folder: Path) -> str:
    if not shutil.which("cargo"):
        return "needs Cargo"
    return _tool(["cargo", "build", "--release", "--quiet", "--target-dir", "build"], folder, {})


def _tool(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TOOLS_LIMIT_S,
        check=False,
    )
    return "" if done.returncode == 0 else f"{command[0]} failed: {(done.stdout + done.stderr)[-500:]}"


def java_command(folder: Path, jar: str, program: str, least: int) -> list[str]:
    build = folder / "build"
    return [f"{java_home(least)}/bin/java", "-Xmx10g", "-cp", f"{build / jar}:{build / 'lib'}/*", program]


PEERS = [
    Peer("fieldfare", lambda: "", lambda: [sys.executable, str(HERE / "fieldfare_peer.py")]),
    Peer(
        "a-tree 0.6.1",
        lambda: build_rust(HERE / "a_tree"),
        lambda: [str(HERE / "a_tree" / "build" / "release" / "a-tree-peer")],
    ),
    Peer(
        "event-ruler 2.1.0",
        lambda: build_java(HERE / "event_ruler", 17),
        lambda: java_command(HERE / "event_ruler", "event-ruler-peer.jar", "EventRulerBenchmark", 17),
    ),
    Peer(
        "lucene-monitor 10.3.0",
        lambda: build_java(HERE / "lucene_monitor", 21),
        lambda: java_command(HERE / "lucene_monitor", "lucene-monitor-peer.jar", "LuceneMonitorPeer", 21),
    ),
]


def subscription_lines(workload: str, count: int, seed: int) -> Iterator[str]:
    """docs/matching-speed.md describes the workloads: 10 ranges, or 3 equalities, on distinct attributes."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        if workload == "range":
            attributes = rng.permutation(ATTRIBUTES)[:10].tolist()
            lows = rng.integers(0, 600_000, 10).tolist()
            fields = [f"a{a:02d}\t{low}\t{low + 400_000}" for a, low in zip(attributes, lows, strict=True)]
        else:
            attributes = rng.permutation(ATTRIBUTES)[:3].tolist()
            values = rng.integers(0, 100, 3).tolist()
            fields = [f"a{a:02d}\tvalue-{value:02d}" for a, value in zip(attributes, values, strict=True)]
        yield "\t".join(fields)


def event_lines(workload: str, count: int, seed: int) -> Iterator[str]:
    rng = np.random.default_rng(seed)
    for row in rng.integers(0, 1_000_000 if workload == "range" else 100, (count, ATTRIBUTES)).tolist():
        yield "\t".join(map(str, row) if workload == "range" else (f"value-{value:02d}" for value in row))


def write_lines(file: Path, lines: Iterator[str]) -> Path:
    with file.open("w") as out:
        out.writelines(line + "\n" for line in lines)
    return file


def run(peer: Peer, workload: str, files: Sequence[Path], seconds: float) -> Outcome:
    """Run an engine once, bound to one core if the system supports it."""
    command = [*peer.command(), workload, *map(str, files), str(seconds)]
    one_core = ["taskset", "-c", str(max(os.sched_getaffinity(0)))] if shutil.which("taskset") else []
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(one_core + command, stdout=out, stderr=errors)
        deadline = time.monotonic() + BUILD_LIMIT_S + 4 * seconds
        peak = 0
        while process.poll() is None:
            peak = peak_rss_bytes(process.pid) or peak
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                return Outcome(None, reason=f"more than {BUILD_LIMIT_S // 60} minutes")
            time.sleep(0.02)
        out.seek(0)
        errors.seek(0)
        if process.returncode:
            said = errors.read().decode(errors="replace").strip() or f"ended with {process.returncode}"
            return Outcome(None, reason=said.splitlines()[-1][:200])
        return Outcome(json.loads(out.read()), peak)


def peak_rss_bytes(pid: int) -> int:
    """Peak memory of a process; 0 if the system does not report it."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def compare(workload: str, size: int, peers: list[Peer], options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row of figures for each engine; the matches must agree with the first."""
    rows: list[dict[str, Any]] = []
    expected: list[int] | None = None
    with tempfile.TemporaryDirectory() as folder:
        files = [
            write_lines(Path(folder) / "subscriptions", subscription_lines(workload, size, options.seed)),
            write_lines(Path(folder) / "events", event_lines(workload, options.events, options.seed + 1)),
        ]
        for peer in list(peers):
            outcome = run(peer, workload, files, options.seconds)
            row: dict[str, Any] = {"engine": peer.name, "workload": workload, "subscriptions": size}
            if outcome.figures is None:
                row["failed"] = outcome.reason
                peers.remove(peer)
            else:
                figures = outcome.figures
                counts = figures["counts"]
                expected = expected or counts
                shared = min(len(expected), len(counts))
                row |= {
                    "events_per_s": round(figures["events"] / figures["elapsed_s"], 1),
                    "matches_per_event": round(figures["matches"] / figures["events"], 3),
                    "build_s": round(figures["build_s"], 2),
                    "peak_rss_bytes": outcome.peak_rss_bytes,
                    "agrees": counts[:shared] == expected[:shared],
                    "events_compared": shared,
                }
                if figures["build_s"] > BUILD_LIMIT_S:
                    peers.remove(peer)
            rows.append(row)
            print(json.dumps(row) if options.json else as_line(row), flush=True)
    return rows


def as_line(row: dict[str, Any]) -> str:
    start = f"{row['workload']:6} {row['subscriptions']:>10,}  {row['engine']:22}"
    if "failed" in row:
        return f"{start} {row['failed']}"
    return (
        f"{start} {row['events_per_s']:>14,} events/s {row['matches_per_event']:>10,} matches/event "
        f"{row['build_s']:>8,} s to build {row['peak_rss_bytes'] / 1e6:>8,.0f} MB  "
        + ("agrees" if row["agrees"] else "DIFFERS FROM FIELDFARE")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", nargs="+", choices=["range", "eq"], default=["range", "eq"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--peers", nargs="+", default=[], help="run only engines whose name begins with this")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument(
        "--seconds", type=float, default=10, help="seconds of matching, for each engine and size"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args()
    wanted = [p for p in PEERS if not options.peers or any(p.name.startswith(name) for name in options.peers)]
    ready = []
    for peer in wanted:
        reason = peer.build()
        if reason:
            print(f"{peer.name}: left out, {reason}", file=sys.stderr)
        else:
            ready.append(peer)
    rows = []
    for workload in options.workloads:
        peers = list(ready)
        for size in sorted(options.sizes):
            rows += compare(workload, size, peers, options)
    return int(any(not row.get("agrees", True) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
