"""A function in a process of its own, which reports over a pipe, as clients of a benchmark do."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection


@contextmanager
def reporting_process(target: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Run a function in a fresh interpreter, and kill that at the end; yield when it has reported once.

    Parameters
    ----------
    target : callable
        Called with the arguments, and last with its end of the pipe.
    """
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=target, args=(*arguments, there), daemon=True)
    process.start()
    there.close()
    try:
        here.recv()
        yield here
    finally:
        process.kill()
        process.join()
