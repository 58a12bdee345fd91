"""Make pyarrow work without pandas, in processes that are the service's own."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa


def leave_out_pandas() -> None:
    """Make pyarrow work without pandas, which it tries to import once, with the first array.

    Pandas takes 45 MB and half a second, and no code of ours passes pandas objects to pyarrow. Not for a
    user's own session, where the next function in the same process may use pandas.
    """
    if "pandas" not in sys.modules:
        hidden = _NoPandas()
        sys.meta_path.insert(0, hidden)
        try:
            pa.array([0])
        finally:
            sys.meta_path.remove(hidden)


class _NoPandas(MetaPathFinder):
    """An import hook that reports pandas as missing."""

    def find_spec(self, name: str, _path: object, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"{name} is left out")
