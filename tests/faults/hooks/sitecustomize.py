"""Faults inside the service's Python processes: found through PYTHONPATH, ruled by files.

``FAULT_CLOCK`` names a file with the seconds by which the wall clock is wrong; ``FAULT_POISON`` one with a
text: matching an event that holds it raises, or, when a second line says ``kill``, ends the process.
Both are read at each use, so a test changes them while the service runs. Nothing in the product knows of it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time
from types import ModuleType
from typing import Any

POISONED = "fieldfare.pipeline.matcher"
MATCHING = ("match_space", "visits")
"""What tasks match a space's events with: where they read them, or at the matchers that these are sent to."""


def _skew_s(path: str) -> float:
    try:
        with open(path) as file:
            return float(file.read() or 0)
    except OSError:
        return 0.0


def _bend_the_clock(path: str) -> None:
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + _skew_s(path)
    time.time_ns = lambda: real_ns() + int(_skew_s(path) * 1e9)


def _is_poisoned(events: Any, path: str) -> str | None:
    """How matching these events goes wrong; None for well."""
    try:
        with open(path) as file:
            mark, _, how = file.read().partition("\n")
    except OSError:
        return None
    payload = events.payload
    is_table = hasattr(payload, "to_pylist")
    text = str(payload.to_pylist()).encode() if is_table else bytes(payload)
    return (how or "raise") if mark and mark.encode() in text else None


def _poison(module: ModuleType, name: str, path: str) -> None:
    matched = getattr(module, name)

    def wrapped(events: Any, *rest: Any, **named: Any) -> Any:
        how = _is_poisoned(events, path)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how is not None:
            raise RuntimeError("this record cannot be matched")
        return matched(events, *rest, **named)

    setattr(module, name, wrapped)


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps functions of one module as soon as that is imported."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != POISONED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_poison(module: ModuleType) -> None:
                execute(module)
                for function in MATCHING:
                    _poison(module, function, self._path)

            spec.loader.exec_module = execute_and_poison  # type: ignore[method-assign]
        return spec


if clock := os.environ.get("FAULT_CLOCK"):
    _bend_the_clock(clock)
if poison := os.environ.get("FAULT_POISON"):
    sys.meta_path.insert(0, _Finder(poison))
