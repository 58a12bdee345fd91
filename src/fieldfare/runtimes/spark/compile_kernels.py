"""Compile all kernels and report progress: ``python -m fieldfare.runtimes.spark.compile_kernels``."""

from __future__ import annotations

import subprocess
import sys
import time

from numba.core.event import Event, Listener, install_listener

from fieldfare.runtimes.process.kernels import note_kernels_compiled
from fieldfare.runtimes.spark.warmup import run_kernels_once

SAID_EVERY_S = 10.0


class _Progress(Listener):  # type: ignore[misc]
    """Counts compiled kernels, and prints a line every `SAID_EVERY_S` seconds."""

    def __init__(self) -> None:
        self._begun_s = self._said_s = time.monotonic()
        self._count = 0

    def on_start(self, event: Event) -> None:
        if self._count == 0:
            print("compiling the matching kernels, which takes some minutes, once", flush=True)
        self._count += 1

    def on_end(self, event: Event) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= SAID_EVERY_S:
            self._said_s = now_s
            self.say("compiled so far:")

    def say(self, what: str) -> None:
        if self._count:
            print(f"{what} {self._count} kernels in {time.monotonic() - self._begun_s:.0f} s", flush=True)


def compile_kernels() -> None:
    """Run all kernels once, so that they are compiled and cached.

    numba compiles on one core. A second process begins with the kernels that this one needs last, which this
    one then only loads.
    """
    ahead = (
        "from fieldfare.runtimes.spark import warmup\n"
        "warmup.run_independent_kernels_once()\nwarmup.run_seldom_kernels_once()"
    )
    progress = _Progress()
    with (
        subprocess.Popen([sys.executable, "-c", ahead]) as other,
        install_listener("numba:compile", progress),
    ):
        run_kernels_once()
    progress.say("compiled")
    if other.returncode == 0:
        note_kernels_compiled()


if __name__ == "__main__":
    compile_kernels()
