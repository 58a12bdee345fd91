"""The process that Spark forks its Python workers from, with all heavy imports already loaded.

Spark starts one such daemon for each kind of worker and forks a worker from it on demand. Spark's own daemon
is bare, so every worker imports numpy, numba and pyarrow and loads the compiled kernels again: seconds of
both cores, and 150 MB each. Loaded here once, before the fork, they are shared by the workers.

Two things would stay in memory unused: pandas, which pyarrow loads on its own, and what numba's compiler
leaves behind after compiling kernels.

The service's session names this module as ``spark.python.daemon.module``.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

from numba.core.event import install_recorder
from pyspark import daemon

from fieldfare.runtimes.process.parents import DAEMON_VARIABLE
from fieldfare.runtimes.process.without_pandas import leave_out_pandas


def preload() -> None:
    """Import what the matching tasks use and run their kernels once.

    If some had to be compiled, the process replaces itself: the compiler never releases its memory.
    """
    leave_out_pandas()
    import fieldfare.runtimes.spark.range_jobs  # noqa: F401
    from fieldfare.runtimes.spark.warmup import run_kernels_once

    with install_recorder("numba:compile") as compiled:
        run_kernels_once()
    # Only once: where nothing that is compiled can be kept, it would be compiled again.
    if compiled.buffer and DAEMON_VARIABLE not in os.environ:
        os.execve(sys.executable, sys.orig_argv, {**os.environ, DAEMON_VARIABLE: "1"})
    # Objects loaded by now stay: the collector must not visit them again, as its writes unshare their memory.
    gc.collect()
    gc.freeze()


def quiet(worker: Callable[..., int]) -> Callable[..., int]:
    """Wrap a worker to exit silently when Spark closes its connection, as it does with idle ones."""

    def run(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except BrokenPipeError:
            # Not 0: the daemon would run this worker again on the same dead connection, without end.
            return 1

    return run


if __name__ == "__main__":
    if sys.argv[1:2] == ["pyspark.worker"]:
        preload()
    daemon.worker = quiet(daemon.worker)
    daemon.manager()
