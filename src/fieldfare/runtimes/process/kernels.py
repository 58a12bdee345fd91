"""The cache of compiled kernels of a running service, and whether it holds all of them.

numba caches compiled kernels beside the sources, or, if those are read-only, in the user's cache. If both are
read-only (a container with a read-only root, systemd's ``DynamicUser=``) it refuses to load them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

CACHE_VARIABLE = "NUMBA_CACHE_DIR"
PACKAGE = Path(__file__).resolve().parents[2]
_COPIED = "fieldfare-copied"
"""Name of the file that notes which kernels were copied."""
_COMPILED = "fieldfare-compiled"
"""Name of the file that notes that all kernels are compiled."""


def choose_kernel_cache(folder: Path) -> None:
    """Make this process and its children cache kernels in a folder, if numba finds no other place.

    Kernels compiled at the package's installation are copied there, once: numba does not read a cache that it
    cannot write.
    """
    if _kernel_cache() is None:
        with suppress(OSError):  # On a full disk kernels are compiled, and not cached.
            folder.mkdir(parents=True, exist_ok=True)
            _copy_compiled(folder)
        os.environ[CACHE_VARIABLE] = str(folder)


def are_kernels_compiled() -> bool:
    """Return whether `note_kernels_compiled` was called for these sources, on such a CPU."""
    if _is_compiler_off():
        return True
    cache = _kernel_cache()
    try:
        return cache is not None and (cache / _COMPILED).read_text() == _fingerprint()
    except OSError:
        return False


def note_kernels_compiled() -> None:
    """Note that all kernels are compiled and cached, for `are_kernels_compiled`."""
    if not _is_compiler_off() and (cache := _kernel_cache()) is not None:
        with suppress(OSError):
            (cache / _COMPILED).write_text(_fingerprint())


def _is_compiler_off() -> bool:
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def _kernel_cache() -> Path | None:
    """Return about where numba caches this package's kernels; None if it finds no place."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    usual = PACKAGE / "matching" / "__pycache__", caches / "numba"
    return next((folder for folder in usual if folder.is_absolute() and _is_writable(folder)), None)


def _is_writable(folder: Path) -> bool:
    """Return whether this process could write into a folder, after creating it if necessary."""
    with suppress(OSError):  # It is in another user's home, for example.
        there = next(path for path in (folder, *folder.parents) if path.exists())
        return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return False


def _fingerprint() -> str:
    """Return a digest of what compiled kernels depend on: their sources, Python, numba and the CPU."""
    found = hashlib.sha256(f"{sys.version} {version('numba')}".encode())
    with suppress(OSError):
        processor = Path("/proc/cpuinfo").read_bytes()
        found.update(b"".join(line for line in processor.split(b"\n\n")[0].splitlines() if b"flags" in line))
    for source in sorted(PACKAGE.rglob("*.py")):
        text = source.read_bytes()
        if b"matching.compiled import" in text:
            found.update(text)
    return found.hexdigest()


def _copy_compiled(folder: Path) -> None:
    compiled = [path for kind in ("nbi", "nbc") for path in PACKAGE.rglob(f"__pycache__/*.{kind}")]
    newest = str(max((path.stat().st_mtime_ns for path in compiled), default=0))
    copied = folder / _COPIED
    if copied.exists() and copied.read_text() == newest:
        return
    for path in compiled:
        # The name that numba searches; if a version of numba searches for another, it compiles again.
        sources = path.parents[1]
        place = folder / f"{sources.name}_{hashlib.sha1(str(sources).encode()).hexdigest()}"
        place.mkdir(exist_ok=True)
        shutil.copyfile(path, place / path.name)
    with suppress(OSError):
        shutil.copyfile(PACKAGE / "matching" / "__pycache__" / _COMPILED, folder / _COMPILED)
    copied.write_text(newest)
