"""event-ruler, the library behind EventBridge, in a Java process: see benchmarks/peers/event_ruler."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks" / "peers" / "event_ruler"
JAR = FOLDER / "build" / "event-ruler-peer.jar"
DEADLINE_S = 600

Answers = tuple[str, list[bool]]
"""Why a pattern was rejected, or ""; and the numbers of the events that match."""


def is_built() -> bool:
    return shutil.which("java") is not None and JAR.is_file()


def build() -> bool:
    """Build the peer with Maven if necessary and possible; return whether it exists."""
    if not is_built() and shutil.which("java") and shutil.which("mvn"):
        subprocess.run(
            ["mvn", "-q", "-B", "package"], cwd=FOLDER, capture_output=True, timeout=DEADLINE_S, check=False
        )
    return is_built()


def answers(questions: Sequence[tuple[Any, Sequence[Any]]]) -> list[Answers]:
    """Return event-ruler's answers for patterns, each with its own events."""
    lines = []
    for pattern, events in questions:
        lines.append("P\t" + _text(pattern))
        lines += ["E\t" + _text(event) for event in events]
    done = subprocess.run(
        ["java", "-Xmx512m", "-cp", f"{JAR}:{FOLDER / 'build' / 'lib'}/*", "EventRulerPeer"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        encoding="utf-8",
        timeout=DEADLINE_S,
        check=True,
    )
    replies = iter(done.stdout.splitlines())
    result = []
    for _, events in questions:
        taken = next(replies).partition("\t")
        found = [next(replies) for _ in events]
        assert not any(reply.startswith("failed") for reply in found), found
        result.append(("" if taken[0] == "ok" else taken[2] or "?", [reply == "true" for reply in found]))
    return result


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
