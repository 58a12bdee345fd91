"""Freed memory goes back to the system, also where the allocator keeps it: below something that is in use."""

import subprocess
import sys

import pytest

PROGRAM = """
from pathlib import Path
from fieldfare.free_memory import release_free_memory

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

pieces = [bytearray(50_000) for _ in range(2_000)]
del pieces[:-1]
kept = resident_mb()
release_free_memory()
print(kept - resident_mb(), len(pieces[0]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_freed_memory_below_something_in_use_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    released_mb, left = map(int, done.stdout.split())
    assert left == 50_000
    assert released_mb > 80
