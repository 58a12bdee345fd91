"""Stand-ins that take turns, and the steps of a restart."""

from __future__ import annotations

import json
import signal

from service_support import descendants
from stand_ins import GATEWAY, INDEXER, PIPELINE, SERVE, Service, alive, until

from fieldfare.runtimes.process.heartbeat import read_beat

TAKES_TURNS = """
from pathlib import Path
from fieldfare.runtimes.process.locks import FileLock
from fieldfare.runtimes.process.successors import is_successor, wait_for_turn
{before}
if not wait_for_turn():
    raise SystemExit(1)
lock = FileLock(Path(sys.argv[2], "run", "{name}-only.lock"), 20.0)
lock.acquire()
"""
"""What a program does before its work: it waits until it may take over, and works alone."""


def taking_turns(name: str, program: str, before: str = "") -> str:
    first, rest = program.strip().split("\n", 1)
    return "\n".join([first, TAKES_TURNS.format(name=name, before=before), rest])


PROGRAMS = {
    "gateway": taking_turns("gateway", GATEWAY),
    "indexer": taking_turns("indexer", INDEXER),
    "pipeline": taking_turns("pipeline", PIPELINE),
}
PREPARES_LONG = """
import time
from pathlib import Path
while is_successor() and not Path(sys.argv[2], "go").exists():
    time.sleep(0.02)
"""
"""A program that is prepared when there is a file."""
READS_PROGRAMS = SERVE.replace(
    "commands = {",
    "import json\nprograms = json.loads(Path(sys.argv[1], 'programs.json').read_text())\ncommands = {",
).replace("sys.argv[3:]", "programs")
"""Reads the children's programs from a file, as an installed version is read anew at a restart."""


def install(data, **programs):
    (data / "programs.json").write_text(json.dumps(list({**PROGRAMS, **programs}.values())))


def state(running: Service) -> dict:
    return read_beat(running.data / "run" / "serve.json")


def restarted(running: Service) -> str | None:
    """Request a restart and wait for its end; the reason why it failed, if it did."""
    before = state(running)["restarts"]
    running.process.send_signal(signal.SIGUSR2)
    until(lambda: state(running).get("restarts", 0) > before)
    return state(running)["error"]


def children(running: Service) -> list[int]:
    return [pid for pid in descendants(running.process.pid) if alive(pid)]
