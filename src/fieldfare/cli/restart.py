"""``fieldfare restart``: replace the processes of a running service."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldfare.cli.output import fail, need_packages, out
from fieldfare.cli.service import find_missing

PACKAGES = ("sqlalchemy", "crc32c")
LOOK_S = 0.1
UNHEARD_S = 5.0
"""Seconds after which a request that had no effect is repeated."""
STEPS = {
    "checking": "checking the program and its settings",
    "preparing": "new processes prepare beside the running ones",
    "replacing": "the new processes replace the running ones",
}


def restart(
    data: Annotated[
        Path,
        typer.Option("--data", envvar="FIELDFARE_DATA", metavar="DIR", help="The service's data directory."),
    ] = Path("fieldfare-data"),
) -> None:
    """Restart a running service almost without a pause, for a new version or changed settings.

    New processes prepare beside the running ones, and replace them when all are ready. If one cannot start,
    the running ones continue. Run it as the service's user.

    Example:
    ```
    fieldfare restart --data ./fieldfare-data
    ```
    """
    if missing := find_missing(PACKAGES):
        need_packages("restart", "server", missing)
    from fieldfare.storage.folder import DataFolder

    folder = DataFolder(data.absolute())
    state_file = folder.heartbeat_of("serve")
    before = _state(state_file)
    if not before and _is_running(folder.lock_of("serve")):
        fail(
            f"the service on {data} cannot be restarted by this command: it runs in another container, or"
            " it is an earlier version\n"
            "hint: run the command in that container, or stop the service and start it again"
        )
    if not before:
        fail(f"no service that can be restarted runs on {data}\nhint: `fieldfare serve` starts one")
    began_s = time.monotonic()
    ended = _wait_for_restart(state_file, before)
    if ended["error"]:
        fail(f"the service was not restarted: {ended['error']}")
    out().print(f"restarted in {time.monotonic() - began_s:.1f} s")


def _wait_for_restart(state_file: Path, before: dict[str, Any]) -> dict[str, Any]:
    """Request a restart, and follow it to its end; return the last state."""
    told, asked_s = "", 0.0
    # A restart that is under way may have begun before the settings were changed: another one follows it.
    wanted = before["restarts"] + (1 if before["state"] == "running" else 2)
    while True:
        now = _state(state_file)
        if not now:
            fail("the service has stopped")
        if now["restarts"] >= wanted:
            return now
        if now["state"] == "running" and time.monotonic() - asked_s > UNHEARD_S:
            asked_s = time.monotonic()
            try:
                os.kill(now["pid"], signal.SIGUSR2)
            except OSError as error:
                fail(f"process {now['pid']} cannot be told to restart: {error.strerror}")
        if now["state"] != told and now["state"] in STEPS:
            told = now["state"]
            out().print(STEPS[told])
        time.sleep(LOOK_S)


def _is_running(lock: Path) -> bool:
    from fieldfare.runtimes.process.locks import is_locked

    try:
        return is_locked(lock)
    except OSError as error:
        fail(f"{lock} cannot be read: {error.strerror}\nhint: run the command as the service's user")


def _state(state_file: Path) -> dict[str, Any]:
    """Return the state of a running service; empty if none runs, or one that cannot be restarted."""
    from fieldfare.runtimes.process.heartbeat import read_beat
    from fieldfare.runtimes.process.locks import birth_of

    beat = read_beat(state_file)
    known = {"pid", "birth", "state", "restarts", "error"} <= beat.keys()
    # The process id may belong to another process by now.
    return beat if known and beat["birth"] and birth_of(beat["pid"]) == beat["birth"] else {}
