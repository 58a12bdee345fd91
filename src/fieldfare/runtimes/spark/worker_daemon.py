"""The process that Spark forks its Python workers from, with everything heavy already loaded.

Spark starts one such daemon for each kind of worker and forks a worker from it whenever it wants one more.
A plain daemon is bare, so that every worker imports numpy, numba and pyarrow and loads the compiled kernels
anew: seconds of both cores, and 150 MB each. Loaded here once, before the fork, the workers share them.

Two things would stay in memory for good, and nobody needs them: pandas, which pyarrow loads on its own, and
what numba's compiler leaves behind when kernels had to be compiled.

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

from fieldfare.runtimes.process.without_pandas import leave_out_pandas

_BEGUN_ANEW = "FIELDFARE_DAEMON_BEGUN_ANEW"
"""Set in a daemon that has taken the place of one that compiled kernels."""


def preload() -> None:
    """Import what the matching tasks use and run their kernels once.

    If some had to be compiled, the process begins anew: its compiler never gives back what it holds.
    """
    leave_out_pandas()
    import fieldfare.runtimes.spark.past_task
    import fieldfare.runtimes.spark.query  # noqa: F401
    from fieldfare.runtimes.spark.warmup import run_kernels_once

    with install_recorder("numba:compile") as compiled:
        run_kernels_once()
    # Only once: where nothing that is compiled can be kept, it would be compiled again.
    if compiled.buffer and _BEGUN_ANEW not in os.environ:
        os.execve(sys.executable, sys.orig_argv, {**os.environ, _BEGUN_ANEW: "1"})
    # What is loaded now stays: the collector need not look at it again, nor (by writing to it) unshare it.
    gc.collect()
    gc.freeze()


def quiet(worker: Callable[..., int]) -> Callable[..., int]:
    """A worker that ends silently when Spark hangs up on it, as it does with idle ones and at the end."""

    def run(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except BrokenPipeError:
            # Not 0: the daemon would run this worker again on the same dead connection, for ever.
            return 1

    return run


if __name__ == "__main__":
    if sys.argv[1:2] == ["pyspark.worker"]:
        preload()
    daemon.worker = quiet(daemon.worker)
    daemon.manager()
