"""Have pyarrow do without pandas, in processes that are the service's own."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa


def leave_out_pandas() -> None:
    """Have pyarrow do without pandas, which it looks for once, with the first array that it makes or reads.

    It takes 45 MB and half a second, and no code of ours gives pyarrow anything of pandas. In a user's own
    session this must not be done: there the next function in the same process may be one that does.
    """
    if "pandas" not in sys.modules:
        hidden = _NoPandas()
        sys.meta_path.insert(0, hidden)
        try:
            pa.array([0])
        finally:
            sys.meta_path.remove(hidden)


class _NoPandas(MetaPathFinder):
    """Finds that there is none."""

    def find_spec(self, name: str, _path: object, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"{name} is left out")
