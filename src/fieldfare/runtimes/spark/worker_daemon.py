"""The process that Spark forks its Python workers from, with all heavy imports already loaded.

Spark starts one such daemon for each kind of worker and forks a worker from it on demand. Spark's own daemon
is bare, so every worker imports numpy, numba and pyarrow and loads the compiled kernels again: seconds of
both cores, and 150 MB each. Loaded here once, before the fork, they are shared by the workers.

Two things would stay in memory unused: pandas, which pyarrow loads on its own, and what numba's compiler
leaves behind after compiling kernels. And each new worker would read the directories of the archives of which
Spark makes a Python path, which takes it half a second on a busy core, although PySpark is installed here.

The service's session names this module as ``spark.python.daemon.module``.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any

from numba.core.event import install_recorder

from fieldfare.runtimes.process.parents import DAEMON_VARIABLE
from fieldfare.runtimes.process.without_pandas import leave_out_pandas


def leave_archives() -> None:
    """Take archives off the path of modules, if PySpark and Py4J are found without them.

    Only while nothing of PySpark is imported. It is the same PySpark, as the archives lie in its folder.
    """
    others = [path for path in sys.path if not path.endswith((".zip", ".jar"))]
    found = PathFinder.find_spec("pyspark", others)
    if found is None or found.origin is None or PathFinder.find_spec("py4j", others) is None:
        return
    folder = f"{os.path.realpath(os.path.dirname(found.origin))}{os.sep}"
    kept = [path for path in sys.path if path in others or not os.path.realpath(path).startswith(folder)]
    left = tuple({*sys.path} - {*kept})
    for path in [path for path in sys.path_importer_cache if path.startswith(left)]:
        del sys.path_importer_cache[path]
    sys.path[:] = kept


def preload() -> None:
    """Import what the matching tasks use and run their kernels once.

    If some had to be compiled, the process replaces itself: the compiler never releases its memory.
    """
    leave_out_pandas()
    import pyspark.worker  # noqa: F401

    import fieldfare.runtimes.spark.range_jobs
    import fieldfare.storage.files.index_store
    import fieldfare.storage.sqlite.log  # noqa: F401
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
    leave_archives()
    from pyspark import daemon

    if sys.argv[1:2] == ["pyspark.worker"]:
        preload()
    daemon.worker = quiet(daemon.worker)
    daemon.manager()
