"""Stories as text files: commands, a line of ``----``, and below it what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol


class Story(Protocol):
    """Acts on commands, one a line; ``lines`` tell what comes of them."""

    lines: list[str]

    def act(self, command: str) -> None: ...


def told(begin: Callable[[], Story], script: str) -> str:
    """The trace of a story."""
    story = begin()
    for command in script.splitlines():
        if command and not command.startswith("#"):
            story.act(command)
    return "\n".join(story.lines)


def parts(path: Path) -> tuple[str, str]:
    """A file's commands and its trace."""
    script, _, trace = path.read_text().partition("\n----\n")
    return script, trace.rstrip("\n")


def record(begin: Callable[[], Story], paths: Iterable[Path]) -> None:
    """Write the traces anew, after a change that was meant."""
    for path in paths:
        script, _ = parts(path)
        path.write_text(f"{script}\n----\n{told(begin, script)}\n")
