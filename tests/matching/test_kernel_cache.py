"""Kernels are cached on disk with the kernels that they call: a change of one of these counts as a change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fieldfare.matching import compiled
from fieldfare.matching.compiled import callees_digest

CALLEE = (
    "from fieldfare.matching.compiled import compiled\n\n@compiled\ndef add(x):\n    return x + {number}\n"
)
CALLER = """
from fieldfare.matching.compiled import compiled
from {package}.callee import add

@compiled
def called(function, x):
    return function(x)

@compiled
def twice(x):
    return 2 * called(add, x)
"""


class Package:
    """A package of two kernels, and processes that call one of them."""

    def __init__(self, folder: Path) -> None:
        self.sources, self.cache = folder / "fieldfare", folder / "cache"
        (self.sources / "matching").mkdir(parents=True)
        (self.sources / "__init__.py").touch()
        (self.sources / "matching" / "__init__.py").touch()
        (self.sources / "matching" / "compiled.py").write_text(Path(compiled.__file__).read_text())
        (self.sources / "caller.py").write_text(CALLER.format(package="fieldfare"))
        self.write_callee(1)
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "NUMBA_CACHE_DIR": str(self.cache),
        }
        self._environment.pop("NUMBA_DISABLE_JIT", None)

    def write_callee(self, number: int) -> None:
        (self.sources / "callee.py").write_text(CALLEE.format(number=number))

    def run(self, argument: str = "1", before: str = "") -> tuple[float, bool]:
        """Return the kernel's result in a process of its own, and whether the kernel came from the cache."""
        program = (
            f"from fieldfare.caller import twice\n{before}\n"
            f"print(twice({argument}), sum(twice.stats.cache_hits.values()))"
        )
        command = [sys.executable, "-c", program]
        result = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=True)
        value, hits = result.stdout.split()
        return float(value), hits != "0"

    def code_files(self) -> list[Path]:
        return sorted(self.cache.rglob("*.nbc"))


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path)


@pytest.mark.long
def test_a_cached_kernel_is_compiled_again_when_a_kernel_that_it_calls_has_changed_or_moved(
    package: Package,
) -> None:
    """After an update in place matching ended with "No module named ..." or went on with the old kernel."""
    assert [package.run(), package.run()] == [(4, False), (4, True)]
    package.write_callee(2)
    assert [package.run(), package.run()] == [(6, False), (6, True)]
    (package.sources / "moved").mkdir()
    (package.sources / "callee.py").rename(package.sources / "moved" / "callee.py")
    (package.sources / "caller.py").write_text(CALLER.format(package="fieldfare.moved"))
    assert [package.run(), package.run()] == [(6, False), (6, True)]
    for path in package.cache.rglob("*.nb[ci]"):
        path.write_bytes(path.read_bytes()[:-20])
    assert [package.run(), package.run()] == [(6, False), (6, True)]


@pytest.mark.long
def test_code_is_not_run_that_was_compiled_from_other_sources_or_for_other_types(package: Package) -> None:
    """numba writes the index before the code: a process that is killed between them, or two that compile at
    once, leave an index that names another kernel's code.
    """
    package.run()
    old = {path: path.read_bytes() for path in package.code_files()}
    package.write_callee(2)
    package.run()
    for path, code in old.items():
        path.write_bytes(code)
    assert [package.run(), package.run()] == [(6, False), (6, True)]
    package.run("2.5")
    first, second = (path for path in package.code_files() if path.name.startswith("caller.twice"))
    code = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(code)
    assert package.run("2.5") == (9, False) and package.run("1") == (6, False)


@pytest.mark.long
def test_a_changed_byte_of_cached_code_is_not_run(package: Package) -> None:
    package.run()
    for path in package.code_files():
        code = bytearray(path.read_bytes())
        code[len(code) // 2] ^= 1
        path.write_bytes(code)
    assert [package.run(), package.run()] == [(4, False), (4, True)]


@pytest.mark.long
def test_a_kernel_that_cannot_be_cached_runs(package: Package) -> None:
    """The disk is full: matching ended with "No space left on device"."""
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    assert package.run(before=full) == (4, False)


def test_the_digest_covers_kernels_that_are_called_through_others() -> None:
    folder = Path(compiled.__file__).parent
    digests = {path: callees_digest(path) for path in folder.rglob("*_kernels.py")}
    assert len(set(digests.values())) > len(digests) / 2
    assert all(len(each) == 64 for each in digests.values())
