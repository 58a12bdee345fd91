"""Writes the client for ordinary programs from the one for asyncio: ``make client``.

The client is written once, in ``client/asynchronous``. Line by line, the words of asyncio become those of
threads; what cannot be said in the same words stands in each folder's ``concurrency``. With ``--check``
nothing is written: exit status 1 says that a file is not what it would be.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "src" / "fieldfare" / "client"
MODULES = ("administration", "client", "connection", "processing", "publisher", "subscriber")
HEADER = "# Made from client/asynchronous/{module}.py by `make client`: change it there.\n"

WORDS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\bAsyncGenerator\[(.*), None\]", r"Generator[\1, None, None]"),
        (r"\bAwaitable\[(\w+(?:\[\w+\])?)\]", r"\1"),
        (r"\bAsync(?=[A-Z])", ""),
        (r"\basync (?=def|with|for)", ""),
        (r"\bawait ", ""),
        (r"\b__a(?=enter__|exit__|iter__|next__)", "__"),
        (r"\bmake_async_http\b", "make_http"),
        (r"\baclos(?=e\b|ing\b)", "clos"),
        (r"\.a(?=read\()", "."),
        (r"\baiter_raw\b", "iter_raw"),
        (r"\bStopAsyncIteration\b", "StopIteration"),
        (r"\bclient\.asynchronous\b", "client.synchronous"),
        (r"\ban ``with`` statement", "a ``with`` statement"),
    )
]


def translated(text: str) -> str:
    """A module for asyncio in the words of threads, not yet formatted."""
    for pattern, replacement in WORDS:
        text = pattern.sub(replacement, text)
    return text


def ruff(text: str, path: Path, *verb: str) -> str:
    """What ruff makes of a text that is to be the file at ``path``."""
    command = [sys.executable, "-m", "ruff", *verb, f"--stdin-filename={path}", "-"]
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{path.name} cannot be made: ruff says\n{done.stdout}{done.stderr}")
    return done.stdout


def make(module: str) -> tuple[Path, str]:
    """Where the twin of a module stands, and what it says."""
    source, target = CLIENT / "asynchronous" / f"{module}.py", CLIENT / "synchronous" / f"{module}.py"
    text = HEADER.format(module=module) + translated(source.read_text())
    # What is left is to sort the imports anew, to drop those not used any more, and to join broken lines.
    text = ruff(text, target, "check", "--quiet", "--select=F401,I", "--fix")
    return target, ruff(text, target, "format", "--quiet")


def main() -> int:
    """The program; gives its exit status."""
    only_check = sys.argv[1:] == ["--check"]
    stale = [(path, text) for path, text in map(make, MODULES) if path.read_text() != text]
    for path, text in stale:
        if only_check:
            print(f"{path.relative_to(ROOT)} is not what its source makes it: run `make client`")
        else:
            path.write_text(text)
    return 1 if stale and only_check else 0


if __name__ == "__main__":
    sys.exit(main())
